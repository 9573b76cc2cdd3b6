"""The verdict on every contender of one race against its baseline, how it is said, and when a set-up pays off.

This is the only place that turns the results of a race into verdicts: the ranking of a report, the comparison of the
command line and the pytest fixtures all call it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from attnlab.judge.pairing import MARGIN, Kind, Verdict, compare
from attnlab.problem.result import Measurement, Result


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

    Empty where the baseline was not measured; a contender that shares no round with it is left out.
    The chance of 5 % that any interval misses its
    true ratio is shared among `comparisons`, by default as many as there are other contenders. A verdict with `low` 0
    rests on fewer than two pairs of processes and has no interval.
    """
    results = list(results)
    times = latencies(results)
    if baseline not in times:
        return {}
    shared = comparisons if comparisons is not None else len(times) - 1
    base = times.pop(baseline)
    verdicts = {}
    for name, latency in times.items():
        if not base.by_round().keys().isdisjoint(latency.by_round()):
            verdicts[name] = compare(base, latency, comparisons=shared, margin=margin)
    return verdicts


def sentence(
    name: str, baseline: str, verdict: Verdict, *, margin: float = MARGIN, precision: str = ""
) -> str:
    """The verdict in one sentence: which is faster, the ratio of the times, its interval and the rounds.

    precision : what is said of the two where they do not compute in the same, see `precision_apart`.
    """
    pairs = f"{verdict.processes} pairs of processes"
    span = f"95 % interval {verdict.low:.3g} to {verdict.high:.3g}, {verdict.rounds} rounds in {pairs}"
    if verdict.kind is Kind.FASTER:
        times = 1 / verdict.ratio
        return f"{name} is {times:.3g} times as fast as {baseline}{precision} (time ratio {verdict.ratio:.3g}, {span})."
    if verdict.kind is Kind.SLOWER:
        return f"{name} takes {verdict.ratio:.3g} times as long as {baseline}{precision} ({span})."
    if verdict.kind is Kind.EQUIVALENT:
        within = f"{name} and {baseline} are equally fast to within {margin * 100:.3g} %"
        return f"{within}{precision} (time ratio {verdict.ratio:.3g}, {span})."
    if verdict.low == 0 and verdict.disturbed >= verdict.rounds:
        return (
            f"{name} against {baseline} is undecided: other programs used the cores in {verdict.disturbed} of "
            f"{verdict.disturbed + verdict.rounds} rounds; repeat it when nothing else runs."
        )
    if verdict.low == 0:
        return (
            f"{name} against {baseline} is undecided: one pair of processes has no interval "
            f"(time ratio so far {verdict.ratio:.3g}); allow more processes."
        )
    more = f"; about {verdict.processes_needed} pairs would decide it" if verdict.processes_needed else ""
    return f"{name} against {baseline} is undecided: time ratio {verdict.ratio:.3g}, {span}{more}."


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
