"""What is predicted to be too slow or too large is never tried, and nothing else is ruled out: on fake workers."""

from __future__ import annotations

from typing import Any

from fake_workers import Clock, FakeWorker, race

from attnlab.contract.result import Outcome
from attnlab.contract.workload import Workload

BIG = Workload(heads=8, queries=2048, keys=2048)


def by_flops(rate: float) -> Any:
    """Seconds in proportion to the work."""
    return lambda workload, calls: workload.flops / rate


def test_what_would_take_too_long_is_never_tried(clock: Clock) -> None:
    """A loop in Python: predicted from the first rung whose successor would not be affordable."""
    worker = FakeWorker("loop", clock, by_flops(1e7))
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "over the limit of 2 s" in (result.reason or "")
    assert max(tried.queries for tried in worker.tried) <= 256
    assert clock.now < 5.0


def test_what_is_just_quick_enough_is_tried(clock: Clock) -> None:
    """And nothing on its ladder was larger than it."""
    worker = FakeWorker("loop", clock, by_flops(BIG.flops / 1.9))
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED
    assert worker.tried[-1] == BIG


def test_what_every_call_costs_does_not_grow_with_the_size(clock: Clock) -> None:
    """Waiting for threads on a busy machine: 0.2 s for a call of any size are not half an hour for a large one."""
    worker = FakeWorker("waiting", clock, lambda workload, calls: 0.2 + workload.flops / 1e11)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED, result.reason


def test_a_slow_first_call_rules_nothing_out(clock: Clock) -> None:
    """Ten seconds of compiling, then fast."""
    worker = FakeWorker(
        "compiled", clock, lambda workload, calls: 10.0 if calls == 1 else workload.flops / 1e11
    )
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED


def test_a_workload_is_not_declined_for_its_smaller_ones(clock: Clock) -> None:
    """A backend that needs long sequences is asked about the question, not about a rung."""
    worker = FakeWorker(
        "long",
        clock,
        by_flops(1e11),
        declines=lambda workload: "too short" if workload.queries < 512 else None,
    )
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED
    assert race([FakeWorker("long", clock, declines=worker.declined)])[0][0].reason == "too short"


def test_what_would_not_fit_is_never_tried(clock: Clock) -> None:
    """Told from two small sizes; what grows with the length alone is tried at the same free memory."""
    free = 2**30

    def quadratic(workload: Workload) -> int:
        return 3 * workload.score_bytes + workload.output_bytes

    def linear(workload: Workload) -> int:
        return 2 * workload.output_bytes + 2**20

    workload = BIG.with_(queries=8192, keys=8192)
    workers = [
        FakeWorker("quadratic", clock, by_flops(1e13), free=free, peak=quadratic),
        FakeWorker("linear", clock, by_flops(1e13), free=free, peak=linear),
    ]
    results, _ = race(workers, workload)
    assert [result.outcome for result in results] == ["over_budget", "measured"]
    assert "predicted to need 6." in (results[0].reason or "")
    assert max(quadratic(tried) for tried in workers[0].tried) < free


def test_the_memory_of_a_backward_pass_includes_what_its_forward_pass_leaves(clock: Clock) -> None:
    """The call that is measured holds one score matrix, but three more lie there before it."""
    workload = BIG.with_(queries=8192, keys=8192, direction="backward")

    def peak(workload: Workload) -> int:
        return {"backward": 1, "training": 4}[workload.direction] * workload.score_bytes

    for matrices, expected in ((3, Outcome.OVER_BUDGET), (6, Outcome.MEASURED)):
        worker = FakeWorker("a", clock, by_flops(1e14), free=matrices * workload.score_bytes, peak=peak)
        (result,), _ = race([worker], workload)
        assert result.outcome is expected, result.reason


def test_inputs_that_do_not_fit_are_not_even_drawn(clock: Clock) -> None:
    """Nothing is prepared where input and output alone are too large."""
    worker = FakeWorker("any", clock, by_flops(1e18), free=2**20)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert BIG not in worker.tried
