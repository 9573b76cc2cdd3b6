"""What a command is given to read: a run, or a dataset of many."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.program.store import Run


def stored_runs(folder: Path) -> Iterator[Run]:
    """The run in `folder`, or all runs of the dataset there. Raises ValueError where it is neither."""
    from attnlab import dataset
    from attnlab.program.store import read_run

    if dataset.is_dataset(folder):
        yield from dataset.runs(folder)
    else:
        yield read_run(folder)
