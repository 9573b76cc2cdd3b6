"""What a report shows of numerical experiments."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnlab.experiments.catalogue import experiment
from attnlab.experiments.finding import Finding, Row
from attnlab.report.experiments import conditions, left_out
from attnlab.report.experiments_page import overview
from attnlab.report.formats import content_of, render


def test_the_report_shows_of_an_experiment_what_failed_and_links_the_rest(made):
    run = made(lengths=(64, 128), heads=(1,))
    finding = run.findings[0]
    wrong = Row(
        "variance", {"backend": "numpy_blocked", "scaling": "μP", "head_dim": 3}, 1.0, 2.0, 0.1, False
    )
    run.findings = [replace(finding, rows=(*finding.rows, wrong))]
    text = render(content_of(run), {})
    chapter = text[text.index("## Numerical experiments") : text.index("## How sure")]
    assert "**FAIL**" in chapter and "numpy_blocked" in chapter
    assert chapter.count("\n|") == 3, "the failed row alone"
    assert experiment("variance_scaling").lesson in chapter
    assert len(dict(content_of(run).tables())["finding-variance_scaling"]) == len(finding.rows) + 1


def test_backends_that_were_left_out_are_gathered_by_reason():
    facts: dict[str, str | float] = {
        "seed": 0,
        "dtype": "float64",
        "without a in float16": "a declines b1 h1 scale=1: no kernel",
        "without b in float16": "b declines b1 h1 scale=1: no kernel",
        "without a in float32": "a declines b1 h1 scale=1: no kernel",
        "without c in bfloat16": "not installed",
        "backends": "d, e",
    }
    assert conditions(facts) == "Ran with seed 0, in float64, through 2 backends."
    assert conditions({}) == ""
    finding = Finding("x", "", "", "", (), facts)
    assert left_out([finding, finding]) == ["`a` and `b`: no kernel", "`c` in bfloat16: not installed"]


@pytest.mark.parametrize(
    ("conclusion", "shown"),
    [
        ("It holds. All 3 comparisons pass.", "It holds."),
        (f"It is 1 (a, b; c), and so on {'d' * 200}. More.", "It is 1 (a, b; c) …"),
        (f"It is 1 (a, b {'c' * 200}).", "It is 1 …"),
    ],
)
def test_the_table_of_all_experiments_says_what_was_found(conclusion, shown):
    """Whole clauses of the first sentence, none cut within brackets."""
    rows = (Row.compare("variance", {}, 1.0, 1.0), Row.compare("told", {}, None, 1.0))
    found = Finding("variance_scaling", "The variance", "Does it?", conclusion, rows)
    assert overview([found]).splitlines()[-1] == f"|The variance|{shown}|1 of 1|"
