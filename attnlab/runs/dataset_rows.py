"""A result as a row of the dataset, with its verdict, and back: the raw samples are there, so that nothing is lost."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

from attnlab.environment import fingerprint
from attnlab.judge.analysis import Cell
from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.ranking import Ranking, Standing
from attnlab.plain import decode
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.runs.dataset_schema import WORKLOAD
from attnlab.runs.store import Run

_PLAIN = ("contender", "library", "reason", "kernel", "asked_kernel", "computes_in", "tail", "race_seconds")
#: what may be None in a record of precision
_EMPTY = ("reason", "kind")


def run_id(run: Run) -> str:
    """Its own; of a run from before that was recorded one that follows from what stays when a run is gone on with."""
    if re.fullmatch(r"[0-9a-f]{16}", run.id):
        return run.id
    told = {"started": run.started, "machine": fingerprint(run.environment), "contenders": run.contenders}
    return _digest(
        {**told, "command": run.command, "workloads": [one.to_dict() for one in run.plan.workloads]}
    )


def race_id(run: str, workload: Workload) -> str:
    """Which race of which run: 16 digits."""
    return _digest([run, workload.to_dict()])


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def race_columns(run: str, workload: Workload) -> dict[str, Any]:
    """What all results of a race have in common. No causal mask is null, as no window is."""
    return {
        "run": run,
        "race": race_id(run, workload),
        "label": workload.label,
        "flops": float(workload.flops),
        **{one.name: getattr(workload, one.name) for one in WORKLOAD},
        "causal": workload.causal or None,
    }


def row_of(result: Result, race: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The row of a result, but for its verdict; `race` are the columns of its race."""
    latency, peak = result.latency, result.peak_bytes
    return {
        **race,
        "place": place,
        **{name: getattr(result, name) for name in _PLAIN},
        "backend": result.backend,
        "outcome": str(result.outcome),
        "latency": None if latency is None else latency.median,
        "setup": result.setup_seconds,
        "peak_memory": None if peak is None else float(peak),
        "accuracy": None if result.accuracy is None else asdict(result.accuracy),
        "measurements": [
            {
                **{name: getattr(one, name) for name in ("quantity", "unit", "median", "samples")},
                "columns": list(one.columns.items()),
                "facts": list(one.facts.items()),
            }
            for one in result.measurements
        ],
    }


def result_of(row: Mapping[str, Any]) -> Result:
    """The inverse of `row_of`. A field that a file has no column for has its default. Raises ValueError."""
    asked = {one.name: row[one.name] for one in WORKLOAD if row.get(one.name) is not None}
    told = {name: row.get(name) for name in (*_PLAIN, "outcome")}
    if row.get("accuracy") is not None:
        known = row["accuracy"].items()
        told["accuracy"] = {name: one for name, one in known if one is not None or name in _EMPTY}
    told["measurements"] = [
        {**one, "columns": dict(one["columns"]), "facts": dict(one["facts"])}
        for one in row.get("measurements") or ()
    ]
    workload = Workload.from_dict(asked)
    return decode({**told, "workload": workload}, Result, "the result", known_only=False)


def verdicts(run: Run, results: Sequence[Result]) -> dict[tuple[Workload, str], dict[str, Any]]:
    """The columns `dataset_schema.VERDICT`, by workload and contender, for `results`, which are whole races."""
    known = {"ceiling_known": bool(run.ceilings), "judged_by": version("attnlab")}
    return {
        (cell.workload, name): {**columns, "margin": cell.margin, **known}
        for cell in replace(run, results=list(results)).judged().cells
        for name, columns in _judged(cell).items()
    }


def _judged(cell: Cell) -> dict[str, dict[str, Any]]:
    """The columns of those who have a verdict, by contender."""
    found = {name: {"standing": "not believed"} for name in cell.answers if name in cell.faults}
    if cell.ranking is None or cell.everyone is None:
        return found
    runner_up = cell.ranking.runner_up
    for ranking in (cell.ranking, cell.everyone):
        for mine in ranking.standings:
            if mine.contender in found:
                continue
            columns: dict[str, Any] = {
                "standing": _standing(cell.ranking, mine),
                "implementation": mine.implementation,
            }
            if mine is not ranking.best:
                columns |= _against(ranking.best, mine.against_best)
            elif runner_up is not None and ranking is cell.ranking:
                columns |= _against(runner_up, runner_up.against_best, turned=True)
            if (one := mine.against_baseline) is not None:
                columns |= {"baseline_ratio": one.ratio, "baseline_low": one.low, "baseline_high": one.high}
            found[mine.contender] = columns
    return found


def _standing(ranking: Ranking, mine: Standing) -> str:
    if ranking.of(mine.contender) is None:
        return "apart"
    if len(ranking.standings) == 1:
        return "alone"
    if ranking.decided and mine in ranking.first:
        return "wins" if len(ranking.first) == 1 else "tied"
    return "slower" if mine.against_best is not None else "no interval"


def _against(other: Standing, verdict: Verdict | None, *, turned: bool = False) -> dict[str, Any]:
    """A comparison with `other`; `turned`, the verdict is one of the other, which is slower."""
    columns: dict[str, Any] = {"against": other.contender}
    if verdict is not None:
        ratio, low, high = verdict.ratio, verdict.low, verdict.high
        columns |= {"verdict": str(Kind.FASTER if turned else verdict.kind), "pairs": verdict.processes}
        columns |= {"ratio": 1 / ratio, "ratio_low": 1 / high, "ratio_high": 1 / low} if turned else {
            "ratio": ratio, "ratio_low": low, "ratio_high": high,
        }  # fmt: skip
    return columns
