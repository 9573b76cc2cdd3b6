"""When a race ends and who leaves it early, on workers whose costs are set and not timed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, processes_of, race

from attnlab.race.worker_process import Died, Hung, Refused
from attnlab.stats import verdicts
from attnlab.stats.verdicts import verdicts_against
from attnlab.workload.result import Measurement, Result

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
        pytest.param((0.001, (0.001, uneven)), {"most_processes": 5}, [FIVE] * 2, id="no more allowed"),
        pytest.param((0.001, 0.002, (0.001, uneven)), {}, [TEN, FIVE, TEN], id="one is decided"),
        pytest.param(
            (0.001, (0.001, uneven)), {"further_above": 0.15}, [FIVE] * 2, id="undecided, but no lead of 15 %"
        ),
        pytest.param(
            (0.001, 0.0012, (0.0013, uneven), 0.002),
            {"further_above": 0.15},
            [TEN, FIVE, TEN, FIVE],
            id="the next is decidedly slower, and the one after it undecided",
        ),
        # two rounds of five processes take 2 x 5 x 2 x 1.5 s: all of the extra time
        pytest.param(
            (1.5, (1.5, uneven)),
            {},
            [dict.fromkeys(range(5), 2)] * 2,
            id="slow: two rounds, no sixth process",
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
        kinds.append(verdicts.compare(*early).kind)
    assert kinds == ["undecided", "slower", "slower"]
    assert processes_of(other) == TEN


def test_who_is_far_behind_has_one_round_in_three_processes(clock: Clock) -> None:
    """Another time would be the others'; a factor of five is not that far."""
    results, _ = race(entered(clock, 0.001, 0.5, 0.005))
    assert [processes_of(result) for result in results] == [FIVE, dict.fromkeys(range(3), 1), FIVE]
    assert verdicts_against(results, "a")["b"].kind == "slower"


def test_a_question_that_is_answered_takes_no_more_rounds(clock: Clock) -> None:
    """Whose interval is narrow leaves at a look; the others go on to the most rounds."""
    noisy = [0.001, (0.002, lambda turn, process: 1.0 + 0.2 * (turn % 2)), (0.003, uneven)]
    results, _ = race(entered(clock, *noisy), max_rounds=200, workload_seconds=1e3)
    assert [set(processes_of(result).values()) for result in results] == [{40}, {6}, {40}]


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


@pytest.mark.parametrize(
    "fault", [Died("gone"), Hung("no answer"), Refused("memory", "ran out"), Refused("raised", "ValueError")]
)
def test_a_fault_in_a_turn_ends_one_and_one_after_the_clock_costs_no_speed(clock: Clock, fault: Any) -> None:
    """What it had measured is not its speed; a missing memory figure is noted beside it."""
    failing = FakeWorker("b", clock, faults={("Latency", 4): fault})
    late = FakeWorker("c", clock, faults={("PeakMemory", 1): fault})
    results, _ = race([FakeWorker("a", clock), failing, late])
    assert (results[1].outcome, results[1].reason, results[1].latency) == (fault.outcome, str(fault), None)
    assert processes_of(results[0]) == processes_of(results[2]) == FIVE
    assert results[2].peak_bytes is None
    assert results[2].reason == f"its peak memory could not be measured: {fault}"


def test_who_takes_in_no_request_for_its_memory_costs_nobody_else_a_result(clock: Clock) -> None:
    """Its channel may be full: then sending fails, and not the answer."""

    class Full(FakeWorker):
        def begin(self, op: str, **arguments: Any) -> Any:
            self.alive = False
            raise Hung("takes in no request")

    results, _ = race([FakeWorker("a", clock), Full("b", clock)])
    assert [one.outcome for one in results] == ["measured"] * 2
    assert results[1].reason == "its peak memory could not be measured: takes in no request"


def test_a_backend_that_does_not_load_is_not_started_again(clock: Clock) -> None:
    """Each workload has its reason at once, and none tries it; the sets that start first start together."""
    fault = Refused("unavailable", "needs a library")
    workers = [FakeWorker("a", clock), FakeWorker("b", clock, faults={("load", 1): fault})]
    with conductor_of(workers) as conductor:
        before = workers[1].starts
        found = [conductor.race(SMALL)[1] for _ in range(3)]
    assert {(one.outcome, one.reason) for one in found} == {("unavailable", "needs a library")}
    assert (workers[0].starts, workers[1].starts) == (5, before)


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
