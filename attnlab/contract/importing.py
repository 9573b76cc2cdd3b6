"""Which optional library is being imported, and what mends it: noted before, because an import can end its process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Import(NamedTuple):
    """The module that is imported, and the line that installs it anew."""

    module: str
    mend: str


#: what was begun in this process, the last one last
begun: list[Import] = []
#: told of each before it begins
listeners: list[Callable[[Import], None]] = []


def begin(module: str, mend: str) -> None:
    """Note that `module` is imported next."""
    begun.append(Import(module, mend))
    for tell in listeners:
        tell(begun[-1])
