"""The results of any number of runs and machines in one place, as Parquet, that other programs read too.

`collect` adds what a run holds and the dataset does not, `runs` gives the runs back, `query` asks it in SQL. What lies
where, and what every column is, stands in ``docs/dataset.md``. Needs the extra ``attnlab[dataset]``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from attnlab.environment import fingerprint
from attnlab.lab.finding import Finding
from attnlab.libraries.host import required
from attnlab.runs.dataset_folder import REPORTS, Dataset, collecting, is_dataset, open_dataset, read, write
from attnlab.runs.dataset_schema import (
    TABLES,
    VERDICT,
    VERSION,
    VERSION_KEY,
    WORKLOAD,
    arrow,
    race_columns,
    race_id,
    result_of,
    row_of,
    run_id,
    verdicts,
)
from attnlab.runs.store import Run, read_run, told_run
from attnlab.system import without_garbage_collection
from attnlab.text import one_line

__all__ = ["Answer", "Collected", "collect", "is_dataset", "query", "runs"]

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_WHERE = "machine, date, run, race, label"
_ASKED = ", ".join(f'"{one.name}"' for one in WORKLOAD)  # window is a word of SQL's
_JUDGED = ", ".join(one.name for one in VERDICT)
_ROUND = ("round", "process", "placement", "disturbed")
_BY_ROUND = ", ".join(f"cast(unnest(columns['{name}']) as integer) as {name}" for name in _ROUND)
#: the views by name: what they hold, for a person, and how they are made
VIEWS = {
    "results": (
        "A row a result: every column of the table but `measurements`.",
        "select machine, date, * exclude (machine, date, measurements) from stored_results",
    ),
    "verdicts": (
        "A row a contender with a speed: who wins where, with the interval of the ratio; the workload's columns too.",
        f"select {_WHERE}, contender, latency, {_JUDGED}, {_ASKED} from stored_results where standing is not null",
    ),
    "measurements": (
        "A row a measurement: `contender`, `quantity`, `unit`, `median`, `samples`, `columns`, `facts`.",
        f"select {_WHERE}, contender, unnest(measurements, max_depth := 2) from stored_results",
    ),
    "rounds": (
        "A row a round of a contender: `seconds` of a call, `round`, `process`, `placement`, `disturbed` (0 or 1).",
        f"select {_WHERE}, contender, unnest(samples) as seconds, {_BY_ROUND} from measurements "
        "where quantity = 'latency'",
    ),
    "runs": (
        "A row a run: its last state.",
        "select machine, date, * exclude (machine, date) from stored_runs "
        "qualify part = max(part) over (partition by run)",
    ),
}
_MANY = 10_000


@dataclass(frozen=True)
class Collected:
    """What became of one folder: how many races were `added`, were `known` before, were unfinished and `left` out.

    `fault` is why nothing of it could be taken; everything else is 0 then.
    """

    folder: Path
    run: str = ""
    machine: str = ""
    added: int = 0
    known: int = 0
    left: int = 0
    fault: str | None = None


def collect(folders: Sequence[Path | str], into: Path | str) -> list[Collected]:
    """Add the runs in `folders` to the dataset `into`, which is made where there is none; one answer a folder.

    An interrupted run is taken as far as it is; collected again later, only what is new is added. A folder that cannot
    be read does not keep the others out. Raises ValueError for an `into` that holds something else, or a dataset of
    another version, Unavailable without the extra ``dataset``, NotStored where the disk is full.
    """
    required("pyarrow", extra="dataset")
    found = []
    with collecting(Path(into)) as dataset, without_garbage_collection():
        for folder in map(Path, folders):
            try:
                found.append(_add(read_run(folder), dataset))
            except (ValueError, OverflowError) as fault:  # a seed of more than 63 bits fits no column
                found.append(Collected(folder, fault=str(fault)))
    return found


def _add(run: Run, dataset: Dataset) -> Collected:
    pa = required("pyarrow", extra="dataset")
    try:
        day = datetime.fromisoformat(run.started).date().isoformat()
    except ValueError:
        raise ValueError(
            f"{run.folder} does not tell when it began, which the dataset files it under"
        ) from None
    name, machine = run_id(run), fingerprint(run.environment)
    parts = dataset.parts(name)
    known = {row["race"] for file in dataset.results(name) for row in read(file, ["race"])}
    whole = run.whole()
    races = {workload: race_id(name, workload) for workload in dict.fromkeys(one.workload for one in whole)}
    fresh = {workload for workload, race in races.items() if race not in known}
    part = parts[-1] + 1 if parts else 1
    state = _state(run, name, part, len(known) + len(fresh))
    started = {one.workload for one in run.results} - set(races)
    told = Collected(run.folder, name, machine, len(fresh), len(races) - len(fresh), len(started))
    tables: dict[str, list[dict[str, Any]]] = {}
    if fresh:
        new = [(place, one) for place, one in enumerate(whole) if one.workload in fresh]
        judged = verdicts(run, [one for _, one in new])
        asked = {workload: race_columns(name, workload) for workload in fresh}
        rows = [
            row_of(one, asked[one.workload], place) | judged.get((one.workload, one.contender), {})
            for place, one in new
        ]
        tables["results"] = rows
    elif parts:
        columns = ["run_json", "numerics_json"]
        if read(dataset.files["runs"][name, parts[-1]], columns) == [{one: state[one] for one in columns}]:
            return told
    tables["runs"] = [state]  # the last of a part, which counts from then on
    for table, rows in tables.items():
        place = dataset.path / table / f"machine={machine}" / f"date={day}" / f"{name}-{part:04d}.parquet"
        write(pa.Table.from_pylist(rows, schema=arrow(table)), place)
        dataset.files[table][name, part] = place
    return told


def _state(run: Run, name: str, part: int, raced: int) -> dict[str, Any]:
    where = run.environment
    cores, gpus = where.get("cores"), where.get("gpus")
    return {
        "run": name,
        "part": part,
        "planned": len(run.plan.workloads),
        "raced": raced,
        "contenders": list(run.contenders),
        **{one: getattr(run, one) for one in ("started", "complete", "baseline", "command")},
        **{one: where.get(one) for one in ("attnlab", "cpu", "system", "python")},
        "cores": cores.get("logical") if isinstance(cores, dict) else None,
        "memory": where.get("memory_bytes"),
        "gpus": gpus if isinstance(gpus, list) else None,
        "run_json": json.dumps(run.told()),
        "numerics_json": json.dumps(msgspec.to_builtins(run.findings)),
    }


def runs(
    path: Path | str, only: Collection[str] = (), *, passed_over: list[Path] | None = None
) -> Iterator[Run]:
    """The runs of the dataset in `path`, one after the other by machine, day and id; `only` those with these ids.

    Each as it was when it was last collected, results in their order. Its folder is ``reports/ID`` in the dataset,
    which is not made. passed_over : a list that is given the files that are not attnlab's.

    Raises ValueError where there is no dataset or one of another version, and, after the last run that can be read,
    where a file of one is damaged or gone; Unavailable without the extra ``dataset``.
    """
    required("pyarrow", extra="dataset")
    dataset = open_dataset(path)
    for table in dataset.files:
        dataset.look_into(table)
    if passed_over is not None:
        passed_over += dataset.foreign
    last = {name: file for (name, _), file in sorted(dataset.files["runs"].items())}
    faults: list[ValueError] = []
    for name, file in sorted(last.items(), key=lambda one: (one[1].parent, one[0])):
        if not only or name in only:
            try:
                run = _run(dataset, name, file)
            except ValueError as fault:  # does not keep the others out
                faults.append(fault)
            else:
                yield run
    if faults:
        raise faults[0]


def _run(dataset: Dataset, name: str, last: Path) -> Run:
    rows = [row for file in dataset.results(name) for row in read(file)]
    states = read(last)
    raced = states[0]["raced"] if states else None
    if (found := len({row["race"] for row in rows})) != raced:
        raise ValueError(
            f"{dataset.path} holds {found} of the {raced} races that it had of run {name}: a file of it is damaged "
            "or gone; remove what is damaged, and collect the run again"
        )
    try:
        run = told_run(json.loads(states[0]["run_json"]), dataset.path / REPORTS / name)
        run.results = [result_of(row) for row in sorted(rows, key=lambda row: row["place"])]
        run.findings = [Finding.from_dict(one) for one in json.loads(states[0]["numerics_json"])]
    except (ValueError, TypeError, KeyError) as fault:
        raise ValueError(
            f"{last} cannot be read: {fault}; collect the run again into a new dataset"
        ) from None
    return run


# -- questions ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The names of the columns, the rows, read as they are asked for, and files that were passed over."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    foreign: tuple[Path, ...]


def query(path: Path | str, sql: str) -> Answer:
    """The answer of the dataset in `path` to one SELECT, in DuckDB's SQL, over the views `VIEWS`.

    DuckDB sees the dataset and nothing else: before it is given the query, its access to other files, to networks and
    extensions is shut and its settings are locked, and names of Python variables mean nothing to it.
    Raises ValueError where there is no dataset, one of another version, or a mistake in the SQL; Unavailable without
    the extra ``dataset``.
    """
    duckdb = required("duckdb", extra="dataset")
    dataset = open_dataset(path)
    asked = duckdb.connect(config=_CLOSED)
    asked.execute("set enable_progress_bar = false; set parquet_metadata_cache = true")
    files = [str(one.resolve()) for table in TABLES for one in dataset.files[table].values()]
    asked.execute("set allowed_paths = ?", [files])
    # each view is bound anew to every file: those that a query cannot mean are left out, where it names one
    named = [name for name in VIEWS if name in sql.lower()] or list(VIEWS)
    for table in ("results",) if set(named) < set(VIEWS) - {"runs"} else TABLES:
        if not _handed_over(duckdb, asked, table, dataset):
            dataset.look_into(table)  # which finds those that are not ours, and tells them
            _handed_over(duckdb, asked, table, dataset)
    for name, (_, made) in VIEWS.items():
        if name in named or (name == "measurements" and "rounds" in named):
            asked.execute(f"create view {name} as {made}")
    asked.execute("set enable_external_access = false; set lock_configuration = true")
    with _told(duckdb, dataset):
        found = asked.extract_statements(sql)
        kinds = [str(one.type).rpartition(".")[2] for one in found]
        if kinds not in (["SELECT"], ["MULTI"]):  # MULTI is what PIVOT is made into
            said = kinds[0] if len(kinds) == 1 else f"{len(kinds)} statements"
            raise ValueError(f"the query must be one SELECT, got {said}")
        asked.execute(sql)
    columns = tuple(one[0] for one in asked.description or ())
    return Answer(columns, _rows(duckdb, asked, dataset), tuple(dataset.foreign))


def _handed_over(duckdb: Any, asked: Any, table: str, dataset: Dataset) -> bool:
    """Make a table known to DuckDB, which reads the files itself; what older files have no column for is null.

    False where a file is not ours, of another version or damaged.
    """
    pa = required("pyarrow", extra="dataset")
    schema = arrow(table).append(pa.field("machine", pa.string())).append(pa.field("date", pa.date32()))
    asked.register(f"empty_{table}", schema.empty_table())
    files = [str(one.resolve()) for one in dataset.counted(table)]
    parts, ours = [f"select * from empty_{table}"], 0
    if not files:
        asked.execute(f"create or replace view stored_{table} as {parts[0]}")
        return True
    try:
        found = asked.execute(
            "select decode(key), decode(value), list(file_name order by file_name) from "
            f"parquet_kv_metadata([{_listed(files)}]) where decode(key) in (?, 'ARROW:schema') group by all",
            [VERSION_KEY],
        ).fetchall()
        for key, value, some in found:
            if key == VERSION_KEY:
                ours += len(some) * (value == str(VERSION))
            else:  # files of one schema, of which DuckDB then looks into the first alone
                places = "hive_partitioning = true, hive_types = {machine: varchar, date: date}"
                parts.append(f"select * from read_parquet([{_listed(some)}], {places})")
        asked.execute(f"create or replace view stored_{table} as {' union all by name '.join(parts)}")
    except duckdb.Error:
        return False
    there = {row[0] for row in asked.execute(f"describe stored_{table}").fetchall()}
    return bool(ours == len(files) and there == set(schema.names))


def _listed(files: list[str]) -> str:
    return ", ".join("'" + file.replace("'", "''") + "'" for file in files)


def _rows(duckdb: Any, asked: Any, dataset: Dataset) -> Iterator[tuple[Any, ...]]:
    with contextlib.closing(asked), _told(duckdb, dataset):
        while some := asked.fetchmany(_MANY):
            yield from some


@contextlib.contextmanager
def _told(duckdb: Any, dataset: Dataset) -> Iterator[None]:
    """DuckDB's errors as a ValueError of one line; it does not say which file is damaged, where one is."""
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as fault:
        names = ("Parser", "Binder", "Catalog", "Permission", "OutOfMemory")
        of_the_query = duckdb.DataError, *(getattr(duckdb, f"{name}Exception") for name in names)
        if not isinstance(fault, of_the_query):
            for file in (*dataset.counted("results"), *dataset.counted("runs")):
                read(file)
        raise ValueError(f"the query cannot be answered: {one_line(str(fault))}") from None
