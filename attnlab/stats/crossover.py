"""What changes with length: how a contender's time grows, and where two contenders change places.

Growth is the slope of ln(time) against ln(length), with its interval. A slope of 2 is quadratic growth. Where a
constant cost or a cache bends the line, the interval is wide: it comes from how far the measured lengths lie from the
line.

A crossover is the length at which two curves meet. There is none where neither overtakes the other. ln(ratio) is
interpolated against ln(n) by straight lines. The curves of the ratio and of both ends of its interval are followed from
a length where one contender is decidedly faster to one where the other is. Straight lines place a crossover between two
lengths only about: the interval is widened on both sides by `_DOUBT` of the distance between the lengths beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.stats.cells import Analysis, Cell, Group
from attnlab.stats.ranking import decidable
from attnlab.stats.verdicts import ALPHA, Kind, Verdict, quantile

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


#: how well straight lines place a crossover, in parts of ln(n) between two lengths: for overheads and costs of a pair
#: that differ up to fiftyfold, with lengths that double, they err by less
_DOUBT = 0.1


@dataclass(frozen=True)
class Crossover:
    """Below `length` the contender `below` is faster, above it `above`; [`low`, `high`] is its interval.

    The interval lies between two measured lengths at which the verdicts are decided.
    """

    below: str
    above: str
    length: float
    low: float
    high: float


def crossovers(baseline: str, contender: str, verdicts: Mapping[int, Verdict]) -> list[Crossover]:
    """Where `contender` (whose ratio to `baseline` is given by length, with an interval) and `baseline` change places.

    Only between lengths at which the verdict is decided; an empty list means: none in the range. Where the ratio passes
    1 several times between two such lengths, the last is taken, and the interval covers all.
    """
    decided = [n for n in sorted(verdicts) if verdicts[n].kind in (Kind.FASTER, Kind.SLOWER)]
    return [
        _between(baseline, contender, {n: verdicts[n] for n in sorted(verdicts) if left <= n <= right})
        for left, right in itertools.pairwise(decided)
        if verdicts[left].kind is not verdicts[right].kind
    ]


def _between(baseline: str, contender: str, verdicts: Mapping[int, Verdict]) -> Crossover:
    """The crossover between the first and the last of `verdicts`, by length, which are decided and differ."""
    lengths, found = list(verdicts), list(verdicts.values())
    if found[-1].kind is Kind.FASTER:  # the baseline's ratio to the contender rises
        found, baseline, contender = [one.turned for one in found], contender, baseline
    length = _zeros(lengths, [one.ratio for one in found])[-1]
    low, high = (
        _zeros(lengths, [one.high for one in found])[0],
        _zeros(lengths, [one.low for one in found])[-1],
    )
    beside = max(at for at, n in enumerate(lengths[:-1]) if n <= length)
    doubt = (lengths[beside + 1] / lengths[beside]) ** _DOUBT
    low, high = max(min(low, length) / doubt, lengths[0]), min(max(high, length) * doubt, lengths[-1])
    return Crossover(contender, baseline, length, low, high)


def _zeros(lengths: Sequence[int], ratios: Sequence[float]) -> list[float]:
    """The lengths at which `ratios`, which begin below 1 and end above it, pass 1 upwards."""
    places = itertools.pairwise(zip(lengths, map(math.log, ratios), strict=True))
    return [n0 * (n1 / n0) ** (-y0 / (y1 - y0)) for (n0, y0), (n1, y1) in places if y0 <= 0 < y1]


# -- of all contenders of a group --------------------------------------------------------------------


def find_crossovers(analysis: Analysis, group: Group) -> dict[int, list[Crossover]]:
    """All decided changes of places among those that are first somewhere and the baseline, by head count.

    Of two names for one kernel the first takes part. The error rate of each interval is shared among the pairs, or
    among the contenders where those are more.
    """
    pairs = list(itertools.combinations(_candidates(analysis, group), 2))
    by_heads: dict[int, dict[int, Cell]] = {}
    for (heads, length), cell in sorted(group.cells.items()):
        by_heads.setdefault(heads, {})[length] = cell
    found: dict[int, list[Crossover]] = {}
    for heads, cells in by_heads.items():
        for one, other in pairs:
            verdicts = {}
            for length, cell in cells.items():
                if one in cell.measured and other in cell.measured:
                    both = (cell.measured[one], cell.measured[other])
                    shared = max(len(pairs), len(cell.measured) - 1)
                    if verdict := decidable(both, one, cell.margin, shared).get(other):
                        verdicts[length] = verdict
            found.setdefault(heads, []).extend(crossovers(one, other, verdicts))
    return {heads: sorted(some, key=lambda c: c.length) for heads, some in found.items()}


def _candidates(analysis: Analysis, group: Group) -> list[str]:
    """Those that are first somewhere and the baseline, one name for those that ran the same kernels everywhere."""
    rankings = [cell.ranking for cell in group.cells.values() if cell.ranking is not None]
    wanted = {analysis.baseline} | {one.contender for ranking in rankings for one in ranking.first}
    ran: dict[str, tuple[str | None, ...]] = {}
    for name in analysis.names:
        places = [ranking.of(name) for ranking in rankings]
        if name in wanted and any(places):
            ran[name] = tuple(one.implementation if one else None for one in places)
    return [name for name, kernels in ran.items() if kernels not in [*ran.values()][: [*ran].index(name)]]
