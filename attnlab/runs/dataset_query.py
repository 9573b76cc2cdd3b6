"""A question to a dataset in SQL, answered by DuckDB, which sees the dataset and nothing else.

Before DuckDB is given the query, its access to files other than the dataset's, to networks and extensions is shut and
its settings are locked; names of Python variables mean nothing to it, and one statement that reads is all that is let
in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.libraries.host import required
from attnlab.runs.dataset_folder import Dataset, open_dataset, read
from attnlab.runs.dataset_schema import TABLES, VERDICT, VERSION, VERSION_KEY, WORKLOAD, arrow
from attnlab.text import one_line

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
class Answer:
    """The names of the columns, the rows, read as they are asked for, and files that were passed over."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]
    foreign: tuple[Path, ...]


def query(path: Path | str, sql: str) -> Answer:
    """The answer of the dataset in `path` to one SELECT, in DuckDB's SQL, over the views `VIEWS`.

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
    except RuntimeError as fault:  # as it tells of Ctrl-C while it computes
        if str(fault) != "Query interrupted":
            raise
        raise KeyboardInterrupt from None
    except duckdb.Error as fault:
        names = ("Parser", "Binder", "Catalog", "Permission", "OutOfMemory")
        of_the_query = duckdb.DataError, *(getattr(duckdb, f"{name}Exception") for name in names)
        if not isinstance(fault, of_the_query):
            for file in (*dataset.counted("results"), *dataset.counted("runs")):
                read(file)
        raise ValueError(f"the query cannot be answered: {one_line(str(fault))}") from None
