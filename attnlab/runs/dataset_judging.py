"""The verdicts of a run's races, as columns beside its results: what its report says, in numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from attnlab.judge.analysis import Cell
from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.ranking import Ranking, Standing
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.runs.store import Run


def verdicts(run: Run, results: Iterable[Result]) -> dict[tuple[Workload, str], dict[str, Any]]:
    """The columns `dataset_schema.VERDICT`, by workload and contender, for `results`, which are whole races."""
    known = {"ceiling_known": bool(run.ceilings), "judged_by": version("attnlab")}
    found: dict[tuple[Workload, str], dict[str, Any]] = {}
    for cell in replace(run, results=list(results)).judged().cells:
        common = {"margin": cell.margin, **known}
        for name, columns in _judged(cell).items():
            found[cell.workload, name] = columns | common
    return found


def _judged(cell: Cell) -> dict[str, dict[str, Any]]:
    """The columns of those who have a verdict, by contender."""
    found: dict[str, dict[str, Any]] = {
        name: {"standing": "not believed"} for name in cell.answers if name in cell.faults
    }
    if cell.ranking is None or cell.everyone is None:
        return found
    first, runner_up = cell.ranking.first, cell.ranking.runner_up
    peers = {one.contender for one in cell.ranking.standings}
    for ranking in (cell.ranking, cell.everyone):
        for mine in ranking.standings:
            if mine.contender in found:
                continue
            apart = mine.contender not in peers
            columns = found[mine.contender] = {
                "standing": "apart" if apart else _standing(cell.ranking, mine, first),
                "implementation": mine.implementation,
            }
            if mine is not ranking.best:
                columns |= _against(ranking.best.contender, mine.against_best)
            elif runner_up is not None and not apart:
                columns |= _against(runner_up.contender, _turned(runner_up.against_best))
            if (one := mine.against_baseline) is not None:
                columns |= {"baseline_ratio": one.ratio, "baseline_low": one.low, "baseline_high": one.high}
    return found


def _standing(ranking: Ranking, mine: Standing, first: Collection[Standing]) -> str:
    if len(ranking.standings) == 1:
        return "alone"
    if ranking.decided and any(mine is one for one in first):
        return "wins" if len(first) == 1 else "tied"
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
