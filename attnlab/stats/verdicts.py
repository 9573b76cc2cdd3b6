"""Contenders compared over visits: a ratio, its interval, and a verdict. The only place that makes verdicts of results.

Where a process's memory and code come to lie is drawn when it starts, and decides its speed by up to 30 %; and a
machine has states of some 10 to 60 s. So the unit of replication is the *visit*: fresh processes of both contenders at
one moment. Within a visit the rounds are interleaved, so that the machine's drift cancels in r = ln(t_contender /
t_baseline); the visit's figure is

    d_v = median of r over its rounds,

and the interval is Student's over the k visits, mean(d) ± t(k - 1) s_d / sqrt(k) (Kalibera and Jones 2013, "Rigorous
benchmarking in reasonable time", on replicating at the level that varies most).

What visits and sittings differ by is told too: whether a contender has two speeds, and one estimate from several
sittings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Literal

from attnlab.workload.result import Measurement, Result

#: chance that any interval of one workload misses its true ratio
ALPHA = 0.05
#: a verdict is looked at after 5, 6, 7 and 8 visits, until it is decided. Simulated, four looks at this level err
#: together in 4.9 % (Pocock 1977, "Group sequential methods", for looks that are evenly spaced)
LOOK_ALPHA = 0.022
#: differences up to this are called equivalent
MARGIN = 0.01
#: two that are undecided, but with their whole interval within this, are close: what differs hardly matters
CLOSE = 0.05
#: more visits than this are not proposed: a machine on which so many are needed cannot decide it
MOST_VISITS = 200
#: chance with which the number of visits that is proposed decides it
_POWER = 0.8


class Kind(StrEnum):
    """What the interval says about the contender, held against the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """How a contender compares with the baseline.

    `ratio` is contender / baseline in seconds per call, [`low`, `high`] its interval over `visits`, [0, inf] where
    there is none; `rounds` were compared and `disturbed` left out. `spread` is the standard deviation of the visits'
    log ratios, nan for fewer than two. `visits_needed` estimates, where it is undecided, with how many visits four
    comparisons in five would be decided. `margin` is the relative difference that counts as none.
    """

    kind: Kind
    ratio: float
    low: float
    high: float
    rounds: int
    disturbed: int = 0
    visits: int = 1
    spread: float = math.nan
    visits_needed: int | None = None
    margin: float = MARGIN

    @property
    def apart(self) -> float:
        """The largest difference that the interval allows, as a fraction: inf where there is no interval."""
        return max(self.high, 1 / self.low) - 1 if self.low > 0 else math.inf

    @property
    def close(self) -> bool:
        """Whether neither is decidedly faster and the two are at most `CLOSE` apart."""
        decided = self.kind in (Kind.FASTER, Kind.SLOWER)
        return not decided and max(self.apart, self.margin) <= CLOSE

    @property
    def turned(self) -> Verdict:
        """The same comparison the other way round, baseline / contender; of a verdict that has an interval."""
        kind = {Kind.FASTER: Kind.SLOWER, Kind.SLOWER: Kind.FASTER}.get(self.kind, self.kind)
        return replace(self, kind=kind, ratio=1 / self.ratio, low=1 / self.high, high=1 / self.low)

    @property
    def no_interval(self) -> Literal["disturbed", "one visit"] | None:
        """Why the ratio has no interval; None where it has one."""
        if self.low > 0:
            return None
        return "disturbed" if self.disturbed >= self.rounds else "one visit"


def compare(
    baseline: Measurement, contender: Measurement, *, comparisons: int = 1, margin: float = MARGIN
) -> Verdict:
    """The verdict on `contender` against `baseline`, over the rounds that both took part in undisturbed.

    Rounds in which a turn of either was disturbed are left out. `comparisons` is how many contenders are compared with
    the baseline: the error rate is shared among them. Fewer than two visits with undisturbed rounds have no interval,
    and the verdict is undecided. Raises ValueError where the two share no round.
    """
    shared = baseline.by_round.keys() & contender.by_round.keys()
    if not shared:
        raise ValueError("the two share no round")
    visits = log_ratios(baseline, contender)
    if not visits:
        ratio = contender.median / baseline.median
        return Verdict(Kind.UNDECIDED, ratio, 0.0, math.inf, 0, len(shared), 0)
    kept = sum(map(len, visits.values()))
    figures = [statistics.median(logs) for logs in visits.values()]
    center = statistics.fmean(figures)
    spread = deviation(figures, center) if len(figures) > 1 else math.nan
    left_out = len(shared) - kept
    found = Verdict(Kind.UNDECIDED, math.exp(center), 0.0, math.inf, kept, left_out, len(figures), spread)
    return _at_level(found, LOOK_ALPHA / max(1, comparisons), margin)


def log_ratios(baseline: Measurement, contender: Measurement) -> dict[int, list[float]]:
    """By visit, ln(contender / baseline) of every round that both took part in undisturbed."""
    left_out = baseline.disturbed_rounds | contender.disturbed_rounds
    base, other, numbers = baseline.by_round, contender.by_round, baseline.visits
    found: dict[int, list[float]] = {}
    for index in sorted(base):
        if index in other and index not in left_out:
            found.setdefault(numbers[index], []).append(math.log(other[index] / base[index]))
    return found


def deviation(figures: Sequence[float], mean: float) -> float:
    """The sample standard deviation of two figures or more whose mean is known.

    `statistics.stdev` counts in fractions, which took half of the time of ranking a large run.
    """
    return math.sqrt(math.fsum((one - mean) ** 2 for one in figures) / (len(figures) - 1))


def half_width(spread: float, visits: int, alpha: float) -> float:
    """Half the width of Student's interval for the mean of so many figures whose standard deviation is `spread`."""
    return quantile(visits - 1, alpha) * spread / math.sqrt(visits)


@lru_cache(maxsize=4096)
def quantile(freedom: int, alpha: float) -> float:
    """The two-sided quantile of Student's t: P(|T| > it) = alpha."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - alpha / 2))


def _at_level(found: Verdict, alpha: float, margin: float) -> Verdict:
    """The same comparison with the interval that misses with probability `alpha`, and what follows from it."""
    if found.visits < 2:
        return found
    center, half = math.log(found.ratio), half_width(found.spread, found.visits, alpha)
    low, high = math.exp(center - half), math.exp(min(center + half, 700.0))
    edge, kind, needed = 1 + margin, Kind.UNDECIDED, None
    if low > edge:
        kind = Kind.SLOWER
    elif high < 1 / edge:
        kind = Kind.FASTER
    elif 1 / edge <= low and high <= edge:
        kind = Kind.EQUIVALENT
    else:
        needed = _visits_needed(center, found.spread, found.visits, alpha, margin)
    return replace(found, kind=kind, low=low, high=high, visits_needed=needed, margin=margin)


def _visits_needed(center: float, spread: float, visits: int, alpha: float, margin: float) -> int | None:
    """Visits with which `_POWER` of all comparisons would be decided, if mean and spread are as they were found.

    By the distance to the nearest edge of the margin (Guenther 1981, "Sample size formulas for normal theory t tests");
    inside the margin either edge may be missed, with half of the chance each.
    """
    from scipy.special import ndtri

    edge, off = math.log1p(margin), abs(center)
    missed = (1 - _POWER) / (2 if off < edge else 1)
    level, power = -float(ndtri(alpha / 2)), -float(ndtri(missed))
    room = max(abs(edge - off), 1e-9)
    needed = math.ceil(((level + power) * spread / room) ** 2 + level**2 / 2)
    return max(needed, visits + 1) if needed <= MOST_VISITS else None


# -- all contenders of a workload ---------------------------------------------------------------------


def latencies(results: Iterable[Result]) -> dict[str, Measurement]:
    """Seconds per call of those that were measured, by contender."""
    return {one.contender: found for one in results if (found := one.latency) is not None}


def verdicts_against(
    results: Iterable[Result], baseline: str, *, comparisons: int | None = None, margin: float = MARGIN
) -> dict[str, Verdict]:
    """The verdict on every other measured contender of one workload against `baseline`, by contender.

    Empty where the baseline was not measured; a contender that shares no round with it is left out.

    The chance of 5 % that any verdict is wrong is shared among `comparisons`, by default as many as there are other
    contenders, step by step: the clearest is held against its part of it, and where it is decided the next against a
    part of as many as are left (Holm 1979, "A simple sequentially rejective multiple test procedure"). So a contender
    that is far behind does not widen the interval of one that is near.
    """
    times = latencies(results)
    if baseline not in times:
        return {}
    left = max(1, comparisons if comparisons is not None else len(times) - 1)
    base = times.pop(baseline)
    found = {
        name: compare(base, latency, comparisons=left, margin=margin)
        for name, latency in times.items()
        if not base.by_round.keys().isdisjoint(latency.by_round)
    }
    for name in sorted(found, key=lambda name: _chance(found[name], margin)):
        found[name] = _at_level(found[name], LOOK_ALPHA / left, margin)
        left = max(1, left - (found[name].kind is not Kind.UNDECIDED))
    return found


def _chance(found: Verdict, margin: float) -> float:
    """The level at which the verdict would just be decided: its p-value, 1 where it has no interval."""
    from scipy.special import stdtr

    if found.visits < 2:
        return 1.0
    room = abs(abs(math.log(found.ratio)) - math.log1p(margin))
    error = found.spread / math.sqrt(found.visits)
    return 2 * float(stdtr(found.visits - 1, -room / error)) if error > 0 else float(room == 0)


# -- what getting ready costs ------------------------------------------------------------------------


def pay_off(results: Collection[Result], contender: str) -> tuple[str, int] | None:
    """The fastest that needs less set-up than `contender`, and after how many calls this one has taken less in all.

    calls = (S − S')/(t' − t), where S is a set-up, t the median of the calls, and S', t' are those of the fastest with
    S' < S. None where the contender is not decidedly faster than that one, or none needs less, or one call is enough.
    """
    times = {name: one.median for name, one in latencies(results).items()}
    setups = {one.contender: one.setup_seconds for one in results if one.setup_seconds is not None}
    if contender not in times or contender not in setups:
        return None
    leaner = [name for name in times if setups.get(name, math.inf) < setups[contender]]
    against = min(leaner, key=times.__getitem__, default=contender)
    verdict, saved = verdicts_against(results, against).get(contender), times[against] - times[contender]
    if verdict is None or verdict.kind is not Kind.FASTER or saved <= 0:
        return None
    calls = math.ceil((setups[contender] - setups[against]) / saved)
    return (against, calls) if calls > 1 else None


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
    for index, sample in latency.by_round.items():
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
