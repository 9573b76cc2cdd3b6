"""Samples that were taken elsewhere, told to pytest-benchmark through its own interface.

pytest-benchmark reads its timer, calls the function, reads the timer again, and keeps the difference. With
a `ReplayClock` for a timer and its `replay` for the function, the differences are the samples, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class ReplayClock:
    """A stopwatch that shows 0 until `replay` sets it to the next sample, and 0 again once it was read."""

    #: how pytest-benchmark names this timer in its reports
    __name__ = "attnlab.interleaved"

    def __init__(self) -> None:
        self._samples: Iterator[float] = iter(())
        self._shown = 0.0

    def load(self, samples: Iterable[float]) -> None:
        """What is to be replayed: seconds, one sample a round."""
        self._samples = iter(tuple(samples))

    def __call__(self) -> float:
        shown, self._shown = self._shown, 0.0
        return shown

    def replay(self) -> None:
        """Let the next sample pass; without one left (a profiler calls once more), no time passes."""
        self._shown = next(self._samples, 0.0)
