"""What would clearly be too slow or too large is never tried, and nothing else is ruled out: on fake workers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import strategies
from fake_workers import Clock, FakeWorker, conductor_of, race
from hypothesis import given
from hypothesis import strategies as st

from attnlab import system as memory
from attnlab.gate import race_check
from attnlab.problem.inputs import problem_of
from attnlab.problem.result import Outcome
from attnlab.problem.workload import Workload
from attnlab.race import admission
from attnlab.race.admission import REACH, predicted_seconds, rungs, shortened, sort_of
from attnlab.race.worker_process import Refused

GIB = 2**30
BIG = Workload(heads=8, queries=2048, keys=2048)
#: inputs of 1 GiB, a score matrix of 32 MiB
DECODE = Workload(heads=64, kv_heads=8, queries=1, keys=2**17, head_dim=128)
lengths = st.integers(1, 20_000)
#: many heads of great lengths, and any mask, bias and direction
workloads = strategies.workloads(longest=700) | st.builds(
    Workload,
    batch=st.integers(1, 64),
    heads=st.integers(1, 64),
    queries=lengths,
    keys=lengths,
    causal=st.booleans(),
)


def by_flops(rate: float) -> Any:
    """Seconds in proportion to the work."""
    return lambda workload, calls: workload.flops / rate


# -- time ------------------------------------------------------------------------------------------


def test_what_would_take_too_long_is_never_tried(clock: Clock) -> None:
    """Predicted from the first rung whose successor would not be affordable; with the time it asks for it is tried."""
    worker = FakeWorker("loop", clock, by_flops(1e7))
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "over the limit of 2 s" in (result.reason or "")
    assert max(tried.queries for tried in worker.tried) <= 256
    assert clock.now < 5.0
    enough = int((result.reason or "").split("--seconds ")[1].split()[0])
    (result,), _ = race([FakeWorker("loop", clock, by_flops(1e7))], BIG, workload_seconds=enough)
    assert result.outcome is Outcome.MEASURED, result.reason


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

    (result,), _ = race([FakeWorker("long", clock, by_flops(1e11), declines=short)], BIG)
    assert result.outcome is Outcome.MEASURED
    assert race([FakeWorker("long", clock, declines=short)])[0][0].reason == "too short"


@pytest.mark.parametrize(("seconds", "outcome"), [(1e-3, "measured"), (1.0, "over_budget")])
def test_a_prediction_made_beside_a_neighbour_refuses_only_what_is_far_over(
    clock: Clock, seconds: float, outcome: str
) -> None:
    """A team of threads that waits for its last member takes many times as long: undisturbed it may be within."""
    worker = FakeWorker("a", clock, lambda workload, calls: seconds * workload.flops / 1e6, waited=0.5)
    (result,), _ = race([worker], Workload(heads=1, queries=512, keys=512), call_seconds=0.02)
    assert result.outcome == outcome


@given(workloads)
def test_rungs_end_can_be_drawn_and_have_work(workload: Workload) -> None:
    """One head of keys each, and its query heads. What does not fit a smaller length is cut or left out."""
    ladder = list(rungs(workload))
    assert len(ladder) <= 6
    for rung in ladder:
        assert 0 < rung.flops < workload.flops
        assert (rung.kv_heads, rung.batch, rung.direction) == (1, 1, workload.direction)
        assert rung.heads == workload.heads // workload.kv_heads
        assert rung.queries <= workload.queries and rung.keys <= workload.keys
    for lower, upper in pairwise(ladder):
        assert lower.flops < upper.flops
    if ladder:
        assert problem_of(ladder[0].with_(distribution="normal")).kv_heads == 1
    assert sort_of(sort_of(workload)) == sort_of(workload)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"window": (256, 0)}, {"window": (64, 0)}),
        ({"key_lengths": (500, 20)}, {"key_lengths": (64,)}),
        ({"mask": "prefix(100) & causal"}, {"mask": "", "causal": "top_left"}),
        ({"mask": "prefix(10)"}, {"mask": "prefix(10)"}),
    ],
)
def test_a_smaller_workload_keeps_of_its_mask_what_fits(
    given_: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A window is cut to the keys; a prefix as long as the keys would hide none of them."""
    found = shortened(Workload(batch=2, heads=6, kv_heads=2, **given_), 64)
    assert {name: getattr(found, name) for name in expected} == expected
    assert (found.batch, found.heads, found.kv_heads, found.queries, found.keys) == (1, 3, 1, 64, 64)


def test_smaller_blocks_predict_larger_ones() -> None:
    """All heads and the whole width at smaller lengths: what grows with d_model is in every rung."""
    workload = Workload(batch=4, heads=12, queries=4096, keys=4096, d_model=768, rotary=True)
    ladder = list(rungs(workload))
    assert ladder and all((one.heads, one.d_model, one.batch) == (12, 768, 1) for one in ladder)
    assert sort_of(workload) == sort_of(shortened(workload, 64)) != sort_of(workload.with_(d_model=512))


@given(st.floats(0, 1), st.floats(1e-12, 1e-9))
def test_overhead_and_growth_are_told_apart(overhead: float, rate: float) -> None:
    """Exactly, where a call costs so much and so much a FLOP; an empty mask has nothing to be predicted from."""

    def cost(workload: Workload) -> float:
        return overhead + rate * workload.flops

    found = predicted_seconds(BIG, cost, limit=1e9)
    assert found == pytest.approx(cost(BIG), rel=1e-3, abs=1e-3)
    assert predicted_seconds(Workload(key_lengths=(0,)), cost, limit=1.0) is None
    assert REACH == 16


# -- memory ----------------------------------------------------------------------------------------


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
        processes = [process for one in workers for process in one.processes]
        prepared = (process.prepared for process in processes)
        held = sum(admission.held_bytes(one) for one in prepared if one is not None)
        return int(size) - held - sum(process.resident_bytes() for process in processes)

    return free


def test_inputs_that_do_not_fit_are_not_even_drawn(clock: Clock) -> None:
    """Nothing is prepared where input and output alone are too large; figures say why."""
    worker = FakeWorker("any", clock, by_flops(1e18), free=2**20)
    (result,), _ = race([worker], BIG)
    assert result.outcome is Outcome.OVER_BUDGET
    assert "are free, 85% of it may be used" in (result.reason or "")
    assert worker.tried == []


def test_who_does_not_fit_beside_the_others_is_told_so(clock: Clock, nothing_is_worked_out: None) -> None:
    """Inputs of 1 GiB each on a machine of 3.7: the baseline comes first, a second entry of it last."""
    workers: list[FakeWorker] = []
    free = machine(3.7 * GIB, workers)
    workers += [FakeWorker(name, clock, fast, free=free) for name in ("c", "a#2", "a")]
    with conductor_of(workers) as conductor:
        conductor.baseline = "a"
        results = {result.contender: result for result in conductor.race(DECODE)}
    assert [results[name].outcome for name in ("a", "c", "a#2")] == ["measured", "measured", "over_budget"]
    said = results["a#2"].reason or ""
    assert "1.70 GiB are free" in said
    assert said.endswith("; the 2 before it in the race hold 2.00 GiB: race fewer together")


def test_idle_processes_make_room_for_a_large_workload(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, nothing_is_worked_out: None
) -> None:
    """Those that a small one before it left running; the workload is not refused for them."""
    worker = FakeWorker("a", clock, fast, resident=GIB // 4)
    worker.free = machine(4 * GIB, [worker])
    monkeypatch.setattr(memory, "free_bytes", worker.free)
    with conductor_of([worker]) as conductor:
        conductor.race(Workload(heads=1, queries=4, keys=4, head_dim=4))
        idle = sum(process.alive for process in worker.processes)
        (result,) = conductor.race(DECODE)
    assert idle == 5
    assert result.outcome is Outcome.MEASURED, result.reason


def test_memory_that_others_took_meanwhile_leaves_a_process_out(clock: Clock) -> None:
    """Its other processes stand, and it is noted."""
    worker = FakeWorker("a", clock, faults={("prepare", 2): Refused("memory", "ran out of memory")})
    (result,), _ = race([worker])
    assert result.outcome is Outcome.MEASURED and result.latency is not None
    assert set(result.latency.processes.values()) == {0, 2, 3, 4}
    assert result.reason == "left out of one process: ran out of memory"


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
    assert admission.held_bytes(workload) / GIB == pytest.approx(held, rel=1e-3)
    assert admission.preparing_bytes(workload) / GIB == pytest.approx(preparing, rel=1e-3)
    assert admission.drawn_bytes(workload) <= admission.preparing_bytes(workload)
