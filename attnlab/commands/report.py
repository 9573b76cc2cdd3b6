"""``attnlab report``: make a run's report anew from what is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from attnlab.program.store import Run


@click.command()
@click.argument("folder", metavar="RUN_DIR|DATASET", type=click.Path(path_type=Path))
def report(folder: Path) -> int:
    """Write the report of a stored run again, from its results alone; of a dataset, one for every run.

    Those of a dataset are written into reports/RUN in its folder.
    """
    from attnlab.report import verdict_text, write

    for found in _stored(folder):
        page = write(found)
        click.echo(verdict_text(found))
        click.echo(f"\nThe report: {page}")
    return 0


def _stored(folder: Path) -> Iterator[Run]:
    from attnlab import dataset
    from attnlab.program.store import read_run

    if not dataset.is_dataset(folder):
        yield read_run(folder)
        return
    for run in dataset.runs(folder):
        run.folder.mkdir(parents=True, exist_ok=True)
        yield run
