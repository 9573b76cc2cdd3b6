"""``attnlab show``, ``report``, ``diff`` and ``collect``: stored runs, printed, reported again, compared, joined."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from attnlab import report as reporting
from attnlab.cli import options
from attnlab.runs import diff as two
from attnlab.runs.store import collect as join
from attnlab.runs.store import read_run
from attnlab.text import finite, one_line


@click.command(cls=options.Command)
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.out(help="Where to write (default: RUN_DIR).")
def report(folder: Path, out: Path | None) -> int:
    """Write the report of a stored run again.

    From its results alone: report.md, figures/ and the page to explore, explore.html.
    """
    found = read_run(folder)
    page = reporting.write(found, out)
    reporting.show(reporting.verdict_text(found))
    click.echo(f"\nThe report: {page}\nThe page to explore: {page.with_name(reporting.PAGE)}")
    return 0


@click.command(cls=options.Command)
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@click.option(
    *("--format", "form"),
    type=click.Choice(["text", "md", "bmf"]),
    default="text",
    help="Text, Markdown, or Bencher's metric format.",
)
@options.as_json
def show(folder: Path, form: str, as_json: bool) -> int:
    """Print the verdict and the table of a stored run.

    As `attnlab run` did at its end; of a run that was interrupted, what there is. Writes nothing.
    """
    found = read_run(folder)
    if as_json:
        click.echo(json.dumps(reporting.to_json(found), allow_nan=False))
    elif form == "bmf":
        click.echo(json.dumps(reporting.bmf(found), allow_nan=False))
    elif form == "md":
        click.echo(reporting.verdict_text(found))
    else:
        reporting.show(reporting.verdict_text(found))
    return 0


@click.command(cls=options.Command)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=options.PATH)
@click.option(
    *("-o", "--out"),
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    default="results.parquet",
    help="The Parquet file to write; an existing one is replaced.",
)
def collect(folders: tuple[Path, ...], out: Path) -> int:
    """Write the results of many runs into one table.

    Takes every run in and below the folders, interrupted runs as far as they are. A row holds one measurement with its
    workload, contender, run and machine. A result without measurements has one row too. Exits with 1 if a run could
    not be read; the others are written all the same.
    """
    skipped: list[str] = []
    runs, rows = join(folders, out, skipped=skipped.append)
    for fault in skipped:
        click.echo(f"attnlab: skipped: {one_line(fault)}", err=True)
    click.echo(f"{out}: {rows} rows of {runs} runs")
    return int(bool(skipped))


@click.command(cls=options.Command)
@click.argument("first", metavar="RUN", type=options.PATH)
@click.argument("second", metavar="RUN", type=options.PATH)
@click.option("--anyway", is_flag=True, help="Show runs of different conditions too, without verdicts.")
@options.as_json
def diff(first: Path, second: Path, anyway: bool, as_json: bool) -> int:
    """Show two stored runs side by side.

    They are of one machine and one plan, such as of two versions of a library. They did not race each other, so a ratio
    of their times has no interval and no verdict. Within a run each contender raced the baseline. "changed" says that
    the intervals of that speedup are disjoint in the two runs.
    """
    found = two.diff(read_run(first), read_run(second), anyway=anyway)
    if as_json:
        click.echo(json.dumps(finite(asdict(found))))
        return 0
    reporting.show(reporting.fill("diff.md.j2", found=found, rows=reporting.differences(found)))
    return 0
