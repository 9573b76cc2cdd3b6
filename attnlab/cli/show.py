"""``attnlab show``: the verdict and the table of a stored run again."""

from __future__ import annotations

from pathlib import Path

import click

from attnlab.system import without_garbage_collection


@click.command()
@click.argument("folder", metavar="RUN_DIR", type=click.Path(path_type=Path))
@without_garbage_collection(last=True)
def show(folder: Path) -> int:
    """Print the table and the verdict of a stored run, as `attnlab run` did at its end. Writes nothing.

    Of a run that was interrupted, what there is.
    """
    from attnlab.cli.standings import show_run
    from attnlab.runs.store import read_run

    show_run(read_run(folder))
    return 0
