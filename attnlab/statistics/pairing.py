"""Two contenders compared pair by pair, round by round: a ratio, its interval, and a verdict.

In round i both were measured within moments of each other, so the machine's drift cancels in
r_i = ln(t_contender / t_baseline). The estimate is exp(median r), the interval its order statistics,
which assumes nothing about how the noise is distributed (Hahn and Meeker 1991, section 5.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

from attnlab.contract.result import Measurement

#: chance that any interval of one workload misses its true ratio
ALPHA = 0.05
#: differences up to this are called equivalent
MARGIN = 0.01
#: a round whose calibration loop is further off its median is left out whole, unless the loop scatters that
#: much in every round: then only beyond this many robust standard deviations (docs/decisions/0003)
DISTURBED = 0.10
DEVIATIONS = 3.0


class Kind(StrEnum):
    """What the interval says about the contender, held against the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """How a contender compares with the baseline.

    `ratio` is contender / baseline in seconds per call, [`low`, `high`] its interval; `rounds` were compared
    and `disturbed` left out. `rounds_needed` estimates how many would decide it, where it is undecided.
    """

    kind: Kind
    ratio: float
    low: float
    high: float
    rounds: int
    disturbed: int = 0
    rounds_needed: int | None = None


def compare(
    baseline: Measurement,
    contender: Measurement,
    *,
    disturbed: Iterable[int] = (),
    comparisons: int = 1,
    margin: float = MARGIN,
) -> Verdict:
    """The verdict on `contender` against `baseline`, over the rounds that both took part in.

    `comparisons` is how many contenders are compared with the baseline: the error rate is shared among them.
    Raises ValueError where the two share no undisturbed round.
    """
    left_out = set(disturbed)
    base, other = baseline.by_round(), contender.by_round()
    shared = sorted(set(base) & set(other))
    kept = [index for index in shared if index not in left_out]
    if not kept:
        raise ValueError("the two share no undisturbed round")
    logs = sorted(math.log(other[index] / base[index]) for index in kept)
    ratio = math.exp(statistics.median(logs))
    rank = interval_rank(len(logs), ALPHA / max(1, comparisons))
    if rank == 0:
        needed = least_rounds(comparisons)
        return Verdict(Kind.UNDECIDED, ratio, 0.0, math.inf, len(kept), len(shared) - len(kept), needed)
    low, high = math.exp(logs[rank - 1]), math.exp(logs[-rank])
    kind = _kind(low, high, margin)
    needed_rounds = _rounds_needed(ratio, low, high, margin, len(kept)) if kind is Kind.UNDECIDED else None
    return Verdict(kind, ratio, low, high, len(kept), len(shared) - len(kept), needed_rounds)


@lru_cache(maxsize=4096)
def interval_rank(rounds: int, alpha: float) -> int:
    """The largest k with P(Bin(rounds, 1/2) <= k - 1) <= alpha / 2; 0 where even k = 1 is too likely.

    [r_(k), r_(rounds-k+1)] then covers the median with probability of at least 1 - alpha.
    """
    allowed = Fraction(alpha) / 2 * 2**rounds  # whole numbers, so that it is exact at every size
    term, total, rank = 1, 0, 0
    while rank < rounds // 2:
        total += term
        term = term * (rounds - rank) // (rank + 1)
        if total > allowed:
            break
        rank += 1
    return rank


def least_rounds(comparisons: int = 1) -> int:
    """The fewest rounds for which an interval exists at all."""
    rounds = 1
    while interval_rank(rounds, ALPHA / max(1, comparisons)) == 0:
        rounds += 1
    return rounds


def disturbed_rounds(calibration: Mapping[int, float]) -> set[int]:
    """Rounds whose calibration loop (seconds, by round) stands out from the others'.

    That is by more than `DISTURBED` of its median and by more than `DEVIATIONS` times 1.4826 times the
    median absolute deviation, which is the standard deviation where the scatter is normal.
    """
    if not calibration:
        return set()
    middle = statistics.median(calibration.values())
    scatter = 1.4826 * statistics.median(abs(seconds - middle) for seconds in calibration.values())
    allowed = max(DISTURBED * middle, DEVIATIONS * scatter)
    return {index for index, seconds in calibration.items() if abs(seconds - middle) > allowed}


def calibration_of(measurements: Iterable[Measurement]) -> dict[int, float]:
    """The calibration loop's seconds by round, gathered from latencies of one workload."""
    return {
        int(index): seconds
        for one in measurements
        for index, seconds in zip(one.columns["round"], one.columns["calibration_s"], strict=True)
    }


def _kind(low: float, high: float, margin: float) -> Kind:
    if low > 1 + margin:
        return Kind.SLOWER
    if high < 1 / (1 + margin):
        return Kind.FASTER
    if low >= 1 / (1 + margin) and high <= 1 + margin:
        return Kind.EQUIVALENT
    return Kind.UNDECIDED


def _rounds_needed(ratio: float, low: float, high: float, margin: float, rounds: int) -> int | None:
    """Rounds at which an interval narrowing as 1/sqrt(rounds) would lie on one side of a margin's edge."""
    edge = math.log1p(margin)
    room = abs(abs(math.log(ratio)) - edge)
    half = math.log(high / low) / 2
    if room <= 0 or half <= 0:
        return None
    return max(rounds + 1, math.ceil(rounds * (half / room) ** 2))
