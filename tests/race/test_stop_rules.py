"""When a race ends and who leaves it early, on workers whose costs are set and not timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, processes_of, race, rounds_of

from attnlab.judge import pairing, replication
from attnlab.problem.result import Measurement, Outcome, Result
from attnlab.race.worker_process import Died, Hung, Refused

#: six rounds a process, in five and in ten of them
FIVE, TEN = dict.fromkeys(range(5), 6), dict.fromkeys(range(10), 6)


def uneven(turn: int, process: int) -> float:
    """Processes of two speeds, 40 % apart, which decide nothing about a ratio near 1."""
    return 1.2 if process % 2 else 1 / 1.2


def entered(clock: Clock, *costs: float | tuple[float, Any]) -> list[FakeWorker]:
    """Workers a, b, c, ... of these seconds a call, each with the noise that stands beside them."""
    pairs = [one if isinstance(one, tuple) else (one, None) for one in costs]
    return [FakeWorker(name, clock, *pair) for name, pair in zip("abcdef", pairs, strict=False)]


def latency(result: Result) -> Measurement:
    """Its seconds a call."""
    assert result.latency is not None, result.reason
    return result.latency


def cut(one: Measurement, rounds: int) -> Measurement:
    """Its first rounds."""
    columns = {name: column[:rounds] for name, column in one.columns.items()}
    return replace(one, samples=one.samples[:rounds], columns=columns)


@pytest.mark.parametrize(
    ("costs", "limits", "sets"),
    [
        pytest.param((0.001, 0.002, 0.003), {}, [FIVE] * 3, id="decided, however clear at the second"),
        pytest.param((0.001,), {}, [FIVE], id="alone"),
        pytest.param((0.001, 0.001), {}, [FIVE] * 2, id="equivalent"),
        pytest.param((0.001, (0.001, uneven)), {}, [TEN] * 2, id="undecided"),
        pytest.param(
            (0.001, (0.001, uneven)), {"most_processes": 7}, [dict.fromkeys(range(7), 6)] * 2, id="seven"
        ),
        pytest.param(
            (0.001, (0.001, uneven)), {"most_processes": 5}, [FIVE] * 2, id="undecided, and no more allowed"
        ),
        pytest.param((0.001, 0.002, (0.001, uneven)), {}, [TEN, FIVE, TEN], id="one is decided"),
        pytest.param(
            (0.001, (0.0012, uneven)), {"further_above": 0.15}, [TEN] * 2, id="a lead of 20 % is undecided"
        ),
        pytest.param(
            (0.001, (0.001, uneven)), {"further_above": 0.15}, [FIVE] * 2, id="undecided, but no lead of 15 %"
        ),
        pytest.param(
            (0.003, 0.001, (0.0012, uneven), 0.002),
            {"further_above": 0.15},
            [TEN, TEN, TEN, FIVE],
            id="the lead is another's than the baseline's",
        ),
        pytest.param(
            (0.001, 0.0012, (0.0013, uneven), 0.002),
            {"further_above": 0.15},
            [TEN, FIVE, TEN, FIVE],
            id="the next is decidedly slower, and the one after it undecided",
        ),
        # a fresh round takes 4 x 1.5 s, the next 2 x 1.5 s: no third fits, and the fourth process has spent it all
        pytest.param(
            (1.5, (1.5, uneven)), {}, [{0: 2, 1: 2, 2: 2, 3: 1}] * 2, id="slow: two rounds, in the extra time"
        ),
        pytest.param(
            (1.5, 1.5), {"extra_seconds": 0.1}, [{0: 2}] * 2, id="slow: within a round of the extra time"
        ),
    ],
)
def test_a_race_has_as_many_processes_as_its_verdicts_and_its_time_ask_for(
    clock: Clock, costs: tuple[Any, ...], limits: dict[str, Any], sets: list[dict[int, int]]
) -> None:
    """Those that are decided keep what they have, and no process of theirs is started any more."""
    workers = entered(clock, *costs)
    results, _ = race(workers, **limits)
    assert [processes_of(result) for result in results] == sets
    assert [worker.starts for worker in workers] == [len(one) for one in sets]


def test_verdicts_are_looked_at_twice_and_not_in_between(clock: Clock) -> None:
    """An interval that is consulted after every process claims a difference sooner or later."""

    def settling(turn: int, process: int) -> float:
        return math.exp((0.0, 0.4)[process % 2] if process < 5 else 0.2)

    (base, other), _ = race(entered(clock, 0.001, (0.001, settling)))
    kinds = []
    for processes in (5, 8, 10):
        early = (cut(latency(one), 6 * processes) for one in (base, other))
        kinds.append(pairing.compare(*early).kind)
    assert kinds == ["undecided", "slower", "slower"]
    assert processes_of(other) == TEN


def test_a_slow_contender_does_not_starve_the_others(clock: Clock) -> None:
    """It leaves with its verdict after its third process, and the time that it took is given back to them."""
    results, _ = race(entered(clock, 0.001, (0.001, uneven), 0.9), workload_seconds=4.0)
    assert set(processes_of(results[2])) == {0, 1, 2}
    for one in results[:2]:
        assert processes_of(one).keys() == TEN.keys()
        assert all(rounds == 6 for number, rounds in processes_of(one).items() if number > 2)


@pytest.mark.parametrize(("ratio", "leaves"), [(1.4, False), (1.6, True), (1 / 1.4, False), (1 / 1.6, True)])
def test_only_a_factor_beyond_one_and_a_half_lets_a_contender_leave(
    clock: Clock, ratio: float, leaves: bool
) -> None:
    """A smaller difference can be a false claim, however sharp its interval looks on the way."""
    results, _ = race(entered(clock, 0.5, 0.5 * ratio, *[0.001] * 4))
    assert set(processes_of(results[0])) == set(range(5))
    assert set(processes_of(results[1])) == set(range(3 if leaves else 5))


@pytest.mark.parametrize("cheap", [True, False])
def test_a_contender_leaves_only_where_it_costs_more_than_its_share(clock: Clock, cheap: bool) -> None:
    """A fast one may be as different as it likes."""
    results, _ = race(entered(clock, 0.001, 0.01 if cheap else 0.5))
    assert set(processes_of(results[1])) == set(range(5 if cheap else 3))


def test_a_turn_whose_calls_took_fresh_pages_is_taken_again(clock: Clock) -> None:
    """Where the contender's other turns did without; one whose every call takes some is what it is."""
    once = FakeWorker("a", clock, page_faults=lambda turn: 4096 if turn == 3 else 0)
    always = FakeWorker("b", clock, page_faults=lambda turn: 4096)
    results, _ = race([once, always])
    assert [sum(latency(one).columns["retaken"]) for one in results] == [1.0, 0.0]
    assert not any(latency(one).disturbed_rounds for one in results)


def noisy(within: float, between: float) -> Callable[[int, int], float]:
    """Log noise of these amplitudes, from turn to turn and from process to process."""
    return lambda turn, process: math.exp(within * (-1) ** turn + between * (-1) ** process)


@pytest.mark.parametrize(
    ("within", "between", "ready", "rounds"),
    [
        pytest.param(0.2, 0.0, 0.0, 20, id="all rounds where the processes are alike"),
        pytest.param(0.001, 0.2, 0.0, 6, id="the least where they differ by far more than rounds do"),
        pytest.param(0.1, 0.03, 0.5, None, id="between the two"),
    ],
)
def test_from_the_third_process_on_there_are_as_many_rounds_as_pay(
    clock: Clock, within: float, between: float, ready: float, rounds: int | None
) -> None:
    """By what the processes before have shown of the scatter, and by what a process and a round cost."""
    noise = noisy(within, between)
    workers = [FakeWorker("a", clock), FakeWorker("b", clock, 0.001, noise, ready=ready)]
    results, _ = race(workers, max_rounds=100, most_processes=5)
    counted = processes_of(results[0])
    assert counted[0] == counted[1] == 20
    if rounds is None:
        pairs = pairing.log_ratios(*map(latency, results))
        found = replication.components({number: pairs[number] for number in (0, 1)})
        assert found is not None
        # the two checks; a turn of 5 ms is settled for as long
        aim = replication.rounds_per_process(found, ready + 2 * 0.001, 2 * (0.005 + 0.005))
        rounds = math.ceil(aim)
        assert 6 < rounds < 20
    assert counted[2] == rounds


def test_every_turn_is_settled_but_those_of_a_long_call_in_pages_that_it_has_touched(clock: Clock) -> None:
    """For as long as the limits say; a call over the limit settles once after its arrays were placed anew."""
    short, long = FakeWorker("short", clock, 0.04), FakeWorker("long", clock, 0.06)
    _, conductor = race([short, long], turn_seconds=0.01, settle_below_seconds=0.05)
    assert set(short.turns) == {(1, 0.005)}
    assert long.turns == [(1, 0.0), (1, None), (1, None), (1, None), (1, 0.0), (1, None)] * 5
    assert conductor.account["timed"] == pytest.approx(30 * (0.04 + 0.06))
    assert conductor.account["warm-up"] == pytest.approx(30 * 0.04 + 10 * 0.06 + 0.04 + 0.06), (
        "with calibrations"
    )


def test_where_the_baseline_fails_the_next_that_still_races_takes_its_place(clock: Clock) -> None:
    """Not one that has left: it shares too few rounds with those that race on."""
    workers = [
        FakeWorker("a", clock, faults={("Latency", 20): Died("gone")}),
        FakeWorker("slow", clock, 0.5),
        FakeWorker("c", clock),
        FakeWorker("d", clock, noise=uneven),
    ]
    results, _ = race(workers)
    assert [result.outcome for result in results] == ["crashed", "measured", "measured", "measured"]
    assert [set(processes_of(result)) for result in results[1:]] == [set(range(3)), set(TEN), set(TEN)]


def test_a_fault_in_a_turn_ends_one_and_leaves_the_others(clock: Clock) -> None:
    """What it had measured is not its speed."""
    for fault, outcome in (
        (Died("its process was killed"), Outcome.CRASHED),
        (Hung("no answer"), Outcome.TIMED_OUT),
        (Refused("memory", "ran out of memory"), Outcome.OVER_BUDGET),
        (Refused("raised", "raised ValueError"), Outcome.CRASHED),
    ):
        failing = FakeWorker("b", clock, faults={("Latency", 4): fault})
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
    """Each later workload has its reason at once, and no later set tries it."""
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
        assert (workers[0].starts, workers[1].starts) == (5, 1)


def test_the_account_adds_up_to_the_time_of_the_race(clock: Clock) -> None:
    """Also where something fails on the way, where turns are taken again, and where arrays are placed."""
    failing = FakeWorker("c", clock, faults={("Latency", 2): Died("x"), ("place", 4): Died("x")})
    waiting = FakeWorker(
        "d", clock, 0.002, uneven, delay=lambda turn: 0.1 * (turn % 3 == 0), ready=0.1, placing=0.2
    )
    _, conductor = race([*entered(clock, 0.004, 0.03), failing, waiting])
    assert sum(conductor.account.values()) == pytest.approx(clock.now)
    assert all(seconds >= -1e-9 for seconds in conductor.account.values())
    assert conductor.account["placing"] == pytest.approx(5 * 0.2)
    assert conductor.account["preparing"] == pytest.approx(5 * 0.1)
