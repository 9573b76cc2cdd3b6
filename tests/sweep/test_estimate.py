"""What a plan will take: the starts and calls of its races, added up as they were measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnlab.environment import fingerprint
from attnlab.race.limits import Limits
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run
from attnlab.runs.sweep_cutting import learned
from attnlab.workload.result import Measurement, Outcome, Result
from attnlab.workload.workload import Workload

NAMES = ("torch_eager", "torch_eager#2", "torch_sdpa")
PLAN = Plan(
    workloads=tuple(
        Workload(queries=n, keys=n, heads=h) for n in (64, 128, 256, 512, 1024, 2048) for h in (1, 2, 4, 8)
    ),
    contenders=("torch_eager", "torch_sdpa"),
)
START, BESIDE, FIRST = 0.4, 50.0, 30.0


def seconds(one: Workload) -> float:
    """Of a race by a law of this test's own: every process's start, then rounds of calls as the limits give them."""
    limits, call = Limits(), one.flops / 4e10
    settle = limits.settle_seconds if call < limits.settle_below_seconds else 0.0
    a_round = len(NAMES) * (max(call, limits.turn_seconds) + settle)
    rounds = max(min(limits.workload_seconds, limits.max_rounds * a_round), 2 * limits.processes * a_round)
    rounds = min(limits.utmost_seconds, rounds)
    return START * limits.processes * len(NAMES) + rounds


def stored(workloads: tuple[Workload, ...]) -> Run:
    """A run of such races, the first one longer; 50 s beside them."""
    results = []
    for place, one in enumerate(workloads):
        took = seconds(one) + (0.0 if place else FIRST)
        for name in NAMES:
            latency = Measurement("latency", "s", (one.flops / 4e10,), {"round": (0.0,)})
            results.append(Result(name, one, Outcome.MEASURED, measurements=(latency,), race_seconds=took))
    spent = sum(result.race_seconds or 0.0 for result in results[:: len(NAMES)])
    account = {"timed": spent, "ceilings": BESIDE, "numerics": 1e4}
    return Run(
        Path(), replace(PLAN, workloads=workloads), {}, NAMES, "torch_eager", account=account, results=results
    )


def test_starts_and_calls_of_races_are_added_up() -> None:
    """For workloads that were measured and for others; what a run does beside its races belongs to the shard."""
    costs = learned([stored(PLAN.workloads[::3])])
    for one, found in zip(PLAN.workloads, costs.of_plan(PLAN), strict=True):
        assert found == pytest.approx(seconds(one), rel=0.15)
    assert costs.overhead == pytest.approx(BESIDE + FIRST, rel=0.2)
    assert costs.off < 0.1 and costs.machines == (fingerprint({}),)


def test_what_is_not_known_is_not_predicted() -> None:
    with pytest.raises(ValueError, match="nothing is known of what numpy_vectorized takes: no run that is"):
        learned([stored(PLAN.workloads)]).of_plan(
            replace(PLAN, contenders=("torch_eager", "numpy_vectorized"))
        )
    with pytest.raises(ValueError, match="a run of this version with 5 races or more, got 3"):
        learned([stored(PLAN.workloads[:3])])
