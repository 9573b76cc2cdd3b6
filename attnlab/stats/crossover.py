"""The length at which two contenders' curves meet, with an interval.

ln(ratio) against ln(n) is interpolated without overshoot (Fritsch and Carlson 1980, "Monotone piecewise cubic
interpolation"). The curves of the ratio and of both ends of its interval are followed from a length where one contender
is decidedly faster to one where the other is. The interval is widened on both sides by as much as a straight line would
place the crossover elsewhere, and by a twentieth of the distance (in ln n) between the lengths beside it at least. A
verdict without an interval between the two (fewer than two pairs of processes) excludes nothing: the crossover's
interval then reaches to the measured lengths beside it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.stats.analysis import Analysis, Group
from attnlab.stats.ranking import decidable
from attnlab.stats.verdicts import Kind, Verdict

#: how well interpolation between two lengths places a crossover, in parts of ln(n) between them: for overheads and
#: costs of a pair that differ up to fiftyfold, with lengths that double, it errs by 0.046 at most
_DOUBT = 0.05


@dataclass(frozen=True)
class Crossover:
    """Below `length` the contender `below` is faster, above it `above`; [`low`, `high`] is its interval.

    Lengths are positions, and last_below <= low <= length <= high <= first_above. The verdicts that support it were
    reached at `last_below` and `first_above`, both measured lengths.
    """

    below: str
    above: str
    length: float
    low: float
    high: float
    last_below: int
    first_above: int


def crossovers(baseline: str, contender: str, verdicts: Mapping[int, Verdict]) -> list[Crossover]:
    """Where `contender` (whose ratio to `baseline` is given by length) and `baseline` change places.

    Only between lengths at which the verdict is decided; an empty list means: none in the range. Where the ratio passes
    1 several times between two such lengths, the last is taken, and the interval covers all.
    """
    lengths = sorted(verdicts)
    decided = [at for at, n in enumerate(lengths) if verdicts[n].kind in (Kind.FASTER, Kind.SLOWER)]
    return [
        _between(baseline, contender, lengths, [verdicts[n] for n in lengths], left, right)
        for left, right in itertools.pairwise(decided)
        if verdicts[lengths[left]].kind is not verdicts[lengths[right]].kind
    ]


def _between(
    baseline: str, contender: str, lengths: Sequence[int], verdicts: Sequence[Verdict], left: int, right: int
) -> Crossover:
    """The crossover between two decided verdicts, at the positions `left` and `right`, that are not the same."""
    sign = 1 if verdicts[right].kind is Kind.SLOWER else -1
    middle = [sign * _log(one.ratio) for one in verdicts]
    early, late = ([sign * _log(one.high if end == sign else one.low) for one in verdicts] for end in (1, -1))
    last = max(at for at in range(left, right) if middle[at] <= 0) + 1
    length, straight = _zero(lengths, middle, last), _straight_zero(lengths, middle, last)
    doubt = max(length / straight, straight / length, (lengths[last] / lengths[last - 1]) ** _DOUBT)
    first = next(at for at in range(left, right + 1) if early[at] >= 0)
    low = _zero(lengths, early, first) / doubt
    high = _zero(lengths, late, max(at for at in range(left, right) if late[at] <= 0) + 1) * doubt
    below, above = (contender, baseline) if sign == 1 else (baseline, contender)
    return Crossover(
        below,
        above,
        length=length,
        low=min(max(low, float(lengths[left])), length),
        high=max(min(high, float(lengths[right])), length),
        last_below=lengths[left],
        first_above=lengths[right],
    )


def _log(value: float) -> float:
    """ln(value), the ends 0 and infinity of an interval that is none included."""
    return math.log(value) if value > 0 else -math.inf


def _zero(lengths: Sequence[int], values: Sequence[float], index: int) -> float:
    """The length at which the curve through `values` passes 0 between positions `index` - 1 and `index`.

    It rises there, from at most 0 to at least 0. An end that is infinite is no part of the curve, which then passes 0
    at the other end.
    """
    from scipy.interpolate import PchipInterpolator

    if math.isinf(values[index - 1]):
        return float(lengths[index])
    if math.isinf(values[index]):
        return float(lengths[index - 1])
    known = [at for at, value in enumerate(values) if math.isfinite(value)]
    curve = PchipInterpolator([math.log(lengths[at]) for at in known], [values[at] for at in known])
    left, right = float(lengths[index - 1]), float(lengths[index])
    for _ in range(60):
        middle = math.sqrt(left * right)
        left, right = (middle, right) if float(curve(math.log(middle))) <= 0 else (left, middle)
    return right


def _straight_zero(lengths: Sequence[int], values: Sequence[float], index: int) -> float:
    """The same by a straight line between the two positions."""
    y0, y1 = values[index - 1], values[index]
    return float(lengths[index - 1] * (lengths[index] / lengths[index - 1]) ** (y0 / (y0 - y1)))


# -- of all contenders of a group --------------------------------------------------------------------


def find_crossovers(analysis: Analysis, group: Group) -> dict[int, list[Crossover]]:
    """All decided changes of places among those who are first somewhere and the baseline, by head count.

    Of two names for one kernel the first takes part. The error rate of each interval is shared among the pairs, or
    among the contenders where those are more.
    """
    pairs = list(itertools.combinations(_candidates(analysis, group), 2))
    found: dict[int, list[Crossover]] = {}
    for count in group.heads:
        for one, other in pairs:
            verdicts = {}
            for n in group.grid[count]:
                cell = group.cells[count, n]
                if one in cell.measured and other in cell.measured:
                    both = (cell.measured[one], cell.measured[other])
                    shared = max(len(pairs), len(cell.measured) - 1)
                    if verdict := decidable(both, one, cell.margin, shared).get(other):
                        verdicts[n] = verdict
            found.setdefault(count, []).extend(crossovers(one, other, verdicts))
    return {count: sorted(some, key=lambda c: c.length) for count, some in found.items()}


def _candidates(analysis: Analysis, group: Group) -> list[str]:
    rankings = [cell.ranking for cell in group.ordered if cell.ranking is not None]
    wanted = {analysis.baseline} | {one.contender for ranking in rankings for one in ranking.first}

    def one_kernel(name: str, other: str) -> bool:
        """Whether the two ran one implementation wherever both were measured, which they were."""
        both = [
            (first.implementation, second.implementation)
            for ranking in rankings
            if (first := ranking.of(name)) is not None and (second := ranking.of(other)) is not None
        ]
        return bool(both) and all(first == second for first, second in both)

    chosen: list[str] = []
    for name in analysis.names:
        if name in wanted and not any(one_kernel(name, other) for other in chosen):
            chosen.append(name)
    return chosen
