"""What would clearly be too slow or too large is never tried, and nothing else is ruled out: on fake workers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import strategies
from fake_workers import Clock, FakeWorker, race
from hypothesis import given

from attnlab.race.admission import rungs, sort_of
from attnlab.race.worker_process import Refused
from attnlab.workload.drawing import problem_of
from attnlab.workload.result import Outcome
from attnlab.workload.workload import Workload

BIG = Workload(heads=8, queries=2048, keys=2048)


def by_flops(rate: float) -> Any:
    """Seconds in proportion to the work."""
    return lambda workload, calls: workload.flops / rate


# -- time ------------------------------------------------------------------------------------------


def test_what_would_take_too_long_is_never_tried(clock: Clock) -> None:
    """Predicted from the first rung whose successor would not be affordable; with the time it asks for it is tried."""
    worker = FakeWorker("loop", clock, by_flops(1e7))
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "over the limit of 2 s" in (result.reason or "")
    assert max(tried.queries for tried in worker.tried) <= 256
    assert clock.now < 5.0
    enough = int((result.reason or "").split("--seconds ")[1].split()[0])
    (result,), _ = race([FakeWorker("loop", clock, by_flops(1e7))], BIG, workload_seconds=enough)
    assert result.outcome is Outcome.MEASURED, result.reason


@pytest.mark.parametrize(
    "seconds",
    [
        by_flops(BIG.flops / 1.9),
        lambda workload, calls: 0.2 + workload.flops / 1e11,
        lambda workload, calls: 10.0 if calls == 1 else workload.flops / 1e11,
    ],
    ids=["just quick enough", "all calls wait for threads on a busy machine", "the first call compiles"],
)
def test_what_is_quick_enough_is_tried(clock: Clock, seconds: Any) -> None:
    """What every call costs does not grow with the size, and a slow first call rules nothing out."""
    worker = FakeWorker("a", clock, seconds)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED, result.reason
    assert worker.tried[-1] == BIG


@given(strategies.workloads(longest=2_000))
def test_rungs_end_can_be_drawn_and_have_work(workload: Workload) -> None:
    """One head of keys each, and its query heads. What does not fit a smaller length is cut or left out."""
    ladder = list(rungs(workload))
    assert len(ladder) <= 6
    for rung in ladder:
        assert 0 < rung.flops < workload.flops
        assert (rung.kv_heads, rung.batch, rung.direction) == (1, 1, workload.direction)
        assert rung.heads == workload.heads // workload.kv_heads
        assert rung.queries <= workload.queries and rung.keys <= workload.keys
    for lower, upper in pairwise(ladder):
        assert lower.flops < upper.flops
    if ladder:
        assert problem_of(ladder[0].with_(distribution="normal")).kv_heads == 1
    assert sort_of(sort_of(workload)) == sort_of(workload)


# -- memory ----------------------------------------------------------------------------------------


def test_inputs_that_do_not_fit_are_not_even_drawn(clock: Clock) -> None:
    """Nothing is prepared where input and output alone are too large; figures say why."""
    worker = FakeWorker("any", clock, by_flops(1e18), free=2**20)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "are free, 85 % of it may be used" in (result.reason or "")
    assert worker.tried == []


def test_memory_that_others_took_meanwhile_leaves_a_process_out(clock: Clock) -> None:
    """Its other processes stand, and it is noted."""
    worker = FakeWorker("a", clock, faults={("prepare", 2): Refused("memory", "ran out of memory")})
    (result,), _ = race([worker])
    assert result.outcome is Outcome.MEASURED and result.latency is not None
    assert set(result.latency.visits.values()) == {0, 2, 3, 4}
    assert result.reason == "left out of one process: ran out of memory"
