"""A result as a row of the dataset, and back: the raw samples are there, so that nothing is lost on the way."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from attnlab.plain import decode
from attnlab.problem.result import Accuracy, Result
from attnlab.problem.workload import Workload
from attnlab.race.environment import fingerprint
from attnlab.runs.dataset_schema import WORKLOAD
from attnlab.runs.store import Run

_PLAIN = ("contender", "library", "reason", "kernel", "asked_kernel", "computes_in", "tail", "race_seconds")
_ACCURACY = tuple(one.name for one in fields(Accuracy))


def run_id(run: Run) -> str:
    """Its own; of a run from before that was recorded one that follows from what stays when a run is gone on with."""
    if re.fullmatch(r"[0-9a-f]{16}", run.id):
        return run.id
    return _digest(
        {
            "started": run.started,
            "machine": fingerprint(run.environment),
            "contenders": run.contenders,
            "command": run.command,
            "workloads": [one.to_dict() for one in run.plan.workloads],
        }
    )


def race_id(run: str, workload: Workload) -> str:
    """Which race of which run: 16 digits."""
    return _digest([run, workload.to_dict()])


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


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def row_of(result: Result, race: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The row of a result, but for its verdict; `race` are the columns of its race."""
    latency, peak, accuracy = result.latency, result.peak_bytes, result.accuracy
    return {
        **race,
        "place": place,
        **{name: getattr(result, name) for name in _PLAIN},
        "backend": result.backend,
        "outcome": str(result.outcome),
        "latency": None if latency is None else latency.median,
        "setup": result.setup_seconds,
        "peak_memory": None if peak is None else float(peak),
        "accuracy": None if accuracy is None else {name: getattr(accuracy, name) for name in _ACCURACY},
        "measurements": [
            {
                "quantity": one.quantity,
                "unit": one.unit,
                "median": one.median,
                "samples": one.samples,
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
    if row["accuracy"] is not None:
        told["accuracy"] = {
            name: one for name, one in row["accuracy"].items() if one is not None or name in _EMPTY
        }
    told["measurements"] = [
        {**one, "columns": dict(one["columns"]), "facts": dict(one["facts"])}
        for one in row["measurements"] or ()
    ]
    workload = Workload.from_dict(asked)
    return decode({**told, "workload": workload}, Result, "the result", known_only=False)


#: what may be None in a record of precision
_EMPTY = ("reason", "kind")
