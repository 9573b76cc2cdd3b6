"""A race goes through crews of fresh processes: each is checked, and what fails in one ends where it must."""

from __future__ import annotations

from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, processes_of, race

from attnlab import system as memory
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Outcome
from attnlab.race import conductor, disturbance
from attnlab.race import race as racing
from attnlab.race.worker_process import Died, Hung, Refused


def uneven(turn: int, process: int) -> float:
    """Processes of two speeds, which decide nothing about a ratio near 1."""
    return 1.2 if process % 2 else 1 / 1.2


def test_every_turn_tells_its_process_and_its_placement(clock: Clock) -> None:
    """Four rounds a placement; rounds are counted through."""
    (result,), _ = race([FakeWorker("a", clock)])
    assert result.latency is not None
    columns = result.latency.columns
    assert columns["round"] == tuple(range(30))
    assert columns["process"] == tuple(index // 6 for index in range(30))
    assert columns["placement"] == tuple(index % 6 // 4 for index in range(30))


def test_arrays_are_placed_anew_every_four_rounds_but_not_after_the_last(clock: Clock) -> None:
    """A process that starts has them somewhere new anyway."""
    worker = FakeWorker("a", clock)
    race([worker], min_rounds=60, max_rounds=60)
    assert worker.asked["place"] == 2 * 5  # twelve rounds a process


def test_what_cannot_be_placed_is_noted_and_not_asked_again(clock: Clock) -> None:
    """The others are placed; its speed stands, one placement a process."""
    stuck = FakeWorker("b", clock, stays="its inputs take over 256 MiB")
    free = FakeWorker("a", clock)
    (one, other), _ = race([free, stuck])
    assert (free.asked["place"], stuck.asked["place"]) == (5, 1)
    assert one.latency is not None and other.latency is not None
    assert "placement" not in one.latency.facts
    assert other.latency.facts["placement"] == "one a process: its inputs take over 256 MiB"


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
    assert failing.starts == 2


def test_a_process_that_dies_in_a_turn_of_a_later_crew_is_a_crash(clock: Clock) -> None:
    """And the next workload starts a new one in its place, in that crew alone."""
    failing = FakeWorker("b", clock, faults={("Latency", 9): Died("killed by SIGSEGV")})
    with conductor_of([FakeWorker("a", clock), failing]) as running:
        first, second = running.race(SMALL), running.race(SMALL)
    assert (first[1].outcome, first[1].reason) == (Outcome.CRASHED, "killed by SIGSEGV")
    assert second[1].outcome is Outcome.MEASURED
    assert failing.starts == 5 + 1


@pytest.mark.parametrize(
    "fault", [Died("gone"), Hung("late"), Refused("unavailable", "no"), OSError("no memory")]
)
def test_a_process_that_does_not_start_in_a_later_crew_leaves_the_others(
    clock: Clock, fault: Exception
) -> None:
    """It sits out that crew, and has its verdict from those that it took part in."""
    failing = FakeWorker("b", clock, 0.002, faults={("load", 3): fault})
    results, _ = race([FakeWorker("a", clock), failing])
    assert processes_of(results[0]) == dict.fromkeys(range(5), 6)
    assert processes_of(results[1]) == dict.fromkeys((0, 1, 3, 4), 6)
    verdict = verdicts_against(results, "a")["b"]
    assert (verdict.kind, verdict.processes, verdict.rounds) == ("slower", 4, 24)


def test_an_interrupt_while_a_later_crew_starts_ends_every_process(clock: Clock) -> None:
    """Of this crew and of those before it."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock)]
    with pytest.raises(KeyboardInterrupt), conductor_of(workers) as running:
        workers[1].faults["load", 2] = KeyboardInterrupt()  # type: ignore[assignment]
        running.race(SMALL)
    assert [worker.starts for worker in workers] == [2, 2]
    assert not any(process.alive for worker in workers for process in worker.processes)


def test_where_nobodys_process_starts_the_race_goes_on_with_the_next_crew(clock: Clock) -> None:
    """There is nothing to race in that one."""
    (result,), _ = race([FakeWorker("a", clock, faults={("load", 2): Died("gone")})])
    assert processes_of(result) == dict.fromkeys((0, 2, 3, 4), 6)


def test_what_is_right_in_the_first_process_and_wrong_in_a_later_one_is_wrong(clock: Clock) -> None:
    """An answer that depends on where memory lies is read from where nothing was written."""
    wrong = FakeWorker("b", clock, spoils=lambda process: 1.5 if process == 3 else 1.0)
    results, _ = race([FakeWorker("a", clock), wrong])
    assert [result.outcome for result in results] == ["measured", "wrong"]
    assert (results[1].reason or "").startswith("right in one process, but in another: ")
    assert results[1].accuracy is not None and not results[1].accuracy.passed
    assert results[1].latency is None


def test_an_answer_that_differs_by_a_rounding_from_process_to_process_is_right(clock: Clock) -> None:
    """And what is told of its error is that of the first."""
    other = FakeWorker("b", clock, spoils=lambda process: 1.0 + 5e-8 * process)
    honest, rounded = race([FakeWorker("a", clock), other])[0]
    assert rounded.outcome is Outcome.MEASURED, rounded.reason
    assert rounded.accuracy == honest.accuracy


def test_further_processes_are_started_for_open_verdicts_alone(clock: Clock) -> None:
    """And for the baseline, which they are compared with."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock, 0.002), FakeWorker("c", clock, noise=uneven)]
    race(workers)
    assert [worker.starts for worker in workers] == [10, 5, 10]
    assert [worker.asked["check"] for worker in workers] == [10, 5, 10]


def test_the_other_instruments_measure_in_the_first_crew_alone(clock: Clock) -> None:
    """What a call takes of memory does not depend on where it lies."""
    worker = FakeWorker("a", clock)
    race([worker])
    assert worker.asked["PeakMemory"] == 1
    assert worker.asked["attest"] == 1


def on_a_machine(monkeypatch: pytest.MonkeyPatch, size: int, *workers: FakeWorker) -> None:
    """Of so many bytes, of which its running processes take theirs."""

    def free() -> int:
        return size - sum(one.resident_bytes() for worker in workers for one in worker.processes)

    monkeypatch.setattr(memory, "free_bytes", free)


@pytest.mark.parametrize(("resident", "kept"), [(0, 4), (2**20, 4), (2**30, 3)])
def test_later_crews_are_kept_for_the_next_workload_where_there_is_room(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, resident: int, kept: int
) -> None:
    """Where they take no more than a part of what would be free; the first crew always is, and the last ends first."""
    workers = [FakeWorker("a", clock, resident=resident), FakeWorker("b", clock)]
    on_a_machine(monkeypatch, 7 * 2**30, *workers)
    with conductor_of(workers) as running:
        running.race(SMALL)
        alive = [[process.alive for process in worker.processes] for worker in workers]
        assert alive == [[number <= kept for number in range(5)]] * 2
        running.race(SMALL)
    assert [worker.starts for worker in workers] == [5 + 4 - kept] * 2
    assert not any(process.alive for worker in workers for process in worker.processes)


def test_where_there_is_no_room_for_the_next_crew_idle_ones_are_ended_first(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one race: never do more processes run than the machine holds, and every crew has its turn."""
    workers = [FakeWorker(name, clock, resident=2**30) for name in "abc"]
    most = 0

    def free() -> int:
        nonlocal most
        running = sum(one.alive for worker in workers for one in worker.processes)
        most = max(most, running)
        return (10 - running) * 2**30

    monkeypatch.setattr(memory, "free_bytes", free)
    results, _ = race(workers)
    assert [processes_of(result) for result in results] == [dict.fromkeys(range(5), 6)] * 3
    assert most <= 9


# -- turns that had to wait for a core -------------------------------------------------------------------


def columns(result: Any, *names: str) -> list[tuple[float, ...]]:
    """What was noted beside its turns under these names."""
    assert result.latency is not None, result.reason
    return [result.latency.columns[name] for name in names]


def test_a_turn_that_waited_for_a_core_is_taken_again(clock: Clock) -> None:
    """What it noted the first time does not stay."""
    worker = FakeWorker(
        "a",
        clock,
        noise=lambda turn, process: 3.0 if turn == 4 else 1.0,
        delay=lambda turn: 0.5 * (turn == 4),
    )
    (result,), _ = race([worker])
    retaken, disturbed = columns(result, "retaken", "disturbed")
    assert retaken == tuple(float(index == 3) for index in range(30))
    assert not any(disturbed)
    assert result.latency is not None and set(result.latency.samples) == {0.001}
    assert worker.asked["Latency"] == 31


def test_a_long_turn_that_is_taken_again_needs_no_settling(clock: Clock) -> None:
    """Its pages have been touched."""
    worker = FakeWorker("a", clock, 0.2, delay=lambda turn: 0.5 * (turn == 1))
    race([worker])
    assert worker.turns[:3] == [(1, 0.0), (1, None), (1, None)]


def test_a_turn_that_waits_each_time_is_taken_three_times_and_flagged(clock: Clock) -> None:
    """The last of them is in the record, with the part of it that it waited."""
    worker = FakeWorker("a", clock, delay=lambda turn: 0.3 if turn in (1, 2, 3, 4) else 0.0)
    (result,), _ = race([worker])
    retaken, disturbed, waited = columns(result, "retaken", "disturbed", "waited")
    assert retaken[:3] == (2.0, 1.0, 0.0)
    assert disturbed[:3] == (1.0, 0.0, 0.0)
    assert waited[:2] == (pytest.approx(0.3), 0.0)
    assert result.latency is not None and result.latency.disturbed_rounds == {0}


def beside(monkeypatch: pytest.MonkeyPatch, cores: float = 1.0) -> None:
    """Let somebody else take so much of the machine all the time."""

    class Busy:
        def others(self, ours: Any) -> disturbance.Others:
            return disturbance.Others(cores, ("rustc",))

    monkeypatch.setattr(conductor, "Watch", Busy)


@pytest.mark.parametrize(("part", "disturbed"), [(0.019, False), (0.021, True)])
def test_a_turn_may_wait_for_two_per_cent_of_its_time(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, part: float, disturbed: bool
) -> None:
    """Every system takes a little."""
    beside(monkeypatch)
    (result,), _ = race([FakeWorker("a", clock, delay=lambda turn: part)])
    assert set(columns(result, "disturbed")[0]) == {float(disturbed)}


def test_a_neighbour_that_stays_is_not_waited_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the workload's time goes into turns that are taken again, and no more: the race then ends as any other."""
    beside(monkeypatch)
    worker = FakeWorker("a", clock, 0.05, delay=lambda turn: 0.5)
    (result,), _ = race([worker], workload_seconds=2.0)
    retaken, disturbed = columns(result, "retaken", "disturbed")
    assert all(disturbed)
    again = sum(retaken) * 0.1  # a turn and its settling
    assert 1.0 <= again <= 1.0 + 0.1
    assert retaken[0] == 2.0 and retaken[-1] == 0.0


def test_a_disturbed_turn_never_pairs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it showed of the other's speed decides nothing."""
    monkeypatch.setattr(racing, "_RETAKES", 0)
    noise, delay = (lambda turn, process: 1.0 + 4 * (turn % 2)), (lambda turn: 0.5 * (turn % 2))
    results, _ = race([FakeWorker("a", clock), FakeWorker("b", clock, 0.001, noise, delay=delay)])
    verdict = verdicts_against(results, "a")["b"]
    assert (verdict.ratio, verdict.low, verdict.high) == pytest.approx((1.0,) * 3)
    assert (verdict.rounds, verdict.disturbed, verdict.processes) == (15, 15, 5)


def test_where_threads_do_not_tell_the_pressure_on_the_whole_system_does(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It includes what others waited, and the settling: here tasks wait for a tenth of all time."""
    beside(monkeypatch)
    worker = FakeWorker("a", clock, delay=lambda turn: float("nan"))
    monkeypatch.setattr(disturbance, "pressure_seconds", lambda: clock.now / 10)
    (result,), _ = race([worker])
    waited, disturbed, run_delay = columns(result, "waited", "disturbed", "run_delay_s")
    assert waited == pytest.approx([0.1] * 30)
    assert all(disturbed)
    assert all(one != one for one in run_delay)


def test_what_nobody_tells_disturbs_no_turn(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn is not taken again for a figure that is not there."""
    monkeypatch.setattr(disturbance, "pressure_seconds", lambda: float("nan"))
    worker = FakeWorker("a", clock, delay=lambda turn: float("nan"))
    (result,), _ = race([worker])
    assert not any(columns(result, "disturbed")[0])
    assert worker.asked["Latency"] == 30


def test_what_others_took_of_the_machine_stands_beside_every_result(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is worth a word."""
    for cores, said in ((0.01, None), (0.5, "0.5 cores, most of it rustc")):
        beside(monkeypatch, cores)
        results, _ = race([FakeWorker("a", clock), FakeWorker("b", clock)])
        assert [one.latency.facts.get("others") for one in results if one.latency] == [said] * 2


@pytest.mark.parametrize(("cores", "disturbed"), [(0.01, False), (0.5, True)])
def test_who_waits_in_most_turns_is_disturbed_only_where_others_used_the_machine(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, cores: float, disturbed: bool
) -> None:
    """Processes or threads of its own wait for each other; once that is known, no turn is taken again for it."""
    beside(monkeypatch, cores)
    worker = FakeWorker("a", clock, delay=lambda turn: 0.5)
    (result,), _ = race([worker])
    retaken, flagged, waited, process = columns(result, "retaken", "disturbed", "waited", "process")
    assert set(flagged) == {float(disturbed)} and waited == pytest.approx([0.5] * 30)
    again = {number for number, taken in zip(process, retaken, strict=True) if taken}
    assert again == (set(range(5)) if disturbed else {0.0})


def test_a_turn_in_three_that_waited_was_disturbed_whoever_did_it(clock: Clock) -> None:
    """A neighbour of a moment takes next to nothing of the machine, and spoils the turn that it meets."""
    worker = FakeWorker("a", clock, 0.2, delay=lambda turn: 0.5 * (turn % 3 == 0))
    (result,), _ = race([worker])
    (disturbed,) = columns(result, "disturbed")
    assert disturbed == tuple(float(turn % 3 == 0) for turn in range(1, len(disturbed) + 1))


def test_a_disturbed_turn_of_a_long_call_is_left_out_and_not_taken_again(clock: Clock) -> None:
    """A further round costs as much, and draws the others anew too."""
    worker = FakeWorker("a", clock, 0.2, delay=lambda turn: 0.5 if turn == 2 else 0.0)
    (result,), _ = race([worker])
    retaken, disturbed = columns(result, "retaken", "disturbed")
    assert (sum(retaken), sum(disturbed)) == (0, 1)
