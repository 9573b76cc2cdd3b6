"""When a race ends, who leaves it early and what is never tried: on seats whose costs are set, not timed."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from attnlab.ground.result import Outcome, Result
from attnlab.ground.workload import Workload
from attnlab.judging import accuracy, pairing
from attnlab.measuring import rounds
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.contender import Contender
from attnlab.measuring.seat import Died, Hung, Refused
from attnlab.plan import Limits

#: so that the numbers below do not follow the defaults
FIXED = {"max_rounds": 200, "workload_seconds": 6.0, "extra_seconds": 24.0, "call_seconds": 2.0}
SMALL = Workload(heads=1, queries=4, keys=4, head_dim=4)


class Clock:
    """Monotonic time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeSeat:
    """A worker that answers rightly at once, its calls costing `seconds` each on the fake clock.

    `noise` multiplies what is told of the n-th turn; `faults` are raised in place of the n-th answer to an
    operation. `turns` holds what each turn was asked for: iterations and settling.
    """

    def __init__(self, name: str, clock: Clock, seconds: Any = 0.001, noise: Any = None, **more: Any) -> None:
        self.contender = Contender(name, name)
        self.clock, self.noise = clock, noise or (lambda turn: 1.0)
        self.cost = seconds if callable(seconds) else (lambda workload, calls: seconds)
        self.faults: dict[tuple[str, int], Exception] = more.get("faults", {})
        self.free, self.peak = more.get("free", 2**40), more.get("peak", lambda workload: 1000)
        self.declined = more.get("declines", lambda workload: None)
        self.filled, self.starts = False, 0
        self.asked: Counter[str] = Counter()
        self.tried: list[Workload] = []
        self.turns: list[tuple[int, float | None]] = []
        self.workload = SMALL

    def start(self) -> None:
        self.starts += 1
        self.filled = True

    def finish_start(self) -> dict[str, Any]:
        self._fault("load")
        return {}

    def leave(self) -> None:
        self.filled = False

    def _fault(self, op: str) -> None:
        self.asked[op] += 1
        fault = self.faults.get((op, self.asked[op]))
        if fault is not None:
            if not isinstance(fault, Refused):
                self.filled = False
            raise fault

    def _call(self) -> float:
        self.tried.append(self.workload)
        seconds = float(self.cost(self.workload, len(self.tried)))
        self.clock.now += seconds
        return seconds

    def ask_arrays(self, op: str, *, seconds: float, **arguments: Any) -> Any:
        self._fault(op)
        self._call()
        exact = accuracy.reference(self.workload, tuple(arguments["rows"])).output
        return {}, (exact, exact)

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> dict[str, Any]:
        assert self.filled
        self._fault(op)
        if op in ("declines", "prepare"):
            posed = Workload.from_dict(arguments["workload"])
            if reason := self.declined(posed):
                raise Refused("declined", reason)
            if op == "prepare":
                self.workload = posed
        if op == "calibrate":
            return {"seconds": self._call()}
        if op == "turn":
            return self._turn(**arguments)
        if op == "memory":
            return {"peak_bytes": [self.peak(self.workload)], "method": "memray"}
        return {"kernel": "fake", "bytes": self.free, "cache": "warm"}

    def _turn(self, iterations: int, settle_seconds: float | None) -> dict[str, Any]:
        self.turns.append((iterations, settle_seconds))
        seconds = self._call()
        settled = 0.0 if settle_seconds is None else max(settle_seconds, seconds)
        self.clock.now += settled + (iterations - 1) * seconds
        told = seconds * self.noise(self.asked["turn"])
        return {"seconds": told, "settled_seconds": settled, "minor_faults": 0, "involuntary_switches": 0}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The conductor's clock, and a calibration loop that is never disturbed."""
    one = Clock()
    monkeypatch.setattr(time, "monotonic", one.monotonic)
    monkeypatch.setattr(rounds, "calibration_seconds", lambda: 0.0005)
    monkeypatch.setattr(rounds, "steal_seconds", lambda: 0.0)
    return one


def race(seats: list[FakeSeat], workload: Workload = SMALL, **limits: Any) -> tuple[list[Result], Conductor]:
    """One race of these seats."""
    conductor = Conductor([seat.contender for seat in seats], limits=Limits(**{**FIXED, **limits}))
    conductor.seats = seats  # type: ignore[assignment]  # all that a conductor needs of a seat
    with conductor:
        results = conductor.race(workload)
    assert all(not seat.filled for seat in seats)
    return results, conductor


def rounds_of(result: Result) -> int:
    """How many rounds it was measured in."""
    assert result.latency is not None, result.reason
    return len(result.latency.samples)


def wild(turn: int) -> float:
    """Noise of 20 % that decides nothing about a ratio near 1."""
    return 1.0 + 0.2 * math.sin(turn * turn)


def test_a_decided_race_has_thirty_rounds(clock: Clock) -> None:
    """Not fewer, however clear it was at the sixth."""
    results, _ = race([FakeSeat("a", clock), FakeSeat("b", clock, 0.002), FakeSeat("c", clock, 0.003)])
    assert [rounds_of(result) for result in results] == [30, 30, 30]


def test_a_contender_alone_has_thirty_rounds_too(clock: Clock) -> None:
    """Also where it is alone because the others failed, before the rounds or in them."""
    assert rounds_of(race([FakeSeat("a", clock)])[0][0]) == 30
    others = [
        FakeSeat("b", clock, faults={("prepare", 1): Refused("declined", "no")}),
        FakeSeat("c", clock, faults={("turn", 9): Died("gone")}),
    ]
    results, _ = race([FakeSeat("a", clock), *others])
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

    base, other = race([FakeSeat("a", clock), FakeSeat("b", clock, noise=settling)], min_rounds=min_rounds)[0]
    assert rounds_of(base) == rounds_of(other) == ends
    if ends > min_rounds:  # long decided, and nobody looked
        assert base.latency is not None and other.latency is not None
        early = {float(index) for index in range(ends - 3, ends)}
        verdict = pairing.compare(base.latency, other.latency, disturbed=map(int, early))
        assert verdict.kind is pairing.Kind.EQUIVALENT


def test_an_undecided_race_goes_on_to_the_greatest_number_of_rounds(clock: Clock) -> None:
    """As long as there is time."""
    results, _ = race([FakeSeat("a", clock), FakeSeat("b", clock, noise=wild)], max_rounds=57)
    assert [rounds_of(result) for result in results] == [57, 57]


def test_an_undecided_race_ends_with_its_time(clock: Clock) -> None:
    """Within one round of it."""
    seats = [FakeSeat("a", clock, 0.05), FakeSeat("b", clock, 0.05, noise=wild)]
    results, _ = race(seats, workload_seconds=6.0, settle_below_seconds=0.01)
    assert rounds_of(results[0]) == pytest.approx(60, abs=1)


def test_slow_contenders_get_the_rounds_an_interval_needs_and_no_more(clock: Clock) -> None:
    """Six rounds for two, beyond the workload's time, and within one round of the extra time."""
    seats = [FakeSeat("a", clock, 1.5), FakeSeat("b", clock, 1.5, noise=wild)]
    assert rounds_of(race(seats)[0][0]) == 6
    seats = [FakeSeat("a", clock, 1.5), FakeSeat("b", clock, 1.5)]
    assert rounds_of(race(seats, extra_seconds=0.1)[0][0]) == 3


def test_a_decided_contender_that_costs_more_than_its_share_leaves(clock: Clock) -> None:
    """The slow one; those that are quick race on to thirty rounds, and all keep what they have."""
    seats = [FakeSeat("a", clock), FakeSeat("b", clock, 0.002), FakeSeat("slow", clock, 0.3)]
    results, _ = race(seats)
    assert [rounds_of(result) for result in results] == [30, 30, 7]


def test_a_slow_contender_does_not_starve_the_others(clock: Clock) -> None:
    """It leaves with its verdict even where its rounds have used up the time, and the others then have theirs."""
    seats = [FakeSeat("a", clock), FakeSeat("b", clock, noise=wild), FakeSeat("slow", clock, 0.9)]
    results, _ = race(seats, workload_seconds=4.0)
    assert rounds_of(results[2]) < 10
    assert rounds_of(results[0]) == rounds_of(results[1]) > 50


def test_a_contender_out_of_all_proportion_faster_leaves_too(clock: Clock) -> None:
    """Where it still costs more than its share; eight rounds are the least for an interval among six.

    What it took is not taken from the others, who race on for the whole six seconds of theirs.
    """
    quick = [FakeSeat(name, clock) for name in "cdef"]
    results, _ = race([FakeSeat("a", clock, 0.3), FakeSeat("half", clock, 0.15), *quick])
    assert rounds_of(results[1]) == 8
    assert {rounds_of(result) for result in results if result.contender != "half"} == {18}


@pytest.mark.parametrize(("ratio", "leaves"), [(1.4, False), (1.6, True), (1 / 1.4, False), (1 / 1.6, True)])
def test_only_a_factor_beyond_one_and_a_half_lets_a_contender_leave(
    clock: Clock, ratio: float, leaves: bool
) -> None:
    """A smaller difference can be a false claim, however sharp its interval looks on the way."""
    seats = [FakeSeat("a", clock, 0.5), FakeSeat("b", clock, 0.5 * ratio)]
    seats += [FakeSeat(name, clock) for name in "cdef"]
    results, _ = race(seats, workload_seconds=15.0)
    assert rounds_of(results[0]) > 11
    assert (rounds_of(results[1]) < rounds_of(results[0])) == leaves


def test_the_baseline_alone_does_not_race_on_when_the_others_have_left(clock: Clock) -> None:
    """A further round would have nobody to be paired with, though there is time for two."""
    seats = [FakeSeat("a", clock), FakeSeat("slow", clock, 0.5), FakeSeat("slower", clock, 0.6)]
    results, _ = race(seats, workload_seconds=9.0)
    assert {rounds_of(result) for result in results} == {7}


def test_an_undecided_contender_does_not_leave_for_its_cost(clock: Clock) -> None:
    """Its answer is not known yet."""
    seats = [FakeSeat("a", clock, 0.2), FakeSeat("b", clock, 0.2, noise=wild), FakeSeat("c", clock, 0.001)]
    results, _ = race(seats, settle_below_seconds=0.01)
    assert rounds_of(results[1]) == rounds_of(results[0]) >= 14


def test_a_turn_is_sized_by_the_least_call_seen_so_far(clock: Clock) -> None:
    """Neither a calibration in a bad moment nor a slow turn shortens those that follow."""
    seat = FakeSeat(
        "a",
        clock,
        lambda workload, calls: 0.02 if calls <= 2 else 0.001,  # the gate and the calibration
        lambda turn: 2.0 if turn % 3 == 0 else 1.0,
    )
    race([seat], turn_seconds=0.004)
    assert [iterations for iterations, _ in seat.turns] == [1, *[4] * 29]


def test_every_turn_is_settled_but_that_of_a_long_call(clock: Clock) -> None:
    """For as long as it is timed; a call over the limit is its own settling."""
    short, long = FakeSeat("short", clock, 0.04), FakeSeat("long", clock, 0.06)
    _, conductor = race([short, long], turn_seconds=0.01, settle_below_seconds=0.05)
    assert set(short.turns) == {(1, 0.01)}
    assert set(long.turns) == {(1, None)}
    assert conductor.account["timed"] == pytest.approx(30 * (0.04 + 0.06))
    assert conductor.account["warm-up"] == pytest.approx(30 * 0.04 + 0.04 + 0.06), "with the calibrations"


def test_a_disturbed_round_is_not_counted_towards_the_thirty(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays in the record, with its calibration."""
    calls = iter(range(10**6))
    monkeypatch.setattr(rounds, "calibration_seconds", lambda: 0.001 if next(calls) in (3, 4, 20) else 0.0005)
    results, _ = race([FakeSeat("a", clock), FakeSeat("b", clock, 0.002)])
    assert rounds_of(results[0]) == 33


def test_a_calibration_that_shifts_after_a_contender_left_does_not_end_the_run(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All its rounds may then count as disturbed: it left with its verdict, and nothing is compared anew."""
    calls = iter(range(10**6))
    monkeypatch.setattr(rounds, "calibration_seconds", lambda: 0.0005 if next(calls) < 8 else 0.001)
    seats = [FakeSeat("a", clock), FakeSeat("b", clock, noise=wild), FakeSeat("slow", clock, 0.5)]
    results, _ = race(seats, max_rounds=60)
    assert [result.outcome for result in results] == ["measured"] * 3
    assert rounds_of(results[2]) < 10


def test_where_the_baseline_fails_the_next_that_still_races_takes_its_place(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that has left: its few rounds may all count as disturbed later, and there is nothing to pair."""
    calls = iter(range(10**6))
    monkeypatch.setattr(rounds, "calibration_seconds", lambda: 0.0005 if next(calls) < 8 else 0.001)
    seats = [
        FakeSeat("a", clock, faults={("turn", 20): Died("gone")}),
        FakeSeat("slow", clock, 0.4),
        FakeSeat("c", clock),
        FakeSeat("d", clock, noise=wild),
    ]
    results, _ = race(seats, max_rounds=60)
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
        seats = [
            FakeSeat("a", clock),
            FakeSeat("b", clock, faults={("turn", 8): fault}),
            FakeSeat("c", clock),
        ]
        results, _ = race(seats)
        assert (results[1].outcome, results[1].reason) == (outcome, str(fault))
        assert results[1].latency is None
        assert rounds_of(results[0]) == rounds_of(results[2]) == 30


@pytest.mark.parametrize("op", ["memory", "release"])
@pytest.mark.parametrize(
    "fault", [Died("gone"), Hung("late"), Refused("raised", "raised RuntimeError: no memray")]
)
def test_what_fails_after_the_clock_costs_no_speed(clock: Clock, op: str, fault: Exception) -> None:
    """A missing memory figure is noted beside the speed that was measured."""
    results, _ = race([FakeSeat("a", clock, faults={(op, 1): fault}), FakeSeat("b", clock)])
    assert rounds_of(results[0]) == 30
    if op == "memory":
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
        seats = [FakeSeat("a", clock), FakeSeat("b", clock, faults={("load", 1): fault})]
        conductor = Conductor([seat.contender for seat in seats])
        conductor.seats = seats  # type: ignore[assignment]  # all that a conductor needs of a seat
        with conductor:
            for _ in range(3):
                absent = conductor.race(SMALL)[1]
                assert (absent.outcome, absent.reason) == (outcome, str(fault))
        assert (seats[0].starts, seats[1].starts) == (1, 1)


def test_the_account_adds_up_to_the_time_of_the_race(clock: Clock) -> None:
    """Also where something fails on the way."""
    seats = [
        FakeSeat("a", clock, 0.004),
        FakeSeat("b", clock, 0.3),
        FakeSeat("c", clock, faults={("turn", 2): Died("x")}),
    ]
    _, conductor = race(seats)
    assert sum(conductor.account.values()) == pytest.approx(clock.now)
    assert all(seconds >= -1e-9 for seconds in conductor.account.values())


def test_an_interrupt_while_starting_ends_every_worker(clock: Clock) -> None:
    """Nobody else would: a context that was not entered is not left."""
    seats = [FakeSeat("a", clock), FakeSeat("b", clock)]
    conductor = Conductor([seat.contender for seat in seats])
    conductor.seats = seats  # type: ignore[assignment]  # all that a conductor needs of a seat
    seats[1].finish_start = lambda: (_ for _ in ()).throw(KeyboardInterrupt)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt), conductor:
        pass
    assert not any(seat.filled for seat in seats)


# -- what is never tried ---------------------------------------------------------------------------------

BIG = Workload(heads=8, queries=2048, keys=2048)


def by_flops(rate: float) -> Any:
    """Seconds in proportion to the work."""
    return lambda workload, calls: workload.flops / rate


def test_what_would_take_too_long_is_never_tried(clock: Clock) -> None:
    """A loop in Python: told from the first rung whose successor would not be affordable."""
    seat = FakeSeat("loop", clock, by_flops(1e7))
    (result,), _ = race([seat], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "over the limit of 2 s" in (result.reason or "")
    assert max(tried.queries for tried in seat.tried) <= 256
    assert clock.now < 5.0


def test_what_is_just_quick_enough_is_tried(clock: Clock) -> None:
    """And nothing on its ladder was larger than it."""
    seat = FakeSeat("loop", clock, by_flops(BIG.flops / 1.9))
    (result,), _ = race([seat], BIG)
    assert result.outcome is Outcome.MEASURED
    assert seat.tried[-1] == BIG


def test_a_slow_first_call_rules_nothing_out(clock: Clock) -> None:
    """Ten seconds of compiling, then fast."""
    seat = FakeSeat("compiled", clock, lambda workload, calls: 10.0 if calls == 1 else workload.flops / 1e11)
    (result,), _ = race([seat], BIG)
    assert result.outcome is Outcome.MEASURED


def test_a_workload_is_not_declined_for_its_smaller_ones(clock: Clock) -> None:
    """A backend that needs long sequences is asked about the question, not about a rung."""
    seat = FakeSeat(
        "long",
        clock,
        by_flops(1e11),
        declines=lambda workload: "too short" if workload.queries < 512 else None,
    )
    (result,), _ = race([seat], BIG)
    assert result.outcome is Outcome.MEASURED
    assert race([FakeSeat("long", clock, declines=seat.declined)])[0][0].reason == "too short"


def test_what_would_not_fit_is_never_tried(clock: Clock) -> None:
    """Told from two small sizes; what grows with the length alone is tried at the same free memory."""
    free = 2**30

    def quadratic(workload: Workload) -> int:
        return 3 * workload.score_bytes + workload.output_bytes

    def linear(workload: Workload) -> int:
        return 2 * workload.output_bytes + 2**20

    workload = BIG.with_(queries=8192, keys=8192)
    seats = [
        FakeSeat("quadratic", clock, by_flops(1e13), free=free, peak=quadratic),
        FakeSeat("linear", clock, by_flops(1e13), free=free, peak=linear),
    ]
    results, _ = race(seats, workload)
    assert [result.outcome for result in results] == ["over_budget", "measured"]
    assert "predicted to need 6." in (results[0].reason or "")
    assert max(quadratic(tried) for tried in seats[0].tried) < free


def test_inputs_that_do_not_fit_are_not_even_drawn(clock: Clock) -> None:
    """Nothing is prepared where input and output alone are too large."""
    seat = FakeSeat("any", clock, by_flops(1e18), free=2**20)
    (result,), _ = race([seat], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert BIG not in seat.tried


def test_a_backend_that_spoils_its_inputs_is_wrong(clock: Clock) -> None:
    """Right at the first call, and something else on the clock."""
    seat = FakeSeat("spoiler", clock)
    honest = seat.ask_arrays

    def spoilt(op: str, **arguments: Any) -> Any:
        answer, (first, second) = honest(op, **arguments)
        return answer, (first, second * 2)

    seat.ask_arrays = spoilt  # type: ignore[method-assign]
    (result,), _ = race([seat])
    assert result.outcome is Outcome.WRONG
    assert "right at the first call, but at the second: outside the values it averages" in (
        result.reason or ""
    )


def test_not_a_number_is_called_by_its_name(clock: Clock) -> None:
    """And neither an error of nan nor a pass."""
    answer = np.full((1, 1, 4, 4), np.nan)
    answer[0, 0, 0, 0] = 1.0
    judged = accuracy.judge(SMALL, [0, 1, 2, 3], answer)
    assert not judged.passed
    assert judged.reason == "NaN in 15 of 16 values, in query row 0 first; every input is finite"
