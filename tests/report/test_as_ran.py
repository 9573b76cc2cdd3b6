"""What ran beside what was asked: lower precision, fallbacks, set-up and the same bits, as the report tells them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic import synthetic

from attnlab.problem.result import Accuracy, Measurement, Result
from attnlab.report import as_ran, sentences
from attnlab.report.analysis import analyse
from attnlab.report.answer import lower_precision
from attnlab.report.formats import content_of, render
from attnlab.runs.store import Run

LOW = "quick[precision=bf16]"
COSTS = {
    "torch_eager": lambda w: 1e-4 + 2e-9 * w.pairs,
    "steady": lambda w: 1e-4 + 1e-9 * w.pairs,
    LOW: lambda w: 0.5e-4 + 0.5e-9 * w.pairs,
}


def told(one: Result, **changes: Any) -> Result:
    """A result of `LOW` as it is filed: in bfloat16, with its error; others as they are."""
    if one.contender != LOW or one.latency is None:
        return one
    accuracy = Accuracy(3.1e-3, 9e-3, 0.01, 64, 64, passed=True)
    return replace(one, computes_in="bfloat16", accuracy=accuracy, **changes)


def run_of(folder: Path, contenders: tuple[str, ...] = (), **options: Any) -> Run:
    run = synthetic(folder, costs=COSTS, contenders=contenders, heads=(4,), lengths=(256, 1024), **options)
    run.results = [told(one) for one in run.results]
    return run


def test_who_computes_in_less_is_never_called_the_fastest(tmp_path: Path) -> None:
    """It is twice as fast, and the sentence says at which precision."""
    analysis = analyse(run_of(tmp_path))
    (group,) = analysis.groups
    for cell in group.cells.values():
        assert cell.ranking is not None and cell.ranking.best.contender == "steady"
        assert cell.ranking.of(LOW) is None
        assert cell.standing(LOW) is not None
    assert all(LOW not in one.won.first for one in analysis.won)
    (said,) = lower_precision(analysis)
    assert said.startswith(
        f"**`{LOW}` computes in bfloat16**, not in its inputs' float32, and is ranked apart."
    )
    assert re.search(r"At n = 1024, 4 heads it is (1.9|2.0)\d+ \[", said)
    assert "times as fast as `steady`, in bfloat16: relative error 0.0031 against 4" in said
    whole = render(content_of(analysis.run), {})
    assert said in whole
    assert f"Use `{LOW}`" not in whole
    assert (
        f"`{LOW}` computes in bfloat16 and is ranked apart, 2.0 times as fast as the fastest at n = 1024"
        in whole
    )


def test_a_fallback_is_said(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.results = [
        replace(one, asked_kernel="_flash", kernel="_math") if one.contender == "steady" else one
        for one in run.results
    ]
    analysis = analyse(run)
    (said,) = as_ran.fallbacks(analysis)
    assert said.startswith("`steady` asked for _flash, but _math ran, at n = 256, 4 heads first")
    (told,) = [one for one in as_ran.contenders(analysis) if one["contender"] == "steady"]
    assert told["what_ran"] == "_math (**asked for _flash**)"
    assert said in render(content_of(run), {})


@pytest.mark.parametrize(
    ("variables", "threads", "said"),
    [
        (
            {"OMP_NUM_THREADS": "1"},
            1,
            ["`OMP_NUM_THREADS=1` was set: libraries computed with 1 thread where 4 cores"],
        ),
        ({"OMP_NUM_THREADS": "4"}, 4, []),
        ({}, 1, []),
    ],
)
def test_a_variable_that_holds_libraries_to_fewer_threads_is_warned_of(
    variables: dict[str, str], threads: int, said: list[str], tmp_path: Path
) -> None:
    """Where pools were smaller for it than the cores that could be used; a contender that asked for it is none."""
    run = run_of(tmp_path)
    pools = {"pools": [{"user_api": "openmp", "num_threads": threads}]}
    run.environment = {
        "cores": {"logical": 8, "physical": 4},
        "affinity": list(range(6)),
        "variables": variables,
        "contenders": {"steady": pools, "steady[threads=2]": {"pools": [{"num_threads": 2}]}},
    }
    warned = [one for one in sentences.warnings(analyse(run)) if "_THREADS" in one]
    assert len(warned) == len(said) and all(map(str.startswith, warned, said))


def setup(*samples: tuple[float, int]) -> Measurement:
    return Measurement(
        "setup",
        "s",
        tuple(seconds for seconds, _ in samples),
        {"fresh": tuple(float(fresh) for _, fresh in samples)},
    )


def test_set_up_has_a_row_a_contender_and_says_when_it_pays_off(tmp_path: Path) -> None:
    """3.5 s against 1 ms: the difference over what a call saves."""
    run = run_of(tmp_path, ("torch_eager", "steady"))
    found = {"steady": setup((3.0, 1), (4.0, 1), (0.01, 0)), "torch_eager": setup((0.001, 1), (0.001, 0))}
    run.results = [
        replace(one, measurements=(*one.measurements, found[one.contender])) for one in run.results
    ]
    analysis = analyse(run)
    rows = {row["contender"]: row for row in as_ran.setups(analysis)}
    steady, eager = rows["steady"], rows["torch_eager"]
    assert (steady["first_s"], steady["further_s"]) == (3.5, 0.01)
    assert steady["pays_off_against"] == "torch_eager" and eager["pays_off_calls"] is None
    exact = 3.499 / 1.05e-9 / 1024**2 / 4
    assert 0.9 * exact < steady["pays_off_calls"] < 1.2 * exact
    table = as_ran.overview(analysis)
    assert "3.50 s" in table and f"after {steady['pays_off_calls']:,} calls" in table
    assert "(median; all in" not in render(content_of(run), {}), "a set-up has its own column"
