"""Large workloads: what all contenders hold together has to fit, and whoever does not fit is told figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from fake_workers import FIXED, Clock, FakeWorker, conductor_of, race

from attnlab import system as memory
from attnlab.gate import race_check
from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload
from attnlab.race import prediction
from attnlab.race.budget import USABLE
from attnlab.race.compare import Comparison
from attnlab.race.limits import Limits
from attnlab.race.prediction import PLACED_BYTES

GIB = 2**30
#: inputs of 1 GiB, a score matrix of 32 MiB
DECODE = Workload(heads=64, kv_heads=8, queries=1, keys=2**17, head_dim=128)


@pytest.fixture
def nothing_is_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workloads here are too large to be drawn: no answer is held against anything."""
    monkeypatch.setattr(race_check, "references", lambda *question: {})
    monkeypatch.setattr("attnlab.race.conductor.Conductor._check", lambda self, *told: None)


def fast(workload: Workload, calls: int) -> float:
    """Seconds of a call that is never too long."""
    return 1e-3


def machine(size: float, workers: list[FakeWorker]) -> Callable[[], int]:
    """What is free on a machine of so many bytes, where workers hold the inputs that they have prepared."""

    def free() -> int:
        prepared = (one.prepared for worker in workers for one in worker.processes)
        return int(size) - sum(prediction.held_bytes(one) for one in prepared if one is not None)

    return free


def test_keys_that_are_copied_for_every_head_are_foreseen(clock: Clock, nothing_is_worked_out: None) -> None:
    """A call on one head of keys with all its query heads shows them; on one head alone there would be none."""

    def copies(workload: Workload) -> int:
        group = workload.heads // workload.kv_heads
        return 0 if group == 1 else 4 * workload.heads * workload.keys * 2 * workload.head_dim + 2**16

    workers = [
        FakeWorker("copies", clock, fast, free=8 * GIB, peak=copies),
        FakeWorker("reads", clock, fast, free=8 * GIB, peak=lambda workload: 2**16),
    ]
    copying, reading = race(workers, DECODE)[0]
    assert reading.outcome is Outcome.MEASURED, reading.reason
    assert copying.outcome is Outcome.OVER_BUDGET
    said = copying.reason or ""
    assert said.startswith("predicted to need 9.00 GiB: inputs of 1.00 GiB, and a call that takes 8.00 GiB")
    assert said.endswith("(one score matrix is 32.0 MiB); 8.00 GiB are free, 85% of it may be used")


def test_a_score_matrix_that_does_not_fit_is_told_with_its_size(
    clock: Clock, nothing_is_worked_out: None
) -> None:
    """Beside one that needs none, in the same race; and it is told also where the call would be too long."""
    workload = Workload(heads=8, queries=2**15, keys=2**15)
    workers = [
        FakeWorker("tiles", clock, fast, free=20 * GIB, peak=lambda one: 2 * one.output_bytes),
        FakeWorker("matrix", clock, fast, free=20 * GIB, peak=lambda one: 2 * one.score_bytes),
        FakeWorker(
            "slow matrix",
            clock,
            lambda one, calls: one.flops / 1e11,
            free=20 * GIB,
            peak=lambda one: 2 * one.score_bytes,
        ),
    ]
    tiles, *matrices = race(workers, workload)[0]
    assert tiles.outcome is Outcome.MEASURED, tiles.reason
    for matrix in matrices:
        assert matrix.outcome is Outcome.OVER_BUDGET
        assert "a call that takes 64.0 GiB (one score matrix is 32.0 GiB); 20.0 GiB are free" in (
            matrix.reason or ""
        )


def test_who_does_not_fit_beside_the_others_is_told_so(clock: Clock, nothing_is_worked_out: None) -> None:
    """Inputs of 1 GiB each on a machine of 3.7: the baseline comes first, a second entry of it last."""
    workers: list[FakeWorker] = []
    free = machine(3.7 * GIB, workers)
    for name in ("c", "a#2", "a"):
        workers.append(FakeWorker(name, clock, fast, free=free, peak=lambda workload: 2**20))
    with conductor_of(workers) as conductor:
        conductor.baseline = "a"
        results = {result.contender: result for result in conductor.race(DECODE)}
    assert [results[name].outcome for name in ("a", "c", "a#2")] == ["measured", "measured", "over_budget"]
    said = results["a#2"].reason or ""
    assert "1.70 GiB are free" in said
    assert said.endswith("; the 2 before it in the race hold 2.00 GiB: race fewer together")


def test_what_the_calls_of_others_take_is_left_free(clock: Clock, nothing_is_worked_out: None) -> None:
    """The first needs 2 GiB more in every call: a second set of inputs would not leave them."""
    for further, outcome in ((2 * GIB, Outcome.OVER_BUDGET), (0, Outcome.MEASURED)):
        workers: list[FakeWorker] = []
        free = machine(3.9 * GIB, workers)
        workers.append(FakeWorker("a", clock, fast, free=free, peak=lambda one: 2**20, further=further))
        workers.append(FakeWorker("b", clock, fast, free=free, peak=lambda one: 2**20))
        results, _ = race(workers, DECODE)
        assert [result.outcome for result in results] == [Outcome.MEASURED, outcome], results[1].reason


def test_idle_processes_make_room_for_a_large_workload(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, nothing_is_worked_out: None
) -> None:
    """Those that a small one before it left running; the workload is not refused for them."""
    worker = FakeWorker("a", clock, fast, resident=GIB // 4, peak=lambda workload: 2**20)

    def free() -> int:
        held = machine(4 * GIB, [worker])()
        return held - sum(process.resident_bytes() for process in worker.processes)

    worker.free = free
    monkeypatch.setattr(memory, "free_bytes", free)
    with conductor_of([worker]) as conductor:
        conductor.race(Workload(heads=1, queries=4, keys=4, head_dim=4))
        idle = sum(process.alive for process in worker.processes)
        (result,) = conductor.race(DECODE)
    assert idle == 5
    assert result.outcome is Outcome.MEASURED, result.reason


def test_memory_that_others_took_meanwhile_leaves_a_process_out(
    clock: Clock, nothing_is_worked_out: None
) -> None:
    """Its other processes stand, and it is noted."""
    worker = FakeWorker("a", clock, fast, peak=lambda workload: 2**20)
    worker.free = lambda: GIB if len(worker.processes) == 2 else 8 * GIB
    (result,), _ = race([worker], DECODE)
    assert result.outcome is Outcome.MEASURED and result.latency is not None
    assert "left out of one process: its inputs need 1.50 GiB, 1.00 GiB are free" in (result.reason or "")


@pytest.mark.parametrize(
    ("change", "held", "preparing"),
    [
        ({}, 1.0, 1.5),
        ({"dtype": "bfloat16"}, 0.5, 1.25),
        ({"distribution": "outliers"}, 1.0, 3.0),
        ({"keys": 2**13}, 0.125, 0.125),
    ],
    ids=["float32", "bfloat16 is drawn in float32", "drawn in float64", "small: a copy stays"],
)
def test_what_inputs_take(change: dict[str, Any], held: float, preparing: float) -> None:
    """Keys and values of half a GiB each, but for the queries' 32 KiB."""
    workload = DECODE.with_(**change)
    assert prediction.held_bytes(workload) / GIB == pytest.approx(held, rel=1e-3)
    assert prediction.preparing_bytes(workload) / GIB == pytest.approx(preparing, rel=1e-3)
    assert prediction.preparing_bytes(workload) >= prediction.drawn_bytes(workload)
    assert (prediction.drawn_bytes(workload) <= PLACED_BYTES) == ("keys" in change)


def test_more_time_allows_longer_calls() -> None:
    """So many seconds as a refusal tells, which leave every process of every contender two rounds."""
    limits = Limits()
    assert limits.longest_call(4) == limits.call_seconds
    enough = limits.seconds_for(6.0, contenders=4)
    allowed = Limits(workload_seconds=enough)
    assert 6.0 <= allowed.longest_call(4) < 6.1
    assert allowed.utmost_seconds >= 4 * 5 * 2 * 6.0
    assert allowed.deadline(4) >= 4 * 6.0


def test_a_refusal_tells_how_much_time_would_do(clock: Clock) -> None:
    """And with so much the workload is measured."""
    workload = Workload(heads=8, queries=512, keys=512)

    def slow(workload: Workload, calls: int) -> float:
        return workload.flops / 1e8

    (result,), _ = race([FakeWorker("a", clock, slow)], workload)
    assert result.outcome is Outcome.OVER_BUDGET
    told = re.search(r"over the limit of 2 s; --seconds (\d+) would allow it", result.reason or "")
    assert told is not None, result.reason
    (again,), _ = race([FakeWorker("a", clock, slow)], workload, workload_seconds=float(told[1]))
    assert again.outcome is Outcome.MEASURED, again.reason
    assert again.latency is not None and set(again.latency.processes.values()) == set(range(5))


def test_a_race_that_was_cut_short_says_so(clock: Clock) -> None:
    """With the processes that had their turn, and what all of them would take."""
    workers = [FakeWorker("a", clock, 1.5), FakeWorker("b", clock, 1.5)]
    results, _ = race(workers, workload_seconds=6.0, extra_seconds=24.0)
    facts = results[0].latency.facts if results[0].latency else {}
    assert re.fullmatch(
        r"4 of 5 processes: their rounds took \d+ s, and 30 s were allowed; all would take about \d+ s "
        r"\(--seconds \d+\)",
        facts["cut short"],
    ), facts
    found = Comparison(workers[0].workload, "a", tuple(results), {}, 4)
    assert any(
        line.startswith("The race was cut short, after 4 of 5 processes") for line in found.sentences()
    )
    (whole,), _ = race([FakeWorker("a", clock)])
    assert whole.latency is not None and "cut short" not in whole.latency.facts
    assert FIXED["processes"] == 5 and USABLE < 1
