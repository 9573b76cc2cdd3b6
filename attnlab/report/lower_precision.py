"""Contenders that compute in a lower precision than their inputs': told apart, with what it gives and what it costs."""

from __future__ import annotations

from attnlab import units
from attnlab.judge.analysis import At, Cell, Group
from attnlab.judge.groups import place_text
from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.ranking import decidable
from attnlab.problem.result import Result
from attnlab.report.analysis import Analysis


def lower_precision(analysis: Analysis, group: Group) -> list[str]:
    """A sentence for each of them: its speed and its error beside those of the fastest in the inputs' precision."""
    return [
        _sentence(group, name, cells)
        for name in analysis.names
        if (cells := {at: cell for at, cell in group.cells.items() if name in cell.lower})
    ]


def _sentence(group: Group, name: str, cells: dict[At, Cell]) -> str:
    largest = max(cells, key=lambda at: (at[1], at[0]))
    cell = cells[largest]
    mine = cell.measured[name]
    head = f"**`{name}` computes in {mine.computes_in}**, not in its inputs' {cell.workload.dtype}"
    compared = {at: found for at, one in cells.items() if (found := _against_best(one, name)) is not None}
    if cell.ranking is None or cell.ranking.of(name) is not None:
        return f"{head}; nothing in {cell.workload.dtype} was measured beside it to compare it with."
    if largest not in compared:
        best = cell.ranking.best.contender
        return (
            f"{head}, and is ranked apart; too few undisturbed processes tell how fast it is beside `{best}` at "
            f"{place_text(cell.workload)}: {errors(mine, cell.measured[best])}."
        )
    best, verdict = compared[largest]
    said = (
        f"{head}, and is ranked apart. At {place_text(cell.workload)} it "
        f"{_said(verdict, best, mine.computes_in)}: {errors(mine, cell.measured[best])}"
    )
    ratios = [1 / one.ratio for _, one in compared.values()]
    if len(ratios) > 1:
        low, high = units.number_text(min(ratios), 2), units.number_text(max(ratios), 2)
        said += f"; over {len(ratios)} workloads it is {low} to {high} times as fast as the fastest there"
    return f"{said}."


def errors(mine: Result, other: Result) -> str:
    """``relative error 3.1e-03 against 2.3e-07``, as far as they are known."""
    known = [f"{one.accuracy.relative_error:.2g}" if one.accuracy else "unknown" for one in (mine, other)]
    return f"relative error {known[0]} against {known[1]}"


def _against_best(cell: Cell, name: str) -> tuple[str, Verdict] | None:
    """The fastest in the inputs' precision, and the verdict on `name` against it."""
    if cell.ranking is None or cell.ranking.of(name) is not None:
        return None
    best = cell.ranking.best.contender
    verdict = decidable(cell.measured.values(), best, cell.margin).get(name)
    return None if verdict is None else (best, verdict)


def _said(verdict: Verdict, best: str, computes_in: str | None) -> str:
    if verdict.kind is Kind.FASTER:
        span = units.interval(1 / verdict.high, 1 / verdict.low)
        return f"is {units.ratio(1 / verdict.ratio)} {span} times as fast as `{best}`, in {computes_in}"
    if verdict.kind is Kind.SLOWER:
        span = units.interval(verdict.low, verdict.high)
        return f"takes {units.ratio(verdict.ratio)} {span} times as long as `{best}`, even in {computes_in}"
    return f"is no faster than `{best}`, as far as can be told, in {computes_in}"
