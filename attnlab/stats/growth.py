"""How a contender's time grows with length: the slope of ln(time) against ln(length), with its interval.

A slope of 2 is quadratic growth. Where a constant cost or a cache bends the line, the interval is wide: it comes from
how far the measured lengths lie from the line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attnlab.stats.analysis import Group
from attnlab.stats.verdicts import ALPHA, quantile

#: two points determine a line, and nothing is left to tell how sure it is
LEAST_LENGTHS = 3


@dataclass(frozen=True)
class Slope:
    """The slope from length `first` to `last`, with its 95 % interval."""

    slope: float
    low: float
    high: float
    first: int
    last: int


def slope_of(seconds: Mapping[int, float]) -> Slope | None:
    """Ordinary least squares of ln(seconds) on ln(length); None for fewer than three lengths."""
    from scipy.stats import linregress

    lengths = sorted(seconds)
    if len(lengths) < LEAST_LENGTHS:
        return None
    line = linregress([math.log(n) for n in lengths], [math.log(seconds[n]) for n in lengths])
    half = quantile(len(lengths) - 2, ALPHA) * line.stderr
    return Slope(line.slope, line.slope - half, line.slope + half, lengths[0], lengths[-1])


def slopes(group: Group) -> dict[tuple[str, int], Slope]:
    """By contender and head count, where enough lengths were measured."""
    times: dict[tuple[str, int], dict[int, float]] = {}
    for (heads, length), cell in sorted(group.cells.items()):
        for name, result in cell.measured.items():
            if result.latency is not None:
                times.setdefault((name, heads), {})[length] = result.latency.median
    found = {at: slope_of(some) for at, some in times.items()}
    return {at: one for at, one in found.items() if one is not None}
