"""What is stored: told again, shown, checked, collected into a dataset and asked in SQL."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import os
import signal
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attnlab.cli import options
from attnlab.plain import finite
from attnlab.system import without_garbage_collection
from attnlab.text import one_line

if TYPE_CHECKING:
    from attnlab.runs.dataset import Answer
    from attnlab.runs.store import Run

#: a table for a person: so many rows, and so many letters of one cell
_ROWS, _LETTERS = 1000, 300


@click.command()
@click.argument("folder", metavar="RUN_DIR|DATASET", type=options.PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json", "csv"]),
    default="md",
    help="md: report.md with figures and tables beside it; html: one file; json, csv: plain data, printed.",
)
@options.out("Where to write; by default RUN_DIR, of a dataset its reports/RUN.")
@click.option(
    "--page", "with_page", is_flag=True, help="Write the page to explore beside it too; nothing is opened."
)
@click.option(
    "--summary", is_flag=True, help="Print one line of Markdown instead, as for a job's summary in CI."
)
@without_garbage_collection(last=True)
def report(folder: Path, form: str, out: Path | None, with_page: bool, summary: bool) -> int:
    """Write the report of a stored run again, from its results alone; of a dataset, one for every run.

    In a CI job: attnlab report RUN_DIR --summary >> "$GITHUB_STEP_SUMMARY"
    """
    from attnlab.environment import fingerprint
    from attnlab.report import content_of, explore_page, formats, in_words, write
    from attnlab.runs import dataset

    of_many = dataset.is_dataset(folder)
    if of_many and form in ("json", "csv"):
        raise ValueError(
            f"{folder} is a dataset, of many runs: attnlab query {folder} 'from verdicts' --format {form} prints it"
        )
    if (out is not None or with_page) and (summary or form in ("json", "csv")):
        given = "--out" if out is not None else "--page"
        raise ValueError(f"{given} is for md and html; {'the summary' if summary else form} is printed")
    for found in stored_runs(folder):
        name = f"Run {found.folder.name}, {fingerprint(found.environment)}, {found.started[:10]}"
        if summary:
            click.echo((f"{name}: " if of_many else "") + formats.summary(found))
        elif form == "json":
            click.echo(formats.json_text(found))
        elif form == "csv":
            click.echo(formats.csv_text(found), nl=False)
        else:
            # of a dataset every run has a folder of its own there
            place = out if out is None or found.folder == folder else out / found.folder.name
            content = content_of(found)
            if of_many:
                click.echo(f"{name}:\n")
            if with_page:  # first, while the fits of a large run are on their way
                _ = content.fitting
                explore_page.write([found], (place or found.folder) / explore_page.PAGE, [content.analysis])
            page = write(found, place, content, html=form == "html")
            click.echo(in_words(content))
            click.echo(f"\nThe report: {page}")
            if with_page:
                click.echo(f"The page: {page.with_name(explore_page.PAGE)}")
            if of_many:
                click.echo()
    return 0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@without_garbage_collection(last=True)
def show(folder: Path) -> int:
    """Print the table and the verdict of a stored run, as `attnlab run` did at its end. Writes nothing.

    Of a run that was interrupted, what there is.
    """
    from attnlab.cli.tables import show_run
    from attnlab.runs.store import read_run

    show_run(read_run(folder))
    return 0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.as_json
def doctor(folder: Path, as_json: bool) -> int:
    """Check a stored run: whole lines, a result for every contender and workload, none from elsewhere.

    Changes nothing. Exits with 1 where something is broken.
    """
    from attnlab.runs.store import examine

    found = examine(folder)
    broken = any(one.fault for one in found)
    if as_json:
        click.echo(json.dumps([{"text": one.text, "fault": one.fault} for one in found]))
        return int(broken)
    for one in found:
        click.echo(("broken: " if one.fault else "note: ") + one.text)
    if not broken:
        click.echo(f"{folder} is in order")
    return int(broken)


@click.command()
@click.argument("folders", metavar="RUN|DATASET...", nargs=-1, required=True, type=options.PATH)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The HTML file to write; explore.html in the first folder by default.",
)
@click.option("--no-open", "closed", is_flag=True, help="Write the page and do not open it.")
@without_garbage_collection(last=True)
def explore(folders: tuple[Path, ...], out: Path | None, closed: bool) -> int:
    """Make one HTML page of stored runs, to filter, compare and zoom into, and open it.

    The page is one file without any link to the network: send it, keep it, open it from disk.
    """
    from attnlab.report.explore_page import PAGE, write
    from attnlab.runs.store import torn_text

    runs = [run for folder in folders for run in stored_runs(folder)]
    for run in runs:
        for text in torn_text(run):
            click.echo(f"attnlab: {run.folder}: {text}", err=True)
    file = write(runs, out or folders[0] / PAGE)
    unopened = "" if closed else _open(file)
    click.echo(f"The page: {file}" + (f" ({unopened}: open it in a browser)" if unopened else ""))
    return 0


@click.command()
@click.argument("runs", metavar="RUN_DIR...", nargs=-1, required=True, type=options.PATH)
@click.option("--into", metavar="DATASET", required=True, type=options.PATH, help="Its folder.")
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
@click.argument("dataset", metavar="DATASET", type=options.PATH)
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


def _open(file: Path) -> str:
    """Open `file` in the browser of whoever sits here; why that was not done, empty where it was."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if sys.platform.startswith("linux") and not any(map(os.environ.get, displays)):
        return "there is no display here"
    try:
        opened = webbrowser.open(file.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    return "" if opened else "no browser could be started here"


def stored_runs(folder: Path) -> Iterator[Run]:
    """The run in `folder`, or all runs of the dataset there. Raises ValueError where it is neither.

    Of a dataset the files that are passed over are told, and after the last run that can be read one that cannot.
    """
    from attnlab.runs import dataset
    from attnlab.runs.store import read_run

    if not dataset.is_dataset(folder):
        yield read_run(folder)
        return
    strange: list[Path] = []
    try:
        yield from dataset.runs(folder, passed_over=strange)
    finally:
        tell_passed_over(strange)


def tell_passed_over(files: Sequence[Path]) -> None:
    """One line on standard error on the files in a dataset that are not read, where there are any."""
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        first = one_line(str(files[0]))
        click.echo(f"attnlab: passed over, not a file of attnlab's, or damaged: {first}{more}", err=True)


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
