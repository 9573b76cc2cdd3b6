"""Tables of plain values as files: CSV, and Parquet beside it where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from attnlab.report.data_tables import Table

#: what a spreadsheet would compute instead of show, at the beginning of a cell
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write(found: Iterable[tuple[str, Table]], folder: Path) -> list[str]:
    """Write each table as ``NAME.csv`` and, with pyarrow, ``NAME.parquet``; those of an earlier report are removed.

    Returns their names. Raises OSError where the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.csv"), *folder.glob("*.parquet")):
        old.unlink()
    written = []
    for name, rows in found:
        file = folder / f"{_file_name(name)}.csv"
        columns = _columns(rows)
        del rows
        with file.open("w", encoding="utf-8", newline="") as out:
            _csv(columns, out)
        written.append(name)
        if with_parquet():
            _parquet(columns, file.with_suffix(".parquet"))
    return written


def with_parquet() -> bool:
    """Whether Parquet can be written: it needs ``pip install attnlab[dataset]``."""
    return importlib.util.find_spec("pyarrow") is not None


def csv_text(rows: Table) -> str:
    """The rows under their columns' names. A text that a spreadsheet would take for a formula has a ' before it."""
    out = io.StringIO()
    _csv(_columns(rows), out)
    return out.getvalue()


class Column(NamedTuple):
    """Values, and the types of those that are there.

    A large table is written by column: whether there is anything to change in one is asked of all of it at once.
    """

    values: list[Any]
    kinds: set[type]

    @classmethod
    def of(cls, values: list[Any]) -> Column:
        """That of these values."""
        return cls(values, set(map(type, values)) - {type(None)})


Columns = Mapping[str, Column]


def _columns(rows: Table) -> Columns:
    return {name: Column.of([row[name] for row in rows]) for name in rows[0]} if rows else {}


def _csv(columns: Columns, out: TextIO) -> None:
    # every text in quotes: with this line end the writer would leave a carriage return without
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    if columns:
        writer.writerow(map(_cell, columns))
    shown = [
        list(map(_cell, values)) if any(issubclass(kind, str) for kind in kinds) else values
        for values, kinds in columns.values()
    ]
    writer.writerows(zip(*shown, strict=True))


def plain(value: Any) -> Any:
    """A value as JSON has it: no infinity and no nan, which stand as None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _file_name(name: str) -> str:
    """An experiment of another version may be called anything: what stands in its name goes nowhere."""
    return "".join(one if one.isalnum() or one in "-_" else "_" for one in name)[:80]


def _parquet(columns: Columns, file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    # conditions of an experiment hold numbers in one row and texts in another
    table = pyarrow.table(
        {
            name: [None if one is None else str(one) for one in values]
            if len({float if kind is int else kind for kind in kinds}) > 1
            else values
            for name, (values, kinds) in columns.items()
        }
    )
    pyarrow.parquet.write_table(table, file)
