"""Tables as Markdown: memory, accuracy and ceilings, one function a table; the others stand beside the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnlab import units
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.groups import place_text
from attnlab.problem.result import Accuracy, Ceiling, Measurement
from attnlab.race.instruments import BLOCK_PARTS
from attnlab.report.analysis import Analysis
from attnlab.report.layout import markdown, table
from attnlab.report.readable import head_counts, part_of_heads
from attnlab.text import counted

NONE = "–"


def measured_names(analysis: Analysis, group: Group) -> list[str]:
    """Contenders with a speed anywhere in `group`, in the plan's order."""
    return [n for n in analysis.names if any(n in cell.measured for cell in group.cells.values())]


def peaks(analysis: Analysis, group: Group) -> str:
    """Least peak of memory of each contender, beside what is known by arithmetic, at the longest length of each."""
    longest = [group.cells[count, group.grid[count][-1]].workload for count in head_counts(group)]
    known = [
        ["score matrix (computed)", *(units.bytes_text(one.score_bytes) for one in longest)],
        ["results (computed)", *(units.bytes_text(one.output_bytes) for one in longest)],
    ]
    rows = _by_contender(analysis, group, "peak_memory")
    return _table(group, [*rows, *known]) if rows else ""


def further(analysis: Analysis, group: Group) -> list[tuple[str, str]]:
    """Whatever else was measured, by quantity: a table of medians at each contender's longest length."""
    measured = (result for cell in group.cells.values() for result in cell.measured.values())
    quantities = dict.fromkeys(one.quantity for result in measured for one in result.measurements)
    return [
        (
            quantity.replace("_", " "),
            _table(group, _by_contender(analysis, group, quantity)),
        )
        for quantity in quantities
        if quantity not in ("latency", "peak_memory", "setup", BLOCK_PARTS.quantity)
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
    rows = []
    for name in measured_names(analysis, group):
        row = []
        for count in head_counts(group):
            found = {
                n: one
                for n in group.grid[count]
                if (result := group.cells[count, n].measured.get(name))
                and (one := result.measurement(quantity))
            }
            text = _value(found[max(found)]) if found else NONE
            row.append(
                text if not found or max(found) == group.grid[count][-1] else f"{text} (n = {max(found)})"
            )
        if any(text != NONE for text in row):
            rows.append([f"`{name}`", *row])
    return rows


def _value(one: Measurement) -> str:
    return units.quantity_text(one.least if one.quantity == "peak_memory" else one.median, one.unit)


@dataclass(frozen=True)
class Worst:
    """The answer of a contender in one number format that used most of its budget, and how many passed."""

    contender: str
    dtype: str
    at: str
    accuracy: Accuracy
    passed: int
    judged: int
    lower: str | None = None


_ACCURACY: Mapping[str, Callable[[Worst], object]] = {
    "contender": lambda worst: f"`{worst.contender}`",
    "dtype": lambda worst: (
        worst.dtype if worst.lower is None else f"{worst.dtype}, computed in {worst.lower}"
    ),
    "worst at": lambda worst: worst.at,
    "of": lambda worst: worst.accuracy.of,
    "relative error": lambda worst: f"{worst.accuracy.relative_error:.2e}",
    "budget": lambda worst: f"{worst.accuracy.budget:.2e}",
    "share": lambda worst: (
        units.percent(_share_of_budget(worst.accuracy)) if worst.accuracy.budget > 0 else NONE
    ),
    "passed": lambda worst: (
        "yes" if worst.passed == worst.judged else f"no: {worst.passed} of {worst.judged}"
    ),
}


def accuracy(analysis: Analysis) -> str:
    """The worst relative error of each contender over all workloads of a dtype, beside its budget."""
    rows = []
    lower: dict[tuple[str, str], str | None] = {}
    for name in analysis.names:
        by_dtype: dict[str, list[tuple[Group, Cell, Accuracy]]] = {}
        for group in analysis.groups:
            for _, cell in sorted(group.cells.items()):
                found = cell.answers[name].accuracy if name in cell.answers else None
                if found is not None:
                    lower[name, cell.workload.dtype] = cell.answers[name].computes_in
                    by_dtype.setdefault(cell.workload.dtype, []).append((group, cell, found))
        for dtype, every in by_dtype.items():
            group, cell, worst = max(every, key=lambda one: _share_of_budget(one[2]))
            at = ", ".join(filter(None, (place_text(cell.workload), group.name)))
            passed = sum(one.passed for _, _, one in every)
            rows.append(Worst(name, dtype, at, worst, passed, len(every), lower[name, dtype]))
    return table(rows, _ACCURACY, left=4)


def _share_of_budget(found: Accuracy) -> float:
    """Infinite for an error that is no number, and where nothing is allowed."""
    share = found.relative_error / found.budget if found.budget > 0 else math.inf
    return math.inf if math.isnan(share) else share


#: what the machine reached in a run, by column
CEILINGS: Mapping[str, Callable[[Ceiling], object]] = {
    "": lambda one: f"{one.dtype} on {one.device}",
    "best matrix product": lambda one: f"{units.flops_text(one.matmul_flops)} ({one.matmul_library})",
    "best copy": lambda one: f"{units.bytes_text(one.copy_bytes)}/s ({one.copy_library})",
}
