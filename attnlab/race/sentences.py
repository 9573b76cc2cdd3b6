"""A verdict of a race in one sentence."""

from __future__ import annotations

from attnlab.stats.verdicts import MARGIN, MOST_VISITS, Kind, Verdict
from attnlab.text import percent, ratio_text
from attnlab.workload.result import Result


def sentence(
    name: str, baseline: str, verdict: Verdict, *, margin: float = MARGIN, precision: str = ""
) -> str:
    """The verdict in one sentence: which is faster, the ratio of the times, its interval and the rounds.

    precision : what is said of the two where they do not compute in the same, see `precision_apart`.
    """
    low, ratio, high = map(ratio_text, (verdict.low, verdict.ratio, verdict.high))
    span = f"95 % interval {low} to {high}, {verdict.rounds} rounds in {verdict.visits} visits"
    if verdict.kind is Kind.FASTER:
        times = f"{name} is {ratio_text(1 / verdict.ratio)} times as fast as {baseline}"
        return f"{times}{precision} (time ratio {ratio}, {span})."
    if verdict.kind is Kind.SLOWER:
        return f"{name} takes {ratio} times as long as {baseline}{precision} ({span})."
    if verdict.kind is Kind.EQUIVALENT:
        within = f"{name} and {baseline} are equally fast to within {margin * 100:.3g} %"
        return f"{within}{precision} (time ratio {ratio}, {span})."
    if verdict.no_interval:
        why = "one visit has none; allow more visits"
        if verdict.no_interval == "disturbed":
            rounds = f"{verdict.disturbed} of {verdict.disturbed + verdict.rounds} rounds"
            why = f"other programs used the cores in {rounds}; repeat it when nothing else runs"
        return f"{name} against {baseline} is undecided: time ratio {ratio}, without an interval: {why}."
    if verdict.close:
        within = f"{name} and {baseline} are at most {percent(verdict.apart)} apart{precision}"
        return f"{within} (time ratio {ratio}, {span})."
    needed = verdict.visits_needed
    more = (
        f"about {needed} visits would likely decide it"
        if needed
        else f"{MOST_VISITS} visits would hardly decide it"
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
