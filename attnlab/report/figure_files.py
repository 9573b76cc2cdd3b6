"""A report's figures as files: PNG, and SVG beside it; many in a process of their own, while the caller goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnlab import figures
from attnlab.figures import Drawn
from attnlab.subprocesses import Aside

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Picture(NamedTuple):
    """A figure as PNG, with the SVG beside it: its file, and what it shows in words."""

    file: Path
    says: str


class Writing:
    """Figures on their way into `folder`, from which those of an earlier report are removed.

    aside : they are written while the caller goes on, in a process of their own, and else at once.
    Raises OSError where the folder cannot be written to.
    """

    def __init__(self, drawn: Mapping[str, Drawn], folder: Path, *, aside: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("*.png"), *folder.glob("*.svg")):
            old.unlink()
        self.pictures = {name: Picture(folder / f"{name}.png", one.says) for name, one in drawn.items()}
        every = [(one.figure, self.pictures[name].file) for name, one in drawn.items()]
        self._aside = Aside(_save_all, every) if aside else None
        if self._aside is None:
            _raise(_save_all(every))

    def finish(self) -> None:
        """Wait until all of them are there. Raises OSError where they cannot be written."""
        if self._aside is not None:
            _raise(self._aside.result())


def _save_all(every: Sequence[tuple[Figure, Path]]) -> OSError | None:
    """Save each of them, and return why that could not be done, if so: to raise it is up to who can tell a user."""
    try:
        for figure, file in every:
            figures.save(figure, file)
    except OSError as fault:
        return fault
    return None


def _raise(fault: OSError | None) -> None:
    if fault is not None:
        raise fault
