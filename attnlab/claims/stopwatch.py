"""Two ways to do the same, timed against each other in pairs, so that the machine's drift cancels.

In this process and with one thread: each round runs A B B A or B A A B in turn and takes the ratio of the sums.
The interval is `attnlab.statistics.pairing`'s, order statistics of the rounds. On the CPU the clock is this process's
processor time, which another process's turn on the processor does not move.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attnlab.statistics.pairing import ALPHA, MARGIN, interval_rank

ROUNDS = 15
#: the shortest stretch that is timed as one
_STRETCH = 2e-3


@dataclass(frozen=True)
class Ratio:
    """Median time of the first over the second, and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def decided(self) -> float:
        """Above 0 where the interval says which is slower, or that they are alike within the margin."""
        return max(self.low - 1, 1 + MARGIN - self.high)

    @property
    def text(self) -> str:
        """The interval in words."""
        return f"95 % interval {self.low:.3g} to {self.high:.3g}"


def time_ratio(
    first: Callable[[], Any],
    second: Callable[[], Any],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> Ratio:
    """Seconds of `first()` over seconds of `second()`, by `clock`."""
    repeats = [_repeats(call, clock) for call in (first, second)]
    logs = []
    for index in range(rounds):
        order = (0, 1, 1, 0) if index % 2 == 0 else (1, 0, 0, 1)
        spent = [0.0, 0.0]
        for which in order:
            spent[which] += _seconds((first, second)[which], repeats[which], clock)
        logs.append(math.log(spent[0] / spent[1]))
    logs.sort()
    rank = max(1, interval_rank(rounds, ALPHA))
    return Ratio(math.exp(statistics.median(logs)), math.exp(logs[rank - 1]), math.exp(logs[-rank]))


def _repeats(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    call()
    return max(1, math.ceil(_STRETCH / max(_seconds(call, 1, clock), 1e-7)))


def _seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    """Seconds a call, the mean of so many."""
    start = clock()
    for _ in range(repeats):
        call()
    return max(clock() - start, 1e-9) / repeats
