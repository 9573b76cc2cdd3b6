"""Which optional library is being imported, and what mends it: noted before, because an import can end its process."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple


class Import(NamedTuple):
    """The module that is imported, and the line that installs it anew."""

    module: str
    mend: str


#: what was begun in this process, the last one last
begun: list[Import] = []
#: told of each before it begins
listeners: list[Callable[[Import], None]] = []
_OURS = ("attnlab", "implementations")


def lacking(fault: BaseException) -> Import | None:
    """Which of those begun does not hold what a file of ours looked for in it: half installed, or another version.

    None where `fault` says something else, or arose in a file of a user's or of a library.
    """
    frame = fault.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    if _package(where) not in _OURS:
        return None
    module = fault.name if isinstance(fault, ImportError) else None
    if isinstance(fault, AttributeError) and isinstance(fault.obj, ModuleType):
        module = fault.obj.__name__
    named = (one for one in reversed(begun) if module and _package(one.module) == _package(module))
    return next(named, None)


def _package(module: str) -> str:
    return module.partition(".")[0]


def begin(module: str, mend: str) -> None:
    """Note that `module` is imported next."""
    begun.append(Import(module, mend))
    for tell in listeners:
        tell(begun[-1])
