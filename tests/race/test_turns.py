"""What a turn times, and what a slowed contender's call costs, on a clock that the call moves."""

from __future__ import annotations

import math
import time

import pytest

from attnlab.race.instruments import COUNTERS, LATENCY
from attnlab.race.worker import slowed


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


@pytest.mark.parametrize(
    ("waits", "seconds", "kept"),
    [
        pytest.param((0.0, 0.5, 0.0), (1.0 + 1.5) / 2, 4, id="one group waited"),
        pytest.param((0.0, 0.0, 0.0), (1.0 + 1.25 + 1.5) / 3, 6, id="none waited"),
        pytest.param((0.5, 0.5, 0.5), (1.0 + 1.25 + 1.5) / 3, 6, id="all waited"),
        pytest.param((math.nan,) * 3, (1.0 + 1.25 + 1.5) / 3, 6, id="not told"),
    ],
)
def test_of_a_turn_count_the_groups_of_calls_that_had_their_cores(
    monkeypatch: pytest.MonkeyPatch, waits: tuple[float, ...], seconds: float, kept: int
) -> None:
    """Where none had, all count, and the turn says that it waited."""
    told, costs = iter([at for wait in waits for at in (0.0, wait)]), iter((1.0, 1.25, 1.5))
    monkeypatch.setitem(COUNTERS, "run_delay_s", lambda: next(told))  # type: ignore[arg-type]

    class Timed:
        def time_calls(self, call: object, iterations: int) -> float:
            return next(costs)

    found = LATENCY.measure(Timed(), lambda: None, iterations=6, groups=3, run_delay=0.02)  # type: ignore[arg-type]
    noted = {name: column[0] for name, column in found.columns.items()}
    assert found.samples == pytest.approx((seconds,))
    assert (noted["iterations"], noted["least_s"], noted["whole_s"]) == (kept, 1.0, pytest.approx(1.25))
    assert noted["waited"] == pytest.approx(sum(waits) / 7.5, nan_ok=True)
