"""Contenders compared over visits: a ratio, its interval, and a verdict. No other module turns results into verdicts.

When a process starts, its memory and code get a random place, which changes its speed by up to 30 %. And a machine has
states that last about 10 to 60 s. So the unit of replication is the *visit*: fresh processes of both contenders at one
moment. Within a visit the rounds are interleaved, so that the machine's drift cancels in r = ln(t_contender /
t_baseline). The figure of a visit is

    d_v = median of r over its rounds,

and the interval is Student's over the k visits, mean(d) ± t(k - 1 + p) s / sqrt(k) (Kalibera and Jones 2013, "Rigorous
benchmarking in reasonable time": replicate at the level that varies most). A few visits estimate their own spread
badly. So s² includes an estimate from the rounds, which counts as p further visits (Smyth 2004, "Linear models and
empirical Bayes methods", the moderated t): in recorded visits, d_v scatters about 1.4/√n times as much as the n rounds
within a visit, and p is 2. s² is never less than the variance of the visits themselves. A program that runs from time
to time makes a few visits outliers. So from seven visits on, the most extreme tenth at either end, at least one visit,
is left out of the mean, and s² counts it as its nearest neighbour (Tukey and McLaughlin 1963, "Less vulnerable
confidence and significance procedures", the trimmed t).

This module also finds whether a contender has two speeds from visit to visit, and makes one estimate from several
sittings.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache, partial
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta

from attnlab.workload.result import Measurement, Result

#: chance that any verdict of one workload is wrong, and that a single interval misses its true ratio
ALPHA = 0.05
#: after each lap, a run stops measuring a contender that is slower by this margin at this error level. The level is so
#: strict that frequent looks do not lower the 95 % (Peto and others 1976, "Design and analysis of randomized clinical
#: trials", on looks before the last). The margin is larger than the effect of a process's place in memory. A contender
#: that is surely close is not measured further either
EARLY_ALPHA, EARLY_MARGIN = 0.001, 0.2
#: expected standard deviation between visits of n rounds, in units of that of the rounds over √n (a median has 1.25);
#: the largest n for which this was seen; the number of visits that this expectation counts as
_WITHIN, _MOST_ROUNDS, _PRIOR_VISITS = 1.4, 12, 2
#: least number of visits for trimming; the fraction trimmed at either end, at least one visit
_TRIMMED_FROM, _TRIMMED = 7, 0.1
#: with fewer degrees of freedom there is no interval: with one, Student's quantile is 12.7, and 64 at 1 %
_LEAST_FREEDOM = 2
#: standard deviation that a sitting adds to the logarithm of a ratio, assumed until this machine has shown it: for two
#: backends; for one backend twice, which the machine affects alike; the number of sittings that this counts as
#: (`benchmarks/verdicts`)
BETWEEN, BETWEEN_ALIKE, _PRIOR_SITTINGS = 0.03, 0.005, 8
#: relative differences up to this are called equivalent
MARGIN = 0.01
#: an undecided pair is close if its whole interval lies within this: the difference hardly matters
CLOSE = 0.05


class Kind(StrEnum):
    """What the interval says about the contender, compared with the margin."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """How a contender compares with the baseline.

    `ratio` is contender / baseline in seconds per call; [`low`, `high`] is its interval over `visits`, or [0, inf] if
    there is none. `rounds` were compared and `disturbed` were left out. `spread` is the standard deviation of the
    visits' log ratios, with `freedom` degrees of freedom. `margin` is the relative difference that counts as none.
    """

    kind: Kind
    ratio: float
    low: float
    high: float
    rounds: int
    disturbed: int = 0
    visits: int = 1
    spread: float = math.nan
    freedom: int = 0
    margin: float = MARGIN

    @property
    def apart(self) -> float:
        """The largest difference that the interval allows, as a fraction; inf if there is no interval."""
        return max(self.high, 1 / self.low) - 1 if self.low > 0 else math.inf

    @property
    def settled(self) -> bool:
        """Whether a verdict with `EARLY_ALPHA` and `EARLY_MARGIN` shows that the two are far apart, or close."""
        return self.kind in (Kind.FASTER, Kind.SLOWER) or self.apart <= CLOSE

    @property
    def close(self) -> bool:
        """Whether neither is clearly faster and the two are at most `CLOSE` apart."""
        decided = self.kind in (Kind.FASTER, Kind.SLOWER)
        return not decided and max(self.apart, self.margin) <= CLOSE

    @property
    def turned(self) -> Verdict:
        """The same comparison the other way round, baseline / contender."""
        kind = {Kind.FASTER: Kind.SLOWER, Kind.SLOWER: Kind.FASTER}.get(self.kind, self.kind)
        high = 1 / self.low if self.low else math.inf
        return replace(self, kind=kind, ratio=1 / self.ratio, low=1 / self.high, high=high)

    @property
    def no_interval(self) -> Literal["disturbed", "few rounds"] | None:
        """Why the ratio has no interval; None if it has one."""
        if self.low > 0:
            return None
        return "disturbed" if self.disturbed >= self.rounds else "few rounds"


AtLevel = Callable[[float], Verdict]


def compare(
    baseline: Measurement,
    contender: Measurement,
    *,
    comparisons: int = 1,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    known: tuple[float, int] = (0.0, 0),
) -> Verdict:
    """The verdict on `contender` against `baseline`, over the rounds in which both had an undisturbed turn.

    `comparisons` is the number of contenders that are compared with the baseline: the error rate `alpha` is shared
    among them. `known` is the scatter of visits in similar comparisons: a sum of squares and its degrees of freedom.
    One visit of fewer than three undisturbed rounds has no interval, and the verdict is undecided. Raises ValueError if
    the two share no round.
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
    center, spread, freedom = _center(figures, list(visits.values()), known)
    left_out = len(shared) - kept
    found = Verdict(
        Kind.UNDECIDED, math.exp(center), 0.0, math.inf, kept, left_out, len(figures), spread, freedom
    )
    return _at_level(found, alpha / max(1, comparisons), margin)


def _center(
    figures: Sequence[float], rounds: Sequence[Sequence[float]], others: tuple[float, int]
) -> tuple[float, float, int]:
    """The mean of the visits' `figures`, its standard error times √k, and the degrees of freedom of that error.

    With many visits, it is the trimmed mean, with the Winsorized standard deviation. `rounds` add degrees of freedom:
    `_PRIOR_VISITS`, but not more than their own spread has. `others` is `known` in `compare`.
    """
    count = len(figures)
    cut = max(1, int(_TRIMMED * count)) if count >= _TRIMMED_FROM else 0
    left = sorted(figures)[cut : count - cut]
    center, counted = statistics.fmean(left), [left[0]] * cut + left + [left[-1]] * cut
    known = sum(map(len, rounds)) - len(rounds)
    squares = math.fsum((one - statistics.fmean(logs)) ** 2 for logs in rounds for one in logs)
    prior, freedom = min(_PRIOR_VISITS, known), len(left) - 1
    usual = min(_MOST_ROUNDS, statistics.fmean(map(len, rounds)))
    expected = prior * _WITHIN**2 / usual * squares / known if known else 0.0
    found = statistics.pvariance(counted) * count
    whole = prior + freedom + others[1]
    squared = max((expected + found + others[0]) / max(1, whole), found / max(1, freedom))
    return center, math.sqrt(squared * count / len(left)), whole


def log_ratios(baseline: Measurement, contender: Measurement) -> dict[int, list[float]]:
    """By visit, ln(contender / baseline) of every round in which both had an undisturbed turn."""
    left_out = baseline.disturbed_rounds | contender.disturbed_rounds
    base, other, numbers = baseline.by_round, contender.by_round, baseline.visits
    found: dict[int, list[float]] = {}
    for index in sorted(base):
        if index in other and index not in left_out:
            found.setdefault(numbers[index], []).append(math.log(other[index] / base[index]))
    return found


@lru_cache(maxsize=4096)
def quantile(freedom: int, alpha: float) -> float:
    """The two-sided quantile q of Student's t: P(|T| > q) = alpha."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - alpha / 2))


def _at_level(found: Verdict, alpha: float, margin: float) -> Verdict:
    """The same comparison with an interval that misses with probability `alpha`, and the verdict from it."""
    if found.freedom < _LEAST_FREEDOM:
        return found
    return _judged(found, quantile(found.freedom, alpha) * found.spread / math.sqrt(found.visits), margin)


def _judged(found: Verdict, half: float, margin: float) -> Verdict:
    """The verdict with an interval that reaches `half` to both sides of the ratio's logarithm."""
    center = math.log(found.ratio)
    low, high = math.exp(center - half), math.exp(min(center + half, 700.0))
    edge, kind = 1 + margin, Kind.UNDECIDED
    if low > edge:
        kind = Kind.SLOWER
    elif high < 1 / edge:
        kind = Kind.FASTER
    elif 1 / edge <= low and high <= edge:
        kind = Kind.EQUIVALENT
    return replace(found, kind=kind, low=low, high=high, margin=margin)


# -- all contenders of a workload ---------------------------------------------------------------------


def latencies(results: Iterable[Result]) -> dict[str, Measurement]:
    """Seconds per call of each contender that was measured, by name."""
    return {one.contender: found for one in results if (found := one.latency) is not None}


def verdicts_against(
    results: Iterable[Result],
    baseline: str,
    *,
    comparisons: int | None = None,
    margin: float = MARGIN,
    alpha: float = ALPHA,
) -> dict[str, Verdict]:
    """The verdict on every other measured contender of one workload against `baseline`, by contender.

    Empty if the baseline was not measured; a contender that shares no round with it is left out.

    The chance `alpha` that any verdict is wrong is shared among `comparisons`, by default the number of other
    contenders: see `stepwise`.
    """
    times = latencies(results)
    if baseline not in times:
        return {}
    count = max(1, comparisons if comparisons is not None else len(times) - 1)
    base = times.pop(baseline)
    levels = {
        name: partial(_at_level, compare(base, latency, margin=margin), margin=margin)
        for name, latency in times.items()
        if not base.by_round.keys().isdisjoint(latency.by_round)
    }
    return stepwise(levels, count, alpha)


def stepwise(levels: Mapping[str, AtLevel], count: int, alpha: float) -> dict[str, Verdict]:
    """Verdicts by name; the probability that any of them is wrong is at most `alpha`. levels : makes each at a level.

    Each verdict first gets the level `alpha` / `count`. When some are decided, the level of the others is `alpha`
    divided by the number that is left (Holm 1979, "A simple sequentially rejective multiple test procedure"). So a
    contender that is far behind does not widen the interval of one that is near. If r are decided, their intervals are
    made at the level r `alpha` / `count`. At most a fraction `alpha` of these intervals is expected to miss, if they
    are independent or depend positively (Benjamini and Yekutieli 2005, "False discovery rate-adjusted multiple
    confidence intervals for selected parameters").
    """
    found, decided = dict[str, Verdict](), list[str]()
    for _ in range(len(levels) + 1):  # until no further verdict is decided
        found = {name: at(alpha / max(1, count - len(decided))) for name, at in levels.items()}
        decided = [name for name, one in found.items() if one.kind is not Kind.UNDECIDED]
    return found | {name: levels[name](alpha * min(1, len(decided) / count)) for name in decided}


# -- what visits and sittings differ by ---------------------------------------------------------------

#: two groups of visits are two speeds if they differ by more than this (relative), ...
_APART = 0.12
#: ... if the gap is at least this many times the widest mean gap within either, and each was met this often, ...
_SCATTERS = 3.0
_MET = 3
#: ... and if the speed changed at least this often between successive visits
_TURNS = 2


@dataclass(frozen=True)
class Speed:
    """One of a contender's speeds: median seconds per call, and the number of visits in which it was met."""

    seconds: float
    visits: int


def speeds(latency: Measurement) -> tuple[Speed, ...]:
    """The speeds that a contender has from visit to visit, fastest first: one, or two that clearly differ.

    The medians of its visits are cut at their widest gap. The two groups count as two speeds if they differ by 12 %, if
    the gap is three times the mean gap within either, and if each was met three times. They must also alternate: if all
    fast visits come before all slow ones, or after them, the machine may have changed its own speed once.
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
class Sitting:
    """What the visits of one invocation found about one pair: the mean of ln(contender / baseline), its standard error.

    `freedom` : degrees of freedom of the error. `moment` : UTC in ISO format. A stored figure out of bounds is damaged.
    """

    moment: str
    mean: Annotated[float, Meta(ge=-100, le=100)]
    error: Annotated[float, Meta(ge=0, le=10)]
    freedom: Annotated[int, Meta(ge=1)]
    visits: Annotated[int, Meta(ge=1)]

    @property
    def span(self) -> tuple[float, float, float]:
        """The ratio, contender / baseline, and its interval from these visits alone."""
        half = quantile(self.freedom, ALPHA) * self.error
        return math.exp(self.mean), math.exp(self.mean - half), math.exp(self.mean + half)


def between_sittings(questions: Iterable[Sequence[Sitting]], assumed: float = BETWEEN) -> float:
    """The standard deviation that a sitting adds to a mean, from the sittings of `questions` about one pair.

    It combines how far they differ beyond their errors with what is `assumed`, which counts as much as eight of them.
    It is at least a quarter of what is `assumed`.
    """
    squares, count = _PRIOR_SITTINGS * assumed**2, _PRIOR_SITTINGS
    for sittings in (one for one in questions if len(one) > 1):
        center = statistics.fmean(one.mean for one in sittings)
        squares += math.fsum((one.mean - center) ** 2 for one in sittings)
        squares -= math.fsum(one.error**2 for one in sittings) * (1 - 1 / len(sittings))
        count += len(sittings) - 1
    return math.sqrt(max(squares / count, assumed**2 / 16))


def over_sittings(
    found: Verdict, sittings: Sequence[Sitting], between: float, alpha: float = ALPHA
) -> Verdict:
    """The verdict from all `sittings` of a question; the last of them is that of `found`.

    Their mean is weighted by 1 / (error² + between²). If they differ by more than this predicts, the interval is
    widened by the method of Hartung and Knapp (2001, "A refined method for the meta-analysis of controlled clinical
    trials"). One sitting alone cannot show how sittings differ: `between` widens its interval. Each error and `between`
    have few degrees of freedom, and their sum has more (Satterthwaite 1946, "An approximate distribution of estimates
    of variance components"; rounded down).
    """
    weights = [1 / (one.error**2 + between**2) for one in sittings]
    total, freedom = math.fsum(weights), _PRIOR_SITTINGS + len(sittings) - 1
    center = math.fsum(w * one.mean for w, one in zip(weights, sittings, strict=True)) / total
    squares = math.fsum(w * (one.mean - center) ** 2 for w, one in zip(weights, sittings, strict=True))
    excess = max(1.0, (_PRIOR_SITTINGS + squares) / freedom)
    parts = [(w * one.error) ** 4 / one.freedom for w, one in zip(weights, sittings, strict=True)]
    parts.append((between**2 * math.fsum(w**2 for w in weights)) ** 2 / freedom)
    known = math.floor(total**2 / math.fsum(parts))
    half = quantile(min(known, freedom) if excess > 1 else known, alpha) * math.sqrt(excess / total)
    return _judged(replace(found, ratio=math.exp(center)), half, found.margin)
