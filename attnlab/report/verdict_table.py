"""The table of a verdict: who is first at each length and number of heads, and what its signs mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attnlab import units
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.ranking import Lead, Sure, Winner
from attnlab.report.layout import in_columns, markdown
from attnlab.report.readable import part_of, readable
from attnlab.text import counted, listed, named

NONE = "–"
MARKS = {Sure.DECIDED: "●", Sure.TIE: "≈", Sure.NO_INTERVAL: "?", Sure.ALONE: "·"}
LEGEND = {
    Sure.DECIDED: "● decidedly the fastest",
    Sure.TIE: "≈ tied: this run cannot tell those named apart",
    Sure.NO_INTERVAL: "? too few undisturbed processes to tell",
    Sure.ALONE: "· nothing else was measured",
}


def table(group: Group, found: Sequence[Cell], *, for_terminal: bool = False) -> str:
    """Lengths × head counts: who is first, and how many times as fast as the next implementation.

    Of a large group an even part, which is told below. For a terminal cells have two lines, so that three head counts
    fit into about 80 columns.
    """
    by_place, shown = {one.at: one.won for one in found}, readable(group)
    headers = ["n", *(counted(count, "head") for count in shown.heads)]
    rows = [(str(n), [_cell(by_place.get((count, n))) for count in shown.heads]) for n in shown.lengths]
    if for_terminal:
        text = in_columns(headers, [[n, *map("\n  ".join, cells)] for n, cells in rows])
    else:
        text = markdown(headers, [[n, *map(" ".join, cells)] for n, cells in rows], left=len(headers))
    return text if shown is group else f"{text}\n\nShown are {part_of(group)}; the tables have all."


def _cell(won: Winner | None) -> list[str]:
    """``● `torch_sdpa` `` and ``1.88 [1.60, 2.20]``"""
    if won is None:
        return [NONE]
    who = f"{MARKS[won.sure]} {first_names(won, code=True)}"
    return [who] if won.ahead is None else [who, lead_text(won.ahead)]


def first_names(won: Winner, skip: int = 0, *, code: bool = False) -> str:
    """Who shares the first place, from the one of number `skip` on: two names and how many more."""
    names = [f"`{name}`" if code else name for name in won.first[skip:2]]
    more = len(won.first) - 2
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def lead_text(lead: Lead) -> str:
    """``1.88 [1.60, 2.20]``, or the ratio of the medians alone where there is no interval."""
    if lead.low is None or lead.high is None:
        return units.number_text(lead.ratio)
    return f"{units.number_text(lead.ratio)} [{units.number_text(lead.low)}, {units.number_text(lead.high)}]"


def legend(found: Sequence[Cell]) -> str:
    """What the signs of the table mean, of those that stand in it."""
    told = [text for sure, text in LEGEND.items() if any(one.won.sure is sure for one in found)]
    return (
        f"{'; '.join(told)}. The number: how many times as fast as the next implementation, with its 95 % interval in "
        f"brackets. n is the length.{_twins(found)}"
    )


def _twins(found: Collection[Cell]) -> str:
    """Who ran the kernel of one that is named first, and is therefore not named beside it."""
    same: dict[str, list[str]] = {}
    for place in found:
        standings = place.ranking.standings if place.ranking is not None else ()
        by_kernel = {
            one.implementation: one.contender for one in standings if one.contender in place.won.first
        }
        for one in standings:
            shown = by_kernel.get(one.implementation, one.contender)
            if shown != one.contender and one.contender not in same.setdefault(shown, []):
                same[shown].append(one.contender)
    said = [f"{named(names)} ran the same kernel as `{shown}`" for shown, names in same.items() if names]
    return f" {listed(said)}: one implementation, named once." if said else ""
