"""When a race ends and who leaves it early, on workers whose costs are set and not timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, race, rounds_of

from attnlab.contract.result import Outcome
from attnlab.measuring import race as racing
from attnlab.measuring.worker_process import Died, Hung, Refused
from attnlab.statistics import pairing


def wild(turn: int) -> float:
    """Noise of 20 % that decides nothing about a ratio near 1."""
    return 1.0 + 0.2 * math.sin(turn * turn)


def calibrations(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
    """Lets the calibration loop tell `seconds` of its number, counted from 0."""
    numbers = count()
    monkeypatch.setattr(racing, "calibration_seconds", lambda: seconds(next(numbers)))


def entered(clock: Clock, *costs: float | tuple[float, Any]) -> list[FakeWorker]:
    """Workers a, b, c, ... of these seconds a call, each with the noise that stands beside them."""
    pairs = [one if isinstance(one, tuple) else (one, None) for one in costs]
    return [FakeWorker(name, clock, *pair) for name, pair in zip("abcdef", pairs, strict=False)]


@pytest.mark.parametrize(
    ("costs", "limits", "rounds"),
    [
        pytest.param((0.001, 0.002, 0.003), {}, [30, 30, 30], id="decided, however clear at the sixth"),
        pytest.param((0.001,), {}, [30], id="alone"),
        pytest.param((0.001, (0.001, wild)), {"max_rounds": 57}, [57, 57], id="undecided, with time left"),
        pytest.param((1.5, (1.5, wild)), {}, [6, 6], id="slow: what an interval needs, beyond the time"),
        pytest.param((1.5, 1.5), {"extra_seconds": 0.1}, [3, 3], id="slow: within a round of the extra time"),
        pytest.param((0.001, 0.002, 0.3), {}, [30, 30, 7], id="one is decided, above its share"),
        # eight rounds are the least for an interval among six; the others have the whole six seconds of theirs
        pytest.param((0.3, 0.15, *[0.001] * 4), {}, [18, 8, *[18] * 4], id="a faster one above its share"),
        # there is time for two rounds more
        pytest.param((0.001, 0.5, 0.6), {"workload_seconds": 9.0}, [7, 7, 7], id="all but the baseline left"),
    ],
)
def test_a_race_has_as_many_rounds_as_its_verdicts_and_its_time_ask_for(
    clock: Clock, costs: tuple[Any, ...], limits: dict[str, float], rounds: list[int]
) -> None:
    """Those that leave keep what they have."""
    results, _ = race(entered(clock, *costs), **limits)
    assert [rounds_of(result) for result in results] == rounds


def test_a_contender_whose_others_failed_has_thirty_rounds_too(clock: Clock) -> None:
    """Before the rounds or in them."""
    others = [
        FakeWorker("b", clock, faults={("prepare", 1): Refused("declined", "no")}),
        FakeWorker("c", clock, faults={("Latency", 9): Died("gone")}),
    ]
    results, _ = race([FakeWorker("a", clock), *others])
    assert rounds_of(results[0]) == 30
    assert [result.outcome for result in results] == ["measured", "declined", "crashed"]


@pytest.mark.parametrize(
    ("min_rounds", "unclear", "ends"), [(30, 10, 30), (30, 26, 60), (30, 50, 120), (10, 8, 20), (10, 20, 40)]
)
def test_verdicts_are_looked_at_after_the_least_rounds_and_then_at_each_doubling(
    clock: Clock, min_rounds: int, unclear: int, ends: int
) -> None:
    """An interval that is consulted after every round claims a difference sooner or later."""

    def settling(turn: int) -> float:
        return 1.0 if turn > unclear else (1.2, 1 / 1.2)[turn % 2]

    (base, other), _ = race(entered(clock, 0.001, (0.001, settling)), min_rounds=min_rounds)
    assert rounds_of(base) == rounds_of(other) == ends
    if ends > min_rounds:  # long decided, and nobody looked
        assert base.latency is not None and other.latency is not None
        early = {float(index) for index in range(ends - 3, ends)}
        verdict = pairing.compare(base.latency, other.latency, disturbed=map(int, early))
        assert verdict.kind is pairing.Kind.EQUIVALENT


def test_an_undecided_race_ends_with_its_time(clock: Clock) -> None:
    """Within one round of it."""
    workers = entered(clock, 0.05, (0.05, wild))
    results, _ = race(workers, workload_seconds=6.0, settle_below_seconds=0.01)
    assert rounds_of(results[0]) == pytest.approx(60, abs=1)


def test_a_slow_contender_does_not_starve_the_others(clock: Clock) -> None:
    """It leaves with its verdict even where its rounds have used up the time, and the others then have theirs."""
    results, _ = race(entered(clock, 0.001, (0.001, wild), 0.9), workload_seconds=4.0)
    assert rounds_of(results[2]) < 10
    assert rounds_of(results[0]) == rounds_of(results[1]) > 50


@pytest.mark.parametrize(("ratio", "leaves"), [(1.4, False), (1.6, True), (1 / 1.4, False), (1 / 1.6, True)])
def test_only_a_factor_beyond_one_and_a_half_lets_a_contender_leave(
    clock: Clock, ratio: float, leaves: bool
) -> None:
    """A smaller difference can be a false claim, however sharp its interval looks on the way."""
    results, _ = race(entered(clock, 0.5, 0.5 * ratio, *[0.001] * 4), workload_seconds=15.0)
    assert rounds_of(results[0]) > 11
    assert (rounds_of(results[1]) < rounds_of(results[0])) == leaves


def test_an_undecided_contender_does_not_leave_for_its_cost(clock: Clock) -> None:
    """Its answer is not known yet."""
    results, _ = race(entered(clock, 0.2, (0.2, wild), 0.001), settle_below_seconds=0.01)
    assert rounds_of(results[1]) == rounds_of(results[0]) >= 14


def test_a_turn_is_sized_by_the_least_call_seen_so_far(clock: Clock) -> None:
    """Neither a calibration in a bad moment nor a slow turn shortens those that follow."""

    def seconds(workload: Any, calls: int) -> float:
        return 0.02 if calls <= 2 else 0.001  # the gate and the calibration

    worker = FakeWorker("a", clock, seconds, lambda turn: 2.0 if turn % 3 == 0 else 1.0)
    race([worker], turn_seconds=0.004)
    assert [iterations for iterations, _ in worker.turns] == [1, *[4] * 29]


def test_every_turn_is_settled_but_that_of_a_long_call(clock: Clock) -> None:
    """For as long as it is timed; a call over the limit is its own settling."""
    short, long = FakeWorker("short", clock, 0.04), FakeWorker("long", clock, 0.06)
    _, conductor = race([short, long], turn_seconds=0.01, settle_below_seconds=0.05)
    assert set(short.turns) == {(1, 0.01)}
    assert set(long.turns) == {(1, None)}
    assert conductor.account["timed"] == pytest.approx(30 * (0.04 + 0.06))
    assert conductor.account["warm-up"] == pytest.approx(30 * 0.04 + 0.04 + 0.06), "with the calibrations"


def test_a_disturbed_round_is_not_counted_towards_the_thirty(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays in the record, with its calibration."""
    calibrations(monkeypatch, lambda number: 0.001 if number in (3, 4, 20) else 0.0005)
    results, _ = race(entered(clock, 0.001, 0.002))
    assert rounds_of(results[0]) == 33


def test_a_calibration_that_shifts_after_a_contender_left_does_not_end_the_run(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its rounds may then count as disturbed: it left with its verdict, and nothing is compared anew."""
    calibrations(monkeypatch, lambda number: 0.0005 if number < 8 else 0.001)
    results, _ = race(entered(clock, 0.001, (0.001, wild), 0.5), max_rounds=60)
    assert [result.outcome for result in results] == ["measured"] * 3
    assert rounds_of(results[2]) < 10


def test_where_the_baseline_fails_the_next_that_still_races_takes_its_place(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that has left: its few rounds may all count as disturbed later, and there is nothing to pair."""
    calibrations(monkeypatch, lambda number: 0.0005 if number < 8 else 0.001)
    workers = [
        FakeWorker("a", clock, faults={("Latency", 20): Died("gone")}),
        FakeWorker("slow", clock, 0.4),
        FakeWorker("c", clock),
        FakeWorker("d", clock, noise=wild),
    ]
    results, _ = race(workers, max_rounds=60)
    assert [result.outcome for result in results] == ["crashed", "measured", "measured", "measured"]
    assert [rounds_of(result) for result in results[1:]] == [7, 60, 60]


def test_a_fault_in_a_turn_ends_one_and_leaves_the_others(clock: Clock) -> None:
    """What it had measured is not its speed."""
    for fault, outcome in (
        (Died("its process was killed"), Outcome.CRASHED),
        (Hung("no answer"), Outcome.TIMED_OUT),
        (Refused("memory", "ran out of memory"), Outcome.OVER_BUDGET),
        (Refused("raised", "raised ValueError"), Outcome.CRASHED),
    ):
        failing = FakeWorker("b", clock, faults={("Latency", 8): fault})
        results, _ = race([FakeWorker("a", clock), failing, FakeWorker("c", clock)])
        assert (results[1].outcome, results[1].reason) == (outcome, str(fault))
        assert results[1].latency is None
        assert rounds_of(results[0]) == rounds_of(results[2]) == 30


@pytest.mark.parametrize("op", ["PeakMemory", "release"])
@pytest.mark.parametrize(
    "fault", [Died("gone"), Hung("late"), Refused("raised", "raised RuntimeError: no memray")]
)
def test_what_fails_after_the_clock_costs_no_speed(clock: Clock, op: str, fault: Exception) -> None:
    """A missing memory figure is noted beside the speed that was measured."""
    results, _ = race([FakeWorker("a", clock, faults={(op, 1): fault}), FakeWorker("b", clock)])
    assert rounds_of(results[0]) == 30
    if op == "PeakMemory":
        assert results[0].peak_bytes is None
        assert results[0].reason == f"its peak memory could not be measured: {fault}"
    else:
        assert results[0].peak_bytes == 1000


def test_a_backend_that_does_not_load_is_started_once_a_run(clock: Clock) -> None:
    """Each later workload has its reason at once."""
    for fault, outcome in (
        (Refused("unavailable", "needs a library"), "unavailable"),
        (Died("its process was killed by SIGSEGV"), "crashed"),
        (Hung("no answer within 120 s"), "timed_out"),
    ):
        workers = [FakeWorker("a", clock), FakeWorker("b", clock, faults={("load", 1): fault})]
        with conductor_of(workers) as conductor:
            for _ in range(3):
                absent = conductor.race(SMALL)[1]
                assert (absent.outcome, absent.reason) == (outcome, str(fault))
        assert (workers[0].starts, workers[1].starts) == (1, 1)


def test_the_account_adds_up_to_the_time_of_the_race(clock: Clock) -> None:
    """Also where something fails on the way."""
    failing = FakeWorker("c", clock, faults={("Latency", 2): Died("x")})
    _, conductor = race([*entered(clock, 0.004, 0.3), failing])
    assert sum(conductor.account.values()) == pytest.approx(clock.now)
    assert all(seconds >= -1e-9 for seconds in conductor.account.values())


def test_an_interrupt_while_starting_ends_every_worker(clock: Clock) -> None:
    """Nobody else would: a context that was not entered is not left."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock)]
    workers[1].finish_start = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), conductor_of(workers):
        pass
    assert not any(worker.alive for worker in workers)
