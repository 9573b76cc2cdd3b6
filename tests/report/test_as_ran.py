"""What ran beside what was asked: lower precision, fallbacks, set-up and the same bits, as the report tells them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from synthetic import synthetic

from attnlab.report import data_tables, tables
from attnlab.report.analysis import analyse
from attnlab.report.answer import lower_precision
from attnlab.report.formats import content_of, render
from attnlab.runs.store import Run
from attnlab.workload.result import Accuracy

LOW = "quick[precision=bf16]"
COSTS = {
    "torch_eager": lambda w: 1e-4 + 2e-9 * w.pairs,
    "steady": lambda w: 1e-4 + 1e-9 * w.pairs,
    LOW: lambda w: 0.5e-4 + 0.5e-9 * w.pairs,
}


def run_of(folder: Path) -> Run:
    """What `LOW` found is filed as in bfloat16, with its error."""
    run = synthetic(folder, costs=COSTS, heads=(4,), lengths=(256, 1024))
    accuracy = Accuracy(3.1e-3, 9e-3, 0.01, 64, 64, passed=True)
    for place, one in enumerate(run.results):
        if one.contender == LOW:
            run.results[place] = replace(one, computes_in="bfloat16", accuracy=accuracy)
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
    assert said.startswith(f"**`{LOW}` computes in bfloat16**")
    assert re.search(r"At n = 1024, 4 heads it is (1.9|2.0)\d+ \[", said)
    assert "times as fast as `steady`, in bfloat16: relative error 0.0031 against 4" in said
    whole = render(content_of(analysis.run), {})
    assert said in whole and f"Use `{LOW}`" not in whole


def test_a_fallback_is_said(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.results = [
        replace(one, asked_kernel="_flash", kernel="_math") if one.contender == "steady" else one
        for one in run.results
    ]
    analysis = analyse(run)
    (said,) = tables.fallbacks(analysis)
    assert said.startswith("`steady` asked for _flash, but _math ran, at n = 256, 4 heads first")
    (told,) = [one for one in data_tables.contenders(analysis) if one["contender"] == "steady"]
    assert told["what_ran"] == "_math (**asked for _flash**)"
    assert said in render(content_of(run), {})
