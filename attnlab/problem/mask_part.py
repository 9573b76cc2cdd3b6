"""One condition of a mask, and the tile of a score matrix that it is asked about.

A part says

* ``visible(place)``: the boolean array of a tile, True where a key is seen, broadcastable to the place;
* ``flag``: the keywords by which a library may be told of it instead of being given the array;
* ``text``: how it is written, in labels, plans and on the command line;
* ``spans``: the stretch of keys that each row keeps, where it keeps one; counting is then arithmetic;
* ``check(shape)``: what a shape that it does not fit has to change.

Positions are counted from the first query and the first key (top-left), unless a part says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.intp]
ALIGNMENTS = ("top_left", "bottom_right")
#: an open side of a window, as it is written
OPEN = -1


class Shape(NamedTuple):
    """The score matrix that a mask lies on."""

    batch: int
    heads: int
    queries: int
    keys: int


class Place(NamedTuple):
    """A tile of a score matrix: some of its rows and columns, for all batches and heads or some of them."""

    shape: Shape
    rows: Positions
    columns: Positions
    batches: slice = slice(None)
    heads: slice = slice(None)

    @classmethod
    def whole(cls, shape: Shape) -> Place:
        """All of it."""
        return cls(shape, np.arange(shape.queries), np.arange(shape.keys))

    def diagonal(self, alignment: str) -> Positions:
        """The key that stands opposite each of the rows, (rows, 1)."""
        offset = self.shape.keys - self.shape.queries if alignment == "bottom_right" else 0
        return np.asarray(self.rows[:, None] + offset)


class Part(ABC):
    """One condition that a pair of query and key must meet to be kept."""

    #: the name in text and of the keyword by which a backend may take it
    kind: ClassVar[str]
    #: keywords by which a backend may take it instead of the array, see `flag`
    keywords: ClassVar[tuple[str, ...]] = ()
    #: by name; filled as classes are defined
    kinds: ClassVar[dict[str, type[Part]]] = {}

    def __init_subclass__(cls) -> None:
        Part.kinds[cls.kind] = cls

    @abstractmethod
    def visible(self, place: Place) -> NDArray[np.bool_]:
        """True where a key is seen; broadcastable to (batches, heads, rows, columns) of `place`."""

    @property
    @abstractmethod
    def text(self) -> str:
        """How it is written: ``kind`` or ``kind(argument,...)``."""

    def flag(self, shape: Shape) -> dict[str, Any]:
        """Keywords by which a library can be told of it, each enough by itself; none: it has to see the array."""
        return {}

    def spans(self, shape: Shape) -> tuple[Positions, Positions] | None:
        """First key seen and first one no more, by (batch, query), for a part that keeps one stretch of keys a row."""
        return None

    def check(self, shape: Shape) -> None:  # noqa: B027 - most kinds fit every shape
        """Raises ValueError where it does not fit `shape`."""

    @classmethod
    def parse(cls, *arguments: str) -> Part:
        """The part that the arguments in its text stand for. Raises ValueError where they stand for none."""
        raise ValueError(f"{cls.kind} has no text to be read from")

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Part | None:
        """One that fits `shape`, drawn at random, for whoever tries many; None where there is none."""
        return None


def broadcastable(name: str, array: NDArray[Any], shape: Shape) -> None:
    """Raises ValueError where `array` cannot be broadcast to (batch, heads, queries, keys)."""
    try:
        fits = np.broadcast_shapes(array.shape, shape) == tuple(shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} must broadcast to (batch, heads, queries, keys) = {tuple(shape)}, got shape {array.shape}"
        )
