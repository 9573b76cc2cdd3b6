"""What a slowed contender's call costs, on a clock that the call moves."""

from __future__ import annotations

import time

import pytest

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


# -- answers of the gate: what is set-up, and what is pace ------------------------------------------
