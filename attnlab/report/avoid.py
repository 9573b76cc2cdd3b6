"""What not to use, and why: wrong results, far too slow, or far more memory than others."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from attnlab.contract import units
from attnlab.contract.result import Outcome
from attnlab.report import wording
from attnlab.report.analysis import Analysis, At, Group
from attnlab.statistics.pairing import Kind

#: times as long as the fastest
SLOW = 2.0
#: times the memory of the one that needs least
MUCH_MEMORY = 4.0

_FAILURES = {
    Outcome.WRONG: "its results are wrong",
    Outcome.CRASHED: "it crashed",
    Outcome.TIMED_OUT: "it did not answer in time",
}


def avoid(analysis: Analysis, group: Group) -> list[str]:
    """The warnings on `group`, the gravest first."""
    found = []
    for outcome, what in _FAILURES.items():
        found += _failed(analysis, group, outcome, what)
    return [*found, *_slow(analysis, group), *_unranked(analysis, group), *_much_memory(group)]


def _failed(analysis: Analysis, group: Group, outcome: Outcome, what: str) -> list[str]:
    sentences = []
    for name in analysis.names:
        reasons = {
            at: answer.reason
            for at, cell in group.cells.items()
            if (answer := cell.answers.get(name)) is not None and answer.outcome is outcome
        }
        if reasons:
            reason = next(iter(reasons.values()))
            sentences.append(f"**Do not use `{name}`** for {_where(reasons, group)}: {what} ({reason}).")
    return sentences


def _slow(analysis: Analysis, group: Group) -> list[str]:
    sentences = []
    for name in analysis.names:
        ratios: dict[At, float] = {}
        for at, ranking in group.ranked.items():
            standing = ranking.of(name)
            verdict = standing and standing.against_best
            if verdict or standing is ranking.best:
                ratios[at] = verdict.ratio if verdict and verdict.kind is Kind.SLOWER else 1.0
        slow = {at: ratio for at, ratio in ratios.items() if ratio >= SLOW}
        if slow:
            place = _where(slow, group)
            place = f"wherever it was compared ({place})" if len(slow) == len(ratios) else f"for {place}"
            sentences.append(
                f"**Avoid `{name}`** {place}: it takes {_span(slow)} times as long as the fastest."
            )
    return sentences


def _unranked(analysis: Analysis, group: Group) -> list[str]:
    """Contenders with a time but too few undisturbed processes for an interval, where others have one."""
    sentences = []
    for name in analysis.names:
        ratios: dict[At, float] = {}
        for at, ranking in group.ranked.items():
            standing = ranking.of(name)
            compared = standing is ranking.best or (standing and standing.against_best)
            if standing is not None and not compared and ranking.decided:
                ratios[at] = standing.seconds / ranking.best.seconds
        if ratios:
            sentences.append(
                f"`{name}` had too few undisturbed processes for an interval for {_where(ratios, group)}; "
                f"by its medians it takes {_span(ratios)} times as long as the fastest."
            )
    return sentences


def _much_memory(group: Group) -> list[str]:
    """At the workload with the largest score matrix that has memory figures for two contenders."""
    known: dict[At, dict[str, int]] = {}
    for at, cell in group.cells.items():
        found = {name: peak for name, one in cell.measured.items() if (peak := one.peak_bytes) is not None}
        if len(found) > 1:
            known[at] = found
    if not known:
        return []
    at = max(known, key=lambda one: group.cells[one].workload.score_bytes)
    peaks, workload = known[at], group.cells[at].workload
    ordered = sorted(peaks, key=lambda name: peaks[name])
    least = ordered[0]
    much = [
        f"`{n}` ({units.bytes_text(peaks[n])})" for n in ordered if peaks[n] >= MUCH_MEMORY * peaks[least]
    ]
    if not much:
        return []
    these = "that is its peak" if len(much) == 1 else "these are their peaks"
    return [
        f"**Where memory is short, avoid** {wording.listed(much)}: {these} at "
        f"{wording.place(workload)}, where the score matrix alone is {units.bytes_text(workload.score_bytes)}; "
        f"`{least}` needs {units.bytes_text(peaks[least])}."
    ]


def _where(cells: Collection[At], group: Group) -> str:
    return wording.where(cells, group.grid)


def _span(ratios: Mapping[At, float]) -> str:
    """``2.0 to 4.9``, or one number."""
    low, high = units.figures(min(ratios.values()), 2), units.figures(max(ratios.values()), 2)
    return low if low == high else f"{low} to {high}"
