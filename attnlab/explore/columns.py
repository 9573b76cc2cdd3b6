"""Plain data for the page: tables as columns, texts by number, figures of few digits.

A text that repeats (a reason, a kernel) stands once in ``texts`` and is referred to by its place; -1 means none. A
figure that does not exist is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from attnlab.contract.text import one_line

T = TypeVar("T")
#: significant digits of a figure: enough that it reads as in the report, which writes three, whichever way it is cut
DIGITS = 6


class Texts:
    """Distinct texts, each known by its place in `known`."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def place(self, text: object) -> int:
        """Where the text stands, in one safe line; -1 for None and for an empty one."""
        shown = "" if text is None else one_line(str(text))
        return self.known.setdefault(shown, len(self.known)) if shown else -1


def figure(value: float | None) -> float | int | None:
    """`value` to `DIGITS` significant digits; None where it is none or not finite."""
    if value is None or not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS - 1}e}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded


def columns(items: Iterable[T], shown: Mapping[str, Callable[[T], Any]]) -> dict[str, list[Any]]:
    """A column for each entry of `shown`, with what it makes of each of the `items`."""
    rows = list(items)
    return {name: [of(one) for one in rows] for name, of in shown.items()}
