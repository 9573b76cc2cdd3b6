"""``attnlab collect`` and ``attnlab query``: one dataset of the results of many runs and machines."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnlab.cli.stored import tell_passed_over
from attnlab.plain import finite
from attnlab.text import one_line

if TYPE_CHECKING:
    from attnlab.runs.dataset import Answer

#: a table for a person: so many rows, and so many letters of one cell
_ROWS, _LETTERS = 1000, 300


@click.command()
@click.argument("runs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--into", metavar="DATASET", required=True, type=click.Path(path_type=Path), help="Its folder.")
def collect(runs: tuple[Path, ...], into: Path) -> int:
    """Add what runs hold to a dataset of Parquet files, which is made where there is none.

    Interrupted runs are taken as far as they are, in whole workloads; what the dataset has already is not added again.
    Exits with 1 where a folder could not be read; the others are collected all the same.
    """
    from attnlab.runs import dataset

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
    type=click.Choice(["table", "md", "csv", "json"]),
    default="table",
    help=f"How the answer is printed: table and md up to {_ROWS} rows, csv and json whole.",
)
def query(dataset: Path, sql: str, form: str) -> int:
    """Ask a dataset in SQL: one SELECT over the views results, verdicts, measurements, rounds and runs.

    "select machine, label, contender, standing, ratio, ratio_low, ratio_high from verdicts where standing in ('wins',
    'tied')" says who wins where. The query sees no file but the dataset's.
    """
    from attnlab.runs.dataset import query as ask

    with _ended_by_ctrl_c():
        answer = ask(dataset, sql)
        tell_passed_over(answer.foreign)
        _print(answer, form)
    return 0


@contextmanager
def _ended_by_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the process there and then.

    DuckDB 2.0, interrupted while it computes, waits for its own threads, sometimes for ever. Nothing is lost: a query
    only reads.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # it is not ignored, as in the background of a shell
        signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(*_: object) -> None:
    os.write(sys.stderr.fileno(), b"\nattnlab: interrupted\n")
    os._exit(130)


def _print(answer: Answer, form: str) -> None:
    """Whole as csv (a line a row, the names first, null empty) or json (one list of objects), or the first rows."""
    if form == "json":
        click.echo("[", nl=False)
        for index, row in enumerate(answer.rows):
            line = _json(dict(zip(answer.columns, row, strict=True)))
            click.echo((",\n" if index else "\n") + line, nl=False)
        click.echo("\n]")
        return
    names = [one_line(one, 100_000) for one in answer.columns]
    if form == "csv":
        written = csv.writer(sys.stdout, lineterminator="\n")
        written.writerow(names)
        written.writerows([_cell(one) for one in row] for row in answer.rows)
        return
    shown = [[_cell(one, short=True) for one in row] for row in itertools.islice(answer.rows, _ROWS)]
    if next(answer.rows, None) is not None:
        click.echo(f"attnlab: the first {_ROWS} rows; --format csv and --format json print all", err=True)
    if form == "md":
        from attnlab.report.analysis import neutral_text
        from attnlab.report.layout import markdown

        titles = [neutral_text(one).replace("|", "\\|") for one in answer.columns]
        head = f"| {' | '.join(titles)} |\n|{':--|' * len(titles)}"
        click.echo(
            markdown(titles, [list(map(neutral_text, row)) for row in shown], left=len(titles)) or head
        )
        return
    from attnlab.cli.tables import show, table

    show(table(names, shown))


def _cell(value: Any, *, short: bool = False) -> str:
    """One value as text in one line; `short`, numbers to six digits and texts to some letters."""
    if short and isinstance(value, float | Decimal):
        return f"{float(value):.6g}"
    text = "" if value is None else _json(value)
    return one_line(json.loads(text) if text.startswith('"') else text, _LETTERS if short else 100_000)


def _json(value: Any) -> str:
    """A value of DuckDB's as JSON; numbers that are not finite are the texts "nan", "inf" and "-inf"."""
    return json.dumps(
        finite(value), default=lambda one: float(one) if isinstance(one, Decimal) else _text(one)
    )


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
