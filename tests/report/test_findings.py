"""What a report shows of numerical experiments."""

from __future__ import annotations

from dataclasses import replace

from attnlab.experiments import experiment
from attnlab.experiments.finding import Row
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
