"""Who wins where, by how much: one sentence for all workloads that have the same verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.evidence import Evidence, Family
from attnlab.statistics.pairing import Kind, Verdict, least_rounds
from attnlab.statistics.ranking import Ranking, Standing

#: a lead smaller than this needs more than one set of processes
SMALL_LEAD = 0.05

At = tuple[int, int]
Cells = dict[At, Ranking]


def winners(evidence: Evidence, family: Family) -> list[str]:
    """The sentences on `family`, those that hold for most workloads first."""
    groups: dict[frozenset[str], Cells] = {}
    alone: Cells = {}
    open_: Cells = {}
    for at, ranking in family.ranked.items():
        if len(ranking.standings) == 1:
            alone[at] = ranking
        elif not ranking.decided:
            open_[at] = ranking
        else:
            key = frozenset(one.implementation for one in ranking.first)
            groups.setdefault(key, {})[at] = ranking
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), sorted(item[0])))
    sentences = [_group(evidence, family, key, cells) for key, cells in ordered]
    if len(groups) > 1 and not alone and not open_:
        sentences[:0] = _everywhere(evidence, family, groups)
    if alone:
        sentences.append(_alone(family, alone))
    if open_:
        sentences.append(_open(family, open_))
    return sentences


def _everywhere(evidence: Evidence, family: Family, groups: Mapping[frozenset[str], Cells]) -> list[str]:
    """The one choice that will do everywhere, where an implementation has or shares every first place."""
    always = frozenset.intersection(*groups)
    if len(always) != 1:
        return []
    cells = family.ranked
    name = _names(evidence, next(iter(always)), cells)
    shared = sum(len(some) for key, some in groups.items() if len(key) > 1)
    return [
        f"**In short: use {name}.** On none of {wording.counted(len(cells), 'workload')} was anything decidedly "
        f"faster: it has the first place to itself on {len(cells) - shared} and shares it on {shared}."
    ]


def _group(evidence: Evidence, family: Family, key: frozenset[str], cells: Cells) -> str:
    place = wording.where(cells, family.grid)
    if len(key) == 1:
        head = f"**Use {_names(evidence, next(iter(key)), cells)}** for {place}"
    else:
        head = _shared(evidence, family, key, cells)
        head += _leanest(family, cells)
    leads = _leads(evidence, key, cells)
    if leads:
        joint = ": it is " if len(key) == 1 else ". The fastest of them is "
        head += joint + ", and ".join(leads)
    return f"{head}.{_caution(evidence, cells)}"


def _shared(evidence: Evidence, family: Family, key: frozenset[str], cells: Cells) -> str:
    """The first place is shared: a choice between few, or no winner."""
    place = wording.where(cells, family.grid)
    names = [_names(evidence, one, cells) for one in _ordered(evidence, key, cells)]
    told = _tie(family, cells)
    if len(names) > 2 and not told.startswith("are equivalent"):
        return f"**No winner** for {place}: {wording.listed(names)} {told}"
    return f"**Use {wording.listed(names, 'or')}** for {place}: they {told}"


def _ordered(evidence: Evidence, key: frozenset[str], cells: Cells) -> list[str]:
    """The implementations of `key` in the order of the plan."""
    position: dict[str, int] = {}
    for ranking in cells.values():
        for one in ranking.first:
            index = evidence.names.index(one.contender)
            position[one.implementation] = min(index, position.get(one.implementation, index))
    return sorted(key, key=lambda one: position[one])


def _names(evidence: Evidence, implementation: str, cells: Cells) -> str:
    """The names under which `implementation` is first in every cell, or else in any."""
    sets = [
        {one.contender for one in ranking.first if one.implementation == implementation}
        for ranking in cells.values()
    ]
    always = set.intersection(*sets)
    chosen = [name for name in evidence.names if name in (always or set.union(*sets))]
    if len(chosen) == 1:
        return wording.named(chosen)
    if always:
        return f"`{chosen[0]}` (or {wording.named(chosen[1:], 'or')}: the same kernel)"
    return f"{wording.named(chosen, 'or')} (the same kernel; which name comes first varies)"


def _tie(family: Family, cells: Cells) -> str:
    """Equivalent, or not told apart; with the ratio where it is one workload and two implementations."""
    kinds = []
    rivals: list[tuple[Standing, Verdict]] = []
    for ranking in cells.values():
        others = [
            (one, one.against_best)
            for one in ranking.first[1:]
            if one.against_best is not None and one.implementation != ranking.best.implementation
        ]
        kinds.append(all(verdict.kind is Kind.EQUIVALENT for _, verdict in others))
        rivals += others
    margin = f"±{units.percent(max(family.cells[at].margin for at in cells))}"
    if all(kinds):
        text = f"are equivalent (within {margin})"
    else:
        text = "cannot be told apart"
        if any(kinds):
            text += f" (equivalent within {margin} on {sum(kinds)} of {len(kinds)} workloads)"
    if len(cells) == 1 and len(rivals) == 1:
        (standing, verdict), best = rivals[0], next(iter(cells.values())).best
        text += f"; `{standing.contender}` takes {_ratio(verdict)} times as long as `{best.contender}`"
        if verdict.rounds_needed is not None:
            text += f", and about {verdict.rounds_needed} rounds would decide it ({verdict.rounds} were kept)"
    return text


def _leanest(family: Family, cells: Cells) -> str:
    """What memory says where time does not."""
    at = max(cells, key=lambda one: (one[1], one[0]))
    measured = family.cells[at].measured
    peaks = {}
    for one in cells[at].first:
        peak = measured[one.contender].peak_bytes
        if peak is not None:
            peaks[one.contender] = peak
    if len(peaks) < 2 or max(peaks.values()) < 1.5 * min(peaks.values()):
        return ""
    least, most = min(peaks, key=lambda n: peaks[n]), max(peaks, key=lambda n: peaks[n])
    return (
        f". `{least}` needs the least memory of them: {units.bytes_text(peaks[least])} against "
        f"{units.bytes_text(peaks[most])} of `{most}` at n = {at[1]}, {wording.counted(at[0], 'head')}"
    )


def _leads(evidence: Evidence, key: frozenset[str], cells: Cells) -> list[str]:
    """How far ahead: of the next other implementation, and of the baseline where that is another one."""
    ahead = [(one, one.against_best) for one in (ranking.runner_up for ranking in cells.values()) if one]
    behind = [(one, verdict) for one, verdict in ahead if verdict is not None]
    names = list(dict.fromkeys(one.contender for one, _ in behind))
    against_baseline = [_baseline_lead(ranking) for ranking in cells.values()]
    known = [verdict for verdict in against_baseline if verdict is not None]
    phrases = []
    if behind:
        is_baseline = names == [evidence.baseline]
        what = "the next other implementation" + (" and the baseline" if is_baseline else "")
        phrases.append(_faster([verdict for _, verdict in behind], f"{what}, {wording.named(names, 'or')}"))
        if is_baseline:
            return phrases
    if known and not any(evidence.baseline == one.contender for r in cells.values() for one in r.first):
        phrases.append(_faster(known, f"the baseline, `{evidence.baseline}`"))
    return phrases


def _baseline_lead(ranking: Ranking) -> Verdict | None:
    """The baseline against the best, if it is decidedly slower and another implementation."""
    standing = ranking.of(ranking.baseline) if ranking.baseline is not None else None
    if standing is None or standing.against_best is None or standing.against_best.kind is not Kind.SLOWER:
        return None
    same = any(one.implementation == standing.implementation for one in ranking.first)
    return None if same else standing.against_best


def _caution(evidence: Evidence, cells: Cells) -> str:
    """Which leads are so small that they need other processes to confirm them."""
    small: list[tuple[At, Ranking, Standing]] = []
    for at, ranking in cells.items():
        runner_up = ranking.runner_up
        verdict = runner_up.against_best if runner_up is not None else None
        if runner_up is not None and verdict is not None and verdict.ratio < 1 + SMALL_LEAD:
            small.append((at, ranking, runner_up))
    if not small:
        return ""
    at, ranking, rival = small[-1]
    command = wording.compare_command([rival.contender, ranking.best.contender], ranking.workload)
    places = ", ".join(f"n = {n} at {wording.counted(count, 'head')}" for (count, n), _, _ in small[:4])
    if len(small) > 4:
        places += f" and {len(small) - 4} more"
    return (
        f" Leads under {units.percent(SMALL_LEAD)} ({places}) come from one set of processes: before you rely on"
        f" one, repeat it at least three times, for instance with `{command}`."
    )


def _alone(family: Family, cells: Cells) -> str:
    names = list(dict.fromkeys(ranking.best.contender for ranking in cells.values()))
    return (
        f"{wording.named(names, 'or')} had no rival for {wording.where(cells, family.grid)}: "
        "there is a time, but nothing to hold it against."
    )


def _open(family: Family, cells: Cells) -> str:
    fewest = min(one.rounds for ranking in cells.values() for one in ranking.standings)
    needed = max(least_rounds(len(ranking.standings) - 1) for ranking in cells.values())
    names = list(dict.fromkeys(ranking.best.contender for ranking in cells.values()))
    return (
        f"**No verdict** for {wording.where(cells, family.grid)}: as few as {wording.counted(fewest, 'round')}"
        f" could be used, and an interval needs {needed}. The least medians are those of {wording.named(names)};"
        " give the run more time to learn more."
    )


def _faster(verdicts: Sequence[Verdict], than: str) -> str:
    """``1.5 [1.4, 1.6] times as fast as`` so and so, or a range; the ratios are of the slower to the faster."""
    if len(verdicts) == 1:
        return f"{_ratio(verdicts[0])} times as fast as {than}"
    low, high = _ends(one.ratio for one in verdicts)
    least, most = _ends(end for one in verdicts for end in (one.low, one.high))
    span = low if low == high else f"{low} to {high}"
    return f"{span} times as fast as {than} (intervals from {least} to {most})"


def _ratio(verdict: Verdict) -> str:
    return f"{units.ratio(verdict.ratio)} {units.interval(verdict.low, verdict.high)}"


def _ends(values: Iterable[float]) -> tuple[str, str]:
    known = list(values)
    return units.figures(min(known)), units.figures(max(known))
