"""Every figure behind the report as tables of plain values: what stands beside the page, and what JSON and CSV give.

A table is a list of rows with the same columns; values are numbers in base units (s, B, FLOP/s), texts, or None. As
files they are CSV, and Parquet beside it where pyarrow is installed.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from attnlab.experiments.finding import Row
from attnlab.judge.analysis import Cell, Group
from attnlab.judge.crossover import find_crossovers
from attnlab.judge.groups import condition, conditions
from attnlab.judge.growth import Fits, Fitting, rounds_of
from attnlab.judge.pairing import Verdict, compare
from attnlab.judge.ranking import Lead
from attnlab.judge.replication import Estimate, seconds, share
from attnlab.problem.problem import PROJECTIONS
from attnlab.problem.result import Measurement, Result
from attnlab.problem.vocabulary import CONTIGUOUS
from attnlab.report import as_ran
from attnlab.report.analysis import Analysis

Table = list[dict[str, Any]]
Rows = Iterator[dict[str, Any]]
#: what a spreadsheet would compute instead of show, at the beginning of a cell
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
#: how a contender says which way it projects, and the way of those that do not
_SETTING, FUSED = re.compile(r"projection=(\w+),?"), PROJECTIONS[0]
#: parts of a block, by their names in measurements
PARTS = {"projection": "projections", "attention": "attention", "output": "output projection"}


def tables(analysis: Analysis, fitting: Fitting) -> Iterator[tuple[str, Table]]:
    """Each with its name, one by one; those without a row are left out."""
    fits = fitting.found  # before the largest are made: who makes them holds memory too
    run = analysis.run
    found: dict[str, Iterable[dict[str, Any]]] = {
        "winners": _winners(analysis),
        "results": results(analysis),
        "measurements": _measurements(analysis),
        "crossovers": _crossovers(analysis),
        "growth": (
            row for group, one in zip(analysis.groups, fits, strict=True) for row in _growth(group, one)
        ),
        "block_projections": block_projections(analysis),
        "block_heads": block_heads(analysis),
        "block_parts": block_parts(analysis),
        "storages": storages(analysis),
        "contenders": as_ran.contenders(analysis),
        "setup": as_ran.setups(analysis),
        "same_bits": (
            {"contender": one.contender, "dtype": one.dtype, **one.same, "reason": one.reason}
            for one in as_ran.in_order(analysis)
        ),
        "self_test": _self_test(analysis),
        "ceilings": (
            {"copy_bytes_per_s" if name == "copy_bytes" else name: value for name, value in vars(one).items()}
            for one in run.ceilings
        ),
        "environment": ({"name": name, "value": value} for name, value in as_ran.entries(run.environment)),
        "account": ({"activity": name, "seconds": took} for name, took in run.account.items()),
    }
    for name, made in found.items():
        further = iter(made)
        if first := next(further, None):
            yield name, even([first, *further])  # held here by nobody, it goes when it is written
    for one in run.findings:
        if one.rows:
            yield f"finding-{one.experiment}", finding_rows(one.rows)


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


def _winners(analysis: Analysis) -> Rows:
    """A row a workload: who is first, how sure, and by how much."""
    for one in analysis.won:
        yield {
            **_place(one),
            "sure": str(one.won.sure),
            "first": ", ".join(one.won.first),
            "seconds": one.won.seconds,
            "next": one.won.ahead.over if one.won.ahead else None,
            **_ends("over_next", one.won.ahead),
            "baseline": one.won.over_baseline.over if one.won.over_baseline else None,
            **_ends("over_baseline", one.won.over_baseline),
            "not_compared": ", ".join(one.won.not_compared),
        }


def results(analysis: Analysis) -> Rows:
    """A row a contender and workload, whatever became of it."""
    for cell in analysis.cells:
        first = {one.contender for one in cell.ranking.first} if cell.ranking else set()
        for name in filter(cell.answers.__contains__, analysis.names):
            one, believed = cell.answers[name], name in cell.measured
            standing, rate = cell.standing(name), cell.rates.get(name) if believed else None
            yield {
                **_place(cell),
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
                "flops_per_s": rate.flops if rate else None,
                "share_of_matmul": rate.compute if rate else None,
                "share_of_copy": rate.bandwidth if rate else None,
                "limited_by": rate.limited_by if rate else None,
                "relative_error": one.accuracy.relative_error if one.accuracy else None,
                "error_budget": one.accuracy.budget if one.accuracy else None,
                "first": name in first,
            }


def _ends(name: str, found: Verdict | Lead | None) -> dict[str, float | None]:
    """A ratio and its interval, as columns."""
    told = (None,) * 3 if found is None else (found.ratio, found.low, found.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), told, strict=True))


def _verdict(name: str, found: Verdict | None) -> dict[str, Any]:
    return {**_ends(name, found), f"{name}_verdict": None if found is None else str(found.kind)}


def _measurements(analysis: Analysis) -> Rows:
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


def _crossovers(analysis: Analysis) -> Rows:
    for group in analysis.groups:
        for heads, some in find_crossovers(analysis, group).items():
            for one in some:
                yield {"group": group.name, "heads": heads, **vars(one)}


def _growth(group: Group, found: Fits) -> Rows:
    """t = a + b n + c n²; where no fit is good its coefficients are None."""
    for (name, heads), one in found.items():
        row: dict[str, Any] = {"group": group.name, "contender": name, "heads": heads}
        good = one.label is not None
        for term, value, (low, high) in zip("abc", one.coefficients, one.intervals, strict=True):
            ends = (None, None) if math.isnan(low) else (low, high)
            row |= {term: value, f"{term}_low": ends[0], f"{term}_high": ends[1]} if good else {term: None}
        step = one.step if good else None
        row |= {"leading": one.label, "largest_error": one.largest_error, "kept_pairs": one.kept}
        row |= {"c_below_step": step.below if step else None, "step_from": step.first if step else None}
        row |= {"exponents": json.dumps({str(n): power for n, power in one.exponents.items()})}
        forecast: Mapping[str, Any] = vars(one.forecast) if one.forecast else {}
        yield row | {f"held_out_{key}": forecast.get(key) for key in ("length", "predicted", "measured")}


def _self_test(analysis: Analysis) -> Rows:
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


# -- the multi-head block ----------------------------------------------------------------------------


def _block_groups(analysis: Analysis) -> list[Group]:
    return [one for one in analysis.groups if any(cell.workload.d_model for cell in one.cells.values())]


def _latency(result: Result) -> Measurement:
    assert result.latency is not None
    return result.latency


def block_projections(analysis: Analysis) -> Rows:
    """What another way of projecting costs: the time over that with one matrix for all heads; the two raced."""
    for cell in (cell for group in _block_groups(analysis) for cell in group.ordered):
        ways: dict[str, dict[str, Result]] = {}
        for name, result in cell.measured.items():
            plain, way = without_projection(name)
            ways.setdefault(plain, {})[way] = result
        both = {plain: some for plain, some in ways.items() if FUSED in some and len(some) > 1}
        count = sum(len(some) - 1 for some in both.values())
        for plain, some in both.items():
            for way in (one for one in PROJECTIONS if one != FUSED and one in some):
                pair = _latency(some[FUSED]), _latency(some[way])
                one = compare(*pair, comparisons=count, margin=cell.margin)
                told = {
                    f"over_{FUSED}": one.ratio,
                    "low": one.low,
                    "high": one.high,
                    "verdict": str(one.kind),
                }
                yield {**_place(cell), "around": plain, "projection": way, **told}


def without_projection(name: str) -> tuple[str, str]:
    """A contender without how it projects, and how it does: ``("torch_sdpa", "loop")``."""
    match = _SETTING.search(name)
    plain = _SETTING.sub("", name).replace(",]", "]").replace("[]", "")
    return plain, match[1] if match else FUSED


def block_heads(analysis: Analysis) -> Rows:
    """What heads cost at one d_model: the time over that with the fewest heads, process by process.

    These are workloads one after the other: what the machine did between them is in the intervals.
    """
    for group in _block_groups(analysis):
        names = dict.fromkeys(name for cell in group.cells.values() for name in cell.measured)
        for n, name in ((n, name) for n in group.lengths for name in names):
            cells = (group.cells.get((count, n)) for count in group.heads)
            there = {
                one.workload.heads: _latency(one.measured[name])
                for one in cells
                if one and name in one.measured
            }
            for count, latency in there.items() if len(there) > 1 else ():
                base = there[min(there)]
                over = None if latency is base else seconds(latency, base, len(there) - 1)
                row = {
                    "group": group.name,
                    "n": n,
                    "contender": name,
                    "heads": count,
                    "median_s": latency.median,
                }
                yield {**row, **_estimate("over_fewest_heads", over)}


def block_parts(analysis: Analysis) -> Rows:
    """The share of each part in the time of the three, each called alone in every process.

    A module that computes the block in one piece has no parts to time.
    """
    most_waited = analysis.run.plan.limits.run_delay
    for cell in (cell for group in _block_groups(analysis) for cell in group.ordered):
        for name, result in cell.measured.items():
            found = result.measurement("block_parts")
            for part in PARTS if found is not None else ():
                assert found is not None
                one = share(found, f"{part}_s", len(PARTS), most_waited)
                if one is not None:
                    yield {**_place(cell), "contender": name, "part": part, **_estimate("share", one)}


def _estimate(name: str, found: Estimate | None) -> dict[str, float | None]:
    values = (None,) * 3 if found is None else (found.value, found.low, found.high)
    return dict(zip((name, "low", "high"), values, strict=True))


# -- keys and values as they are stored --------------------------------------------------------------


def storages(analysis: Analysis) -> Rows:
    """What the form of keys and values costs, and a token against the length of a cache: see `families`.

    A row a workload and contender, where there are several forms, or a few queries meet keys of several lengths.
    Storages are different workloads, raced one after the other in processes of their own: their ratio has no interval
    of confidence, but the range over all pairs of processes.
    """
    for family, groups in families(analysis):
        if len(groups) < 2 and not all(map(decodes, groups.values())):
            continue
        for storage, group in groups.items():
            for cell in group.ordered:
                plain = groups[CONTIGUOUS].cells.get(cell.at) if CONTIGUOUS in groups else None
                for name in filter(cell.measured.__contains__, analysis.names):
                    core = plain.measured.get(name) if plain else None
                    row = {"conditions": family, "storage": storage, "contender": name, "heads": cell.at[0]}
                    yield {**row, "n": cell.at[1], **_beside(cell, _latency(cell.measured[name]), core)}


def families(analysis: Analysis) -> list[tuple[str, dict[str, Group]]]:
    """Groups that differ in how keys and values are stored and in nothing else, by storage; with what tells them apart.

    The name is empty where there is one family.
    """
    found: dict[tuple[tuple[str, Any], ...], dict[str, Group]] = {}
    for group in analysis.groups:
        told = conditions(next(iter(group.cells.values())).workload)
        storage = told.pop("storage")
        found.setdefault(tuple(told.items()), {})[storage] = group
    first = dict(next(iter(found), ()))
    differing = {name for key in found for name, value in key if value != first[name]}
    return [
        (", ".join(condition(*one, always=True) for one in key if one[0] in differing), groups)
        for key, groups in found.items()
    ]


def decodes(group: Group) -> bool:
    """Whether a fixed number of queries, one or a few, meets keys of several lengths."""
    workloads = [cell.workload for cell in group.cells.values()]
    fixed = len({one.queries for one in workloads}) == 1 and all(one.queries < one.keys for one in workloads)
    return fixed and len(group.lengths) > 1 and not workloads[0].backward


def _beside(cell: Cell, latency: Measurement, core: Result | None) -> dict[str, float | None]:
    """Seconds of a call and of each of its queries, of all batch elements, and beside the same with contiguous keys."""
    found: dict[str, float | None] = {
        "median_s": latency.median,
        "seconds_per_token": latency.median / (cell.workload.batch * cell.workload.queries),
        **dict.fromkeys(("over_contiguous", "least", "greatest")),
    }
    if core is not None:
        found["over_contiguous"] = latency.median / _latency(core).median
        mine, other = (
            [statistics.median(one) for one in rounds_of(each)] for each in (latency, _latency(core))
        )
        if min(len(mine), len(other)) > 1:  # one process says nothing of how far they lie apart
            found |= {"least": min(mine) / max(other), "greatest": max(mine) / min(other)}
    return found


# -- as files ----------------------------------------------------------------------------------------


def write(found: Iterable[tuple[str, Table]], folder: Path) -> list[str]:
    """Write each table as ``NAME.csv`` and, with pyarrow, ``NAME.parquet``; those of an earlier report are removed.

    Returns their names. Raises OSError where the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.csv"), *folder.glob("*.parquet")):
        old.unlink()
    written = []
    for name, rows in found:
        # an experiment of another version may be called anything: what stands in its name goes nowhere
        file = folder / f"{''.join(one if one.isalnum() or one in '-_' else '_' for one in name)[:80]}.csv"
        with file.open("w", encoding="utf-8", newline="") as out:
            _csv(rows, out)
        written.append(name)
        if with_parquet():
            _parquet(rows, file.with_suffix(".parquet"))
    return written


def with_parquet() -> bool:
    """Whether Parquet can be written: it needs ``pip install attnlab[dataset]``."""
    return importlib.util.find_spec("pyarrow") is not None


def csv_text(rows: Table) -> str:
    """The rows under their columns' names. A text that a spreadsheet would take for a formula has a ' before it."""
    out = io.StringIO()
    _csv(rows, out)
    return out.getvalue()


def _csv(rows: Table, out: TextIO) -> None:
    # every text in quotes: with this line end the writer would leave a carriage return without
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows(map(_cell, row) for row in rows[:1])
    writer.writerows(map(_cell, row.values()) for row in rows)


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _parquet(rows: Table, file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {name: [row[name] for row in rows] for name in rows[0]}
    for name, values in columns.items():
        # conditions of an experiment hold numbers in one row and texts in another
        if len({float if isinstance(one, int) else type(one) for one in values if one is not None}) > 1:
            columns[name] = [None if one is None else str(one) for one in values]
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
