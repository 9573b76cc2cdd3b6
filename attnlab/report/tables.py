"""Tables as Markdown: speed, memory, accuracy and ceilings, one function a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from attnlab.contract import units
from attnlab.contract.result import Accuracy, Ceiling, Measurement
from attnlab.measuring.instruments import BLOCK_PARTS
from attnlab.report import wording
from attnlab.report.analysis import Analysis, Cell, Group
from attnlab.report.layout import markdown, table
from attnlab.statistics.pairing import Kind
from attnlab.statistics.ranking import Standing
from attnlab.statistics.roofline import Rate

NONE = "–"


def measured_names(analysis: Analysis, group: Group) -> list[str]:
    """Contenders with a speed anywhere in `group`, in the plan's order."""
    return [n for n in analysis.names if any(n in cell.measured for cell in group.cells.values())]


def fastest(analysis: Analysis, group: Group) -> str:
    """n × heads: the fastest contender, and how many times as fast as the baseline it is, with its interval.

    Of several names for the fastest kernel the first of the plan is shown; other implementations that share
    the place follow after "or".
    """
    heads = group.heads
    headers = ["n", *(wording.counted(count, "head") for count in heads)]
    rows = []
    for n in group.lengths:
        cells = [group.cells.get((count, n)) for count in heads]
        rows.append([n, *(_fastest(analysis, cell) for cell in cells)])
    return markdown(headers, rows) if group.ranked else ""


def _fastest(analysis: Analysis, cell: Cell | None) -> str:
    if cell is None or cell.ranking is None:
        return NONE
    ranking = cell.ranking
    last_first = sorted(ranking.first, key=lambda one: -analysis.names.index(one.contender))
    names = {one.implementation: one for one in last_first}
    shown = names.pop(ranking.best.implementation)
    text = f"`{shown.contender}`"
    if not ranking.decided and len(ranking.standings) > 1:
        return f"{text}, not decided"
    verdict = shown.against_baseline
    if verdict is not None:
        low, high = units.figures(1 / verdict.high), units.figures(1 / verdict.low)
        text += f" {units.figures(1 / verdict.ratio)} [{low}, {high}]"
    return " or ".join([text, *(f"`{other.contender}`" for other in names.values())])


def speedups(analysis: Analysis, group: Group) -> str:
    """Every contender's speed as a multiple of the baseline's; those that share the first place are bold.

    An approximate sign marks a ratio that is not decided to differ from 1.
    """
    names = measured_names(analysis, group)
    others = [name for name in names if name != analysis.baseline]
    if not others or analysis.baseline not in names:
        return ""
    rows = []
    for (count, n), ranking in group.ranked.items():
        first = {one.contender for one in ranking.first} if ranking.decided else set()
        standings = {name: group.cells[count, n].standing(name) for name in others}
        rows.append([count, n, *(_speedup(one, name in first) for name, one in standings.items())])
    return markdown(["heads", "n", *(_header(group, name) for name in others)], rows, left=0)


def _header(group: Group, name: str) -> str:
    """The contender, and the lower precision in which it computes."""
    lower = {cell.measured[name].computes_in for cell in group.cells.values() if name in cell.measured}
    return f"`{name}`" + "".join(f", in {one}" for one in sorted(filter(None, lower)))


def _speedup(standing: Standing | None, first: bool) -> str:
    if standing is None or standing.against_baseline is None:
        return NONE
    verdict = standing.against_baseline
    text = units.figures(1 / verdict.ratio)
    text = f"≈ {text}" if verdict.kind in (Kind.UNDECIDED, Kind.EQUIVALENT) else text
    return f"**{text}**" if first else text


def latencies(analysis: Analysis, group: Group) -> str:
    """Median time of a call, over the undisturbed rounds; those that share the first place are bold."""
    names = measured_names(analysis, group)
    rows = []
    for (count, n), ranking in group.ranked.items():
        first = {one.contender for one in ranking.first} if ranking.decided else set()
        row: list[object] = [count, n]
        for name in names:
            standing = group.cells[count, n].standing(name)
            text = NONE if standing is None else units.seconds_text(standing.seconds)
            row.append(f"**{text}**" if name in first else text)
        rows.append([*row, max(one.rounds for one in ranking.standings)])
    return markdown(["heads", "n", *(_header(group, name) for name in names), "rounds"], rows, left=0)


def peaks(analysis: Analysis, group: Group) -> str:
    """Least peak of memory beside what is known of it by arithmetic, at each contender's longest length."""
    rows = [
        [*row, units.bytes_text(cell.workload.score_bytes), units.bytes_text(cell.workload.output_bytes)]
        for cell, row in _at_longest(analysis, group, "peak_memory")
    ]
    names = measured_names(analysis, group)
    headers = ["heads", "n", *(f"`{name}`" for name in names), "score matrix", "results"]
    return markdown(headers, rows, left=0)


def further(analysis: Analysis, group: Group) -> str:
    """Whatever else was measured, as medians at each contender's longest length."""
    measured = (result for cell in group.cells.values() for result in cell.measured.values())
    quantities = dict.fromkeys(one.quantity for result in measured for one in result.measurements)
    rows = [
        [quantity.replace("_", " "), *row]
        for quantity in quantities
        if quantity not in ("latency", "peak_memory", "setup", BLOCK_PARTS.quantity)
        for _, row in _at_longest(analysis, group, quantity)
    ]
    names = measured_names(analysis, group)
    return markdown(["quantity", "heads", "n", *(f"`{name}`" for name in names)], rows)


def _at_longest(analysis: Analysis, group: Group, quantity: str) -> list[tuple[Cell, list[object]]]:
    """Rows of `quantity`, for each head count at the longest length that has figures, and at every shorter one that is
    the longest of a further contender.
    """
    rows = []
    for count in group.heads:
        shown: set[str] = set()
        for n in reversed(group.grid[count]):
            cell = group.cells[count, n]
            measured = {name: result.measurement(quantity) for name, result in cell.measured.items()}
            found = {name: one for name, one in measured.items() if one is not None}
            if set(found) - shown:
                known = (found.get(name) for name in measured_names(analysis, group))
                rows.append((cell, [count, n, *(_value(one) if one else NONE for one in known)]))
                shown |= set(found)
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
        by_dtype: dict[str, list[tuple[str, Accuracy]]] = {}
        for group in analysis.groups:
            for _, cell in sorted(group.cells.items()):
                found = cell.answers[name].accuracy if name in cell.answers else None
                if found is not None:
                    lower[name, cell.workload.dtype] = cell.answers[name].computes_in
                    at = ", ".join(filter(None, (wording.place(cell.workload), group.name)))
                    by_dtype.setdefault(cell.workload.dtype, []).append((at, found))
        for dtype, every in by_dtype.items():
            at, worst = max(every, key=lambda pair: _share_of_budget(pair[1]))
            passed = sum(one.passed for _, one in every)
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

_SHARES: Mapping[str, Callable[[tuple[str, Cell, Rate]], object]] = {
    "contender": lambda row: f"`{row[0]}`",
    "best at": lambda row: wording.place(row[1].workload),
    "rate": lambda row: units.flops_text(row[2].flops),
    "of matrix product": lambda row: units.percent(row[2].compute),
    "of copy": lambda row: units.percent(row[2].bandwidth),
    "limited by": lambda row: row[2].limited_by,
}


def shares(analysis: Analysis, group: Group) -> str:
    """Achieved rate, share of the ceilings and what limits it, at the workload where each contender is best."""
    rows = []
    for name in measured_names(analysis, group):
        cells = (cell for cell in group.cells.values() if name in cell.measured and name in cell.rates)
        known = [(name, cell, cell.rates[name]) for cell in cells]
        if known:
            rows.append(max(known, key=lambda row: row[2].flops))
    return table(rows, _SHARES, left=2)
