"""What a plan will take, learned from races, and a fleet that is simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.environment import fingerprint
from attnlab.race.limits import Limits
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run
from attnlab.runs.sweep_cutting import cut
from attnlab.runs.sweep_estimate import Costs, Race, estimate, learned, races_of, sample, wall_seconds
from attnlab.runs.sweep_simulation import Fleet, simulate

NAMES = ("torch_eager", "torch_eager#2", "torch_sdpa")
LIMITS = Limits()


def grid(direction: str = "forward") -> tuple[Workload, ...]:
    """24 workloads."""
    lengths, heads = (64, 128, 256, 512, 1024, 2048), (1, 2, 4, 8)
    return tuple(Workload(queries=n, keys=n, heads=h, direction=direction) for n in lengths for h in heads)


def call(name: str, one: Workload) -> float:
    """Seconds of a call by a law of this test's own: overhead, bytes, FLOPs."""
    slower = 2.0 if name == "torch_sdpa" else 1.0
    return slower * (2e-5 + one.least_bytes / 2e10 + one.flops / 4e10)


def race(one: Workload, noise: float = 1.0) -> Race:
    """One whose time follows from its budget: the start, the rounds as limits give them, calls beside these."""
    calls: dict[str, float | None] = {name: call(name, one) for name in NAMES}
    known = [seconds for seconds in calls.values() if seconds is not None]
    a_round = sum(max(LIMITS.turn_seconds, seconds) + LIMITS.settle_seconds for seconds in known)
    rounds = min(LIMITS.workload_seconds, LIMITS.max_rounds * a_round)
    return Race(one, LIMITS, calls, noise * (0.3 * len(NAMES) + rounds + 4 * LIMITS.processes * sum(known)))


def test_a_law_is_learned_from_races_and_holds_for_others() -> None:
    """Without noise all races that were left out are predicted, and larger ones too."""
    costs = Costs([race(one) for one in grid()])
    error = costs.error()
    assert error.races == 24 and error.median < 0.02 and error.worst_of_ten < 0.1 and abs(error.total) < 0.05
    large = Workload(queries=2048, keys=2048, heads=16)
    assert costs.predict([large], NAMES, LIMITS)[0] == pytest.approx(race(large).seconds, rel=0.1)


def test_the_error_told_is_that_of_races_not_seen() -> None:
    """Noise that no fit can know shows in it, at about its size."""
    chance = np.random.default_rng(0)
    found = Costs([race(one, float(np.exp(0.3 * chance.standard_normal()))) for one in grid()]).error()
    assert 0.1 < found.median < 0.5


def test_noise_makes_all_races_together_neither_dear_nor_cheap() -> None:
    """On a machine that others use, some races take twice as long: hours and money must not come out too low."""
    totals = []
    for seed in range(6):
        chance = np.random.default_rng(seed)
        races = [race(one, float(np.exp(0.8 * chance.standard_normal()))) for one in grid()]
        totals.append(Costs(races).error().total)
    assert abs(np.mean(totals)) < 0.15, totals


def test_what_is_not_known_is_not_predicted() -> None:
    """A contender that no race has seen is named; and too few races teach nothing."""
    costs = Costs([race(one) for one in grid()])
    with pytest.raises(
        ValueError, match="nothing is known of what jax_xla takes: no run that is learned from"
    ):
        costs.predict(grid(), [*NAMES, "jax_xla"], LIMITS)
    with pytest.raises(ValueError, match="a run of this version with 5 races or more, got 0"):
        learned([stored(grid()[:3], seconds=None)])


def stored(workloads: tuple[Workload, ...], seconds: float | None, first: float = 0.0) -> Run:
    """A run of races that took `seconds` each, the first one `first` more; 50 s beside them."""
    results = [
        Result(
            name,
            one,
            Outcome.MEASURED,
            measurements=(Measurement("latency", "s", (call(name, one),), {"round": (0.0,)}),),
            race_seconds=None if seconds is None else seconds + (0 if place else first),
        )
        for place, one in enumerate(workloads)
        for name in NAMES
    ]
    account = {"timed": len(workloads) * (seconds or 0.0) + first, "ceilings": 50.0, "numerics": 1e4}
    plan = Plan(workloads=workloads, contenders=("torch_eager", "torch_sdpa"))
    return Run(Path(), plan, {}, NAMES, "torch_eager", account=account, results=results)


def test_the_start_of_processes_belongs_to_the_shard() -> None:
    """Which a run's first race shows; the numerical chapter is not repeated and does not count."""
    run = stored(grid(), 10.0, first=30.0)
    assert [one.seconds for one in races_of(run)] == [40.0, *[10.0] * 23]
    costs = learned([run])
    assert costs.overhead == pytest.approx(80, rel=0.02)
    assert costs.machines == (fingerprint({}),), "for what kind of machine that holds"


def test_hours_and_money_follow_from_shards() -> None:
    """All of them, their starts included; the wall clock by the longest first."""
    costs = learned([stored(grid(), 10.0, first=30.0)])
    plan = Plan(workloads=grid(), contenders=("torch_eager", "torch_sdpa"))
    found = estimate(costs, plan, cut(plan, 4), machines=2, price=3.0)
    assert found.hours == pytest.approx((4 * 80 + 240) / 3600, rel=0.02)
    assert found.money == pytest.approx(3 * found.hours)
    assert found.wall_hours == pytest.approx(found.hours / 2, rel=0.02)
    assert estimate(costs, plan, cut(plan, 4)).money is None
    assert wall_seconds([5, 4, 3, 3, 3], 2) == 10


def test_contenders_that_decline_cost_nothing() -> None:
    """As they did in races of that kind; in others as in all."""
    races = [race(one) for one in (*grid(), *grid("training"))]
    without = [
        replace(one, calls={**one.calls, "torch_sdpa": None}, seconds=one.seconds / 2)
        if one.workload.direction == "training"
        else one
        for one in races
    ]
    asked = [Workload(queries=512, keys=512, direction="training")], NAMES, LIMITS
    assert Costs(without).predict(*asked)[0] < 0.75 * Costs(races).predict(*asked)[0]


def test_a_sample_spans_the_plan() -> None:
    """From the least FLOPs to the most."""
    plan = Plan(workloads=grid(), contenders=("torch_eager",), experiments=("formula",))
    found = sample(plan, 5)
    flops = [one.flops for one in found.workloads]
    assert flops == sorted(flops) and len(flops) == 5 and not found.experiments
    assert (flops[0], flops[-1]) == (min(one.flops for one in grid()), max(one.flops for one in grid()))
    assert len(sample(plan, 100).workloads) == 24


lengths = st.lists(
    st.lists(st.floats(0.5, 50), min_size=1, max_size=8).map(np.array), min_size=1, max_size=12
)


@given(lengths, st.integers(1, 6), st.floats(20, 1e4), st.integers(0, 9))
def test_a_simulated_fleet_loses_and_doubles_nothing(
    shards: list[np.ndarray], machines: int, between_deaths: float, seed: int
) -> None:
    """However often its machines die: what is not done belongs to a shard that was given up."""
    fleet = Fleet(machines=machines, between_deaths=between_deaths, repair=30.0, overhead=5.0, seed=seed)
    found = simulate(shards, fleet)
    total = sum(map(len, shards))
    assert found.lost == found.doubled == 0
    assert found.done <= total and (found.given_up or found.done == total)
    assert 0 <= found.useful <= found.busy <= 1 + 1e-9
    assert found.end >= found.ideal * (1 - 1e-9) or found.given_up


def test_machines_that_live_and_are_alike_take_what_arithmetic_says() -> None:
    """Two machines, three shards, the longest first."""
    fleet = Fleet(machines=2, spread=0.0, between_deaths=1e12, overhead=10.0)
    found = simulate([np.array([20.0, 20.0]), np.array([30.0]), np.array([20.0])], fleet)
    assert (found.end, found.tail, found.busy, found.deaths, found.done) == (70.0, 40.0, 1.0, 0, 4)
    assert found.useful == pytest.approx((40 * 40 / 50 + 30) / 80)
    assert found.ideal == 45.0


def test_a_workload_that_ends_every_job_gives_up_its_shard_alone() -> None:
    """After three jobs."""
    fleet = Fleet(machines=3, between_deaths=1e12, fatal=1.0)
    found = simulate([np.array([5.0])], fleet)
    assert (found.deaths, found.given_up, found.done, found.lost) == (3, 1, 0, 0)
