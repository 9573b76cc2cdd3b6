"""Two contenders compared over pairs of fresh processes: a ratio, its interval, and a verdict.

Where a process's memory and code come to lie is drawn when it starts, and decides its speed by up to 30 %: no number
of rounds in one process averages that away (docs/decisions/0002). So the unit of replication is the *pair* of
processes, one of each contender, that raced each other. Within a pair the rounds are interleaved and both turns of a
round are moments apart, so that the machine's drift cancels in r = ln(t_contender / t_baseline); the pair's figure is

    d_p = median of r over its rounds,

and the interval is Student's over the P pairs, mean(d) ± t(P - 1) s_d / sqrt(P) (Kalibera and Jones 2013, "Rigorous
benchmarking in reasonable time", on replicating at the level that varies most).
"""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from attnlab.problem.result import Measurement

#: chance that any interval of one workload misses its true ratio
ALPHA = 0.05
#: a verdict is looked at twice, after the planned pairs and after the most that are allowed. Two looks at this level
#: err together as often as one at `ALPHA` (Pocock 1977, "Group sequential methods", table 1)
LOOK_ALPHA = 0.0294
#: differences up to this are called equivalent
MARGIN = 0.01
#: more pairs than this are not proposed: a machine on which so many are needed cannot decide it
_MOST_PAIRS = 200


class Kind(StrEnum):
    """What the interval says about the contender, held against the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """How a contender compares with the baseline.

    `ratio` is contender / baseline in seconds per call, [`low`, `high`] its interval over `processes` pairs; `rounds`
    were compared and `disturbed` left out. `spread` is the standard deviation of the pairs' log ratios, nan for fewer
    than two. `processes_needed` estimates how many pairs would decide it, where it is undecided.
    """

    kind: Kind
    ratio: float
    low: float
    high: float
    rounds: int
    disturbed: int = 0
    processes: int = 1
    spread: float = math.nan
    processes_needed: int | None = None


def compare(
    baseline: Measurement,
    contender: Measurement,
    *,
    comparisons: int = 1,
    margin: float = MARGIN,
) -> Verdict:
    """The verdict on `contender` against `baseline`, over the rounds that both took part in undisturbed.

    Rounds in which a turn of either was disturbed are left out. `comparisons` is how many contenders are compared with
    the baseline: the error rate is shared among them. Fewer than two pairs of processes with undisturbed rounds have no
    interval (`low` 0), and the verdict is undecided. Raises ValueError where the two share no round.
    """
    shared = baseline.by_round().keys() & contender.by_round().keys()
    if not shared:
        raise ValueError("the two share no round")
    pairs = log_ratios(baseline, contender)
    if not pairs:
        ratio = contender.median / baseline.median
        return Verdict(Kind.UNDECIDED, ratio, 0.0, math.inf, 0, len(shared), 0)
    kept = sum(map(len, pairs.values()))
    figures = [statistics.median(logs) for logs in pairs.values()]
    center = statistics.fmean(figures)
    ratio, left_out = math.exp(center), len(shared) - kept
    if len(figures) < 2:
        return Verdict(Kind.UNDECIDED, ratio, 0.0, math.inf, kept, left_out, len(figures))
    spread = deviation(figures, center)
    alpha = LOOK_ALPHA / max(1, comparisons)
    half = half_width(spread, len(figures), alpha)
    low, high = math.exp(center - half), math.exp(min(center + half, 700.0))
    kind = _kind(low, high, margin)
    needed = _pairs_needed(center, spread, len(figures), alpha, margin) if kind is Kind.UNDECIDED else None
    return Verdict(kind, ratio, low, high, kept, left_out, len(figures), spread, needed)


def log_ratios(baseline: Measurement, contender: Measurement) -> dict[int, list[float]]:
    """By pair of processes, ln(contender / baseline) of every round that both took part in undisturbed."""
    left_out = baseline.disturbed_rounds | contender.disturbed_rounds
    base, other, processes = baseline.by_round(), contender.by_round(), baseline.processes
    pairs: dict[int, list[float]] = {}
    for index in sorted(base):
        if index in other and index not in left_out:
            pairs.setdefault(processes[index], []).append(math.log(other[index] / base[index]))
    return pairs


def deviation(figures: Sequence[float], mean: float) -> float:
    """The sample standard deviation of two figures or more whose mean is known.

    `statistics.stdev` counts in fractions, which took half of the time of ranking a large run.
    """
    return math.sqrt(math.fsum((one - mean) ** 2 for one in figures) / (len(figures) - 1))


def half_width(spread: float, pairs: int, alpha: float) -> float:
    """Half the width of Student's interval for the mean of so many log ratios whose standard deviation is `spread`."""
    return quantile(pairs - 1, alpha) * spread / math.sqrt(pairs)


@lru_cache(maxsize=4096)
def quantile(freedom: int, alpha: float) -> float:
    """The two-sided quantile of Student's t: P(|T| > it) = alpha."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - alpha / 2))


def _kind(low: float, high: float, margin: float) -> Kind:
    if low > 1 + margin:
        return Kind.SLOWER
    if high < 1 / (1 + margin):
        return Kind.FASTER
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return Kind.EQUIVALENT
    return Kind.UNDECIDED


def _pairs_needed(center: float, spread: float, pairs: int, alpha: float, margin: float) -> int | None:
    """Pairs at which the interval would lie on one side of the margin's edge, if the scatter stays as it is."""
    room = abs(abs(center) - math.log1p(margin))
    candidates: Sequence[int] = range(pairs + 1, _MOST_PAIRS + 1)  # the more pairs, the narrower
    found = bisect.bisect_left(candidates, True, key=lambda one: half_width(spread, one, alpha) < room)
    return candidates[found] if found < len(candidates) else None
