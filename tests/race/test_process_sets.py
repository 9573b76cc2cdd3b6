"""A race goes through sets of fresh processes: each is checked, and what fails in one ends where it must."""

from __future__ import annotations

from typing import Any

import pytest
from fake_workers import SMALL, Clock, FakeWorker, conductor_of, processes_of, race

from attnlab import system as memory
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Outcome
from attnlab.race import conductor, disturbance
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


@pytest.mark.parametrize(
    "fault", [Died("gone"), Hung("late"), Refused("unavailable", "no"), OSError("no memory")]
)
def test_a_process_that_does_not_start_in_a_later_set_leaves_the_others(
    clock: Clock, fault: Exception
) -> None:
    """It sits out that set, and has its verdict from those that it took part in."""
    failing = FakeWorker("b", clock, 0.002, faults={("load", 3): fault})
    results, _ = race([FakeWorker("a", clock), failing])
    assert processes_of(results[0]) == dict.fromkeys(range(5), 6)
    assert processes_of(results[1]) == dict.fromkeys((0, 1, 3, 4), 6)
    verdict = verdicts_against(results, "a")["b"]
    assert (verdict.kind, verdict.processes, verdict.rounds) == ("slower", 4, 24)


def test_an_interrupt_while_a_later_set_starts_ends_every_process(clock: Clock) -> None:
    """Of this set and of those before it."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock)]
    with pytest.raises(KeyboardInterrupt), conductor_of(workers) as running:
        workers[1].faults["load", 2] = KeyboardInterrupt()  # type: ignore[assignment]
        running.race(SMALL)
    assert [worker.starts for worker in workers] == [2, 2]
    assert not any(process.alive for worker in workers for process in worker.processes)


def test_what_is_right_in_the_first_process_and_wrong_in_a_later_one_is_wrong(clock: Clock) -> None:
    """An answer that depends on where memory lies is read from where nothing was written."""
    wrong = FakeWorker("b", clock, spoils=lambda process: 1.5 if process == 3 else 1.0)
    results, _ = race([FakeWorker("a", clock), wrong])
    assert [result.outcome for result in results] == ["measured", "wrong"]
    assert (results[1].reason or "").startswith("right in one process, but in another: ")
    assert results[1].accuracy is not None and not results[1].accuracy.passed
    assert results[1].latency is None


def test_further_processes_are_started_for_open_verdicts_alone(clock: Clock) -> None:
    """And for the baseline, which they are compared with."""
    workers = [FakeWorker("a", clock), FakeWorker("b", clock, 0.002), FakeWorker("c", clock, noise=uneven)]
    race(workers)
    assert [worker.starts for worker in workers] == [10, 5, 10]
    assert [worker.asked["check"] for worker in workers] == [10, 5, 10]


def on_a_machine(monkeypatch: pytest.MonkeyPatch, size: int, *workers: FakeWorker) -> None:
    """Of so many bytes, of which its running processes take theirs."""

    def free() -> int:
        return size - sum(one.resident_bytes() for worker in workers for one in worker.processes)

    monkeypatch.setattr(memory, "free_bytes", free)


@pytest.mark.parametrize(("resident", "kept"), [(0, 4), (2**20, 4), (2**30, 3)])
def test_later_sets_are_kept_for_the_next_workload_where_there_is_room(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, resident: int, kept: int
) -> None:
    """Where they take no more than a part of what would be free; the first set always is, and the last ends first."""
    workers = [FakeWorker("a", clock, resident=resident), FakeWorker("b", clock)]
    on_a_machine(monkeypatch, 7 * 2**30, *workers)
    with conductor_of(workers) as running:
        running.race(SMALL)
        alive = [[process.alive for process in worker.processes] for worker in workers]
        assert alive == [[number <= kept for number in range(5)]] * 2
        running.race(SMALL)
    assert [worker.starts for worker in workers] == [5 + 4 - kept] * 2
    assert not any(process.alive for worker in workers for process in worker.processes)


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


def beside(monkeypatch: pytest.MonkeyPatch, cores: float = 1.0) -> None:
    """Let somebody else take so much of the machine all the time."""

    class Busy:
        def others(self, ours: Any) -> disturbance.Others:
            return disturbance.Others(cores, ("rustc",))

    monkeypatch.setattr(conductor, "Watch", Busy)


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


def test_a_disturbed_turn_of_a_long_call_is_left_out_and_not_taken_again(clock: Clock) -> None:
    """A further round costs as much, and draws the others anew too."""
    worker = FakeWorker("a", clock, 0.2, delay=lambda turn: 0.5 if turn == 2 else 0.0)
    (result,), _ = race([worker])
    retaken, disturbed = columns(result, "retaken", "disturbed")
    assert (sum(retaken), sum(disturbed)) == (0, 1)


def test_who_hangs_again_and_again_is_not_waited_for_again(clock: Clock) -> None:
    """After two workloads without an answer a third that is no smaller costs no deadline; a smaller one is tried."""
    hanging = FakeWorker("b", clock, faults={("check", number): Hung("late") for number in range(1, 9)})
    with conductor_of([FakeWorker("a", clock), hanging]) as conductor:
        found = [conductor.race(SMALL.with_(queries=size, keys=size)) for size in (8, 12, 16, 4)]
    assert {hung.outcome for _, hung in found} == {Outcome.TIMED_OUT}
    assert ["not tried" in (hung.reason or "") for _, hung in found] == [False, False, True, False]
    assert all(sound.outcome is Outcome.MEASURED for sound, _ in found)
