"""``attnlab report``: make a run's report anew from what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from attnlab.cli.stored import stored_runs
from attnlab.system import without_garbage_collection

if TYPE_CHECKING:
    from attnlab.runs.store import Run


@click.command()
@click.argument("folder", metavar="RUN_DIR|DATASET", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "html", "json", "csv"]),
    default="md",
    show_default=True,
    help="md: report.md with figures and tables beside it; html: one file; json, csv: plain data, printed.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where to write; by default RUN_DIR, of a dataset its reports/RUN.",
)
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
        if summary:
            click.echo(f"{_named(found)}: {formats.summary(found)}" if of_many else formats.summary(found))
        elif form in ("json", "csv"):
            click.echo(
                formats.json_text(found) if form == "json" else formats.csv_text(found), nl=form == "json"
            )
        else:
            # of a dataset every run has a folder of its own there
            place = out if out is None or found.folder == folder else out / found.folder.name
            content = content_of(found)
            if of_many:
                click.echo(f"{_named(found)}:\n")
            if with_page:  # first, while the fits of a large run are on their way
                _ = content.fitting
                explore_page.write([found], (place or found.folder) / explore_page.PAGE, [content.analysis])
            page = (write if form == "md" else formats.write_html)(found, place, content)
            click.echo(in_words(content))
            click.echo(f"\nThe report: {page}")
            if with_page:
                click.echo(f"The page: {page.with_name(explore_page.PAGE)}")
            if of_many:
                click.echo()
    return 0


def _named(run: Run) -> str:
    """Which run of a dataset it is: its id, machine and day."""
    from attnlab.race.environment import fingerprint

    return f"Run {run.folder.name}, {fingerprint(run.environment)}, {run.started[:10]}"
