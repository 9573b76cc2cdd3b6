"""The verdicts of a run's races, as columns beside its results: what its report says, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from attnlab.contract.result import Result
from attnlab.contract.workload import Workload
from attnlab.program.store import Run
from attnlab.report.analysis import Cell, judge
from attnlab.statistics.pairing import Kind, Verdict
from attnlab.statistics.ranking import Standing


def verdicts(run: Run, results: Iterable[Result]) -> dict[tuple[Workload, str], dict[str, Any]]:
    """The columns `attnlab.dataset.schema.VERDICT`, by workload and contender, for `results`, which are whole races."""
    known = {"ceiling_known": bool(run.ceilings), "judged_by": version("attnlab")}
    found: dict[tuple[Workload, str], dict[str, Any]] = {}
    for cell in judge(replace(run, results=list(results)))[1]:
        for name in cell.answers:
            if columns := _columns(cell, name):
                found[cell.workload, name] = {**columns, "margin": cell.margin, **known}
    return found


def _columns(cell: Cell, name: str) -> dict[str, Any]:
    if name in cell.faults:
        return {"standing": "not believed"}
    mine = cell.standing(name)
    if mine is None or cell.ranking is None or cell.everyone is None:
        return {}
    apart = cell.ranking.of(name) is None
    best = (cell.everyone if apart else cell.ranking).best
    columns: dict[str, Any] = {
        "standing": "apart" if apart else _standing(cell, mine),
        "implementation": mine.implementation,
    }
    if mine is not best:
        columns |= _against(best.contender, mine.against_best)
    elif (second := cell.ranking.runner_up) is not None and not apart:
        columns |= _against(second.contender, _turned(second.against_best))
    if mine.against_baseline is not None:
        one = mine.against_baseline
        columns |= {"baseline_ratio": one.ratio, "baseline_low": one.low, "baseline_high": one.high}
    return columns


def _standing(cell: Cell, mine: Standing) -> str:
    ranking = cell.ranking
    assert ranking is not None  # who stands in it is asked
    if len(ranking.standings) == 1:
        return "alone"
    if mine in ranking.first and ranking.decided:
        return "wins" if len(ranking.first) == 1 else "tied"
    return "slower" if mine.against_best is not None else "no interval"


def _against(name: str, verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return {"against": name}
    return {
        "against": name,
        "verdict": str(verdict.kind),
        "ratio": verdict.ratio,
        "ratio_low": verdict.low,
        "ratio_high": verdict.high,
        "pairs": verdict.processes,
    }


def _turned(verdict: Verdict | None) -> Verdict | None:
    """The same verdict said of the other one: it is slower, so that this one is faster."""
    if verdict is None:
        return None
    low, high = 1 / verdict.high, 1 / verdict.low
    return replace(verdict, kind=Kind.FASTER, ratio=1 / verdict.ratio, low=low, high=high)
