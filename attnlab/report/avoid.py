"""What not to use, and why: wrong, far too slow, or hungry for memory."""

from __future__ import annotations

from attnlab.contract import units
from attnlab.contract.result import Outcome
from attnlab.report import wording
from attnlab.report.evidence import Cell, Evidence, Family
from attnlab.statistics.pairing import Kind

#: times as long as the fastest
SLOW = 2.0
#: times the memory of the leanest
HUNGRY = 4.0

At = tuple[int, int]


def avoid(evidence: Evidence, family: Family) -> list[str]:
    """The warnings on `family`, the gravest first."""
    return [
        *_failed(evidence, family, Outcome.WRONG, "its results are wrong"),
        *_failed(evidence, family, Outcome.CRASHED, "it crashed"),
        *_failed(evidence, family, Outcome.TIMED_OUT, "it did not answer in time"),
        *_slow(evidence, family),
        *_unranked(evidence, family),
        *_hungry(family),
    ]


def _failed(evidence: Evidence, family: Family, outcome: Outcome, what: str) -> list[str]:
    sentences = []
    for name in evidence.names:
        reasons: dict[At, str] = {}
        for at, cell in family.cells.items():
            answer = cell.answers.get(name)
            if answer is not None and answer.outcome is outcome:
                reasons[at] = answer.reason or ""
        if reasons:
            reason = next(iter(reasons.values()))
            place = wording.where(reasons, family.grid)
            sentences.append(f"**Do not use `{name}`** for {place}: {what} ({reason}).")
    return sentences


def _slow(evidence: Evidence, family: Family) -> list[str]:
    sentences = []
    for name in evidence.names:
        ratios: dict[At, float] = {}
        for at, ranking in family.ranked.items():
            standing = ranking.of(name)
            if standing is not None and standing.against_best is not None:
                decided = standing.against_best.kind is Kind.SLOWER
                ratios[at] = standing.against_best.ratio if decided else 1.0
            elif standing is ranking.best:
                ratios[at] = 1.0
        slow = {at: ratio for at, ratio in ratios.items() if ratio >= SLOW}
        if not slow:
            continue
        low, high = units.figures(min(slow.values()), 2), units.figures(max(slow.values()), 2)
        span = low if low == high else f"{low} to {high}"
        place = wording.where(slow, family.grid)
        place = f"wherever it could be compared ({place})" if len(slow) == len(ratios) else f"for {place}"
        sentences.append(f"**Avoid `{name}`** {place}: it takes {span} times as long as the fastest.")
    return sentences


def _unranked(evidence: Evidence, family: Family) -> list[str]:
    """Contenders with a time but too few rounds for an interval, where others have one."""
    sentences = []
    for name in evidence.names:
        ratios: dict[At, float] = {}
        for at, ranking in family.ranked.items():
            standing = ranking.of(name)
            missing = standing is not None and standing is not ranking.best and not standing.against_best
            if standing is not None and missing and ranking.decided:
                ratios[at] = standing.seconds / ranking.best.seconds
        if ratios:
            low, high = units.figures(min(ratios.values()), 2), units.figures(max(ratios.values()), 2)
            span = low if low == high else f"{low} to {high}"
            sentences.append(
                f"`{name}` had too few rounds for an interval for {wording.where(ratios, family.grid)}; "
                f"by its medians it takes {span} times as long as the fastest."
            )
    return sentences


def _hungry(family: Family) -> list[str]:
    """At the workload with the largest score matrix that has memory figures for two contenders."""
    known = {at: peaks for at, cell in family.cells.items() if len(peaks := _peaks(cell)) > 1}
    if not known:
        return []
    at = max(known, key=lambda one: family.cells[one].workload.score_bytes)
    peaks, scores = known[at], family.cells[at].workload.score_bytes
    leanest = min(peaks, key=lambda name: peaks[name])
    hungry = [n for n in sorted(peaks, key=lambda n: peaks[n]) if peaks[n] >= HUNGRY * peaks[leanest]]
    if not hungry:
        return []
    each = wording.listed([f"`{name}` ({units.bytes_text(peaks[name])})" for name in hungry])
    return [
        f"**Where memory is short, avoid** {each}: these are their peaks at n = {at[1]}, "
        f"{wording.counted(at[0], 'head')}, where the score matrix alone is {units.bytes_text(scores)}; "
        f"`{leanest}` needs {units.bytes_text(peaks[leanest])}."
    ]


def _peaks(cell: Cell) -> dict[str, int]:
    peaks = {name: result.peak_bytes for name, result in cell.measured.items()}
    return {name: peak for name, peak in peaks.items() if peak is not None}
