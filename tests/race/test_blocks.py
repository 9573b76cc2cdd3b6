"""Blocks in worker processes: the projection asked for, the parts timed in every set, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fake_workers import QUICK

from attnlab.backend.contender import parse_all
from attnlab.backend.library import open_library
from attnlab.errors import Declined
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import BLOCK_PARTS

SMALL = Workload(heads=4, queries=6, keys=6, d_model=16)


def raced(workload: Workload, *names: str, **options: Any) -> dict[str, Result]:
    """The results of a short race in real processes, by contender."""
    with Conductor(parse_all(names), limits=QUICK, **options) as conductor:
        return {one.contender: one for one in conductor.race(workload)}


def test_blocks_race_and_their_parts_are_timed_in_every_process() -> None:
    """Three parts each, none of them free, and in two sets; a module in one piece says that it has none."""
    found = raced(SMALL, "numpy_vectorized", "numpy_vectorized[projection=loop]", "torch_mha", memory=False)
    for name in ("numpy_vectorized", "numpy_vectorized[projection=loop]"):
        result = found[name]
        assert result.outcome is Outcome.MEASURED, result.reason
        parts = result.measurement(BLOCK_PARTS.quantity)
        assert parts is not None and set(parts.columns["process"]) == {0.0, 1.0}
        for index, sample in enumerate(parts.samples):
            three = [parts.columns[f"{part}_s"][index] for part in ("projection", "attention", "output")]
            assert min(three) > 0 and sample == pytest.approx(sum(three))
    whole = found["torch_mha"]
    assert whole.outcome is Outcome.MEASURED and whole.measurement(BLOCK_PARTS.quantity) is None
    assert whole.reason == "its block parts could not be measured: it computes the block in one piece"


class Slept:
    """A call whose parts are known."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.parts = {name: lambda name=name: self.calls.append(name) for name in ("one", "other")}

    def __call__(self) -> None:
        raise AssertionError("the parts are called, not the whole")


def test_the_instrument_calls_each_part_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that only the parts move: one takes three times as long as the other."""
    library, now = open_library("numpy"), [0.0]
    cost = {"one": 3.0, "other": 1.0}

    def timed(call: Any, iterations: int) -> float:
        before = len(slept.calls)
        for _ in range(iterations):
            call()
        spent = sum(cost[name] for name in slept.calls[before:])
        now[0] += spent
        return spent / iterations

    slept = Slept()
    monkeypatch.setattr(library, "time_calls", timed)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    readings = BLOCK_PARTS.measure(library, slept)
    assert set(readings.columns["one_s"]) == {3.0} and set(readings.columns["other_s"]) == {1.0}
    assert readings.samples == (4.0, 4.0), "long calls are timed twice"
    with pytest.raises(Declined, match="one piece"):
        BLOCK_PARTS.measure(library, lambda: None)
