"""What a worker does in a turn: the calls that it makes, those that it times, and what it keeps between them."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_workers import SMALL

from attnlab.contract.backend import Backend
from attnlab.measuring.instruments import LATENCY
from attnlab.measuring.worker import Worker


class Counting:
    """A backend's function that counts its calls, each `seconds` long, and fails from the `broken`-th on."""

    def __init__(self, broken: float = float("inf"), seconds: float = 0.004) -> None:
        self.calls, self.broken, self.seconds = 0, broken, seconds

    def __call__(self, query: Any, key: Any, value: Any, *, causal: bool, scale: float) -> Any:
        self.calls += 1
        if self.calls >= self.broken:
            raise RuntimeError("broken")
        return query


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[Counting], Worker]:
    """Makes a worker in this process, with `SMALL` prepared, on a clock that its calls alone move."""

    def make(attend: Counting) -> Worker:
        monkeypatch.setattr(time, "perf_counter", lambda: attend.calls * attend.seconds)
        one = Worker()
        options = frozenset({"causal", "scale"})
        one.backend = Backend(name="counting", library="numpy", attend=attend, options=options)
        assert one.prepare(SMALL.to_dict()) == ({"cache": "warm"}, ())
        return one

    return make


Making = Callable[[Counting], Worker]


@pytest.mark.parametrize(
    ("settle_seconds", "calls"), [(None, 0), (0.0, 1), (0.004, 1), (0.005, 2), (0.02, 5)]
)
def test_a_turn_settles_and_then_times_what_it_is_asked_for(
    worker: Making, settle_seconds: float | None, calls: int
) -> None:
    """None: not at all; else with one call at least, and as many as fill the seconds."""
    attend = Counting()
    found, _ = worker(attend).measure(LATENCY.path, iterations=7, settle_seconds=settle_seconds)
    assert attend.calls == calls + 7
    assert found["samples"] == (pytest.approx(0.004),)
    assert found["columns"].pop("settled_s") == (pytest.approx(0.004 * calls),)
    assert set(found["columns"]) == {"minor_faults", "involuntary_switches"}


@pytest.mark.parametrize("broken", [float("inf"), 1, 2])
def test_no_garbage_is_collected_in_a_turn_and_it_is_again_afterwards(worker: Making, broken: float) -> None:
    """Also where the backend fails, while it settles or on the clock."""
    seen: list[bool] = []

    class Looking(Counting):
        def __call__(self, *arrays: Any, **options: Any) -> Any:
            seen.append(gc.isenabled())
            return super().__call__(*arrays, **options)

    one = worker(Looking(broken))
    assert gc.isenabled()
    try:
        one.measure(LATENCY.path, iterations=1, settle_seconds=0.0)
    except RuntimeError:
        assert broken < 3
    assert gc.isenabled()
    assert seen == [False] * min(2, int(min(broken, 2)))


def test_a_calibration_is_the_least_of_several_short_calls(
    worker: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of all starts a library up; one long call is enough."""
    one = worker(Counting())
    library = type(one._library())
    for told, calls, least in (([0.09, 0.004, 0.002, 0.003, 0.005, 1e-9], 5, 0.002), ([5.0, 1e-9], 1, 5.0)):
        waiting = iter(told)
        monkeypatch.setattr(library, "time_calls", lambda self, call, count, waiting=waiting: next(waiting))
        assert one.calibrate(warmup_seconds=0.0) == ({"seconds": least}, ())
        assert len(list(waiting)) == len(told) - calls


@pytest.mark.parametrize(("warmup_seconds", "calls"), [(0.0, 5), (0.02, 5), (0.04, 10)])
def test_a_calibration_calls_for_as_long_as_it_warms_up(
    worker: Making, warmup_seconds: float, calls: int
) -> None:
    """And five times at least."""
    attend = Counting()
    worker(attend).calibrate(warmup_seconds=warmup_seconds)
    assert attend.calls == calls
