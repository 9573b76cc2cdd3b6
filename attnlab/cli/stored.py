"""What is stored: reported again, shown, checked and collected."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path

import click

from attnlab.cli import options
from attnlab.system import without_garbage_collection
from attnlab.text import one_line


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json", "csv"]),
    default="md",
    help="md: report.md with figures and tables beside it; html: one file; json, csv: plain data, printed.",
)
@options.out("Where to write; RUN_DIR by default.")
@click.option(
    "--page", "with_page", is_flag=True, help="Write the page to explore beside it too; nothing is opened."
)
@click.option(
    "--summary", is_flag=True, help="Print one line of Markdown instead, as for a job's summary in CI."
)
@without_garbage_collection(last=True)
def report(folder: Path, form: str, out: Path | None, with_page: bool, summary: bool) -> int:
    """Write the report of a stored run again.

    From its results alone.

    In a CI job: attnlab report RUN_DIR --summary >> "$GITHUB_STEP_SUMMARY"
    """
    from attnlab.cli.tables import show_verdict
    from attnlab.report import content_of, explore_page, formats, write
    from attnlab.runs.store import read_run

    if (out is not None or with_page) and (summary or form in ("json", "csv")):
        given = "--out" if out is not None else "--page"
        raise ValueError(f"{given} is for md and html; {'the summary' if summary else form} is printed")
    found = read_run(folder)
    if summary:
        click.echo(formats.summary(found))
    elif form == "json":
        click.echo(formats.json_text(found))
    elif form == "csv":
        click.echo(formats.csv_text(found), nl=False)
    else:
        content = content_of(found)
        if with_page:  # first, while the fits of a large run are on their way
            _ = content.fitting
            explore_page.write([found], (out or folder) / explore_page.PAGE, [content.analysis])
        page = write(found, out, content, html=form == "html")
        show_verdict(content)
        click.echo(f"\nThe report: {page}")
        if with_page:
            click.echo(f"The page: {page.with_name(explore_page.PAGE)}")
    return 0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.as_json
@without_garbage_collection(last=True)
def show(folder: Path, as_json: bool) -> int:
    """Print the verdict and the table of a stored run.

    As `attnlab run` did at its end; of a run that was interrupted, what there is. Writes nothing. --json prints what
    `attnlab report --format json` does, with one of its tables: who is first at each workload, and by how much.
    """
    from attnlab.cli.tables import show_verdict
    from attnlab.report import content_of, formats
    from attnlab.runs.store import read_run

    found = read_run(folder)
    if as_json:
        click.echo(formats.json_text(found, brief=True))
    else:
        show_verdict(content_of(found))
    return 0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.as_json
def doctor(folder: Path, as_json: bool) -> int:
    """Check that a stored run is whole.

    Whole lines, one result for every contender and workload, nothing from elsewhere. Changes nothing. Exits with 1
    where something is broken.
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
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=options.PATH)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The HTML file to write; explore.html in the first folder by default.",
)
@click.option("--no-open", "closed", is_flag=True, help="Write the page and do not open it.")
@without_garbage_collection(last=True)
def explore(folders: tuple[Path, ...], out: Path | None, closed: bool) -> int:
    """Make one HTML page of stored runs to explore, and open it.

    The page is one file without any link to the network: send it, keep it, open it from disk.
    """
    from attnlab.report.explore_page import PAGE, write
    from attnlab.runs.store import read_run, torn_text

    runs = list(map(read_run, folders))
    for run in runs:
        for text in torn_text(run):
            click.echo(f"attnlab: {run.folder}: {text}", err=True)
    file = write(runs, out or folders[0] / PAGE)
    unopened = "" if closed else _open(file)
    click.echo(f"The page: {file}" + (f" ({unopened}: open it in a browser)" if unopened else ""))
    return 0


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=options.PATH)
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default="results.parquet",
    help="The Parquet file to write; what stands there is replaced.",
)
def collect(folders: tuple[Path, ...], out: Path) -> int:
    """Write the measurements of many runs to one Parquet file.

    Takes every run in and below the folders, interrupted runs as far as they are. A row holds one measurement with its
    workload, contender, run and machine; a result without measurements has one row too. Exits with 1 where a run could
    not be read; the others are written all the same.
    """
    from attnlab.runs.collect import collect as join

    skipped: list[str] = []
    runs, rows = join(folders, out, skipped=skipped.append)
    for fault in skipped:
        click.echo(f"attnlab: skipped: {one_line(fault)}", err=True)
    click.echo(f"{out}: {rows} rows of {runs} runs")
    return int(bool(skipped))


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
