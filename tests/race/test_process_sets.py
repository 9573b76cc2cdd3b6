"""A race goes through sets of fresh processes: each is checked, and what fails in one ends where it must."""

from __future__ import annotations

from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, processes_of, race

from attnlab.race import conductor
from attnlab.race.disturbance import Lookout, Notice, Others
from attnlab.race.worker_process import Died, Hung, Refused
from attnlab.stats.verdicts import verdicts_against
from attnlab.workload.result import Outcome


@pytest.mark.parametrize("op", ["place", "prepare", "check"])
@pytest.mark.parametrize("fault", [Died("gone"), Hung("late"), Refused("raised", "raised ValueError")])
def test_what_fails_in_a_later_process_ends_one_and_leaves_the_others(
    clock: Clock, op: str, fault: Died | Hung | Refused
) -> None:
    """It was measured in the first; but a backend that may crash in the next process is no choice."""
    failing = FakeWorker("b", clock, faults={(op, 2): fault})
    results, _ = race([FakeWorker("a", clock), failing, FakeWorker("c", clock)])
    assert [result.outcome for result in results] == ["measured", fault.outcome, "measured"]
    assert results[1].reason == str(fault)
    assert processes_of(results[0]) == processes_of(results[2]) == dict.fromkeys(range(5), 6)


@pytest.mark.parametrize("fault", [Died("gone"), Hung("late"), OSError("no memory")])
def test_a_process_that_does_not_start_in_a_later_set_leaves_the_others(clock: Clock, fault: Any) -> None:
    """It sits out that set, and has its verdict from those that it took part in."""
    failing = FakeWorker("b", clock, 0.002, faults={("load", 3): fault})
    results, _ = race([FakeWorker("a", clock), failing])
    assert processes_of(results[0]) == dict.fromkeys(range(5), 6)
    assert processes_of(results[1]) == dict.fromkeys((0, 1, 3, 4), 6)
    assert verdicts_against(results, "a")["b"].kind == "slower"


def test_an_interrupt_while_a_later_set_starts_ends_every_process(clock: Clock) -> None:
    """Of this set and of those before it."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock)]
    workers[1].faults["load", 2] = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt), conductor_of(workers) as running:
        running.race(SMALL)
    assert all(worker.starts >= 2 for worker in workers)
    assert not any(process.alive for worker in workers for process in worker.processes)


def test_what_is_right_in_the_first_process_and_wrong_in_a_later_one_is_wrong(clock: Clock) -> None:
    """An answer that depends on where memory lies is read from where nothing was written."""
    wrong = FakeWorker("b", clock, spoils=lambda process: 1.5 if process == 3 else 1.0)
    results, _ = race([FakeWorker("a", clock), wrong])
    assert [result.outcome for result in results] == ["measured", "wrong"]
    assert (results[1].reason or "").startswith("right in one process, but in another: ")
    assert results[1].accuracy is not None and not results[1].accuracy.passed
    assert results[1].latency is None


# -- turns that had to wait for a core -------------------------------------------------------------------


def test_a_turn_that_waited_for_a_core_is_taken_again(clock: Clock) -> None:
    """What it noted the first time does not stay."""
    noise, delay = lambda turn, process: 3.0 if turn == 4 else 1.0, lambda turn: 0.5 * (turn == 4)
    worker = FakeWorker("a", clock, noise=noise, delay=delay)
    (result,), _ = race([worker])
    assert result.latency is not None and set(result.latency.samples) == {0.001}
    assert result.latency.columns["retaken"] == tuple(float(index == 3) for index in range(30))
    assert not result.latency.disturbed_rounds
    assert worker.asked["Latency"] == 31


@pytest.mark.parametrize(("cores", "disturbed"), [(0.01, False), (0.5, True)])
def test_who_waits_in_most_turns_is_disturbed_only_where_others_used_the_machine(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, cores: float, disturbed: bool
) -> None:
    """Processes or threads of its own wait for each other."""

    class Busy:
        def others(self, ours: Any) -> Others:
            return Others(cores, ("rustc",), (7,))

    monkeypatch.setattr(conductor, "Watch", Busy)
    told: list[str] = []
    (result,), _ = race([FakeWorker("a", clock, delay=lambda turn: 0.5, ready=1.0)], on_event=told.append)
    notices = [one for one in told if isinstance(one, Notice)]
    assert len(notices) == disturbed and all("rustc (process 7)" in one for one in notices)
    assert result.latency is not None and set(result.latency.columns["disturbed"]) == {float(disturbed)}


def test_who_comes_later_is_told_within_seconds_and_nothing_is_looked_at_between_events(clock: Clock) -> None:
    looks: list[float] = []

    class Later:
        def others(self, ours: Any) -> Others:
            looks.append(clock.now)
            return Others(0.9 if clock.now > 30 else 0.1, ("rustc",), (7,))

    told: list[str] = []
    tell: Any = Lookout(told.append, lambda: (), Later)  # type: ignore[arg-type]
    for second in range(0, 120, 3):
        clock.now = second
        tell("a round")
    (at,) = (number for number, one in enumerate(told) if isinstance(one, Notice))
    assert 30 < 3 * at <= 48 and len(looks) < 8 and looks[0] == 3


def test_who_hangs_again_and_again_is_not_waited_for_again(clock: Clock) -> None:
    """After two workloads without an answer a third that is no smaller costs no deadline; a smaller one is tried."""
    hanging = FakeWorker("b", clock, faults={("check", number): Hung("late") for number in range(1, 9)})
    with conductor_of([FakeWorker("a", clock), hanging]) as conductor:
        found = [conductor.race(SMALL.with_(queries=size, keys=size)) for size in (8, 12, 16, 4)]
    assert {hung.outcome for _, hung in found} == {Outcome.TIMED_OUT}
    assert ["not tried" in (hung.reason or "") for _, hung in found] == [False, False, True, False]
    assert all(sound.outcome is Outcome.MEASURED for sound, _ in found)


def test_a_fallback_is_said_in_the_row_and_what_forced_nothing_has_none(clock: Clock) -> None:
    fallen = FakeWorker("fallen", clock, asked_kernel="_flash", kernel="_math")
    forced = FakeWorker("forced", clock, asked_kernel="_flash", kernel="_flash_for_cpu")
    results, _ = race([fallen, forced, FakeWorker("free", clock)])
    assert [one.fell_back for one in results] == [True, False, False]
    assert [one.reason for one in results] == ["it asked for _flash, but _math ran", None, None]
