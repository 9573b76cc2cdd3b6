"""What a command is given to read: a run, or a dataset of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from attnlab.runs.store import Run


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
    from attnlab.text import one_line

    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        first = one_line(str(files[0]))
        click.echo(f"attnlab: passed over, not a file of attnlab's, or damaged: {first}{more}", err=True)
