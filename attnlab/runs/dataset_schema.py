"""What the tables of a dataset hold, each column declared once; and a result as a row, with its verdict, and back.

Arrow's schema, the views of SQL and the tables of ``docs/dataset.md`` are made from these declarations; fields of a
workload are columns by themselves. A column is added at the end and may then be null in older files; one that is
removed, renamed or changed in meaning makes a new `VERSION`.
"""

from __future__ import annotations

import hashlib
import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from importlib.metadata import version
from typing import Any, Union, get_args, get_origin, get_type_hints

from attnlab.environment import fingerprint
from attnlab.libraries.host import required
from attnlab.plain import decode
from attnlab.runs.store import Run
from attnlab.stats.analysis import Cell
from attnlab.stats.ranking import Ranking, Standing
from attnlab.stats.verdicts import Verdict
from attnlab.workload.declaring import declaration
from attnlab.workload.result import Accuracy, Result, possible
from attnlab.workload.workload import Workload

VERSION = 1
#: under which the version stands in the metadata of every Parquet file, and in ``dataset.json``
VERSION_KEY = "attnlab.dataset"
#: what the names of the folders say, and no file holds: a dictionary a table
PARTITIONS = {
    "machine": "The machine's name: its processor, and eight digits that follow from what it consists of.",
    "date": "The day on which the run began (UTC).",
}


@dataclass(frozen=True)
class Column:
    """One column of a table, and in `text` what it holds, with its unit.

    kind : Arrow's type by its name, a list as ``[kind]``, a map as ``(kind, kind)``, a struct by the names of its
    members.
    """

    name: str
    kind: Any
    text: str


def _kind(hint: Any) -> Any:
    """The kind of column for a field of plain data."""
    options = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) in (Union, types.UnionType):
        return "string" if str in options else _kind(options[0])
    if get_origin(hint) is tuple:
        return [_kind(options[0])]
    return {int: "int64", float: "float64", str: "string", bool: "bool_"}[hint]


_KINDS = {
    one: {name: _kind(hint) for name, hint in get_type_hints(one).items()} for one in (Workload, Accuracy)
}
_MEASUREMENT: dict[str, Any] = {
    "quantity": "string",
    "unit": "string",
    "median": "float64",
    "samples": ["float64"],
}
_MEASUREMENT |= {"columns": ("string", ["float64"]), "facts": ("string", "string")}

RUN = Column("run", "string", "The run: 16 digits that it was given when it began.")
WORKLOAD = tuple(
    Column(one.name, _KINDS[Workload][one.name], declaration(one).help.partition(" [default")[0])
    for one in fields(Workload)
)
VERDICT = (
    Column(
        "standing",
        "string",
        "Its place: `wins` (alone first, decided), `tied` (first, with others: none is decidedly faster), `slower` "
        "(decidedly), `no interval` (too few processes), `alone` (nobody to compare with), `apart` (computes in a "
        "lower precision), `not believed` (faster than the machine's ceiling); null where it has no speed, and of "
        "a second entry of one contender.",
    ),
    Column(
        "against",
        "string",
        "Whom the verdict compares it with: the fastest; of the fastest itself, the next that is decidedly slower "
        "and really another implementation.",
    ),
    Column(
        "implementation",
        "string",
        "What really ran: equal for two backends that call one fused kernel under two names.",
    ),
    Column("verdict", "string", "`faster`, `slower`, `equivalent` or `undecided`."),
    Column("ratio", "float64", "Its seconds per call, divided by those of `against`."),
    Column("ratio_low", "float64", "Lower end of the ratio's 95 % interval."),
    Column("ratio_high", "float64", "Upper end of the ratio's 95 % interval."),
    Column("pairs", "int64", "Pairs of processes that the interval rests on."),
    Column("baseline_ratio", "float64", "Its seconds per call, divided by those of the run's baseline."),
    Column("baseline_low", "float64", "Lower end of that ratio's 95 % interval."),
    Column("baseline_high", "float64", "Upper end of that ratio's 95 % interval."),
    Column("margin", "float64", "The relative difference that counted as none in this race."),
    Column("ceiling_known", "bool_", "Whether the machine's ceiling was known when it was judged."),
    Column("judged_by", "string", "The version of attnlab that judged it."),
)
RESULTS = (
    RUN,
    Column(
        "race", "string", "The race: one workload in one run. Compare times within a race, and nowhere else."
    ),
    Column("place", "int64", "Which result of its run it is, counted from 0."),
    Column("label", "string", "The workload in short."),
    *WORKLOAD,
    Column("contender", "string", "Who raced: a backend with its settings, `#2` for a second entry."),
    Column("backend", "string", "The backend's name."),
    Column("library", "string", "The array library that the backend is written for."),
    Column("outcome", "string", "`measured`, or why there is no speed."),
    Column("reason", "string", "Why, in one line."),
    Column("kernel", "string", "What the library says really ran."),
    Column("asked_kernel", "string", "The operator that the backend forces, where it does."),
    Column("computes_in", "string", "The number format that it computes in, where lower than its inputs'."),
    Column("latency", "float64", "Seconds per call: median of the undisturbed rounds."),
    Column("setup", "float64", "Seconds from the inputs to calls as fast as they become."),
    Column(
        "peak_memory", "float64", "Bytes at the peak of one call, output included, inputs not: the least."
    ),
    Column("flops", "float64", "Floating-point operations that the workload asks for."),
    *VERDICT,
    Column("accuracy", _KINDS[Accuracy], "How exact its answer is against float64."),
    Column("tail", "string", "The last lines that its process printed, where that ended."),
    Column("measurements", [_MEASUREMENT], "Every quantity with its raw samples, in its unit."),
    Column(
        "race_seconds",
        "float64",
        "Seconds that its whole race took; null where it was recorded before that was.",
    ),
)
RUNS = (
    RUN,
    Column("part", "int64", "Which state of the run this is: it was collected so many times before."),
    Column("started", "string", "When it began, ISO 8601, UTC."),
    Column("complete", "bool_", "Whether its whole plan is measured."),
    Column("planned", "int64", "Workloads in its plan."),
    Column("raced", "int64", "Workloads of which the dataset holds the race."),
    Column("contenders", ["string"], "Who raced."),
    Column("baseline", "string", "With whom the others are compared."),
    Column("command", "string", "What repeats it."),
    Column("attnlab", "string", "The version of attnlab that measured."),
    Column("cpu", "string", "The processor's name."),
    Column("cores", "int64", "Logical cores."),
    Column("memory", "int64", "Bytes of the machine's memory."),
    Column("gpus", ["string"], "GPUs, where the system tells of them."),
    Column("system", "string", "Operating system and kind of machine."),
    Column("python", "string", "Interpreter."),
    Column("run_json", "string", "The content of its `run.json` (docs/store.md)."),
    Column("numerics_json", "string", "The content of its `numerics.json`."),
)
#: the columns of each table, by the name of the folder that holds it
TABLES: Mapping[str, tuple[Column, ...]] = {"results": RESULTS, "runs": RUNS}


@cache
def arrow(table: str) -> Any:
    """The `pyarrow.Schema` of a table's files, without what the folders' names say. Raises Unavailable."""
    pa = required("pyarrow", extra="dataset")
    columns = [pa.field(one.name, _type(pa, one.kind)) for one in TABLES[table]]
    return pa.schema(columns, metadata={VERSION_KEY: str(VERSION)})


def _type(pa: Any, kind: Any) -> Any:
    if isinstance(kind, str):
        return getattr(pa, kind)()
    if isinstance(kind, list):
        return pa.list_(_type(pa, kind[0]))
    if isinstance(kind, tuple):
        return pa.map_(*(_type(pa, one) for one in kind))
    return pa.struct([(name, _type(pa, one)) for name, one in kind.items()])


# -- rows --------------------------------------------------------------------------------------------

_PLAIN = ("contender", "library", "reason", "kernel", "asked_kernel", "computes_in", "tail", "race_seconds")
#: what may be None in a record of precision
_EMPTY = ("reason", "kind")


def run_id(run: Run) -> str:
    """Its own; of a run from before that was recorded one that follows from what stays when a run is gone on with."""
    if re.fullmatch(r"[0-9a-f]{16}", run.id):
        return run.id
    told = {"started": run.started, "machine": fingerprint(run.environment), "contenders": run.contenders}
    return _digest(
        {**told, "command": run.command, "workloads": [one.to_dict() for one in run.plan.workloads]}
    )


def race_id(run: str, workload: Workload) -> str:
    """Which race of which run: 16 digits."""
    return _digest([run, workload.to_dict()])


def _digest(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:16]


def race_columns(run: str, workload: Workload) -> dict[str, Any]:
    """What all results of a race have in common. No causal mask is null, as no window is."""
    return {
        "run": run,
        "race": race_id(run, workload),
        "label": workload.label,
        "flops": float(workload.flops),
        **{one.name: getattr(workload, one.name) for one in WORKLOAD},
        "causal": workload.causal or None,
    }


def row_of(result: Result, race: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The row of a result, but for its verdict; `race` are the columns of its race."""
    latency, peak = result.latency, result.peak_bytes
    return {
        **race,
        "place": place,
        **{name: getattr(result, name) for name in _PLAIN},
        "backend": result.backend,
        "outcome": str(result.outcome),
        "latency": None if latency is None or result.uncounted else latency.median,
        "setup": result.setup_seconds,
        "peak_memory": None if peak is None else float(peak),
        "accuracy": None if result.accuracy is None else asdict(result.accuracy),
        "measurements": [
            {
                **{name: getattr(one, name) for name in ("quantity", "unit", "median", "samples")},
                "columns": list(one.columns.items()),
                "facts": list(one.facts.items()),
            }
            for one in result.measurements
        ],
    }


def result_of(row: Mapping[str, Any]) -> Result:
    """The inverse of `row_of`. A field that a file has no column for has its default. Raises ValueError."""
    asked = {one.name: row[one.name] for one in WORKLOAD if row.get(one.name) is not None}
    told = {name: row.get(name) for name in (*_PLAIN, "outcome")}
    if row.get("accuracy") is not None:
        known = row["accuracy"].items()
        told["accuracy"] = {name: one for name, one in known if one is not None or name in _EMPTY}
    told["measurements"] = [
        {**one, "columns": dict(one["columns"]), "facts": dict(one["facts"])}
        for one in row.get("measurements") or ()
    ]
    workload = Workload.from_dict(asked)
    return possible(decode({**told, "workload": workload}, Result, "the result", known_only=False))


def verdicts(run: Run, results: Sequence[Result]) -> dict[tuple[Workload, str], dict[str, Any]]:
    """The columns `dataset_schema.VERDICT`, by workload and contender, for `results`, which are whole races."""
    known = {"ceiling_known": bool(run.ceilings), "judged_by": version("attnlab")}
    return {
        (cell.workload, name): {**columns, "margin": cell.margin, **known}
        for cell in replace(run, results=list(results)).judged().cells
        for name, columns in _judged(cell).items()
    }


def _judged(cell: Cell) -> dict[str, dict[str, Any]]:
    """The columns of those who have a verdict, by contender."""
    found = {name: {"standing": "not believed"} for name in cell.answers if name in cell.faults}
    if cell.ranking is None or cell.everyone is None:
        return found
    runner_up = cell.ranking.runner_up
    for ranking in (cell.ranking, cell.everyone):
        for mine in ranking.standings:
            if mine.contender in found:
                continue
            columns: dict[str, Any] = {
                "standing": _standing(cell.ranking, mine),
                "implementation": mine.implementation,
            }
            if mine is not ranking.best:
                columns |= _against(ranking.best, mine.against_best)
            elif runner_up is not None and ranking is cell.ranking:
                turned = runner_up.against_best.turned if runner_up.against_best else None
                columns |= _against(runner_up, turned)
            if (one := mine.against_baseline) is not None:
                columns |= {"baseline_ratio": one.ratio, "baseline_low": one.low, "baseline_high": one.high}
            found[mine.contender] = columns
    return found


def _standing(ranking: Ranking, mine: Standing) -> str:
    if ranking.of(mine.contender) is None:
        return "apart"
    if len(ranking.standings) == 1:
        return "alone"
    if ranking.decided and mine in ranking.first:
        return "wins" if len(ranking.first) == 1 else "tied"
    return "slower" if mine.against_best is not None else "no interval"


def _against(other: Standing, verdict: Verdict | None) -> dict[str, Any]:
    """A comparison with `other`."""
    columns: dict[str, Any] = {"against": other.contender}
    if verdict is not None:
        columns |= {"verdict": str(verdict.kind), "pairs": verdict.processes}
        columns |= {"ratio": verdict.ratio, "ratio_low": verdict.low, "ratio_high": verdict.high}
    return columns
