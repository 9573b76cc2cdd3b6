"""What a worker does in a turn: the calls that it makes, those that it times, and what it keeps between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_workers import SMALL

from attnlab.backend.backend import Backend
from attnlab.race.instruments import LATENCY
from attnlab.race.probe import Pace
from attnlab.race.worker import Worker, slowed


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
        assert one.prepare(SMALL) == {"cache": "warm", "bind_s": 0.0, "fresh": 1.0}
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
    found = worker(attend).measure(LATENCY, iterations=7, settle_seconds=settle_seconds)
    assert attend.calls == calls + 7
    assert found.samples == (pytest.approx(0.004),)
    assert found.columns["settled_s"] == (pytest.approx(0.004 * calls),)
    assert set(found.columns) == {"settled_s", "minor_faults", "involuntary_switches", "run_delay_s"}


def test_a_calibration_is_the_least_of_several_short_calls(
    worker: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of all starts a library up; one long call is enough."""
    one = worker(Counting())
    library = type(one.library())
    for told, calls, least in (([0.09, 0.004, 0.002, 0.003, 0.005, 1e-9], 5, 0.002), ([5.0, 1e-9], 1, 5.0)):
        waiting = iter(told)
        monkeypatch.setattr(library, "time_calls", lambda self, call, count, waiting=waiting: next(waiting))
        assert one.calibrate(warmup_seconds=0.0)["seconds"] == least
        assert len(list(waiting)) == len(told) - calls


@pytest.mark.parametrize(("percent", "factor"), [(3.0, 1.03), (50.0, 1.5), (1000.0, 11.0)])
def test_a_slowed_call_takes_so_much_longer_and_returns_the_same(
    monkeypatch: pytest.MonkeyPatch, percent: float, factor: float
) -> None:
    """By a clock that a call moves by a second, and each look at it by a millisecond."""
    now, finished = [0.0], []

    def look() -> float:
        now[0] += 0.001
        return now[0]

    def call() -> str:
        now[0] += 1.0
        return "answer"

    class Finishing:
        def finish(self) -> None:
            finished.append(now[0])

    monkeypatch.setattr(time, "perf_counter", look)
    longer = slowed(call, Finishing(), percent)  # type: ignore[arg-type]  # all that it needs of a library
    assert longer() == "answer"
    # four looks at least: before and after the call, one that starts the wait, and the last
    assert now[0] == pytest.approx(factor, abs=0.001 * (4 + factor))
    assert len(finished) == 1, "a device's work is done before the wait is measured"


def test_arrays_that_are_placed_anew_lie_elsewhere_and_hold_the_same(worker: Making) -> None:
    """The backend has them, and the old ones are gone."""
    seen: list[np.ndarray[Any, Any]] = []

    class Looking(Counting):
        def __call__(self, query: Any, *arrays: Any, **options: Any) -> Any:
            seen.append(query)
            return super().__call__(query, *arrays, **options)

    one = worker(Looking())
    assert one.call is not None
    before = np.copy(one.call())
    assert one.place() is None
    after = one.call()
    assert np.array_equal(before, after)
    assert not np.shares_memory(seen[0], seen[1])
    assert one.padding is not None
    one.release()
    assert one.call is one.problem is one.padding is None


# -- answers of the gate: what is set-up, and what is pace ------------------------------------------


class Box:
    """Takes `compiling` seconds the first time that a shape comes, and `seconds` every time."""

    def __init__(self, seconds: float, compiling: float = 0.0) -> None:
        self.seconds, self.compiling = seconds, compiling
        self.now, self.calls, self.compiled = 0.0, 0, set[str]()
        self.pace = Pace(lambda: self.now)

    def ask(self, shape: str) -> int:
        return self.pace.timed(lambda: self._answer(shape))

    def _answer(self, shape: str) -> int:
        self.calls += 1
        self.now += self.seconds + (0.0 if shape in self.compiled else self.compiling)
        self.compiled.add(shape)
        return self.calls


def test_compiling_is_no_pace() -> None:
    """Every shape is compiled for once, and answered twice then; the first answer is the one that counts."""
    box = Box(seconds=0.001, compiling=0.2)
    assert [box.ask(shape) for shape in ("a", "b", "a", "c")] == [1, 3, 5, 6]
    assert box.pace.seconds == pytest.approx(4 * 0.001)
    assert box.pace.setup == pytest.approx(3 * 0.2)
