"""A question to a dataset in SQL, answered by DuckDB, which sees the dataset and nothing else.

Before DuckDB is given the query, its access to files other than the dataset's, to networks and extensions is shut and
its settings are locked; names of Python variables mean nothing to it, and one statement that reads is all that is let
in.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab.libraries.host import required
from attnlab.runs.dataset_folder import Dataset, open_dataset, read
from attnlab.runs.dataset_schema import (
    PARTITIONS,
    RACE,
    RUN,
    TABLES,
    VERDICT,
    VERSION,
    VERSION_KEY,
    WORKLOAD,
    arrow,
    sql_type,
)
from attnlab.text import one_line

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
_WHERE = ", ".join((*PARTITIONS, RUN.name, RACE.name, "label"))
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
#: under which Arrow writes a file's schema at its end
_SCHEMA_KEY = "ARROW:schema"


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
    asked.execute("set enable_progress_bar = false")  # it would stand amid the answer
    for table in _needed(sql):
        _hand_over(asked, table, dataset)
        for name, (_, made) in VIEWS.items():
            if (name == "runs") == (table == "runs"):
                asked.execute(f"create view {name} as {made}")
    asked.execute("set enable_external_access = false")
    asked.execute("set lock_configuration = true")
    with _told(duckdb, dataset):
        found = asked.extract_statements(sql)
        reading = {duckdb.StatementType.SELECT, duckdb.StatementType.MULTI}
        if len(found) != 1 or found[0].type not in reading:  # MULTI is what PIVOT is made into
            raise ValueError(f"the query must be one SELECT, got {_said(found)}")
        asked.execute(sql)
    columns = tuple(one[0] for one in asked.description or ())
    return Answer(columns, _rows(duckdb, asked, dataset), tuple(dataset.foreign))


def _needed(sql: str) -> tuple[str, ...]:
    """The tables that a query may read: to look into every file of the other takes time."""
    words = sql.lower()
    if "runs" not in words and any(name in words for name in VIEWS):
        return ("results",)
    return tuple(TABLES)


def _hand_over(asked: Any, table: str, dataset: Dataset) -> None:
    """Make a table known to DuckDB, which reads the files itself: in a third of the time that Arrow's reading takes."""
    files = _read_itself(asked, table, dataset)
    if files is None:  # who looks into every file finds those that are not ours, and tells them
        whole = dataset.opened(table)
        files = _read_itself(asked, table, dataset)
        if files is None:
            asked.register(f"stored_{table}", whole)
            return
    before = asked.execute("select current_setting('allowed_paths')").fetchone()[0]
    asked.execute("set allowed_paths = ?", [[*before, *(one for alike in files.values() for one in alike)]])
    parts = [_selected(table, columns, alike) for columns, alike in files.items()]
    asked.execute(f"create view stored_{table} as {' union all '.join(parts)}")


def _selected(table: str, there: tuple[str, ...], files: list[str]) -> str:
    """The rows of files with these columns, as SQL; what older files have no column for is null."""
    columns = [f'"{name}"' for name in PARTITIONS] + [
        f'"{one.name}"' if one.name in there else f'null::{sql_type(one.kind)} as "{one.name}"'
        for one in TABLES[table]
    ]
    named = "hive_partitioning = true, hive_types = {machine: varchar, date: date}"
    return f"select {', '.join(columns)} from read_parquet([{_listed(files)}], {named})"


def _read_itself(asked: Any, table: str, dataset: Dataset) -> dict[tuple[str, ...], list[str]] | None:
    """The files of a table by the columns that they have, as each says itself at its end.

    None where one is not ours, of another version, damaged, or has a column of another kind, and where there is none.
    DuckDB keeps these ends, so that it has no need to read them again.
    """
    duckdb = required("duckdb", extra="dataset")
    pa = required("pyarrow", extra="dataset")
    place = dataset.path.resolve()
    files = [str(place / file.relative_to(dataset.path)) for file in dataset.counted(table)]
    if not files or any(
        set("*?[") & set(file) for file in files
    ):  # signs that DuckDB would take for a pattern
        return None
    asked.execute("set parquet_metadata_cache = true")
    wanted, found, current = arrow(table), dict[tuple[str, ...], list[str]](), 0
    try:
        told = asked.execute(
            "select decode(key), decode(value), list(file_name) "
            f"from parquet_kv_metadata([{_listed(files)}]) where decode(key) in (?, ?) group by all",
            [_SCHEMA_KEY, VERSION_KEY],
        ).fetchall()
        for key, value, alike in told:
            if key == VERSION_KEY:
                current += len(alike) * (value == str(VERSION))
                continue
            schema = pa.ipc.read_schema(_buffer(pa, value))
            if any(
                name not in wanted.names or wanted.field(name).type != schema.field(name).type
                for name in schema.names
            ):
                return None
            found.setdefault(tuple(schema.names), []).extend(sorted(alike))
    except (duckdb.Error, ValueError, OSError):  # one is damaged
        return None
    return found if current == sum(map(len, found.values())) == len(files) else None


def _buffer(pa: Any, text: str) -> Any:
    return pa.py_buffer(base64.b64decode(text))


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
        of_the_query = (
            duckdb.ParserException,
            duckdb.BinderException,
            duckdb.CatalogException,
            duckdb.PermissionException,
            duckdb.DataError,
            duckdb.OutOfMemoryException,
        )
        if not isinstance(fault, of_the_query):
            for table in TABLES:
                for file in dataset.counted(table):
                    read(file)
        raise ValueError(f"the query cannot be answered: {one_line(str(fault))}") from None


def _said(found: list[Any]) -> str:
    if len(found) != 1:
        return f"{len(found)} statements"
    return str(found[0].type).rpartition(".")[2]
