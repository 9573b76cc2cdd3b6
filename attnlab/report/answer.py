"""The verdict in words: whom to use in one line, a table of who is first where, and at most five sentences.

Everything is made of `attnlab.stats.analysis`; each sentence says what is so and what to do about it. Sets of workloads
are counted, not listed: the table shows them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from attnlab.report.analysis import Analysis
from attnlab.report.layout import shortened
from attnlab.stats.analysis import Cell, Choice, Group, choose, largest_with_peaks, peaks_of
from attnlab.stats.crossover import find_crossovers
from attnlab.stats.groups import place_text
from attnlab.stats.ranking import Sure, decidable
from attnlab.stats.verdicts import Kind, Verdict
from attnlab.text import bytes_text, counted, interval_text, listed, named, number_text, ratio_text
from attnlab.workload.result import Outcome, Result

#: sentences of a verdict, and letters of a reason in one of them
MOST, _REASON = 5, 110
#: times as long as the fastest, wherever it was measured: not worth trying at another size
SLOW = 10.0
#: what is said of one contender, and of several
_FAILURES = {
    Outcome.WRONG: ("its results are wrong", "their results are wrong"),
    Outcome.CRASHED: ("it crashed", "they crashed"),
    Outcome.TIMED_OUT: ("it did not answer in time", "they did not answer in time"),
}


@dataclass(frozen=True)
class Answer:
    """`line` says whom to use, and of each of `groups` whom there; `sentences`, five at most, how sure that is."""

    line: str
    groups: tuple[tuple[Group, str], ...]
    sentences: tuple[str, ...]


def answer_of(analysis: Analysis) -> Answer:
    """What the run says, in the order in which a reader asks."""
    chosen = choose(analysis.won, analysis.names)
    if chosen is None:
        return Answer(_nothing(analysis), (), tuple(_failed(analysis)))
    choices = [choose(group.won, analysis.names) for group in analysis.groups]
    groups = tuple(zip(analysis.groups, (_line(analysis, one) for one in choices), strict=True))
    wanted = Counter(one.name for one in choices if one is not None)
    line = groups[0][1] if len(groups) == 1 else _line(analysis, chosen)
    if len(groups) > 1 and len(wanted) > 1:
        told = [f"`{name}` for {counted(count, 'kind')}" for name, count in wanted.most_common(3)]
        more = wanted.total() - sum(count for _, count in wanted.most_common(3))
        use = listed([*told, f"others for {more}"] if more else told)
        line = f"**It depends on the kind of workload**: use {use}, as the tables say."
    said = itertools.chain(
        _how_sure(chosen),
        _elsewhere(chosen),
        _failed(analysis),
        _memory(chosen),
        _crossing(analysis, chosen),
        _lower(analysis),
        _not_compared(analysis),
        _slow(analysis),
    )
    return Answer(line, groups, tuple(itertools.islice(said, MOST)))


def _line(analysis: Analysis, chosen: Choice | None) -> str:
    """Whom to use."""
    if chosen is None:
        return "**Nothing was measured here.**"
    sure = {one.won.sure for one in chosen.places}
    if sure == {Sure.ALONE}:
        first = next(name for name in analysis.names if any(one.peer(name) for one in chosen.places))
        return (
            f"**Only `{first}` has a time**: there is nothing to compare it with. Name a second contender with "
            "`--backends`."
        )
    if not sure & {Sure.DECIDED, Sure.CLOSE, Sure.TIE}:
        return f"**No verdict yet**; `{chosen.name}` has the least median at most sizes."
    count = len(chosen.places)
    at = "it" if count == 1 else f"{_part([*chosen.won, *chosen.close, *chosen.tied], count)} it"
    if not chosen.won:
        return f"**No single winner.** Use `{chosen.name}`: at {at} is among those that may be the fastest."
    if not chosen.behind and not chosen.absent:
        every = "here" if count == 1 else f"at any of {_sizes(count)}"
        return f"**Use `{chosen.name}`**: nothing is decidedly faster {every}."
    return f"**Use `{chosen.name}`**: at {at} is the fastest, or not told apart from it."


def _nothing(analysis: Analysis) -> str:
    """Why there is no verdict at all."""
    outcomes = {answer.outcome for cell in analysis.cells for answer in cell.answers.values()}
    if analysis.uncounted:
        return (
            f"**No verdict: no turn counts.** Other programs used the cores in all {analysis.turns[1]} turns: repeat "
            "the run when nothing else runs."
        )
    if Outcome.WRONG in outcomes:
        return "**Use none of these here**: no contender gave right answers that could be timed."
    if not outcomes:
        return (
            "**No verdict**: this run holds no results. Go on with it (`attnlab run --resume`) or repeat it."
        )
    return "**No verdict**: nothing could be measured. The table of those left out says why."


# -- the sentences -----------------------------------------------------------------------------------


def _how_sure(chosen: Choice) -> Iterator[str]:
    """Where it is alone in first place, by how much, and where others may be as fast."""
    won, count = chosen.won, len(chosen.places)
    shared = []
    if chosen.close:
        rivals = _rivals(chosen, chosen.close)
        shared.append(
            f"at {_part(chosen.close, count)} {rivals} differs from it by 5 % at most: choose by memory there"
        )
    if chosen.tied:
        rivals = _rivals(chosen, chosen.tied)
        shared.append(
            f"at {_part(chosen.tied, count)} this run cannot tell it directly from {rivals}: race them alone there "
            "(`attnlab compare`)"
        )
    if won:
        span = _span([one.won.ahead.ratio for one in won if one.won.ahead is not None])
        first = f"`{chosen.name}` is decidedly the fastest at {_part(won, count)}, {span} times as fast as the next"
        shared = [first, *shared]
    if shared:
        said = "; ".join(shared)
        yield f"{said[0].upper()}{said[1:]}."


def _rivals(chosen: Choice, places: Collection[Cell]) -> str:
    """Those that may be as fast there, who is so most often first."""
    counts = Counter[str]()
    for one in places:
        for name in one.won.first:
            mine, other = one.peer(chosen.name), one.peer(name)
            counts[name] += bool(mine and other and mine.implementation != other.implementation)
    return _few([name for name, count in counts.most_common() if count], "or")


def _elsewhere(chosen: Choice) -> Iterator[str]:
    """Where another one is decidedly faster, and where it could not be measured."""
    behind, absent = chosen.behind, chosen.absent
    if behind:
        worst = max(behind, key=lambda one: one.behind(chosen.name))
        others = list(dict.fromkeys(one.won.name for one in behind))
        place = f"At {_where(worst)}" if len(behind) == 1 else f"At {len(behind)} other sizes"
        by = f"{'up to ' if len(behind) > 1 else ''}{_times(worst.behind(chosen.name))}"
        who = f"use {_few(others)} there" if len(others) < 3 else "take the one that the table names there"
        yield f"{place} `{chosen.name}` takes {by} times as long as the fastest: {who}."
    if absent:
        place = _where(absent[0]) if len(absent) == 1 else f"{len(absent)} of the sizes"
        why = absent[0].answers.get(chosen.name)
        reason = f" ({shortened(why.reason, _REASON)})" if why is not None and why.reason else ""
        yield f"`{chosen.name}` has no time at {place}{reason}: use what the table names there."


def _failed(analysis: Analysis) -> Iterator[str]:
    """Who must not be used: wrong results first, then crashes and hangs, in one sentence each."""
    for outcome, (one, several) in _FAILURES.items():
        reasons: dict[str, list[str]] = {}
        asked = Counter(name for cell in analysis.cells for name in cell.answers)
        for cell in analysis.cells:
            for name, answer in cell.answers.items():
                if answer.outcome is outcome:
                    reasons.setdefault(name, []).append(answer.reason or "")
        if len(reasons) == 1:
            ((name, every),) = reasons.items()
            reason = f": {shortened(every[0], _REASON)}" if every[0] else ""
            yield f"**Do not use `{name}`**: {one} at {len(every)} of {_sizes(asked[name])}{reason}."
        elif reasons:
            who = _few(list(reasons))
            yield f"**Do not use {who}**: {several}; the table of those left out says where and how."


def _memory(chosen: Choice) -> Iterator[str]:
    """What it needs at the largest workload, and who needs least and most there."""
    measured = [one for one in chosen.places if one.behind(chosen.name) < float("inf")]
    place = largest_with_peaks(measured, [chosen.name])
    if place is None:
        return
    peaks = peaks_of(place)
    mine = peaks[chosen.name]
    text = f"At {_where(place)} `{chosen.name}` needs {bytes_text(mine)} of memory"
    least, most = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    if peaks[least] * 1.05 < mine:
        text += f", `{least}` the least, {bytes_text(peaks[least])}"
    if peaks[most] > 1.5 * mine:
        text += f", `{most}` the most, {bytes_text(peaks[most])}"
        text += ": where memory is short, keep to those that need little" if peaks[most] > 4 * mine else ""
    yield f"{text}."


def _crossing(analysis: Analysis, chosen: Choice) -> Iterator[str]:
    """Where the chosen one and another change places with the length, for the first group in which they do."""
    for group in analysis.groups:
        pairs: dict[tuple[str, str], list[str]] = {}
        for count, some in find_crossovers(analysis, group).items():
            for one in some:
                if chosen.name in (one.below, one.above):
                    length, low, high = (number_text(n, 2) for n in (one.length, one.low, one.high))
                    text = f"n ≈ {length} [{low}, {high}] with {counted(count, 'head')}"
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
    beside = ""
    if cell.peer(names[0]) is None:
        verdict = _against_best(cell, names[0])
        beside = ", without being decidedly faster"
        if verdict is not None and verdict.kind is Kind.FASTER:
            times = _times(1 / verdict.ratio)
            beside = f", {times} times as fast as the fastest at {place_text(cell.workload)}"
    error = f", relative error {mine.accuracy.relative_error:.1g}" if mine.accuracy else ""
    more = f"; so do {_few(names[1:])}" if len(names) > 1 else ""
    yield (
        f"`{names[0]}` computes in {mine.computes_in} and is ranked apart{beside}{error}: use it only where that is "
        f"enough{more}."
    )


def _not_compared(analysis: Analysis) -> Iterator[str]:
    """Who has a time and no interval, why, and what to do."""
    found = analysis.won
    unsure = [one for one in found if one.won.sure is Sure.NO_INTERVAL]
    names = list(dict.fromkeys(name for one in found for name in one.won.not_compared))
    if not unsure and not names:
        return
    disturbed, turns = analysis.turns
    if disturbed > turns - disturbed:
        why = "other programs used the cores; repeat the run when nothing else runs"
    elif analysis.run.plan.limits.processes < 2:
        why = "an interval needs two processes of each; ask for them with `--processes 5`"
    else:
        why = "too few processes were undisturbed; repeat the run when nothing else runs, or with more `--seconds`"
    if unsure:
        yield f"At {_part(unsure, len(found))} nobody could be compared with the fastest: {why}."
    else:
        yield f"Somewhere {_few(names)} could not be compared: {why}."


def _slow(analysis: Analysis) -> Iterator[str]:
    """Who is far behind everywhere, as far as an interval says."""
    behind = {
        name: [
            one.behind(name) if mine.against_best is not None else 1.0
            for one in analysis.won
            if (mine := one.peer(name)) is not None
        ]
        for name in analysis.names
    }
    slow = {name: some for name, some in behind.items() if some and min(some) >= SLOW}
    if slow:
        verb = "it takes" if len(slow) == 1 else "they take"
        span = _span([one for some in slow.values() for one in some])
        yield f"Leave out {_few(list(slow))}: wherever measured, {verb} {span} times as long as the fastest."


# -- those that compute in a lower precision ----------------------------------------------------------


def lower_precision(analysis: Analysis) -> Iterator[str]:
    """A sentence for each in each group: its speed and its error beside the fastest's in the inputs' precision."""
    for group, name in itertools.product(analysis.groups, analysis.names):
        cells = [cell for cell in group.ordered if name in cell.lower]
        if not cells:
            continue
        cell = max(cells, key=lambda one: (one.at[1], one.at[0]))
        mine, at = cell.measured[name], place_text(cell.workload)
        head = f"**`{name}` computes in {mine.computes_in}**, not in its inputs' {cell.workload.dtype}"
        if cell.ranking is None or cell.peer(name) is not None:
            yield f"{head}; nothing in {cell.workload.dtype} was measured beside it to compare it with."
            continue
        best, verdict = cell.ranking.best.contender, _against_best(cell, name)
        errors = _errors(mine, cell.measured[best])
        if verdict is None:
            yield (
                f"{head}, and is ranked apart; too few undisturbed processes tell how fast it is beside `{best}` at "
                f"{at}: {errors}."
            )
            continue
        ratios = [1 / one.ratio for each in cells if (one := _against_best(each, name)) is not None]
        low, high = number_text(min(ratios), 2), number_text(max(ratios), 2)
        over = f"; over {len(ratios)} workloads it is {low} to {high} times as fast as the fastest there"
        yield (
            f"{head}, and is ranked apart. At {at} it {_beside(verdict, best, mine.computes_in)}: "
            f"{errors}{over if len(ratios) > 1 else ''}."
        )


def _against_best(cell: Cell, name: str) -> Verdict | None:
    """The verdict on `name`, which is ranked apart, against the fastest in the inputs' precision."""
    if cell.ranking is None or cell.peer(name) is not None:
        return None
    return decidable(cell.measured.values(), cell.ranking.best.contender, cell.margin).get(name)


def _errors(mine: Result, other: Result) -> str:
    """``relative error 3.1e-03 against 2.3e-07``, as far as they are known."""
    known = [f"{one.accuracy.relative_error:.2g}" if one.accuracy else "unknown" for one in (mine, other)]
    return f"relative error {known[0]} against {known[1]}"


def _beside(verdict: Verdict, best: str, computes_in: str | None) -> str:
    if verdict.kind is Kind.FASTER:
        span = interval_text(1 / verdict.high, 1 / verdict.low)
        return f"is {ratio_text(1 / verdict.ratio)} {span} times as fast as `{best}`, in {computes_in}"
    if verdict.kind is Kind.SLOWER:
        span = interval_text(verdict.low, verdict.high)
        return f"takes {ratio_text(verdict.ratio)} {span} times as long as `{best}`, even in {computes_in}"
    return f"is no faster than `{best}`, as far as can be told, in {computes_in}"


# -- words -------------------------------------------------------------------------------------------


def _part(some: Sequence[Cell], whole: int) -> str:
    """``11 of 18 sizes``, ``all 18 sizes``, or the place itself where there is one."""
    if whole == 1:
        return _where(some[0])
    if len(some) < whole:
        return f"{len(some)} of {_sizes(whole)}"
    return "both sizes" if whole == 2 else f"all {_sizes(whole)}"


def _sizes(count: int) -> str:
    return counted(count, "size")


def _where(one: Cell) -> str:
    return f"{place_text(one.workload)} ({one.group})" if one.group else place_text(one.workload)


def _few(names: Sequence[str], last: str = "and") -> str:
    """Up to three names, and how many more."""
    if len(names) <= 3:
        return named(names, last)
    return listed([*(f"`{name}`" for name in names[:3]), f"{len(names) - 3} more"], last)


def _span(ratios: Sequence[float]) -> str:
    low, high = number_text(min(ratios)), number_text(max(ratios))
    return low if low == high else f"{low} to {high}"


def _times(ratio: float) -> str:
    return number_text(ratio, 2) if ratio >= 1.1 else number_text(ratio)
