"""What visits and sittings differ by: whether a contender has two speeds, and one estimate from several sittings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from attnlab.stats.verdicts import ALPHA, half_width
from attnlab.workload.result import Measurement

#: two speeds are told apart where they differ by more than this, ...
_APART = 0.12
#: ... by more than so many times the widest scatter within either, and each is met so often
_SCATTERS = 3.0
_MET = 3
#: times that one follows the other, at least
_TURNS = 2


@dataclass(frozen=True)
class Speed:
    """One of a contender's speeds: median seconds a call, and in how many visits it was met."""

    seconds: float
    visits: int


def speeds(latency: Measurement) -> tuple[Speed, ...]:
    """The speeds that a contender has from visit to visit, fastest first: one, or two clearly apart.

    The medians of its visits are cut at their widest gap. Two groups count as two speeds where they are 12 % apart,
    three times as far as either scatters, and each was met three times: otherwise they are one. They must come by
    turns: where all fast visits come before all slow ones, or after, the machine may have changed its own speed once.
    """
    by_visit: dict[int, list[float]] = {}
    for index, sample in latency.by_round().items():
        if index not in latency.disturbed_rounds:
            by_visit.setdefault(latency.visits[index], []).append(math.log(sample))
    timed = [statistics.median(logs) for _, logs in sorted(by_visit.items())]
    logs = sorted(timed)
    gaps = [later - earlier for earlier, later in pairwise(logs)]
    cut = 1 + gaps.index(max(gaps)) if gaps else 0
    fast, slow = logs[:cut], logs[cut:]
    if min(len(fast), len(slow)) >= _MET:
        scatter = max((group[-1] - group[0]) / (len(group) - 1) for group in (fast, slow))
        apart = statistics.median(slow) - statistics.median(fast)
        turns = sum(before != after for before, after in pairwise(one >= slow[0] for one in timed))
        if apart >= math.log1p(_APART) and gaps[cut - 1] >= _SCATTERS * scatter and turns >= _TURNS:
            return tuple(Speed(math.exp(statistics.median(group)), len(group)) for group in (fast, slow))
    return (Speed(math.exp(statistics.median(logs)), len(logs)),) if logs else ()


@dataclass(frozen=True)
class Combined:
    """A mean over sittings with its interval, and `between`, the standard deviation that sittings add (tau)."""

    mean: float
    low: float
    high: float
    between: float


def combined(
    means: Sequence[float], errors: Sequence[float], *, between: float = 0.0, alpha: float = ALPHA
) -> Combined:
    """One estimate from the means of sittings and their standard errors, as of log ratios; random effects.

    tau² is Paule and Mandel's (1982, "Consensus values and weighting factors"): the one with which the weighted squares
    around the mean are as many as there are degrees of freedom. The interval is Hartung and Knapp's (2001, "A refined
    method for the meta-analysis of controlled clinical trials"), Student's with k - 1 degrees. One sitting cannot tell
    tau, nor its interval's width: it takes `between`, known from elsewhere, and the normal quantile. Raises ValueError
    for no sitting, and for errors that are not above 0.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtri

    if not means or len(means) != len(errors) or not all(one > 0 for one in errors):
        raise ValueError(
            "sittings need a mean and a standard error above 0 each, and there must be one at least"
        )
    if len(means) == 1:
        half = -float(ndtri(alpha / 2)) * math.hypot(errors[0], between)
        return Combined(means[0], means[0] - half, means[0] + half, between)

    def at(tau_squared: float) -> tuple[float, list[float]]:
        weights = [1 / (error**2 + tau_squared) for error in errors]
        center = math.fsum(w * one for w, one in zip(weights, means, strict=True)) / math.fsum(weights)
        return center, weights

    def excess(tau_squared: float) -> float:
        center, weights = at(tau_squared)
        squares = math.fsum(w * (one - center) ** 2 for w, one in zip(weights, means, strict=True))
        return squares - (len(means) - 1)

    most = (max(means) - min(means)) ** 2 * len(means)
    tau_squared = float(brentq(excess, 0.0, most)) if excess(0.0) > 0 else 0.0
    center, weights = at(tau_squared)
    squares = excess(tau_squared) + len(means) - 1
    spread = math.sqrt(max(1.0, squares / (len(means) - 1)) / math.fsum(weights) * len(means))
    half = half_width(spread, len(means), alpha)
    return Combined(center, center - half, center + half, math.sqrt(tau_squared))
