"""Tables as Markdown: who is first where, memory, accuracy, ceilings, who ran and on what, blocks and storages.

Large groups of workloads are shown in an even part: as many head counts and lengths as a person reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from attnlab.report import data_tables
from attnlab.report.analysis import Analysis
from attnlab.report.layout import NONE, evenly, in_columns, markdown, shortened
from attnlab.stats.analysis import Cell, Group
from attnlab.stats.groups import place_text
from attnlab.stats.ranking import Lead, Sure, Winner
from attnlab.text import (
    bytes_text,
    counted,
    flops_text,
    interval_text,
    listed,
    named,
    number_text,
    percent,
    quantity_text,
    ratio_text,
    seconds_text,
)
from attnlab.workload.result import Accuracy, Ceiling, Invariance, Outcome
from attnlab.workload.vocabulary import CONTIGUOUS, STORAGES

MOST_HEADS, MOST_LENGTHS = 6, 10
#: rows of a table of blocks or storages
_MOST_ROWS = 100
MARKS = {Sure.DECIDED: "●", Sure.CLOSE: "≈", Sure.TIE: "≟", Sure.NO_INTERVAL: "?", Sure.ALONE: "·"}
_LEGEND = {
    Sure.DECIDED: "● decidedly the fastest",
    Sure.CLOSE: "≈ those named are at most 5 % apart",
    Sure.TIE: "≟ this run cannot tell those named apart directly: race them alone",
    Sure.NO_INTERVAL: "? too few undisturbed processes to tell",
    Sure.ALONE: "· nothing else was measured",
}
#: outcomes that are said in other words
_OUTCOMES = {
    "unavailable": "not available here",
    "over_budget": "over budget, not tried",
    "timed_out": "timed out",
}


# -- an even part of a large group -------------------------------------------------------------------


def readable(group: Group) -> Group:
    """The group itself, or one with an even part of its head counts and lengths, their ends included."""
    heads, lengths = head_counts(group), evenly(group.lengths, MOST_LENGTHS)
    if len(heads) == len(group.heads) and len(lengths) == len(group.lengths):
        return group
    return Group(
        group.name, {at: one for at, one in group.cells.items() if at[0] in heads and at[1] in lengths}
    )


def head_counts(group: Group) -> list[int]:
    """Those that are shown side by side: all, or an even part of them."""
    return evenly(group.heads, MOST_HEADS)


def part_of(group: Group) -> str:
    """Which part `readable` keeps: ``6 of 52 head counts and 10 of 40 lengths``."""
    lengths = f"{min(MOST_LENGTHS, len(group.lengths))} of {counted(len(group.lengths), 'length')}"
    return f"{part_of_heads(group)} and {lengths}"


def part_of_heads(group: Group) -> str:
    """Which part `head_counts` keeps: ``6 of 52 head counts``."""
    return f"{len(head_counts(group))} of {counted(len(group.heads), 'head count')}"


# -- who is first ------------------------------------------------------------------------------------


def winners(group: Group, *, for_terminal: bool = False) -> str:
    """Lengths × head counts: who is first, and how many times as fast as the next implementation.

    For a terminal cells have two lines, so that three head counts fit into about 80 columns.
    """
    shown = readable(group)
    headers = ["n", *(counted(count, "head") for count in shown.heads)]
    rows = [(str(n), [_first(shown.cells.get((count, n))) for count in shown.heads]) for n in shown.lengths]
    if for_terminal:
        text = in_columns(headers, [[n, *map("\n  ".join, cells)] for n, cells in rows])
    else:
        text = markdown(headers, [[n, *map(" ".join, cells)] for n, cells in rows], left=len(headers))
    return text if shown is group else f"{text}\n\nShown are {part_of(group)}; the tables have all."


def _first(cell: Cell | None) -> list[str]:
    """``● `torch_sdpa` `` and ``1.88 [1.60, 2.20]``"""
    if cell is None or cell.ranking is None:
        return [NONE]
    who = f"{MARKS[cell.won.sure]} {first_names(cell.won, code=True)}"
    return [who] if cell.won.ahead is None else [who, lead_text(cell.won.ahead)]


def first_names(won: Winner, skip: int = 0, *, code: bool = False) -> str:
    """Who shares the first place, from the one of number `skip` on: two names and how many more."""
    names = [f"`{name}`" if code else name for name in won.first[skip:2]]
    more = len(won.first) - 2
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def lead_text(lead: Lead) -> str:
    """``1.88 [1.60, 2.20]``, or the ratio of the medians alone where there is no interval."""
    if lead.low is None or lead.high is None:
        return number_text(lead.ratio)
    return f"{number_text(lead.ratio)} [{number_text(lead.low)}, {number_text(lead.high)}]"


def legend(found: Collection[Cell]) -> str:
    """What the signs of the table mean, of those that stand in it."""
    told = [text for sure, text in _LEGEND.items() if any(one.won.sure is sure for one in found)]
    same: dict[
        str, list[str]
    ] = {}  # who ran the kernel of one that is named first, and is not named beside it
    for cell in found:
        standings = cell.ranking.standings if cell.ranking is not None else ()
        by_kernel = {
            one.implementation: one.contender for one in standings if one.contender in cell.won.first
        }
        for one in standings:
            shown = by_kernel.get(one.implementation, one.contender)
            if shown != one.contender and one.contender not in same.setdefault(shown, []):
                same[shown].append(one.contender)
    said = [f"{named(names)} ran the same kernel as `{shown}`" for shown, names in same.items() if names]
    return (
        f"{'; '.join(told)}. The number: how many times as fast the first named is as the next implementation, by the "
        "faster of its names, at ≟ as the second named, with its 95 % interval in brackets: one that holds 1 does not "
        "tell which of the two is faster. n is the length."
        f"{f' {listed(said)}: one implementation, named once.' if said else ''}"
    )


# -- memory and whatever else was measured -----------------------------------------------------------


def peaks(analysis: Analysis, group: Group) -> str:
    """Least peak of memory of each contender, beside what is known by arithmetic, at the longest length of each."""
    longest = [group.cells[count, group.grid[count][-1]].workload for count in head_counts(group)]
    known = [
        ["score matrix (computed)", *(bytes_text(one.score_bytes) for one in longest)],
        ["results (computed)", *(bytes_text(one.output_bytes) for one in longest)],
    ]
    rows = _by_contender(analysis, group, "peak_memory")
    return _table(group, [*rows, *known]) if rows else ""


def further(analysis: Analysis, group: Group) -> list[tuple[str, str]]:
    """Whatever else was measured, by quantity: a table of medians at each contender's longest length."""
    measured = (result for cell in group.cells.values() for result in cell.measured.values())
    quantities = dict.fromkeys(one.quantity for result in measured for one in result.measurements)
    return [
        (quantity.replace("_", " "), _table(group, _by_contender(analysis, group, quantity)))
        for quantity in quantities
        if quantity not in ("latency", "peak_memory", "setup", "block_parts")
    ]


def _table(group: Group, rows: list[list[str]]) -> str:
    """A column a head count, or of many an even part, which is told below."""
    counts = head_counts(group)
    headers = [f"{counted(count, 'head')}, n = {group.grid[count][-1]}" for count in counts]
    text = markdown(["contender", *headers], rows)
    if len(counts) == len(group.heads):
        return text
    return f"{text}\n\nShown are {part_of_heads(group)}; the tables have all."


def _by_contender(analysis: Analysis, group: Group, quantity: str) -> list[list[str]]:
    """A row a contender with figures, a column a head count; a shorter length is told where it is the longest there."""

    def longest(name: str, count: int) -> str:
        for n in reversed(group.grid[count]):
            result = group.cells[count, n].measured.get(name)
            if result and (one := result.measurement(quantity)):
                text = quantity_text(one.least if quantity == "peak_memory" else one.median, one.unit)
                return text if n == group.grid[count][-1] else f"{text} (n = {n})"
        return NONE

    names = filter(group.measured.__contains__, analysis.names)
    rows = [[f"`{name}`", *(longest(name, count) for count in head_counts(group))] for name in names]
    return [row for row in rows if any(text != NONE for text in row[1:])]


# -- accuracy and ceilings ---------------------------------------------------------------------------


def accuracy(analysis: Analysis) -> str:
    """The worst relative error of each contender over all workloads of a dtype, beside its budget."""
    rows = []
    for name in analysis.names:
        by_dtype: dict[str, list[tuple[Cell, Accuracy]]] = {}
        for cell in analysis.cells:
            found = cell.answers[name].accuracy if name in cell.answers else None
            if found is not None:
                by_dtype.setdefault(cell.workload.dtype, []).append((cell, found))
        for dtype, every in by_dtype.items():
            cell, worst = max(every, key=lambda one: _share_of_budget(one[1]))
            lower = every[-1][0].answers[name].computes_in
            passed = sum(one.passed for _, one in every)
            rows.append(
                [
                    f"`{name}`",
                    dtype if lower is None else f"{dtype}, computed in {lower}",
                    ", ".join(filter(None, (place_text(cell.workload), cell.group))),
                    worst.of,
                    f"{worst.relative_error:.2e}",
                    f"{worst.budget:.2e}",
                    percent(_share_of_budget(worst)) if worst.budget > 0 else NONE,
                    "yes" if passed == len(every) else f"no: {passed} of {len(every)}",
                ]
            )
    headers = ["contender", "dtype", "worst at", "of", "relative error", "budget", "share", "passed"]
    return markdown(headers, rows, left=4)


def _share_of_budget(found: Accuracy) -> float:
    """Infinite for an error that is no number, and where nothing is allowed."""
    share = found.relative_error / found.budget if found.budget > 0 else math.inf
    return math.inf if math.isnan(share) else share


def ceilings(found: Sequence[Ceiling]) -> str:
    """What the machine reached in a run."""
    rows = [
        [
            f"{one.dtype} on {one.device}{f', of {one.remembered}' if one.remembered else ''}",
            f"{flops_text(one.matmul_flops)} ({one.matmul_library})",
            f"{bytes_text(one.copy_bytes)}/s ({one.copy_library})",
        ]
        for one in found
    ]
    return markdown(["", "best matrix product", "best copy"], rows)


def remembered(what: str, found: Sequence[Ceiling] | Sequence[Invariance]) -> str:
    """A sentence about those that were found before the run, on which days; empty where there are none."""
    days = [one.remembered.partition(" ")[0] for one in found if one.remembered]
    when = (
        f"{len(days)} of {len(found)} are remembered, found on {listed(sorted(set(days)))}, not in this run"
    )
    return f"{what}: {when}; `attnlab run --afresh` asks again." if days else ""


# -- who ran, who did not, and on what ---------------------------------------------------------------


def overview(analysis: Analysis) -> str:
    """A short row a contender: in how many workloads it has a time, its set-up, and whether its answers repeat."""
    ready = {row["contender"]: row for row in data_tables.setups(analysis)}
    rows = []
    for name in analysis.names:
        answered = [cell for cell in analysis.cells if name in cell.answers]
        measured = sum(name in cell.measured for cell in answered)
        found = ready.get(name, {})
        first, paid = found.get("first_s"), found.get("pays_off_calls")
        asked = (one for one in analysis.run.invariance if one.contender == name)
        bits = [same for one in asked for same in one.same.values()]
        if measured:
            row = [
                f"`{name}`",
                f"{measured} of {len(answered)}",
                NONE if first is None else seconds_text(first),
                f"after {paid:,} calls" if paid else NONE,
                f"{sum(bits)} of {len(bits)}" if bits else NONE,
            ]
            rows.append(row)
    headers = ["contender", "measured at", "set-up", "pays off", "the same bits"]
    known = [at for at in range(len(headers)) if any(row[at] != NONE for row in rows)]
    return markdown([headers[at] for at in known], [[row[at] for at in known] for row in rows])


def fallbacks(analysis: Analysis) -> list[str]:
    """A sentence for each contender of which something else ran than it asked for."""
    found: dict[tuple[str, str | None, str | None], str] = {}
    for cell in analysis.cells:
        for name, one in cell.measured.items():
            if one.fell_back:
                found.setdefault((name, one.asked_kernel, one.kernel), place_text(cell.workload))
    return [
        f"`{name}` asked for {asked}, but {ran} ran, at {place} first: its figures are those of what ran."
        for (name, asked, ran), place in found.items()
    ]


def left_out(analysis: Analysis) -> str:
    """One row for each contender and kind of outcome: at how many workloads, and a reason."""
    rows = []
    for name in analysis.names:
        missing: dict[str, list[str]] = {}
        cells = [cell for cell in analysis.cells if name in cell.answers]
        for cell in cells:
            what, why = data_tables.outcome(cell, name)
            if what != Outcome.MEASURED:
                missing.setdefault(what, []).append(why or "")
        for what, every in missing.items():
            reason, count = shortened(every[0], 160), len(set(every))
            why = reason if count == 1 else f"{reason} (the first of {count})"
            rows.append([f"`{name}`", _OUTCOMES.get(what, what), f"{len(every)} of {len(cells)}", why])
    return markdown(["contender", "outcome", "at", "why"], rows, left=4)


def environment(analysis: Analysis) -> str:
    """What of the environment changes a time, in a few rows; the table beside the page has every entry."""
    told = data_tables.entries(analysis.run.environment)
    return markdown(
        ["", ""], [[name, shortened(text, 90)] for name, text in told if ": " not in name], left=2
    )


# -- blocks and storages: tables of plain values, one column of them side by side ----------------------

Row = Mapping[str, Any]


def blocks(analysis: Analysis) -> list[tuple[str, str]]:
    """What projections, heads and parts of a multi-head block cost, each with what it is; empty without a block."""
    fused = data_tables.FUSED

    def times(ratio: float, row: Row) -> str:
        span = interval_text(row["low"], row["high"]) if row["low"] > 0 else "no interval"
        return f"{ratio_text(ratio)} {span}"

    def heads(row: Row) -> str:
        ratio = row["over_fewest_heads"]
        return seconds_text(row["median_s"]) if ratio is None else f"× {times(ratio, row)}"

    def part(row: Row) -> str:
        text = percent(row["share"])
        if math.isnan(row["low"]):
            return text
        low, high = (number_text(100 * min(1.0, max(0.0, row[end])), 2) for end in ("low", "high"))
        return f"{text} [{low}, {high}]"

    return _with_rows(
        (
            "**What separate projections cost.** Time of the block over that with one matrix for all heads; the two "
            "raced.",
            _side_by_side(
                data_tables.block_projections(analysis),
                ("heads", "n", "around"),
                lambda row: f"{row['projection']} / {fused}",
                lambda row: times(row[f"over_{fused}"], row),
            ),
        ),
        (
            "**What heads cost at one d_model.** Time over that with the fewest heads, whose own time stands first. "
            "These are workloads one after the other, compared process by process: what the machine did between them "
            "is in the intervals.",
            _side_by_side(
                data_tables.block_heads(analysis),
                ("n", "contender"),
                lambda row: counted(row["heads"], "head"),
                heads,
            ),
        ),
        (
            "**What the parts take.** Each part was called alone, on what the part before it left, in every process; "
            "shares are of the sum of the three, disturbed rounds left out. A module that computes the block in one "
            "piece has no parts to time.",
            _side_by_side(
                data_tables.block_parts(analysis),
                ("heads", "n", "contender"),
                lambda row: data_tables.PARTS[row["part"]],
                part,
            ),
        ),
    )


def storages(analysis: Analysis) -> list[tuple[str, str]]:
    """What the form of keys and values costs: a token against the length of a cache, one form beside another."""
    rows = sorted(
        data_tables.storages(analysis),
        key=lambda row: (row["conditions"], row["heads"], row["n"], list(STORAGES).index(row["storage"])),
    )
    families = data_tables.families(analysis)
    decoding = {name for name, groups in families if all(map(data_tables.decodes, groups.values()))}
    several = {name for name, groups in families if len(groups) > 1}

    def beside(row: Row) -> str:
        """``1.20 ms, 2.1 (1.9 to 2.3)``"""
        text = seconds_text(row["median_s"])
        if row["over_contiguous"] is None or row["storage"] == CONTIGUOUS:
            return text
        text += f", {number_text(row['over_contiguous'])}"
        if row["least"] is None:
            return text
        return f"{text} ({number_text(row['least'])} to {number_text(row['greatest'])})"

    return _with_rows(
        (
            "**Cost of a token against the length of the cache.** Median time of a call over its queries, of all batch "
            "elements together.",
            _side_by_side(
                [row for row in rows if row["conditions"] in decoding],
                ("contender", "storage", "heads"),
                lambda row: f"n = {row['n']}",
                lambda row: seconds_text(row["seconds_per_token"]),
            ),
        ),
        (
            "**What the form of keys and values costs.** Contiguous is the core alone: keys and values lie as the "
            "backend wants them. Every other form includes what a call does before that: writing or concatenating the "
            "rows of its own tokens, unpacking, gathering pages; nothing where a backend reads the form as it lies. "
            "Each median stands with its multiple of the contiguous one, and in brackets the least and the greatest of "
            "that between two processes, one of each, where there are two of both. These are different workloads, "
            "raced after one another: the bracket is no interval of confidence.",
            _side_by_side(
                [row for row in rows if row["conditions"] in several],
                ("contender", "heads", "n"),
                lambda row: row["storage"],
                beside,
            ),
        ),
    )


def _with_rows(*every: tuple[str, str]) -> list[tuple[str, str]]:
    """Those of the tables, each with what it is, that have a row."""
    return [(what, table) for what, table in every if table]


def _side_by_side(
    rows: Iterable[Row], by: Sequence[str], column: Callable[[Row], str], shown: Callable[[Row], str]
) -> str:
    """A table with a row for each of `by` together, and what is `shown` of a row side by side by `column`.

    Where rows differ in their ``group`` or ``conditions``, these stand in front. The first `_MOST_ROWS` are shown.
    """
    found: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    rows = list(rows)
    parted = [name for name in ("conditions", "group") if len({row.get(name) for row in rows}) > 1]
    by = [*parted[:1], *by]
    for row in rows:
        at = tuple(f"`{row[name]}`" if name in ("contender", "around") else str(row[name]) for name in by)
        found.setdefault(at, {})[column(row)] = shown(row)
        columns[column(row)] = None
    table = [[*at, *(cells.get(name, NONE) for name in columns)] for at, cells in found.items()]
    text = markdown([*by, *columns], table[:_MOST_ROWS], left=len(by))
    if len(table) <= _MOST_ROWS:
        return text
    return f"{text}\n\nShown are {_MOST_ROWS} of {len(table)} rows; the tables have all."
