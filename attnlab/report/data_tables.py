"""Tables of experiments as files: CSV, and Parquet beside it where pyarrow is installed."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from attnlab.lab.finding import Row

Table = list[dict[str, Any]]
#: what a spreadsheet would compute instead of show, at the beginning of a cell
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


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
