"""Every figure behind the report as tables of plain values: what stands beside the page, and what JSON and CSV give.

A table is a list of rows with the same columns; values are numbers in base units (s, B, FLOP/s), texts, or None.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnlab.experiments.finding import Row
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.crossover import find_crossovers
from attnlab.judge.growth import Fits, Fitting
from attnlab.judge.pairing import Verdict
from attnlab.judge.ranking import Lead
from attnlab.problem.result import Result
from attnlab.report import appendix, as_ran, blocks, storages
from attnlab.report.analysis import Analysis

Table = list[dict[str, Any]]


def tables(analysis: Analysis, fitting: Fitting) -> Iterator[tuple[str, Table]]:
    """Each with its name, one by one; those without a row are left out."""
    fits = fitting.found  # before the largest are made: who makes them holds memory too
    large: dict[str, Callable[[Analysis], Iterator[dict[str, Any]]]] = {
        "winners": _winners,
        "results": _results,
        "measurements": _measurements,
    }
    for name, made in large.items():
        further = made(analysis)
        if first := next(further, None):
            yield name, even([first, *further])  # held here by nobody, it goes when it is written
    for name, rows in _smaller(analysis, fits).items():
        if rows:
            yield name, even(rows)


def results(analysis: Analysis) -> Table:
    """A row a contender and workload, whatever became of it."""
    return list(_results(analysis))


def _smaller(analysis: Analysis, fits: Sequence[Fits]) -> dict[str, Table]:
    """All tables but the largest three."""
    run = analysis.run
    found = {
        "crossovers": list(_crossovers(analysis)),
        "growth": [
            row for group, one in zip(analysis.groups, fits, strict=True) for row in _growth(group, one)
        ],
        **blocks.tables(analysis),
        "storages": storages.rows(analysis),
        "contenders": as_ran.contenders(analysis),
        "setup": as_ran.setups(analysis),
        "same_bits": [
            {"contender": one.contender, "dtype": one.dtype, **one.same, "reason": one.reason}
            for one in as_ran.in_order(analysis)
        ],
        "self_test": list(_self_test(analysis)),
        "ceilings": [
            {
                "device": one.device,
                "dtype": one.dtype,
                "matmul_flops": one.matmul_flops,
                "matmul_library": one.matmul_library,
                "copy_bytes_per_s": one.copy_bytes,
                "copy_library": one.copy_library,
            }
            for one in run.ceilings
        ],
        "environment": [{"name": name, "value": value} for name, value in appendix.entries(run.environment)],
        "account": [{"activity": name, "seconds": seconds} for name, seconds in run.account.items()],
    }
    return found | {f"finding-{one.experiment}": finding_rows(one.rows) for one in run.findings}


def even(rows: Table) -> Table:
    """The rows with the same columns each, in the order in which they first come; None where one has no such."""
    kinds = dict.fromkeys(map(tuple, rows))
    if len(kinds) < 2:
        return rows
    columns = list(dict.fromkeys(name for kind in kinds for name in kind))
    return [{name: row.get(name) for name in columns} for row in rows]


def finding_rows(rows: Iterable[Row]) -> Table:
    """Predicted against measured, a row a comparison."""
    return even(
        [
            {
                "quantity": row.quantity,
                **row.where,
                "relation": row.relation,
                "predicted": row.predicted if row.compared else None,
                "measured": row.measured,
                "standard_error": row.standard_error,
                "slack": row.slack,
                "passed": row.passed,
            }
            for row in rows
        ]
    )


def _place(cell: Cell) -> dict[str, Any]:
    return {"group": cell.group, "heads": cell.workload.heads, "n": cell.workload.keys}


def _winners(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """A row a workload: who is first, how sure, and by how much."""
    for one in analysis.won:
        yield {
            **_place(one),
            "sure": str(one.won.sure),
            "first": ", ".join(one.won.first),
            "seconds": one.won.seconds,
            **_lead("next", one.won.ahead),
            **_lead("baseline", one.won.over_baseline),
            "not_compared": ", ".join(one.won.not_compared),
        }


def _lead(name: str, lead: Lead | None) -> dict[str, Any]:
    told = (None,) * 4 if lead is None else (lead.over, lead.ratio, lead.low, lead.high)
    return dict(zip((name, f"over_{name}", f"over_{name}_low", f"over_{name}_high"), told, strict=True))


def _results(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """A row a contender and workload, whatever became of it."""
    for cell in analysis.cells:
        first = {one.contender for one in cell.ranking.first} if cell.ranking else set()
        for name in analysis.names:
            if name in cell.answers:
                yield {
                    **_place(cell),
                    **_result(cell, name, cell.answers[name]),
                    "first": name in first,
                }


def _result(cell: Cell, name: str, one: Result) -> dict[str, Any]:
    standing, rate, believed = cell.standing(name), cell.rates.get(name), name in cell.measured
    accuracy = one.accuracy
    return {
        "contender": name,
        "dtype": cell.workload.dtype,
        "computes_in": one.computes_in,
        "outcome": "failed measurement" if name in cell.faults else str(one.outcome),
        "reason": cell.faults.get(name, one.reason),
        "kernel": one.kernel,
        "median_s": standing.seconds if standing else None,
        "rounds": standing.rounds if standing else None,
        **_verdict("over_fastest", standing.against_best if standing else None),
        **_verdict("over_baseline", standing.against_baseline if standing else None),
        "peak_bytes": one.peak_bytes if believed else None,
        "score_bytes": cell.workload.score_bytes,
        "output_bytes": cell.workload.output_bytes,
        "flops_per_s": rate.flops if rate and believed else None,
        "share_of_matmul": rate.compute if rate and believed else None,
        "share_of_copy": rate.bandwidth if rate and believed else None,
        "limited_by": rate.limited_by if rate and believed else None,
        "relative_error": accuracy.relative_error if accuracy else None,
        "error_budget": accuracy.budget if accuracy else None,
    }


def _verdict(name: str, found: Verdict | None) -> dict[str, Any]:
    told = (None,) * 4 if found is None else (found.ratio, found.low, found.high, str(found.kind))
    return dict(zip((name, f"{name}_low", f"{name}_high", f"{name}_verdict"), told, strict=True))


def _measurements(analysis: Analysis) -> Iterator[dict[str, Any]]:
    """Each quantity of each result that is believed, in one figure."""
    for cell in analysis.cells:
        for name, result in cell.measured.items():
            for one in result.measurements:
                yield {
                    **_place(cell),
                    "contender": name,
                    "quantity": one.quantity,
                    "unit": one.unit,
                    "median": one.median,
                    "least": one.least,
                    "greatest": max(one.samples),
                    "samples": len(one.samples),
                }


def _crossovers(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for group in analysis.groups:
        for heads, some in find_crossovers(analysis, group).items():
            for one in some:
                yield {"group": group.name, "heads": heads, **vars(one)}


def _growth(group: Group, found: Fits) -> Iterator[dict[str, Any]]:
    """t = a + b n + c n²; where no fit is good its coefficients are None."""
    for (name, heads), one in found.items():
        row: dict[str, Any] = {"group": group.name, "contender": name, "heads": heads}
        good = one.label is not None
        for term, value, (low, high) in zip("abc", one.coefficients, one.intervals, strict=True):
            row |= {term: value, f"{term}_low": low, f"{term}_high": high} if good else {term: None}
        step = one.step if good else None
        row |= {"leading": one.label, "largest_error": one.largest_error, "kept_pairs": one.kept}
        row |= {"c_below_step": step.below if step else None, "step_from": step.first if step else None}
        row |= {"exponents": json.dumps({str(n): power for n, power in one.exponents.items()})}
        forecast: Mapping[str, Any] = vars(one.forecast) if one.forecast else {}
        yield row | {f"held_out_{key}": forecast.get(key) for key in ("length", "predicted", "measured")}


def _self_test(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for one in analysis.self_test.twins:
        yield {
            "workload": one.workload.label,
            "contender": one.contender,
            "second_over_first": one.verdict.ratio,
            "low": one.verdict.low,
            "high": one.verdict.high,
            "processes": one.verdict.processes,
            "rounds": one.verdict.rounds,
            "left_out": one.verdict.disturbed,
            "between_processes": one.between,
            "differs": one.differs,
        }
