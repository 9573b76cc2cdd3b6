"""A race of any direction and any mask: named results are checked before the clock, and each direction is timed."""

from __future__ import annotations

from typing import Any

import pytest
from fake_workers import QUICK, Clock, FakeWorker, race

from attnlab.backends.backend import Backend
from attnlab.backends.contender import parse_all
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import LATENCY
from attnlab.race.worker import Worker
from attnlab.workload.result import Outcome
from attnlab.workload.vocabulary import CONTIGUOUS, DIRECTIONS, STORAGES
from attnlab.workload.workload import Workload

GROUPED = Workload(
    heads=4, kv_heads=2, queries=48, keys=64, head_dim=8, causal="bottom_right", window=(16, 0)
)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["query gradient", "value gradient", "output", "log sum"])
def test_any_wrong_result_is_wrong(clock: Clock, direction: str, name: str) -> None:
    """Of a direction that has it, at the second call; the reason names a gradient."""
    workload = GROUPED.with_(direction=direction)
    worker = FakeWorker("spoiler", clock)
    honest = worker.ask

    def spoilt(op: str, **arguments: Any) -> Any:
        told = honest(op, **arguments)
        if op == "check" and len(told["answers"]) > 1 and name in told["answers"][1]:
            first, second = told["answers"]
            told["answers"] = [first, {**second, name: 1.5 * second[name]}]
        return told

    worker.ask = spoilt  # type: ignore[method-assign]
    (result,), _ = race([worker], workload)
    has_it = name in workload.results
    assert result.outcome is (Outcome.WRONG if has_it else Outcome.MEASURED), result.reason
    if has_it:
        assert "at the second" in (result.reason or "")
        assert (f"{name}: " in (result.reason or "")) == (name != "output")


@pytest.mark.parametrize("storage", [one for one in STORAGES if one != CONTIGUOUS])
def test_a_stored_cache_is_raced_and_its_copies_are_seen(storage: str) -> None:
    """Gathering is within the call: a cache that is copied shows in its peak memory, one that is written to not."""
    decode = Workload(heads=4, kv_heads=1, queries=1, keys=5000, head_dim=8, storage=storage)
    with Conductor(parse_all(["numpy_blocked"]), limits=QUICK) as conductor:
        (result,) = conductor.race(decode)
    assert result.outcome is Outcome.MEASURED, result.reason
    of_keys = 5000 * 16 * 4
    assert result.peak_bytes is not None
    assert (result.peak_bytes > of_keys) == (storage != "preallocated")


def test_a_backward_turn_neither_computes_the_output_anew_nor_adds_to_gradients() -> None:
    """Of a call that is prepared once: the graph is there, and every turn's gradients are the first's."""
    torch = pytest.importorskip("torch")
    calls: list[Any] = []

    def attend(query: Any, key: Any, value: Any) -> Any:
        calls.append(None)
        return torch.softmax(query @ key.mT / 2, dim=-1) @ value

    one = Worker()
    one.backend = Backend(name="counting", library="torch", attend=attend, options=frozenset())
    one.prepare(Workload(heads=1, queries=4, keys=4, head_dim=4, direction="backward"))
    assert one.call is not None
    before, made = [array.clone() for array in one.call()], len(calls)
    one.measure(LATENCY, iterations=5, settle_seconds=0.0)
    assert len(calls) == made
    for array, was in zip(one.call(), before, strict=True):
        assert torch.equal(array, was)
