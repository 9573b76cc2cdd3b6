"""Tables as Markdown: speed, memory, accuracy, ceilings and growth, one function a table."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.contract import units
from attnlab.report import wording
from attnlab.report.evidence import Cell, Evidence, Family
from attnlab.statistics import growth
from attnlab.statistics.pairing import Kind
from attnlab.statistics.ranking import Ranking

NONE = "–"


def markdown(headers: Sequence[str], rows: Sequence[Sequence[object]], *, left: int = 1) -> str:
    """A Markdown table, its first `left` columns flush left and the others right; empty without rows."""
    from tabulate import tabulate

    if not rows:
        return ""
    safe = [[wording.in_cell(one) for one in row] for row in rows]
    align = ["left"] * left + ["right"] * (len(headers) - left)
    text: str = tabulate(
        safe, headers, tablefmt="pipe", disable_numparse=True, colalign=align[: len(headers)]
    )
    return text


def measured_names(evidence: Evidence, family: Family) -> list[str]:
    """Contenders with a speed anywhere in `family`, in the plan's order."""
    return [n for n in evidence.names if any(n in cell.measured for cell in family.cells.values())]


def fastest(evidence: Evidence, family: Family) -> str:
    """n × heads: the fastest contender, and how many times as fast as the baseline it is, with its interval.

    Of several names for the fastest kernel the first of the plan is shown; other implementations that share
    the place follow after "or".
    """
    heads = family.heads
    headers = ["n", *(wording.counted(count, "head") for count in heads)]
    rows = []
    for n in family.lengths:
        cells = [family.cells.get((count, n)) for count in heads]
        rows.append([n, *(_fastest(evidence, cell) for cell in cells)])
    return markdown(headers, rows) if family.ranked else ""


def _fastest(evidence: Evidence, cell: Cell | None) -> str:
    if cell is None or cell.ranking is None:
        return NONE
    ranking = cell.ranking
    names = {
        one.implementation: one
        for one in sorted(ranking.first, key=lambda s: -evidence.names.index(s.contender))
    }
    shown = names.pop(ranking.best.implementation)
    text = f"`{shown.contender}`"
    if not ranking.decided and len(ranking.standings) > 1:
        return f"{text}, not decided"
    verdict = shown.against_baseline
    if verdict is not None:
        text += f" {units.figures(1 / verdict.ratio)} {_inverted(verdict.low, verdict.high)}"
    return " or ".join([text, *(f"`{other.contender}`" for other in names.values())])


def speedups(evidence: Evidence, family: Family) -> str:
    """Every contender's speed as a multiple of the baseline's; those that share the first place are bold.

    An approximate sign marks a ratio that is not decided to differ from 1.
    """
    names = measured_names(evidence, family)
    others = [name for name in names if name != evidence.baseline]
    if not others or evidence.baseline not in names:
        return ""
    rows = []
    for (count, n), ranking in family.ranked.items():
        first = {one.contender for one in ranking.first} if ranking.decided else set()
        rows.append([count, n, *(_speedup(ranking, name, name in first) for name in others)])
    return markdown(["heads", "n", *(f"`{name}`" for name in others)], rows, left=0)


def _speedup(ranking: Ranking, name: str, first: bool) -> str:
    standing = ranking.of(name)
    if standing is None or standing.against_baseline is None:
        return NONE
    verdict = standing.against_baseline
    text = units.figures(1 / verdict.ratio)
    text = f"≈ {text}" if verdict.kind in (Kind.UNDECIDED, Kind.EQUIVALENT) else text
    return f"**{text}**" if first else text


def latencies(evidence: Evidence, family: Family) -> str:
    """Median time of a call, over the undisturbed rounds; those that share the first place are bold."""
    names = measured_names(evidence, family)
    rows = []
    for (count, n), ranking in family.ranked.items():
        first = {one.contender for one in ranking.first} if ranking.decided else set()
        row: list[object] = [count, n]
        for name in names:
            standing = ranking.of(name)
            text = NONE if standing is None else units.seconds_text(standing.seconds)
            row.append(f"**{text}**" if name in first else text)
        rows.append([*row, ranking.rounds])
    return markdown(["heads", "n", *(f"`{name}`" for name in names), "rounds"], rows, left=0)


def peaks(evidence: Evidence, family: Family) -> str:
    """Peak memory of a call at the longest length of each head count that has figures."""
    names = measured_names(evidence, family)
    rows = []
    for count in family.heads:
        lengths = [n for n in family.grid[count] if any(_peaks(family.cells[count, n]))]
        if not lengths:
            continue
        cell = family.cells[count, lengths[-1]]
        row = [
            count,
            lengths[-1],
            *(units.bytes_text(p) if p else NONE for p in (_peak(cell, n) for n in names)),
        ]
        rows.append(
            [*row, units.bytes_text(cell.workload.score_bytes), units.bytes_text(cell.workload.output_bytes)]
        )
    headers = ["heads", "n", *(f"`{name}`" for name in names), "score matrix", "output"]
    return markdown(headers, rows, left=0)


def _peak(cell: Cell, name: str) -> int | None:
    return cell.measured[name].peak_bytes if name in cell.measured else None


def _peaks(cell: Cell) -> list[int | None]:
    return [result.peak_bytes for result in cell.measured.values()]


def accuracy(evidence: Evidence) -> str:
    """The worst relative error of each contender over all workloads of a dtype, held against its budget."""
    rows = []
    for name in evidence.names:
        by_dtype: dict[str, list[Cell]] = {}
        for cell in evidence.cells:
            if name in cell.answers and cell.answers[name].accuracy is not None:
                by_dtype.setdefault(cell.workload.dtype, []).append(cell)
        for dtype, cells in by_dtype.items():
            rows.append([f"`{name}`", dtype, *_worst(name, cells)])
    headers = ["contender", "dtype", "worst at", "relative error", "budget", "share", "passed"]
    return markdown(headers, rows, left=3)


def _worst(name: str, cells: Sequence[Cell]) -> list[str]:
    judged = [(cell, one) for cell in cells if (one := cell.answers[name].accuracy) is not None]

    def badness(error: float, budget: float) -> float:
        share = error / budget if budget > 0 else float("inf")
        return share if share == share else float("inf")  # NaN is as bad as it gets

    cell, worst = max(judged, key=lambda pair: badness(pair[1].relative_error, pair[1].budget))
    passed = sum(one.passed for _, one in judged)
    return [
        f"n = {cell.workload.keys}, {wording.counted(cell.workload.heads, 'head')}",
        f"{worst.relative_error:.2e}",
        f"{worst.budget:.2e}",
        units.percent(worst.relative_error / worst.budget) if worst.budget > 0 else NONE,
        "yes" if passed == len(judged) else f"no: {passed} of {len(judged)}",
    ]


def ceilings(evidence: Evidence) -> str:
    """What the machine reached in this run."""
    rows = [
        [
            f"{one.dtype} on {one.device}",
            f"{units.flops_text(one.matmul_flops)} ({one.matmul_library})",
            f"{units.figures(one.copy_bytes / 1e9)} GB/s ({one.copy_library})",
        ]
        for one in evidence.run.ceilings
    ]
    return markdown(["", "best matrix product", "best copy"], rows)


def shares(evidence: Evidence, family: Family) -> str:
    """Achieved rate, share of the matrix-multiply ceiling and what binds, at each contender's best workload."""
    rows = []
    for name in measured_names(evidence, family):
        known = [(cell.rates[name], cell) for cell in family.cells.values() if _rated(cell, name)]
        if not known:
            continue
        best, cell = max(known, key=lambda pair: pair[0].flops)
        rows.append(
            [
                f"`{name}`",
                f"n = {cell.workload.keys}, {wording.counted(cell.workload.heads, 'head')}",
                units.flops_text(best.flops),
                units.percent(best.compute),
                units.percent(best.bandwidth),
                best.binds,
            ]
        )
    headers = ["contender", "best at", "rate", "of matrix product", "of copy", "binds"]
    return markdown(headers, rows, left=2)


def _rated(cell: Cell, name: str) -> bool:
    return name in cell.measured and name in cell.rates


def growths(evidence: Evidence, family: Family) -> str:
    """t = a + b n + c n² by contender, at each head count; no terms where the fit is worse than 10 %."""
    rows = []
    for name in measured_names(evidence, family):
        for count in family.heads:
            samples = {
                n: latency.samples
                for n in family.grid[count]
                if (result := family.cells[count, n].measured.get(name)) is not None
                and (latency := result.latency) is not None
            }
            found = growth.fit(samples)
            if found is not None:
                rows.append([f"`{name}`", count, *_growth(found)])
    headers = ["contender", "heads", "a", "b", "c", "worst error", "exponents as n doubles", "at the end"]
    return markdown(headers, rows)


def _growth(found: growth.Growth) -> list[str]:
    exponents = ", ".join(f"{one:.1f}" for one in found.exponents.values()) or NONE
    error = units.percent(found.largest_error)
    if found.label is None:
        return [NONE, NONE, NONE, error, exponents, "no good fit"]
    terms = [
        f"{units.seconds_text(value)} [{units.seconds_text(low)}, {units.seconds_text(high)}]"
        if value
        else "0"
        for value, (low, high) in zip(found.coefficients, found.intervals, strict=True)
    ]
    return [*terms, error, exponents, f"{found.label} ({max(found.shares):.0%})"]


def _inverted(low: float, high: float) -> str:
    return f"[{units.figures(1 / high)}, {units.figures(1 / low)}]"
