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

from attnlab.lab.finding import Row
from attnlab.report.analysis import Analysis, findings_of, mapping, pool_threads
from attnlab.stats.analysis import Cell, Group
from attnlab.stats.crossover import find_crossovers
from attnlab.stats.groups import condition, conditions
from attnlab.stats.growth import Fits, Fitting, rounds_of
from attnlab.stats.ranking import Lead
from attnlab.stats.replication import Estimate, seconds, share
from attnlab.stats.verdicts import Verdict, compare, latencies, pay_off
from attnlab.text import bytes_text
from attnlab.workload.inputs import PROJECTIONS
from attnlab.workload.result import Measurement
from attnlab.workload.vocabulary import CONTIGUOUS

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
        "winners": winners(analysis),
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
        "contenders": contenders(analysis),
        "setup": setups(analysis),
        "same_bits": (
            {
                "contender": one.contender,
                "dtype": one.dtype,
                **one.same,
                "reason": one.reason,
                "remembered": one.remembered,
            }
            for name in analysis.names
            for one in run.invariance
            if one.contender == name
        ),
        "self_test": _self_test(analysis),
        "ceilings": (
            {"copy_bytes_per_s" if name == "copy_bytes" else name: value for name, value in vars(one).items()}
            for one in run.ceilings
        ),
        "environment": ({"name": name, "value": value} for name, value in entries(run.environment)),
        "account": ({"activity": name, "seconds": took} for name, took in run.account.items()),
    }
    for name, made in found.items():
        further = iter(made)
        if first := next(further, None):
            yield name, even([first, *further])  # held here by nobody, it goes when it is written
    for one in findings_of(run):
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


def winners(analysis: Analysis) -> Rows:
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
        for name in filter(cell.answers.__contains__, analysis.names):
            yield result(cell, name)


def result(cell: Cell, name: str) -> dict[str, Any]:
    """What became of a contender at a workload; what needs a time is None for one without a believed one."""
    one, standing = cell.answers[name], cell.standing(name)
    became, reason = outcome(cell, name)
    rate = cell.rates.get(name) if standing else None
    return {
        **_place(cell),
        "contender": name,
        "dtype": cell.workload.dtype,
        "computes_in": one.computes_in,
        "outcome": became,
        "reason": reason,
        "kernel": one.kernel,
        "median_s": standing.seconds if standing else None,
        "rounds": standing.rounds if standing else None,
        **_verdict("over_fastest", standing.against_best if standing else None),
        **_verdict("over_baseline", standing.against_baseline if standing else None),
        "peak_bytes": one.peak_bytes if standing else None,
        "score_bytes": cell.workload.score_bytes,
        "output_bytes": cell.workload.output_bytes,
        "flops_per_s": rate.flops if rate else None,
        "share_of_matmul": rate.compute if rate else None,
        "share_of_copy": rate.bandwidth if rate else None,
        "limited_by": rate.limited_by if rate else None,
        "relative_error": one.accuracy.relative_error if one.accuracy else None,
        "error_budget": one.accuracy.budget if one.accuracy else None,
        "first": cell.ranking is not None and name in {one.contender for one in cell.ranking.first},
    }


def outcome(cell: Cell, name: str) -> tuple[str, str | None]:
    """What became of a contender's answer, and why."""
    if name in cell.faults:
        return "failed measurement", cell.faults[name]
    return str(cell.answers[name].outcome), cell.answers[name].reason


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
                    "least": min(one.counted),
                    "greatest": max(one.counted),
                    "samples": len(one.counted),
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


# -- what ran, and on what ---------------------------------------------------------------------------


def contenders(analysis: Analysis) -> Rows:
    """What was asked of each contender that was measured, beside what ran."""
    for name in analysis.names:
        found = [cell.measured[name] for cell in analysis.cells if name in cell.measured]
        formats = dict.fromkeys((one.workload.dtype, one.computes_in) for one in found)
        precision = [dtype if lower is None else f"{dtype}, computed in {lower}" for dtype, lower in formats]
        facts = analysis.facts(name)
        precision += [f"{mode} {value}" for mode, value in mapping(facts.get("modes")).items()]
        settings = name.partition("[")[2].rstrip("]").split(",")
        threads = next(
            (one for one in settings if one.startswith("threads=")), "as many as the library takes"
        )
        pools = ", ".join(map(str, pool_threads(facts)))
        ran = "; ".join(dict.fromkeys(one.kernel for one in found if one.kernel)) or "not told"
        fallen = dict.fromkeys(one.asked_kernel for one in found if one.fell_back)
        if found:
            yield {
                "contender": name,
                "threads_asked_and_in_pools": f"{threads}: {pools}" if pools else threads,
                "precision": "; ".join(precision),
                "what_ran": ran + "".join(f" (**asked for {one}**)" for one in fallen),
                "versions": "; ".join(_versions(facts)),
            }


def _versions(facts: Mapping[str, Any]) -> Iterator[str]:
    if "python" in facts:
        yield f"Python {facts['python']}"
    yield from (f"{name} {number}" for name, number in mapping(facts.get("versions")).items())


def setups(analysis: Analysis) -> Table:
    """What each contender takes to get ready in a group, in a fresh process and for a further workload, in seconds.

    Beside its call at its largest workload, and after how many of these a set-up has paid off. That of the slowest
    group comes first.
    """
    rows = []
    for group in analysis.groups:
        every = {name: _setup(group, name) for name in analysis.names}
        medians = {name: both for name, both in every.items() if both != (None, None)}
        slower = {name: max(filter(None, both), default=None) for name, both in medians.items()}
        for name, (first, further) in medians.items():
            cells = [cell for cell in group.cells.values() if name in cell.measured]
            cell = max(cells, key=lambda one: (one.at[1], one.at[0]))
            known = {one: took for one in cell.measured if (took := slower.get(one)) is not None}
            paid = pay_off(list(cell.measured.values()), name, known)
            latency = cell.measured[name].latency
            rows.append(
                {
                    "contender": name,
                    "group": group.name,
                    "first_s": first,
                    "further_s": further,
                    "call_s": None if latency is None else latency.median,
                    "heads": cell.at[0],
                    "n": cell.at[1],
                    "pays_off_calls": paid.calls if paid else None,
                    "pays_off_against": paid.against if paid else None,
                }
            )
    return sorted(rows, key=lambda row: row["first_s"] or 0.0)


def _setup(group: Group, name: str) -> tuple[float | None, float | None]:
    """Median seconds of a contender's set-ups in a fresh process, and of those in one that had one before."""
    fresh: list[float] = []
    further: list[float] = []
    for result in (cell.measured[name] for cell in group.cells.values() if name in cell.measured):
        if found := result.measurement("setup"):
            for seconds, first in zip(found.samples, found.columns["fresh"], strict=True):
                (fresh if first else further).append(seconds)
    return _median(fresh), _median(further)


def _median(samples: list[float]) -> float | None:
    return statistics.median(samples) if samples else None


def entries(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every entry of the environment, its name and its text; contenders with equal facts share one."""
    for name, value in facts.items():
        label = f"{prefix}{name}" if prefix else name.replace("_", " ")
        if name.endswith("_bytes") and isinstance(value, int):
            yield label.removesuffix(" bytes"), bytes_text(value)
        elif isinstance(value, Mapping) and value and all(isinstance(one, Mapping) for one in value.values()):
            owners: dict[str, list[str]] = {}
            for owner, known in value.items():
                owners.setdefault(_text(known), []).append(owner)
            yield from ((f"{label}: {', '.join(names)}", text) for text, names in owners.items())
        elif isinstance(value, Mapping) and value:
            yield from entries(value, f"{label}: ")
        else:
            yield label, _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "not readable here"
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one is not None}
        return "; ".join(f"{name} {_text(one)}" for name, one in known.items()) or "none"
    if isinstance(value, list | tuple):
        texts = [_text(one) for one in value]
        return ", ".join(sorted(texts) if any(isinstance(one, Mapping) for one in value) else texts) or "none"
    return str(value)


# -- the multi-head block ----------------------------------------------------------------------------


def block_projections(analysis: Analysis) -> Rows:
    """What another way of projecting costs: the time over that with one matrix for all heads; the two raced."""
    for cell in _block_cells(analysis):
        ways: dict[str, dict[str, Measurement]] = {}
        for name, latency in latencies(cell.measured.values()).items():
            plain, way = without_projection(name)
            ways.setdefault(plain, {})[way] = latency
        both = {plain: some for plain, some in ways.items() if FUSED in some and len(some) > 1}
        count = sum(len(some) - 1 for some in both.values())
        for plain, some in both.items():
            for way in (one for one in PROJECTIONS if one != FUSED and one in some):
                one = compare(some[FUSED], some[way], comparisons=count, margin=cell.margin)
                row = {**_place(cell), "around": plain, "projection": way, f"over_{FUSED}": one.ratio}
                yield {**row, "low": one.low, "high": one.high, "verdict": str(one.kind)}


def _block_cells(analysis: Analysis) -> list[Cell]:
    return [cell for cell in analysis.cells if cell.workload.d_model]


def without_projection(name: str) -> tuple[str, str]:
    """A contender without how it projects, and how it does: ``("torch_sdpa", "loop")``."""
    match = _SETTING.search(name)
    plain = _SETTING.sub("", name).replace(",]", "]").replace("[]", "")
    return plain, match[1] if match else FUSED


def block_heads(analysis: Analysis) -> Rows:
    """What heads cost at one d_model: the time over that with the fewest heads, process by process.

    These are workloads one after the other: what the machine did between them is in the intervals.
    """
    times = {cell: latencies(cell.measured.values()) for cell in _block_cells(analysis)}
    for group in analysis.groups:
        names = dict.fromkeys(name for cell in group.cells.values() for name in times.get(cell, ()))
        for n, name in ((n, name) for n in group.lengths for name in names):
            column = [cell for cell in group.ordered if cell.at[1] == n and name in times[cell]]
            for cell in column if len(column) > 1 else ():
                latency, base = times[cell][name], times[column[0]][name]
                over = None if cell is column[0] else seconds(latency, base, len(column) - 1)
                row = {"group": group.name, "n": n, "contender": name, "heads": cell.at[0]}
                yield {**row, "median_s": latency.median, **_estimate("over_fewest_heads", over)}


def block_parts(analysis: Analysis) -> Rows:
    """The share of each part in the time of the three, each called alone in every process.

    A module that computes the block in one piece has no parts to time.
    """
    most_waited = analysis.run.plan.limits.run_delay
    for cell in _block_cells(analysis):
        for name, result in cell.measured.items():
            if found := result.measurement("block_parts"):
                for part in PARTS:
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
                times, cores = (latencies(one.measured.values()) if one else {} for one in (cell, plain))
                for name in filter(times.__contains__, analysis.names):
                    row = {"conditions": family, "storage": storage, "contender": name, "heads": cell.at[0]}
                    yield {**row, "n": cell.at[1], **_beside(cell, times[name], cores.get(name))}


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


def _beside(cell: Cell, latency: Measurement, core: Measurement | None) -> dict[str, float | None]:
    """Seconds of a call and of each of its queries, of all batch elements, and beside the same with contiguous keys."""
    found: dict[str, float | None] = {
        "median_s": latency.median,
        "seconds_per_token": latency.median / (cell.workload.batch * cell.workload.queries),
        **dict.fromkeys(("over_contiguous", "least", "greatest")),
    }
    if core is not None:
        found["over_contiguous"] = latency.median / core.median
        mine, other = ([statistics.median(one) for one in rounds_of(each)] for each in (latency, core))
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
    """Whether Parquet can be written: it needs ``pip install attnlab[collect]``."""
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
