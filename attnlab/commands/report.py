"""``attnlab report``: make a run's report anew from what is stored."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=click.Path(path_type=Path))
def report(folder: Path) -> int:
    """Write the report of a stored run again, from its results alone."""
    from attnlab.program.store import read_run
    from attnlab.report import verdict_text, write

    found = read_run(folder)
    page = write(found)
    click.echo(verdict_text(found))
    click.echo(f"\nThe report: {page}")
    return 0
