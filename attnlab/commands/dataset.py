"""``attnlab collect`` and ``attnlab query``: one dataset of the results of many runs and machines."""

from __future__ import annotations

import csv
import datetime
import json
import math
import sys
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from attnlab.dataset import Answer


@click.command()
@click.argument("runs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--into", metavar="DATASET", required=True, type=click.Path(path_type=Path), help="Its folder.")
def collect(runs: tuple[Path, ...], into: Path) -> int:
    """Add what runs hold to a dataset of Parquet files, which is made where there is none.

    Interrupted runs are taken as far as they are, in whole workloads; what the dataset has already is not added again.
    Exits with 1 where a folder could not be read; the others are collected all the same.
    """
    from attnlab import dataset
    from attnlab.contract.text import one_line

    found = dataset.collect(runs, into)
    for one in found:
        if one.fault is not None:
            click.echo(f"attnlab: {one_line(one.fault)}", err=True)
            continue
        left = f", {one.left} unfinished and left out" if one.left else ""
        click.echo(
            f"{one.folder}: {one.added} workloads added, {one.known} known{left} (run {one.run}, {one.machine})"
        )
    return 1 if any(one.fault for one in found) else 0


@click.command()
@click.argument("dataset", metavar="DATASET", type=click.Path(path_type=Path))
@click.argument("sql", metavar="SQL")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="How the answer is printed.",
)
def query(dataset: Path, sql: str, form: str) -> int:
    """Ask a dataset in SQL: one SELECT over the views results, verdicts, measurements, rounds and runs.

    "select machine, label, contender, standing, ratio, ratio_low, ratio_high from verdicts where standing in ('wins',
    'tied')" says who wins where. The query sees no file but the dataset's.
    """
    from attnlab.dataset import query as ask

    answer = ask(dataset, sql)
    if answer.foreign:
        first, count = answer.foreign[0], len(answer.foreign)
        more = f" and {count - 1} more" if count > 1 else ""
        click.echo(f"attnlab: passed over, not a file of attnlab's: {_text(str(first))}{more}", err=True)
    {"table": _table, "csv": _csv, "json": _json}[form](answer)
    return 0


def _table(answer: Answer) -> None:
    from rich.markup import escape
    from rich.table import Table

    from attnlab.commands.tables import show

    table = Table()
    for name in answer.columns:
        table.add_column(escape(_text(name)), overflow="fold")
    for row in answer.rows:
        table.add_row(*(escape(_cell(one, digits=6)) for one in row))
    show(table)


def _csv(answer: Answer) -> None:
    """Comma-separated, a line a row, the names of the columns first; null is empty."""
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(map(_text, answer.columns))
    written.writerows([_cell(one) for one in row] for row in answer.rows)


def _json(answer: Answer) -> None:
    """One list of objects; numbers that are not finite are the texts "nan", "inf" and "-inf"."""
    rows: Iterable[dict[str, Any]] = (
        dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows
    )
    click.echo("[", nl=False)
    for index, row in enumerate(rows):
        click.echo((",\n" if index else "\n") + json.dumps(row, allow_nan=False), nl=False)
    click.echo("\n]")


def _cell(value: Any, digits: int | None = None) -> str:
    """One value as text in one line; numbers to so many digits, where that is said."""
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    return _text(value if isinstance(value, str) else json.dumps(value))


def _text(text: str) -> str:
    from attnlab.contract.text import one_line

    return one_line(text, 100_000)


def _plain(value: Any) -> Any:
    """A value of DuckDB's as JSON has it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        value = float(value)
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
