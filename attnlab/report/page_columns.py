"""Plain data for the page: tables as columns, texts by number, figures of few digits.

A text that repeats (a reason, a kernel) stands once in ``texts`` and is referred to by its place; -1 means none.
Figures stand in two parts, since digits side by side and powers side by side take half the room of written numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from attnlab.text import one_line

T = TypeVar("T")
#: significant digits of a figure: one more than the page and the report ever write
DIGITS = 5


class Texts:
    """Distinct texts, each known by its place in `known`."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self._places: dict[str, int] = {}

    def place(self, text: str | None) -> int:
        """Where the text stands, in one safe line; -1 for None and for an empty one."""
        if text is None:
            return -1
        if text not in self._places:
            shown = one_line(text)
            self._places[text] = self.known.setdefault(shown, len(self.known)) if shown else -1
        return self._places[text]


def parts(value: float | None) -> tuple[str, int | None]:
    """`DIGITS` digits, and the power of ten that they are times; the power is None where there is no such figure.

    That is where it is None, not finite, or negative, which no quantity here can be. Whoever rounds the digits to
    fewer finds what the figure itself rounds to: it is cut off, and where something was and the last digit is 0 or 5,
    that is made one more (decimal.ROUND_05UP, by hand since it takes a fraction of the time).
    """
    if value is None or not 0 <= value < math.inf:
        return "0" * DIGITS, None
    if value == 0:
        return "0" * DIGITS, 0
    text = f"{value:.14e}"  # as many digits as come back unchanged from a float
    digits, rest, power = text[0] + text[2 : DIGITS + 1], text[DIGITS + 1 : 16], int(text[17:])
    if digits[-1] in "05" and rest.strip("0"):
        digits = digits[:-1] + str(int(digits[-1]) + 1)
    return digits, power - DIGITS + 1


def figures(values: Iterable[float | None]) -> dict[str, Any]:
    """A column of figures: ``digits``, those of each in one text, and ``powers``: see `parts`."""
    found = [parts(value) for value in values]
    return {"digits": "".join(digits for digits, _ in found), "powers": [power for _, power in found]}


def columns(items: Iterable[T], shown: Mapping[str, Callable[[T], Any]]) -> dict[str, list[Any]]:
    """A column for each entry of `shown`, with what it makes of each of the `items`."""
    rows = list(items)
    return {name: [of(one) for one in rows] for name, of in shown.items()}


def figure_columns(
    items: Iterable[T], shown: Mapping[str, Callable[[T], float | None]]
) -> dict[str, dict[str, Any]]:
    """The same of figures."""
    rows = list(items)
    return {name: figures(of(one) for one in rows) for name, of in shown.items()}
