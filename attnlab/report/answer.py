"""The verdict in words: whom to use in one line, a table of who is first where, and at most five sentences.

Everything is made of `attnlab.report.winners`; each sentence says what is so and what to do about it. Sets of workloads
are counted, not listed: the table shows them.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attnlab import units
from attnlab.judge.analysis import Cell, Choice, choose, largest_with_peaks, peaks_of
from attnlab.judge.crossover import find_crossovers
from attnlab.judge.groups import place_text
from attnlab.judge.pairing import Kind
from attnlab.judge.ranking import Sure, decidable
from attnlab.problem.result import Outcome
from attnlab.report.analysis import Analysis
from attnlab.report.layout import shortened
from attnlab.report.verdict_table import legend, table
from attnlab.text import counted, listed, named

#: sentences of a verdict, and letters of a reason in one of them
MOST, _REASON = 5, 110
#: times as long as the fastest, wherever it was measured: not worth trying at another size
SLOW = 10.0
_FAILURES = {
    Outcome.WRONG: "its results are wrong",
    Outcome.CRASHED: "it crashed",
    Outcome.TIMED_OUT: "it did not answer in time",
}


@dataclass(frozen=True)
class GroupAnswer:
    """Who is first in one group of workloads: whom to use there, and the table by length and heads.

    The table is there as Markdown, and as text for a terminal.
    """

    name: str
    line: str
    table: str
    text: str


@dataclass(frozen=True)
class Answer:
    """`line` says whom to use; `groups` who is first where; `sentences`, five at most, how sure it is and what else."""

    line: str
    groups: tuple[GroupAnswer, ...]
    legend: str
    sentences: tuple[str, ...]


def answer_of(analysis: Analysis) -> Answer:
    """What the run says, in the order in which a reader asks."""
    found = analysis.won
    if not found:
        return Answer(_nothing(analysis), (), "", tuple(_failed(analysis)))
    groups, choices = [], []
    for group in analysis.groups:
        mine = group.won
        choices.append(choose(mine, analysis.names))
        line = _line(analysis, choices[-1], mine)
        groups.append(
            GroupAnswer(group.name, line, table(group, mine), table(group, mine, for_terminal=True))
        )
    line = _overall(analysis, groups, choices, found)
    return Answer(line, tuple(groups), legend(found), sentences(analysis, found))


# -- the line ----------------------------------------------------------------------------------------


def _overall(
    analysis: Analysis,
    groups: Sequence[GroupAnswer],
    choices: Sequence[Choice | None],
    found: Sequence[Cell],
) -> str:
    """One line for the whole run; where the groups want different contenders, how many want which."""
    if len(groups) == 1:
        return groups[0].line
    wanted: dict[str, int] = {}
    for chosen in choices:
        if chosen is not None:
            wanted[chosen.name] = wanted.get(chosen.name, 0) + 1
    if len(wanted) == 1:
        return _line(analysis, choose(found, analysis.names), found)
    ordered = sorted(wanted.items(), key=lambda one: -one[1])
    told = [f"`{name}` for {counted(count, 'kind')}" for name, count in ordered[:3]]
    more = [f"others for {sum(count for _, count in ordered[3:])}"] if len(ordered) > 3 else []
    return f"**It depends on the kind of workload**: use {listed([*told, *more])}, as the tables say."


def _line(analysis: Analysis, chosen: Choice | None, found: Sequence[Cell]) -> str:
    if chosen is None:
        return "**Nothing was measured here.**"
    names = [name for name in analysis.names if any(one.peer(name) for one in found)]
    sure = {one.won.sure for one in found}
    if sure == {Sure.ALONE}:
        return (
            f"**Only {named(names[:1])} has a time**: there is nothing to compare it with. Name a second "
            "contender with `--backends`."
        )
    if not sure & {Sure.DECIDED, Sure.TIE}:
        return f"**No verdict yet**; `{chosen.name}` has the least median at most sizes."
    first = [*chosen.won, *chosen.tied]
    at = "it" if len(chosen.places) == 1 else f"{_part(first, chosen)} it"
    if not chosen.won:
        return f"**No single winner.** Use `{chosen.name}`: at {at} is tied for first."
    if not chosen.behind and not chosen.absent:
        every = "here" if len(chosen.places) == 1 else f"at any of {_sizes(len(chosen.places))}"
        return f"**Use `{chosen.name}`**: nothing is decidedly faster {every}."
    return f"**Use `{chosen.name}`**: at {at} is the fastest or tied with it."


def _nothing(analysis: Analysis) -> str:
    """Why there is no verdict at all."""
    outcomes = {answer.outcome for cell in analysis.cells for answer in cell.answers.values()}
    if Outcome.WRONG in outcomes:
        return "**Use none of these here**: no contender gave right answers that could be timed."
    if not outcomes:
        return (
            "**No verdict**: this run holds no results. Go on with it (`attnlab run --resume`) or repeat it."
        )
    return "**No verdict**: nothing could be measured. The table of those left out says why."


# -- the sentences -----------------------------------------------------------------------------------


def sentences(analysis: Analysis, found: Sequence[Cell]) -> tuple[str, ...]:
    """At most five: how sure, where another is better, who is wrong, how big, and what else matters most."""
    chosen = choose(found, analysis.names)
    if chosen is None:
        return ()
    told = itertools.chain(
        _how_sure(chosen),
        _elsewhere(chosen),
        _failed(analysis),
        _memory(chosen),
        _crossing(analysis, chosen),
        _lower(analysis),
        _not_compared(analysis, found),
        _slow(analysis, found),
    )
    return tuple(itertools.islice(told, MOST))


def _how_sure(chosen: Choice) -> Iterator[str]:
    """Where it is alone in first place, by how much, and where others share it."""
    won, tied, name = chosen.won, chosen.tied, f"`{chosen.name}`"
    if won:
        leads = [one.won.ahead.ratio for one in won if one.won.ahead is not None]
        text = f"{name} is decidedly the fastest at {_part(won, chosen)}, {_span(leads)} times as fast as the next"
        if tied:
            text += (
                f"; at {len(tied)} more it is tied with {_rivals(tied, chosen)}, so choose by memory there"
            )
        yield f"{text}."
    elif tied:
        yield (
            f"{name} is tied for first at {_part(tied, chosen)}, with {_rivals(tied, chosen)}: what differs there is "
            "less than this run can tell, so choose by memory or by what is installed."
        )


def _elsewhere(chosen: Choice) -> Iterator[str]:
    """Where another one is decidedly faster, and where it could not be measured."""
    behind, absent, name = chosen.behind, chosen.absent, f"`{chosen.name}`"
    if behind:
        worst = max(behind, key=lambda one: one.behind(chosen.name))
        others = list(dict.fromkeys(one.won.name for one in behind))
        place = f"At {_where(worst)}" if len(behind) == 1 else f"At {len(behind)} other sizes"
        by = (
            f"up to {_times(worst.behind(chosen.name))}"
            if len(behind) > 1
            else _times(worst.behind(chosen.name))
        )
        who = (
            f": use {_few(others)} there" if len(others) < 3 else ": take the one that the table names there"
        )
        yield f"{place} {name} takes {by} times as long as the fastest{who}."
    if absent:
        place = _where(absent[0]) if len(absent) == 1 else f"{len(absent)} of the sizes"
        why = absent[0].answers.get(chosen.name)
        reason = f" ({shortened(why.reason, _REASON)})" if why is not None and why.reason else ""
        yield f"{name} has no time at {place}{reason}: use what the table names there."


def _failed(analysis: Analysis) -> Iterator[str]:
    """Who must not be used: wrong results first, then crashes and hangs, in one sentence each."""
    for outcome, what in _FAILURES.items():
        reasons: dict[str, list[str]] = {}
        for cell in analysis.cells:
            for name, answer in cell.answers.items():
                if answer.outcome is outcome:
                    reasons.setdefault(name, []).append(answer.reason or "")
        if len(reasons) == 1:
            ((name, every),) = reasons.items()
            asked = sum(name in cell.answers for cell in analysis.cells)
            reason = f": {shortened(every[0], _REASON)}" if every[0] else ""
            yield f"**Do not use `{name}`**: {what} at {len(every)} of {_sizes(asked)}{reason}."
        elif reasons:
            said = {"its results are wrong": "their results are wrong"}.get(
                what, what.replace("it ", "they ")
            )
            yield f"**Do not use {_few(list(reasons))}**: {said}; the table of those left out says where and how."


def _memory(chosen: Choice) -> Iterator[str]:
    """What it needs at the largest workload, and who needs least and most there."""
    place = largest_with_peaks(
        [one for one in chosen.places if one.behind(chosen.name) < float("inf")], [chosen.name]
    )
    peaks = peaks_of(place) if place is not None else {}
    if place is None or chosen.name not in peaks:
        return
    mine = peaks[chosen.name]
    text = f"At {_where(place)} `{chosen.name}` needs {units.bytes_text(mine)} of memory"
    least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    if peaks[least] * 1.05 < mine:
        text += f", `{least}` the least, {units.bytes_text(peaks[least])}"
    if peaks[most] > 1.5 * mine:
        text += f", `{most}` the most, {units.bytes_text(peaks[most])}"
        text += ": where memory is short, keep to those that need little" if peaks[most] > 4 * mine else ""
    yield f"{text}."


def _crossing(analysis: Analysis, chosen: Choice) -> Iterator[str]:
    """Where the chosen one and another change places with the length, for the first group in which they do."""
    for group in analysis.groups:
        pairs: dict[tuple[str, str], list[str]] = {}
        for count, some in find_crossovers(analysis, group).items():
            for one in some:
                if chosen.name in (one.below, one.above):
                    low, high = units.number_text(one.low, 2), units.number_text(one.high, 2)
                    text = f"n ≈ {units.number_text(one.length, 2)} [{low}, {high}] with {counted(count, 'head')}"
                    pairs.setdefault((one.below, one.above), []).append(text)
        for (below, above), at in pairs.items():
            suffix = f" ({group.name})" if group.name else ""
            where = listed(at[:3]) + (", and at further head counts" if len(at) > 3 else "")
            yield f"`{below}` is the faster below, and `{above}` above, {where}{suffix}."
            return


def _lower(analysis: Analysis) -> Iterator[str]:
    """Who computes in a lower precision than its inputs': with its speed there and its error."""
    names = [name for name in analysis.names if any(name in cell.lower for cell in analysis.cells)]
    if not names:
        return
    cells = [cell for cell in analysis.cells if names[0] in cell.lower]
    cell = max(cells, key=lambda one: one.workload.score_bytes)
    mine = cell.measured[names[0]]
    error = f", relative error {mine.accuracy.relative_error:.1g}" if mine.accuracy else ""
    more = f"; so do {_few(names[1:])}" if len(names) > 1 else ""
    yield (
        f"`{names[0]}` computes in {mine.computes_in} and is ranked apart{_beside(cell, names[0])}{error}: use it only "
        f"where that is enough{more}."
    )


def _beside(cell: Cell, name: str) -> str:
    if cell.ranking is None or cell.ranking.of(name) is not None:
        return ""
    found = decidable(cell.measured.values(), cell.ranking.best.contender, cell.margin).get(name)
    if found is None or found.kind is not Kind.FASTER:
        return ", without being decidedly faster"
    return f", {_times(1 / found.ratio)} times as fast as the fastest at {place_text(cell.workload)}"


def _not_compared(analysis: Analysis, found: Collection[Cell]) -> Iterator[str]:
    """Who has a time and no interval, why, and what to do."""
    unsure = [one for one in found if one.won.sure is Sure.NO_INTERVAL]
    names = list(dict.fromkeys(name for one in found for name in one.won.not_compared))
    if not unsure and not names:
        return
    rankings = [one.ranking for one in found if one.ranking is not None]
    kept = sum(standing.rounds for ranking in rankings for standing in ranking.standings)
    lost = sum(ranking.disturbed for ranking in rankings)
    planned = analysis.run.plan.limits.processes
    if lost > kept:
        why = "other programs used the cores; repeat the run when nothing else runs"
    elif planned < 2:
        why = "an interval needs two processes of each; ask for them with `--processes 5`"
    else:
        why = "too few processes were undisturbed; repeat the run when nothing else runs, or with more `--seconds`"
    if unsure:
        yield f"At {_part(unsure, None, len(found))} nobody could be compared with the fastest: {why}."
    else:
        yield f"Somewhere {_few(names)} could not be compared: {why}."


def _slow(analysis: Analysis, found: Sequence[Cell]) -> Iterator[str]:
    """Who is far behind everywhere."""
    slow: dict[str, list[float]] = {}
    for name in analysis.names:
        known = [one.behind(name) for one in found if one.peer(name) is not None]
        if known and min(known) >= SLOW:
            slow[name] = known
    if slow:
        least, most = min(map(min, slow.values())), max(map(max, slow.values()))
        verb = "takes" if len(slow) == 1 else "take"
        yield (
            f"Leave out {_few(list(slow))}: wherever measured, {'it' if len(slow) == 1 else 'they'} {verb} "
            f"{_span([least, most])} times as long as the fastest."
        )


# -- words -------------------------------------------------------------------------------------------


def _part(some: Sequence[Cell], chosen: Choice | None, count: int = 0) -> str:
    """``11 of 18 sizes``, ``all 18 sizes``, or the place itself where there is one."""
    whole = len(chosen.places) if chosen is not None else count
    if whole == 1:
        return _where(some[0])
    return f"all {_sizes(whole)}" if len(some) == whole else f"{len(some)} of {_sizes(whole)}"


def _sizes(count: int) -> str:
    return counted(count, "size")


def _where(one: Cell) -> str:
    at = place_text(one.workload)
    return f"{at} ({one.group})" if one.group else at


def _rivals(tied: Sequence[Cell], chosen: Choice) -> str:
    """Those tied with it, who is so most often first."""
    counts: dict[str, int] = {}
    for one in tied:
        for name in one.won.first:
            mine, other = one.peer(chosen.name), one.peer(name)
            if mine and other and mine.implementation != other.implementation:
                counts[name] = counts.get(name, 0) + 1
    return _few(sorted(counts, key=lambda name: -counts[name]), "or")


def _few(names: Sequence[str], last: str = "and") -> str:
    """Up to three names, and how many more."""
    shown = [f"`{name}`" for name in names[:3]]
    return listed([*shown, f"{len(names) - 3} more"] if len(names) > 3 else shown, last)


def _span(ratios: Sequence[float]) -> str:
    low, high = units.number_text(min(ratios)), units.number_text(max(ratios))
    return low if low == high else f"{low} to {high}"


def _times(ratio: float) -> str:
    return units.number_text(ratio, 2) if ratio >= 1.1 else units.number_text(ratio)
