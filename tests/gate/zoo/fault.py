"""One faulty attention as data: how to make it, in which dtypes it is a fault, and why not in the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .parts import Array

Attend = Callable[..., Array]
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Fault:
    """`make` gives a fresh instance for a dtype, so that one with memory starts empty.

    harmless : by dtype, the arithmetic that makes it no fault there, or one that no test at that precision sees.
    """

    name: str
    make: Callable[[str], Attend]
    harmless: tuple[tuple[str, str], ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Where it must be caught."""
        excused = dict(self.harmless)
        return tuple(dtype for dtype in DTYPES if dtype not in excused)


def only_in(*dtypes: str, because: str) -> tuple[tuple[str, str], ...]:
    """The excuse for all other dtypes."""
    return tuple((dtype, because) for dtype in DTYPES if dtype not in dtypes)
