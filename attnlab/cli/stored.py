"""``attnlab show``, ``report`` and ``collect``: what is stored, printed, reported again, or joined."""

from __future__ import annotations

from pathlib import Path

import click

from attnlab.cli import options
from attnlab.system import without_garbage_collection
from attnlab.text import one_line


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@click.option(
    *("--format", "form"),
    type=click.Choice(["md", "html", "json", "csv"]),
    default="md",
    help="md: report.md with figures beside it; html: one file; json, csv: plain data, printed.",
)
@options.out("Where to write (default: RUN_DIR).")
@click.option(
    "--summary", is_flag=True, help="Print one line of Markdown instead, for a job's summary in CI."
)
@without_garbage_collection(last=True)
def report(folder: Path, form: str, out: Path | None, summary: bool) -> int:
    """Write the report of a stored run again.

    And the page to explore beside it.

    From its results alone. In a CI job: attnlab report RUN_DIR --summary >> "$GITHUB_STEP_SUMMARY"
    """
    from attnlab.cli.tables import show_verdict
    from attnlab.report import content_of, explore_page, formats, write
    from attnlab.runs.store import read_run

    if out is not None and (summary or form in ("json", "csv")):
        raise ValueError(f"--out is for md and html; {'the summary' if summary else form} is printed")
    found = read_run(folder)
    if summary:
        click.echo(formats.summary(found))
    elif form == "json":
        click.echo(formats.json_text(found))
    elif form == "csv":
        click.echo(formats.csv_text(found), nl=False)
    else:
        content = content_of(found)
        page = write(found, out, content, html=form == "html")
        explore = explore_page.write([found], (out or folder) / explore_page.PAGE, [content.analysis])
        show_verdict(content)
        click.echo(f"\nThe report: {page}\nThe page to explore: {explore}")
    return 0


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=options.PATH)
@options.as_json
@without_garbage_collection(last=True)
def show(folder: Path, as_json: bool) -> int:
    """Print the verdict and the table of a stored run.

    As `attnlab run` did at its end; of a run that was interrupted, what there is. Writes nothing.
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
