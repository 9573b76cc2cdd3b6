"""What the tables of a dataset hold: each column declared once, with its kind and what it means.

Arrow's schema, the views of SQL and the tables of ``docs/dataset.md`` are made from these declarations; fields of a
workload are columns by themselves. A column is added at the end and may then be null in older files; one that is
removed, renamed or changed in meaning makes a new `VERSION`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from attnlab.libraries.host import required
from attnlab.problem.fields import declaration
from attnlab.problem.result import Accuracy
from attnlab.problem.workload import Workload

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
    """One column of a table. `kind` is Arrow's type as text; `text` says what it holds, with its unit."""

    name: str
    kind: str
    text: str


_SAMPLES = "map<string, list<double>>"
_FACTS = "map<string, string>"

RUN = Column("run", "string", "The run: 16 digits that it was given when it began.")
RACE = Column(
    "race",
    "string",
    "The race: one workload in one run. Times may be compared within a race, and nowhere else.",
)


def _kind(hint: Any) -> str:
    """Arrow's type for a field of plain data."""
    options = [one for one in get_args(hint) if one is not type(None)]
    if get_origin(hint) in (Union, types.UnionType):
        return "string" if str in options else _kind(options[0])
    if get_origin(hint) is tuple:
        return f"list<{_kind(options[0])}>"
    return {int: "int64", float: "double", str: "string", bool: "bool"}[hint]


def _workload() -> tuple[Column, ...]:
    hints = get_type_hints(Workload)
    return tuple(
        Column(one.name, _kind(hints[one.name]), declaration(one).help.partition(" [default")[0])
        for one in fields(Workload)
    )


_HINTS = get_type_hints(Accuracy)
_ACCURACY = ", ".join(f"{one.name}: {_kind(_HINTS[one.name])}" for one in fields(Accuracy))
_MEASUREMENT = (
    "quantity: string, unit: string, median: double, samples: list<double>, "
    f"columns: {_SAMPLES}, facts: {_FACTS}"
)

WORKLOAD = _workload()
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
    Column("ratio", "double", "Its seconds per call, divided by those of `against`."),
    Column("ratio_low", "double", "Lower end of the ratio's 95 % interval."),
    Column("ratio_high", "double", "Upper end of the ratio's 95 % interval."),
    Column("pairs", "int64", "Pairs of processes that the interval rests on."),
    Column("baseline_ratio", "double", "Its seconds per call, divided by those of the run's baseline."),
    Column("baseline_low", "double", "Lower end of that ratio's 95 % interval."),
    Column("baseline_high", "double", "Upper end of that ratio's 95 % interval."),
    Column("margin", "double", "The relative difference that counted as none in this race."),
    Column("ceiling_known", "bool", "Whether the machine's ceiling was known when it was judged."),
    Column("judged_by", "string", "The version of attnlab that judged it."),
)
RESULTS = (
    RUN,
    RACE,
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
    Column("latency", "double", "Seconds per call: median of the undisturbed rounds."),
    Column("setup", "double", "Seconds from the inputs to calls as fast as they become."),
    Column("peak_memory", "double", "Bytes at the peak of one call, output included, inputs not: the least."),
    Column("flops", "double", "Floating-point operations that the workload asks for."),
    *VERDICT,
    Column("accuracy", f"struct<{_ACCURACY}>", "How exact its answer is against float64."),
    Column("tail", "string", "The last lines that its process printed, where that ended."),
    Column(
        "measurements", f"list<struct<{_MEASUREMENT}>>", "Every quantity with its raw samples, in its unit."
    ),
    Column(
        "race_seconds",
        "double",
        "Seconds that its whole race took; null where it was recorded before that was.",
    ),
)
RUNS = (
    RUN,
    Column("part", "int64", "Which state of the run this is: it was collected so many times before."),
    Column("started", "string", "When it began, ISO 8601, UTC."),
    Column("complete", "bool", "Whether its whole plan is measured."),
    Column("planned", "int64", "Workloads in its plan."),
    Column("raced", "int64", "Workloads of which the dataset holds the race."),
    Column("contenders", "list<string>", "Who raced."),
    Column("baseline", "string", "With whom the others are compared."),
    Column("command", "string", "What repeats it."),
    Column("attnlab", "string", "The version of attnlab that measured."),
    Column("cpu", "string", "The processor's name."),
    Column("cores", "int64", "Logical cores."),
    Column("memory", "int64", "Bytes of the machine's memory."),
    Column("gpus", "list<string>", "GPUs, where the system tells of them."),
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
    columns = [pa.field(one.name, _arrow_type(pa, one.kind)) for one in TABLES[table]]
    return pa.schema(columns, metadata={VERSION_KEY: str(VERSION)})


def _arrow_type(pa: Any, kind: str) -> Any:
    """Arrow's type for its name as text."""
    head, _, inner = kind.removesuffix(">").partition("<")
    if head == "list":
        return pa.list_(_arrow_type(pa, inner))
    if head == "map":
        key, value = inner.split(", ", 1)
        return pa.map_(_arrow_type(pa, key), _arrow_type(pa, value))
    if head == "struct":
        members = [one.split(": ", 1) for one in _members(inner)]
        return pa.struct([(name, _arrow_type(pa, member)) for name, member in members])
    return {"string": pa.string, "int64": pa.int64, "double": pa.float64, "bool": pa.bool_}[head]()


def sql_type(kind: str) -> str:
    """DuckDB's type for Arrow's as text."""
    head, _, inner = kind.removesuffix(">").partition("<")
    if head == "list":
        return f"{sql_type(inner)}[]"
    if head == "map":
        return f"map({', '.join(map(sql_type, inner.split(', ', 1)))})"
    if head == "struct":
        members = (one.split(": ", 1) for one in _members(inner))
        told = ", ".join(f'"{name}" {sql_type(member)}' for name, member in members)
        return f"struct({told})"
    return {"string": "varchar", "int64": "bigint", "double": "double", "bool": "boolean"}[head]


def _members(text: str) -> list[str]:
    """The parts of `text` between commas that stand in no brackets."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "<") - (sign == ">")
        if sign == "," and not depth:
            parts.append("")
        else:
            parts[-1] += sign
    return [one.strip() for one in parts]
