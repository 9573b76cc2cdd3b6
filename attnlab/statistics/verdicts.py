"""The verdict on every contender of one race against its baseline, and how it is said in one sentence.

This is the only place that turns the results of a race into verdicts: the ranking of a report, the comparison of the
command line and the pytest fixtures all call it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from attnlab.contract.result import Measurement, Result
from attnlab.statistics.pairing import MARGIN, Kind, Verdict, calibration_of, compare, disturbed_rounds

#: two processes of one backend may differ by up to this: a smaller difference is claimed only where it holds in
#: `SETS` fresh sets of processes
SMALL = 0.05
SETS = 3


def latencies(results: Iterable[Result]) -> dict[str, Measurement]:
    """Seconds per call of those that were measured, by contender."""
    return {one.contender: one.latency for one in results if one.latency is not None}


def disturbed_in(results: Iterable[Result]) -> set[int]:
    """The rounds of one workload's race that are left out for every contender: see `disturbed_rounds`."""
    return disturbed_rounds(calibration_of(latencies(results).values()))


def verdicts_against(
    results: Iterable[Result],
    baseline: str,
    *,
    disturbed: Collection[int] | None = None,
    comparisons: int | None = None,
    margin: float = MARGIN,
) -> dict[str, Verdict]:
    """The verdict on every other measured contender of one workload against `baseline`, by contender.

    Empty where the baseline was not measured; a contender that shares no undisturbed round with it is left out.
    `disturbed` rounds are found from the calibration loop unless given. The chance of 5 % that any interval misses its
    true ratio is shared among `comparisons`, by default as many as there are other contenders. A verdict with `low` 0
    rests on too few rounds for an interval.
    """
    results = list(results)
    times = latencies(results)
    if baseline not in times:
        return {}
    left_out = disturbed_in(results) if disturbed is None else set(disturbed)
    shared = comparisons if comparisons is not None else len(times) - 1
    base = times.pop(baseline)
    verdicts = {}
    for name, latency in times.items():
        if (set(base.by_round()) & set(latency.by_round())) - left_out:
            verdicts[name] = compare(base, latency, disturbed=left_out, comparisons=shared, margin=margin)
    return verdicts


def small_claim(verdict: Verdict) -> bool:
    """Whether it claims a difference of less than `SMALL`."""
    claims = verdict.kind in (Kind.FASTER, Kind.SLOWER)
    return claims and abs(math.log(verdict.ratio)) < math.log1p(SMALL)


def agreed(found: Sequence[Verdict | None]) -> Verdict:
    """One verdict from those of several races in fresh processes; its interval is the widest that covers theirs.

    Undecided unless all say the same: None stands for a race in which the contender was not measured. Raises
    ValueError where it was measured in none.
    """
    verdicts = [verdict for verdict in found if verdict is not None]
    if not verdicts:
        raise ValueError("at least one verdict is needed, got none")
    first = verdicts[0]
    if len(found) == 1:
        return first
    ratios = sorted(verdict.ratio for verdict in verdicts)
    agree = len(verdicts) == len(found) and all(verdict.kind is first.kind for verdict in verdicts)
    return Verdict(
        first.kind if agree else Kind.UNDECIDED,
        ratios[len(ratios) // 2],
        min(verdict.low for verdict in verdicts),
        max(verdict.high for verdict in verdicts),
        sum(verdict.rounds for verdict in verdicts),
        sum(verdict.disturbed for verdict in verdicts),
    )


def sentence(name: str, baseline: str, verdict: Verdict, *, margin: float = MARGIN) -> str:
    """The verdict in one sentence: which is faster, the ratio of the times, its interval and the rounds."""
    span = f"95 % interval {verdict.low:.3g} to {verdict.high:.3g}, {verdict.rounds} rounds"
    if verdict.kind is Kind.FASTER:
        times = 1 / verdict.ratio
        return f"{name} is {times:.3g} times as fast as {baseline} (time ratio {verdict.ratio:.3g}, {span})."
    if verdict.kind is Kind.SLOWER:
        return f"{name} takes {verdict.ratio:.3g} times as long as {baseline} ({span})."
    if verdict.kind is Kind.EQUIVALENT:
        within = f"{name} and {baseline} are equally fast to within {margin * 100:.3g} %"
        return f"{within} (time ratio {verdict.ratio:.3g}, {span})."
    if verdict.low == 0:
        return (
            f"{name} against {baseline} is undecided: {verdict.rounds} rounds are too few for an interval "
            f"(time ratio so far {verdict.ratio:.3g}); allow more time."
        )
    more = f"; about {verdict.rounds_needed} rounds would decide it" if verdict.rounds_needed else ""
    return f"{name} against {baseline} is undecided: time ratio {verdict.ratio:.3g}, {span}{more}."
