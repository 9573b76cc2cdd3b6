"""Contenders compared over pairs of fresh processes: a ratio, its interval, a verdict, and how it is said.

This is the only place that turns the results of a race into verdicts: the ranking of a report, the comparison of the
command line and the pytest fixtures all call it.

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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from attnlab.text import StrEnum, percent, ratio_text
from attnlab.workload.result import Measurement, Result

#: chance that any interval of one workload misses its true ratio
ALPHA = 0.05
#: a verdict is looked at twice, after the planned pairs and after the most that are allowed. Two looks at this level
#: err together as often as one at `ALPHA` (Pocock 1977, "Group sequential methods", table 1)
LOOK_ALPHA = 0.0294
#: differences up to this are called equivalent
MARGIN = 0.01
#: two that are undecided, but with their whole interval within this, are close: what differs hardly matters
CLOSE = 0.05
#: more pairs than this are not proposed: a machine on which so many are needed cannot decide it
_MOST_PAIRS = 200
#: chance with which the number of pairs that is proposed decides it
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

    `ratio` is contender / baseline in seconds per call, [`low`, `high`] its interval over `processes` pairs; `rounds`
    were compared and `disturbed` left out. `spread` is the standard deviation of the pairs' log ratios, nan for fewer
    than two. `processes_needed` estimates, where it is undecided, with how many pairs four races in five would decide
    it. `margin` is the relative difference that counts as none.
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
    margin: float = MARGIN

    @property
    def apart(self) -> float:
        """The largest difference that the interval allows, as a fraction: inf where there is no interval."""
        return max(self.high, 1 / self.low) - 1 if self.low > 0 else math.inf

    @property
    def close(self) -> bool:
        """Whether neither is decidedly faster and the two are at most `CLOSE` apart."""
        undecided = self.kind not in (Kind.FASTER, Kind.SLOWER)
        return undecided and max(self.apart, self.margin) <= CLOSE

    @property
    def turned(self) -> Verdict:
        """The same comparison the other way round, baseline / contender; of a verdict that has an interval."""
        kinds = {Kind.FASTER: Kind.SLOWER, Kind.SLOWER: Kind.FASTER}
        kind, ratio = kinds.get(self.kind, self.kind), 1 / self.ratio
        return replace(self, kind=kind, ratio=ratio, low=1 / self.high, high=1 / self.low)

    @property
    def no_interval(self) -> str | None:
        """Why the ratio has no interval, in words; None where it has one."""
        if self.low > 0:
            return None
        if self.disturbed >= self.rounds:
            return (
                f"other programs used the cores in {self.disturbed} of {self.disturbed + self.rounds} rounds"
            )
        return "one pair of processes has none"


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
    spread = deviation(figures, center) if len(figures) > 1 else math.nan
    found = Verdict(Kind.UNDECIDED, ratio, 0.0, math.inf, kept, left_out, len(figures), spread)
    return _at_level(found, LOOK_ALPHA / max(1, comparisons), margin)


def _at_level(found: Verdict, alpha: float, margin: float) -> Verdict:
    """The same comparison with the interval that misses with probability `alpha`, and what follows from it."""
    if found.processes < 2:
        return found
    center, half = math.log(found.ratio), half_width(found.spread, found.processes, alpha)
    low, high = math.exp(center - half), math.exp(min(center + half, 700.0))
    kind, needed = _kind(low, high, margin), None
    if kind is Kind.UNDECIDED:
        needed = _pairs_needed(center, found.spread, found.processes, alpha, margin)
    return replace(found, kind=kind, low=low, high=high, processes_needed=needed, margin=margin)


def _chance(found: Verdict, margin: float) -> float:
    """The level at which the verdict would just be decided: its p-value, 1 where it has no interval."""
    from scipy.special import stdtr

    if found.processes < 2:
        return 1.0
    room = abs(abs(math.log(found.ratio)) - math.log1p(margin))
    error = found.spread / math.sqrt(found.processes)
    return 2 * float(stdtr(found.processes - 1, -room / error)) if error > 0 else float(room == 0)


def log_ratios(baseline: Measurement, contender: Measurement) -> dict[int, list[float]]:
    """By pair of processes, ln(contender / baseline) of every round that both took part in undisturbed."""
    left_out = baseline.disturbed_rounds | contender.disturbed_rounds
    base, other, processes = baseline.by_round(), contender.by_round(), baseline.visits
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
    """Pairs with which `_POWER` of all races would be decided, if mean and scatter are as they were found.

    By how far an interval stays clear of an edge of the margin, a mean's distance from there in its own errors, is
    noncentral Student's t. Within the margin both edges count.
    """
    from scipy.special import nctdtr

    edge, off = math.log1p(margin), abs(center)
    rooms = (edge - off, edge + off) if off < edge else (off - edge,)

    def decides(number: int) -> bool:
        limit, error = quantile(number - 1, alpha), spread / math.sqrt(number)
        return sum(float(nctdtr(number - 1, room / error, limit)) for room in rooms) <= 1 - _POWER

    candidates: Sequence[int] = range(pairs + 1, _MOST_PAIRS + 1)  # the more pairs, the surer
    found = bisect.bisect_left(candidates, True, key=decides)
    return candidates[found] if found < len(candidates) else None


# -- all contenders of a workload ---------------------------------------------------------------------


def latencies(results: Iterable[Result]) -> dict[str, Measurement]:
    """Seconds per call of those that were measured, by contender."""
    return {one.contender: found for one in results if (found := one.latency) is not None}


def verdicts_against(
    results: Iterable[Result],
    baseline: str,
    *,
    comparisons: int | None = None,
    margin: float = MARGIN,
) -> dict[str, Verdict]:
    """The verdict on every other measured contender of one workload against `baseline`, by contender.

    Empty where the baseline was not measured; a contender that shares no round with it is left out. A verdict with
    `low` 0 rests on fewer than two pairs of processes and has no interval.

    The chance of 5 % that any verdict is wrong is shared among `comparisons`, by default as many as there are other
    contenders, step by step: the clearest is held against its part of it, and where it is decided the next against a
    part of as many as are left (Holm 1979, "A simple sequentially rejective multiple test procedure"). So who is far
    behind does not widen the interval of who is near. Each interval by itself misses in 5 % at most (7 % in
    simulation where turns remember each other).
    """
    results = list(results)
    times = latencies(results)
    if baseline not in times:
        return {}
    left = max(1, comparisons if comparisons is not None else len(times) - 1)
    base = times.pop(baseline)
    found = {
        name: compare(base, latency, comparisons=left, margin=margin)
        for name, latency in times.items()
        if not base.by_round().keys().isdisjoint(latency.by_round())
    }
    for name in sorted(found, key=lambda name: _chance(found[name], margin)):
        found[name] = _at_level(found[name], LOOK_ALPHA / left, margin)
        left = max(1, left - (found[name].kind is not Kind.UNDECIDED))
    return found


def sentence(
    name: str, baseline: str, verdict: Verdict, *, margin: float = MARGIN, precision: str = ""
) -> str:
    """The verdict in one sentence: which is faster, the ratio of the times, its interval and the rounds.

    precision : what is said of the two where they do not compute in the same, see `precision_apart`.
    """
    pairs = f"{verdict.processes} pairs of processes"
    low, ratio, high = map(ratio_text, (verdict.low, verdict.ratio, verdict.high))
    span = f"95 % interval {low} to {high}, {verdict.rounds} rounds in {pairs}"
    if verdict.kind is Kind.FASTER:
        times = f"{name} is {ratio_text(1 / verdict.ratio)} times as fast as {baseline}"
        return f"{times}{precision} (time ratio {ratio}, {span})."
    if verdict.kind is Kind.SLOWER:
        return f"{name} takes {ratio} times as long as {baseline}{precision} ({span})."
    if verdict.kind is Kind.EQUIVALENT:
        within = f"{name} and {baseline} are equally fast to within {margin * 100:.3g} %"
        return f"{within}{precision} (time ratio {ratio}, {span})."
    if verdict.no_interval:
        busy = verdict.disturbed >= verdict.rounds
        advice = "it may be theirs, so repeat it when nothing else runs" if busy else "allow more processes"
        return (
            f"{name} against {baseline} is undecided: time ratio {ratio}, without an interval, as "
            f"{verdict.no_interval}; {advice}."
        )
    if verdict.close:
        within = f"{name} and {baseline} are at most {percent(verdict.apart)} apart{precision}"
        return f"{within} (time ratio {ratio}, {span})."
    needed = verdict.processes_needed
    more = (
        f"about {needed} pairs would likely decide it"
        if needed
        else f"{_MOST_PAIRS} pairs would hardly decide it"
    )
    return f"{name} against {baseline} is undecided: time ratio {ratio}, {span}; {more}."


def precision_apart(one: Result, baseline: Result) -> str:
    """``, in bfloat16: relative error 3e-3 against 2e-7`` where the two do not compute in one number format, else "".

    Of the baseline's, where that is the lower one.
    """
    formats = [each.computes_in or each.workload.dtype for each in (one, baseline)]
    if formats[0] == formats[1]:
        return ""
    known = [
        f"{each.accuracy.relative_error:.1e}" if each.accuracy else "unknown" for each in (one, baseline)
    ]
    said = f"in {formats[0]}" if one.computes_in else f"which computes in {formats[1]}"
    return f", {said}: relative error {known[0]} against {known[1]}"


# -- what getting ready costs ------------------------------------------------------------------------


@dataclass(frozen=True)
class PayOff:
    """After `calls` calls `contender` has taken less time in all than `against`: the fastest that needs less set-up."""

    contender: str
    against: str
    calls: int


def pay_off(
    results: Collection[Result], contender: str, setups: dict[str, float] | None = None
) -> PayOff | None:
    """When the set-up of `contender` has paid off, by the medians of its calls and of those of the other results.

    calls = (S − S')/(t' − t), where S is a set-up, t a call, and S', t' are those of the fastest with S' < S. setups :
    seconds by contender, by default each result's own. None where the contender is not decidedly faster than that one,
    or nobody needs less, or it pays off with the first call.
    """
    known = {one.contender: one for one in results if one.latency is not None}
    seconds = setups or {
        name: one.setup_seconds for name, one in known.items() if one.setup_seconds is not None
    }
    if contender not in known or contender not in seconds:
        return None
    times = {name: one.latency.median for name, one in known.items() if one.latency is not None}
    leaner = [name for name in times if name in seconds and seconds[name] < seconds[contender]]
    if not leaner:
        return None
    against = min(leaner, key=lambda name: times[name])
    verdict = verdicts_against(known.values(), against).get(contender)
    saved = times[against] - times[contender]
    if verdict is None or verdict.kind is not Kind.FASTER or saved <= 0:
        return None
    calls = math.ceil((seconds[contender] - seconds[against]) / saved)
    return PayOff(contender, against, calls) if calls > 1 else None
