"""Small plans and stored runs for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlab.race.admission import Limits
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run
from attnlab.workload.result import Measurement, Outcome, Result

LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 2.0)})
QUICK = Limits(visits=1, most_visits=1, rounds=4, turn_seconds=1e-4, warm_seconds=1e-3)


def plan(**fields: Any) -> Plan:
    """Two small workloads, one contender, nothing beside the race."""
    chosen: dict[str, Any] = {"contenders": ("numpy_vectorized",), "control": False, "memory": False}
    chosen |= {"ceilings": False, "experiments": ("none",), "limits": QUICK, **fields}
    return Plan.grid(lengths=(8, 16), heads=(1,), head_dim=4, **chosen)


def record(folder: Path) -> Run:
    """A run with one measured and one declined result, on disk."""
    names = ("numpy_vectorized", "other")
    one = Run(folder=folder, plan=plan(), environment={"cpu": "x"}, contenders=names, baseline=names[0])
    one.save()
    workload = one.plan.workloads[0]
    one.append([Result(names[0], workload, Outcome.MEASURED, measurements=(LATENCY,))])
    one.append([Result(names[1], workload, Outcome.DECLINED, reason="no")])
    return one
