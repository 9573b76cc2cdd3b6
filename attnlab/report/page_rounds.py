"""Raw rounds, small: whole numbers in a unit of each result's own, and what was noted beside them as stretches.

Where a page cannot hold all of them, an even part of each result's rounds is kept, and the page says how many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from attnlab.problem.result import Measurement
from attnlab.report.page_packed import packed

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
        samples, processes, left_out = latency.by_round(), latency.processes, latency.disturbed_rounds
        numbers = tuple(sorted(samples))
        return cls(
            numbers,
            tuple(samples[number] for number in numbers),
            tuple(processes[number] for number in numbers),
            tuple(number in left_out for number in numbers),
        )

    def thinned(self, every: int) -> Rounds:
        """The first of every so many rounds."""
        return Rounds(
            self.numbers[::every], self.seconds[::every], self.processes[::every], self.disturbed[::every]
        )

    @property
    def times(self) -> tuple[int, int, list[int]]:
        """Exponent, least time, and by how much each is above it: seconds are (least + this) · 10^exponent."""
        shortest = min((one for one in self.seconds if one > 0), default=1.0)
        exponent = math.floor(math.log10(shortest)) - DIGITS + 1
        whole = [round(one / 10.0**exponent) for one in self.seconds]
        least = min(whole)
        return exponent, least, [one - least for one in whole]

    @property
    def taken(self) -> tuple[list[list[int]], list[list[int]]]:
        """Which rounds, as stretches [first, how many, step], and in which processes, as [process, how many]."""
        return _even(self.numbers), [[process, len(list(some))] for process, some in groupby(self.processes)]


def _even(numbers: Sequence[int]) -> list[list[int]]:
    """Stretches [first, how many, step] of ascending numbers that lie evenly apart."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == 1:
            found[-1][1:] = [2, number - found[-1][0]]
        elif found and number == found[-1][0] + found[-1][1] * found[-1][2]:
            found[-1][1] += 1
        else:
            found.append([number, 1, 1])
    return found


def table(rounds: Sequence[Rounds]) -> dict[str, list[Any]]:
    """Columns with a row a result: its times, and which rounds they are of.

    ``exponent``, ``least``, ``more``: see `Rounds.times`; ``disturbed``: places in the list of times. ``taken`` is a
    place in ``stretches``, since many results were timed in the same rounds and processes.
    """
    times = [one.times for one in rounds]
    stretches: dict[Any, int] = {}
    taken = [stretches.setdefault((one.numbers, one.processes), len(stretches)) for one in rounds]
    every = dict(zip(taken, rounds, strict=True))
    return {
        "exponent": [exponent for exponent, _, _ in times],
        "least": [least for _, least, _ in times],
        "more": [more for _, _, more in times],
        "taken": taken,
        "disturbed": [[at for at, one in enumerate(each.disturbed) if one] for each in rounds],
        "stretches": [every[place].taken for place in range(len(stretches))],
    }


def fitting(every: Iterable[Rounds], most: int) -> str:
    """The rounds of all results as a block of at most `most` letters, thinned until it is.

    ``all`` and ``shown`` tell how many rounds there were and are; ``every`` that one of so many is kept, 0 for none,
    and then there are no columns.
    """
    rounds = list(every)
    count = sum(len(one.seconds) for one in rounds)
    longest = max((len(one.seconds) for one in rounds), default=0)
    step = 1
    while True:
        kept = [one.thinned(step) for one in rounds] if step > 1 else rounds
        shown = sum(len(one.seconds) for one in kept)
        block = packed({"all": count, "shown": shown, "every": step, **table(kept)})
        if len(block) <= most:
            return block
        if step >= longest:  # not even one of each fits
            return packed({"all": count, "shown": 0, "every": 0})
        step = min(max(step + 1, math.ceil(step * len(block) / max(most, 1))), longest)
