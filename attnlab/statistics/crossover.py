"""The length at which two contenders' curves meet, with an interval.

Between measured lengths ln(ratio) is taken as linear in ln(n). The curves of the ratio and of both ends of
its interval are followed from a length where one contender is decidedly faster to one where the other is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.statistics.pairing import Kind, Verdict


@dataclass(frozen=True)
class Crossover:
    """Below `length` the contender `below` is faster, above it `above`; [`low`, `high`] is its interval.

    The verdicts that support it were reached at `last_below` and `first_above`, both measured lengths.
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

    Only between lengths at which the verdict is decided; an empty list means: none in the range.
    """
    found = []
    decided = [n for n in sorted(verdicts) if verdicts[n].kind in (Kind.FASTER, Kind.SLOWER)]
    for left, right in itertools.pairwise(decided):
        kinds = verdicts[left].kind, verdicts[right].kind
        if kinds[0] is kinds[1]:
            continue
        span = [n for n in sorted(verdicts) if left <= n <= right]
        sign = 1 if kinds[1] is Kind.SLOWER else -1
        curves = [
            [sign * math.log(value) for value in (one.ratio, *((one.high, one.low)[::sign]))]
            for one in (verdicts[n] for n in span)
        ]
        middle, early, late = ([row[column] for row in curves] for column in range(3))
        names = (contender, baseline) if sign == 1 else (baseline, contender)
        found.append(
            Crossover(
                *names,
                length=_last_zero(span, middle),
                low=_first_zero(span, early),
                high=_last_zero(span, late),
                last_below=left,
                first_above=right,
            )
        )
    return found


def _first_zero(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The first length at which `values`, negative at the left end, reach 0."""
    index = next(i for i, value in enumerate(values) if value >= 0)
    return _zero(lengths, values, index)


def _last_zero(lengths: Sequence[int], values: Sequence[float]) -> float:
    """The last length at which `values`, positive at the right end, leave 0."""
    index = max(i for i, value in enumerate(values) if value <= 0) + 1
    return _zero(lengths, values, index)


def _zero(lengths: Sequence[int], values: Sequence[float], index: int) -> float:
    x0, x1 = math.log(lengths[index - 1]), math.log(lengths[index])
    y0, y1 = values[index - 1], values[index]
    return math.exp(x0 + (x1 - x0) * (-y0) / (y1 - y0))
