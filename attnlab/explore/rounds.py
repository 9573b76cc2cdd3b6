"""Raw rounds, small: whole numbers in a unit of each result's own, and what was noted beside them as stretches.

Where a page cannot hold all of them, an even part of each result's rounds is kept, and the page says how many.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from attnlab.contract.result import Measurement

#: significant digits of a round
DIGITS = 4


@dataclass(frozen=True)
class Rounds:
    """The rounds of one result, in their order: `seconds` a call, the process of each, and whether it was disturbed."""

    numbers: tuple[int, ...]
    seconds: tuple[float, ...]
    processes: tuple[int, ...]
    disturbed: tuple[bool, ...]

    @classmethod
    def of(cls, latency: Measurement) -> Rounds:
        """Those of a latency."""
        processes, left_out = latency.processes, latency.disturbed_rounds
        taken = sorted(latency.by_round().items())
        numbers = tuple(number for number, _ in taken)
        return cls(
            numbers,
            tuple(seconds for _, seconds in taken),
            tuple(processes[number] for number in numbers),
            tuple(number in left_out for number in numbers),
        )

    def thinned(self, every: int) -> Rounds:
        """The first of every so many rounds."""
        return Rounds(
            self.numbers[::every], self.seconds[::every], self.processes[::every], self.disturbed[::every]
        )

    def plain(self) -> list[Any]:
        """[exponent, times, rounds, processes, disturbed]: seconds are times · 10^exponent.

        Rounds and processes are stretches [first, how many], of consecutive rounds and of one process; disturbed are
        places in the list of times.
        """
        least = min((one for one in self.seconds if one > 0), default=1.0)
        exponent = math.floor(math.log10(least)) - DIGITS + 1
        return [
            exponent,
            [round(one / 10.0**exponent) for one in self.seconds],
            _consecutive(self.numbers),
            [[process, len(list(some))] for process, some in groupby(self.processes)],
            [place for place, disturbed in enumerate(self.disturbed) if disturbed],
        ]


def _consecutive(numbers: Sequence[int]) -> list[list[int]]:
    """Stretches [first, how many] of numbers that follow each other."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == sum(found[-1]):
            found[-1][1] += 1
        else:
            found.append([number, 1])
    return found


def fitting(every: Iterable[Rounds], most_bytes: int) -> dict[str, Any]:
    """The rounds of all results, thinned until their JSON takes at most so many bytes.

    ``all`` and ``shown`` tell how many rounds there were and are; ``every`` that one of so many is kept, 0 for none.
    """
    rounds = list(every)
    count = sum(len(one.seconds) for one in rounds)
    step = 1
    while True:
        kept = [one.thinned(step) for one in rounds]
        of = [one.plain() for one in kept]
        size = len(json.dumps(of, separators=(",", ":")))
        if size <= most_bytes:
            return {"all": count, "shown": sum(len(one.seconds) for one in kept), "every": step, "of": of}
        longest = max((len(one.seconds) for one in rounds), default=0)
        if step >= longest:  # not even one of each fits
            return {"all": count, "shown": 0, "every": 0, "of": []}
        step = min(max(step + 1, math.ceil(step * size / max(most_bytes, 1))), longest)
