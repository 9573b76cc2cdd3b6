"""An even part of a large group of workloads: as many head counts and lengths as a person reads in a table or a map."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.judge.analysis import Group
from attnlab.text import counted

MOST_HEADS, MOST_LENGTHS = 6, 10


def readable(group: Group) -> Group:
    """The group itself, or one with an even part of its head counts and lengths, their ends included."""
    heads, lengths = head_counts(group), _spread(group.lengths, MOST_LENGTHS)
    if len(heads) == len(group.heads) and len(lengths) == len(group.lengths):
        return group
    cells = {at: one for at, one in group.cells.items() if at[0] in heads and at[1] in lengths}
    return Group(group.name, cells)


def head_counts(group: Group) -> list[int]:
    """Those that are shown side by side: all, or an even part of them."""
    return _spread(group.heads, MOST_HEADS)


def part_of(group: Group) -> str:
    """Which part `readable` keeps: ``6 of 52 head counts and 10 of 40 lengths``."""
    lengths = f"{min(MOST_LENGTHS, len(group.lengths))} of {counted(len(group.lengths), 'length')}"
    return f"{part_of_heads(group)} and {lengths}"


def part_of_heads(group: Group) -> str:
    """Which part `head_counts` keeps: ``6 of 52 head counts``."""
    return f"{len(head_counts(group))} of {counted(len(group.heads), 'head count')}"


def _spread(values: Sequence[int], most: int) -> list[int]:
    if len(values) <= most:
        return list(values)
    return [values[round(index * (len(values) - 1) / (most - 1))] for index in range(most)]
