"""``attnlab report``: make a run's report anew from what is stored."""

from __future__ import annotations

from pathlib import Path

import click

from attnlab.commands.stored import stored_runs
from attnlab.program.garbage_collection import without_garbage_collection


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
    "--summary", is_flag=True, help="Print one line of Markdown instead, as for a job's summary in CI."
)
@without_garbage_collection()
def report(folder: Path, form: str, out: Path | None, summary: bool) -> int:
    """Write the report of a stored run again, from its results alone; of a dataset, one for every run.

    In a CI job: attnlab report RUN_DIR --summary >> "$GITHUB_STEP_SUMMARY"
    """
    from attnlab.report import content_of, formats, in_words, write

    if out is not None and (summary or form in ("json", "csv")):
        raise ValueError(f"--out is for md and html; {'the summary' if summary else form} is printed")
    for found in stored_runs(folder):
        found.folder.mkdir(parents=True, exist_ok=True)  # of a dataset it is not there yet
        if summary:
            click.echo(formats.summary(found))
        elif form in ("json", "csv"):
            click.echo(
                formats.json_text(found) if form == "json" else formats.csv_text(found), nl=form == "json"
            )
        else:
            # of a dataset every run has a folder of its own there
            place = out if out is None or found.folder == folder else out / found.folder.name
            content = content_of(found)
            page = (write if form == "md" else formats.write_html)(found, place, content)
            click.echo(in_words(content.analysis, content.answer))
            click.echo(f"\nThe report: {page}")
    return 0
