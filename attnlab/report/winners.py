"""Who wins where, by how much: one sentence for all workloads that have the same verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.analysis import Analysis, At, Group
from attnlab.report.appendix import WORDS
from attnlab.statistics.crossover import Crossover, crossovers
from attnlab.statistics.pairing import Kind, Verdict
from attnlab.statistics.ranking import Ranking, Standing, decidable

Cells = dict[At, Ranking]


def winners(analysis: Analysis, group: Group) -> list[str]:
    """The sentences on `group`, those that hold for most workloads first."""
    groups: dict[frozenset[str], Cells] = {}
    alone: Cells = {}
    undecided: Cells = {}
    for at, ranking in group.ranked.items():
        if len(ranking.standings) == 1:
            alone[at] = ranking
        elif not ranking.decided:
            undecided[at] = ranking
        else:
            key = frozenset(one.implementation for one in ranking.first)
            groups.setdefault(key, {})[at] = ranking
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), sorted(item[0])))
    sentences = [_group(analysis, group, key, cells) for key, cells in ordered]
    if len(groups) > 1 and not alone and not undecided:
        sentences[:0] = _everywhere(analysis, group, groups)
    if alone:
        sentences.append(_only_one(group, alone))
    if undecided:
        sentences.append(_no_interval(group, undecided))
    return [*sentences, *_nobody(group)]


def _everywhere(analysis: Analysis, group: Group, groups: Mapping[frozenset[str], Cells]) -> list[str]:
    """The one choice that will do everywhere, where an implementation has or shares every first place."""
    always = frozenset.intersection(*groups)
    if len(always) != 1:
        return []
    cells = group.ranked
    name = _names(analysis, next(iter(always)), cells)
    shared = sum(len(some) for key, some in groups.items() if len(key) > 1)
    return [
        f"**In short: use {name}.** On none of {wording.counted(len(cells), 'workload')} was anything decidedly "
        f"faster: it is alone in first place on {len(cells) - shared} and shares it on {shared}."
    ]


def _group(analysis: Analysis, group: Group, key: frozenset[str], cells: Cells) -> str:
    place = wording.where(cells, group.grid)
    if len(key) == 1:
        head = f"**Use {_names(analysis, next(iter(key)), cells)}** for {place}"
    else:
        head = _shared(analysis, group, key, cells)
        head += _leanest(group, cells)
    leads = _leads(analysis, key, cells)
    if leads:
        joint = ": it is " if len(key) == 1 else ". The fastest of them is "
        head += joint + ", and ".join(leads)
    return f"{head}."


def _shared(analysis: Analysis, group: Group, key: frozenset[str], cells: Cells) -> str:
    """The first place is shared: a choice between few, or no winner."""
    place = wording.where(cells, group.grid)
    names = [_names(analysis, one, cells) for one in _ordered(analysis, key, cells)]
    told = _tie(group, cells)
    if len(names) > 2 and not told.startswith("are equivalent"):
        return f"**No winner** for {place}: {wording.listed(names)} {told}"
    return f"**Use {wording.listed(names, 'or')}** for {place}: they {told}"


def _ordered(analysis: Analysis, key: frozenset[str], cells: Cells) -> list[str]:
    """The implementations of `key` in the order of the plan."""
    position: dict[str, int] = {}
    for ranking in cells.values():
        for one in ranking.first:
            index = analysis.names.index(one.contender)
            position[one.implementation] = min(index, position.get(one.implementation, index))
    return sorted(key, key=lambda one: position[one])


def _names(analysis: Analysis, implementation: str, cells: Cells) -> str:
    """The names under which `implementation` is first in every cell, or else in any."""
    sets = [
        {one.contender for one in ranking.first if one.implementation == implementation}
        for ranking in cells.values()
    ]
    always = set.intersection(*sets)
    chosen = [name for name in analysis.names if name in (always or set.union(*sets))]
    if len(chosen) == 1:
        return wording.named(chosen)
    if always:
        return f"`{chosen[0]}` (or {wording.named(chosen[1:], 'or')}: the same kernel)"
    return f"{wording.named(chosen, 'or')} (the same kernel; which name comes first varies)"


def _tie(group: Group, cells: Cells) -> str:
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
    margin = f"±{units.percent(max(group.cells[at].margin for at in cells))}"
    if all(kinds):
        text = f"are equivalent (within {margin})"
    else:
        text = "cannot be told apart"
        if any(kinds):
            text += f" (equivalent within {margin} on {sum(kinds)} of {len(kinds)} workloads)"
    if len(cells) == 1 and len(rivals) == 1:
        (standing, verdict), best = rivals[0], next(iter(cells.values())).best
        text += f"; `{standing.contender}` takes {_ratio(verdict)} times as long as `{best.contender}`"
        if verdict.processes_needed is not None:
            text += (
                f", and about {verdict.processes_needed} processes of each would decide it "
                f"({verdict.processes} pairs count)"
            )
    return text


def _leanest(group: Group, cells: Cells) -> str:
    """What memory says where time does not."""
    at = max(cells, key=lambda one: (one[1], one[0]))
    cell = group.cells[at]
    names = (one.contender for one in cells[at].first)
    peaks = {name: peak for name in names if (peak := cell.measured[name].peak_bytes) is not None}
    if len(peaks) < 2 or max(peaks.values()) < 1.5 * min(peaks.values()):
        return ""
    least, most = min(peaks, key=lambda n: peaks[n]), max(peaks, key=lambda n: peaks[n])
    return (
        f". `{least}` needs the least memory of them: {units.bytes_text(peaks[least])} against "
        f"{units.bytes_text(peaks[most])} of `{most}` at {wording.place(cell.workload)}"
    )


def _leads(analysis: Analysis, key: frozenset[str], cells: Cells) -> list[str]:
    """How far ahead: of the next other implementation, and of the baseline where that is another one."""
    ahead = [(one, one.against_best) for one in (ranking.runner_up for ranking in cells.values()) if one]
    behind = [(one, verdict) for one, verdict in ahead if verdict is not None]
    names = list(dict.fromkeys(one.contender for one, _ in behind))
    against_baseline = [_baseline_lead(ranking) for ranking in cells.values()]
    known = [verdict for verdict in against_baseline if verdict is not None]
    phrases = []
    if behind:
        is_baseline = names == [analysis.baseline]
        what = "the next other implementation" + (" and the baseline" if is_baseline else "")
        phrases.append(_faster([verdict for _, verdict in behind], f"{what}, {wording.named(names, 'or')}"))
        if is_baseline:
            return phrases
    if known and not any(analysis.baseline == one.contender for r in cells.values() for one in r.first):
        phrases.append(_faster(known, f"the baseline, `{analysis.baseline}`"))
    return phrases


def _baseline_lead(ranking: Ranking) -> Verdict | None:
    """The baseline against the best, if it is decidedly slower and another implementation."""
    standing = ranking.of(ranking.baseline) if ranking.baseline is not None else None
    if standing is None or standing.against_best is None or standing.against_best.kind is not Kind.SLOWER:
        return None
    same = any(one.implementation == standing.implementation for one in ranking.first)
    return None if same else standing.against_best


def _only_one(group: Group, cells: Cells) -> str:
    names = list(dict.fromkeys(ranking.best.contender for ranking in cells.values()))
    return (
        f"Only {wording.named(names, 'or')} was measured for {wording.where(cells, group.grid)}: "
        f"there is nothing to compare its time with{_why_not(group, cells)}."
    )


def _nobody(group: Group) -> list[str]:
    """Where a reader looks for a verdict in vain."""
    cells = [at for at, cell in group.cells.items() if not cell.measured]
    if not cells or not group.ranked:
        return []
    return [f"Nobody was measured for {wording.where(cells, group.grid)}{_why_not(group, cells)}."]


def _why_not(group: Group, cells: Iterable[At]) -> str:
    """Who else was asked there, and what became of it: `` (over budget, not tried: `torch_eager`)``."""
    missing: dict[str, list[str]] = {}
    for at in cells:
        for name, answer in group.cells[at].answers.items():
            if answer.outcome in WORDS:
                names = missing.setdefault(WORDS[answer.outcome], [])
                names += [] if name in names else [name]
    said = "; ".join(f"{what}: {wording.named(names)}" for what, names in missing.items())
    return f" ({said})" if said else ""


def _no_interval(group: Group, cells: Cells) -> str:
    """Where nobody has two pairs of undisturbed processes."""
    names = list(dict.fromkeys(ranking.best.contender for ranking in cells.values()))
    kept = sum(one.rounds for ranking in cells.values() for one in ranking.standings)
    lost = sum(ranking.disturbed for ranking in cells.values())
    if lost > kept:
        why, mend = "other programs used the cores in most rounds", "repeat the run when nothing else runs"
    else:
        why, mend = "an interval needs two processes of each contender", "give the run more time"
    return (
        f"**No verdict** for {wording.where(cells, group.grid)}: {why}. The least medians are those of "
        f"{wording.named(names)}; {mend}."
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


# -- crossovers --------------------------------------------------------------------------------------


def candidates(analysis: Analysis, group: Group) -> list[str]:
    """Contenders that are first somewhere, and the baseline; of two names for one kernel the first."""
    wanted = {one.contender for ranking in group.ranked.values() for one in ranking.first}
    chosen: list[str] = []
    for name in analysis.names:
        if name not in wanted | {analysis.baseline}:
            continue
        if not any(_one_kernel(group, name, other) for other in chosen):
            chosen.append(name)
    return chosen


def find_crossovers(analysis: Analysis, group: Group) -> dict[int, list[Crossover]]:
    """All decided changes of places among the candidates, by head count.

    The error rate of each interval is shared among the pairs, or among the contenders where those are more.
    """
    pairs = list(combinations(candidates(analysis, group), 2))
    found: dict[int, list[Crossover]] = {}
    for count in group.heads:
        for one, other in pairs:
            verdicts = _verdicts(analysis, group, count, one, other, len(pairs))
            found.setdefault(count, []).extend(crossovers(one, other, verdicts))
    return {count: sorted(some, key=lambda c: c.length) for count, some in found.items()}


def crossings(analysis: Analysis, group: Group) -> list[str]:
    """A sentence for each pair that changes places, or one that says that none does where two could have."""
    grouped: dict[tuple[str, str], dict[int, list[str]]] = {}
    for count, some in find_crossovers(analysis, group).items():
        for one in some:
            grouped.setdefault((one.below, one.above), {}).setdefault(count, []).append(
                f"n ≈ {units.figures(one.length, 2)} [{units.figures(one.low, 2)}, {units.figures(one.high, 2)}]"
                f" at {wording.counted(count, 'head')}"
            )
    if grouped:
        return [
            f"**Crossover**: `{below}` is faster below, and `{above}` above, "
            f"{wording.listed([text for some in places.values() for text in some])}{_none_at(group, places)}."
            for (below, above), places in grouped.items()
        ]
    names = candidates(analysis, group)
    compared = sorted(
        {
            length
            for (_, length), ranking in group.ranked.items()
            if ranking.decided and sum(one.contender in names for one in ranking.standings) > 1
        }
    )
    if len(compared) < 2:
        return []
    return [
        f"No crossover: between n = {compared[0]} and {compared[-1]} no two of "
        f"{wording.named(names)} decidedly change places at any head count."
    ]


def _none_at(group: Group, places: Collection[int]) -> str:
    """The head counts at which a pair that changes places elsewhere decidedly does not."""
    without = [count for count in group.heads if count not in places]
    return f"; none in the range is decided at {wording.heads(without)}" if without else ""


def _one_kernel(group: Group, name: str, other: str) -> bool:
    """Whether the two ran one implementation wherever both were measured, which they were."""
    both = [
        (first.implementation, second.implementation)
        for ranking in group.ranked.values()
        if (first := ranking.of(name)) is not None and (second := ranking.of(other)) is not None
    ]
    return bool(both) and all(first == second for first, second in both)


def _verdicts(
    analysis: Analysis, group: Group, count: int, one: str, other: str, pairs: int
) -> dict[int, Verdict]:
    """`other` against `one`, by length."""
    verdicts = {}
    for (heads, n), cell in group.cells.items():
        if heads != count or one not in cell.measured or other not in cell.measured:
            continue
        comparisons = max(pairs, len(cell.measured) - 1)
        found = decidable(cell.measured.values(), one, cell.margin, comparisons)
        if other in found:
            verdicts[n] = found[other]
    return verdicts
