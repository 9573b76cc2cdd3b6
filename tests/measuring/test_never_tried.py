"""What is predicted to be too slow or too large is never tried, and nothing else is ruled out: on fake workers."""

from __future__ import annotations

from typing import Any

import pytest
from fake_workers import Clock, FakeWorker, race

from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload

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


def test_a_workload_is_not_declined_for_its_smaller_ones(clock: Clock) -> None:
    """A backend that needs long sequences is asked about the question, not about a rung."""

    def short(workload: Workload) -> str | None:
        return "too short" if workload.queries < 512 else None

    worker = FakeWorker("long", clock, by_flops(1e11), declines=short)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.MEASURED
    assert race([FakeWorker("long", clock, declines=short)])[0][0].reason == "too short"


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


@pytest.mark.parametrize("excess", [2**20, 2**24, 2**32], ids="{:.0e} B".format)
@pytest.mark.parametrize("length", [256, 512, 1024, 2048, 4096])
def test_what_one_small_call_took_beyond_its_own_rules_nothing_out(
    length: int, excess: int, clock: Clock
) -> None:
    """Fitted by a share of the score matrix it is many times what the machine has; larger calls show none."""

    def linear(workload: Workload) -> int:
        return 2 * workload.output_bytes + 2**18 + excess * (workload.keys == length)

    workload = BIG.with_(queries=32768, keys=32768)
    assert workload.score_bytes == 2**35
    worker = FakeWorker("fused", clock, by_flops(1e13), free=2**31, peak=linear)
    (result,), _ = race([worker], workload)
    assert result.outcome is Outcome.MEASURED, result.reason


@pytest.mark.parametrize("length", [256, 512, 1024, 2048, 4096])
@pytest.mark.parametrize("share", [0.5, 1.0, 3.0])
def test_a_part_of_the_score_matrix_is_never_tried_where_it_does_not_fit(
    share: float, length: int, clock: Clock
) -> None:
    """Whichever of the small calls took more than its own, and nothing that does not fit is called to find out."""
    free = 2**31

    def quadratic(workload: Workload) -> int:
        return int(share * workload.score_bytes) + workload.output_bytes + 2**24 * (workload.keys == length)

    worker = FakeWorker("n x n", clock, by_flops(1e13), free=free, peak=quadratic)
    (result,), _ = race([worker], BIG.with_(queries=32768, keys=32768))
    assert result.outcome is Outcome.OVER_BUDGET
    assert max(quadratic(tried) for tried in worker.tried) < free / 2


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


@pytest.mark.parametrize(
    ("seconds", "outcome"), [(1e-3, Outcome.MEASURED), (1.0, Outcome.OVER_BUDGET)], ids=["near", "far"]
)
def test_a_prediction_made_beside_a_neighbour_refuses_only_what_is_far_over(
    clock: Clock, seconds: float, outcome: Outcome
) -> None:
    """A team of threads that waits for its last member takes many times as long: undisturbed it may be within."""
    worker = FakeWorker("a", clock, lambda workload, calls: seconds * workload.flops / 1e6, waited=0.5)
    (result,), _ = race([worker], Workload(heads=1, queries=512, keys=512), call_seconds=0.02)
    assert result.outcome is outcome
