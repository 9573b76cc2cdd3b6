"""Which keys a query sees: a `Mask` is the intersection of parts. `mask_kinds` has the kinds of parts.

Masks are compared by value, combined with ``&``, counted, and written as text (``causal & random(0.5,0)``).
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import FieldError
from attnlab.workload.mask_kinds import OPEN, Causal, Given, KeyLengths, Part, Place, Shape, Window, forms
from attnlab.workload.number_formats import held

#: the most elements of a tile, if pairs are counted one by one
_TILE = 1 << 22


class Counts(NamedTuple):
    """What a mask keeps of a score matrix.

    pairs : the number of pairs of a query and a key that it keeps, over all batches and heads. queries : the number of
    queries that see a key in some head, over all batch elements. keys : the number of keys that some query sees in some
    head, over all batch elements.
    """

    pairs: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Mask:
    """The intersection of `parts`; without any, every query sees every key."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, given: Mask | Part | NDArray[np.bool_] | str | None) -> Mask:
        """A mask from a mask, a part, a boolean array, or its text. Raises FieldError for anything else."""
        if isinstance(given, Mask):
            return given
        if given is None or isinstance(given, str):
            return cls.parse(given or "")
        return cls((given if isinstance(given, Part) else Given(held("mask", given)),))

    @classmethod
    def parse(cls, text: str) -> Mask:
        """A mask from text such as ``window(256,0) & random(0.5)``. Raises FieldError for an unknown kind."""
        parts = []
        for one in filter(None, map(str.strip, text.split("&"))):
            match = re.fullmatch(r"(\w+)(?:\((.*)\))?", one)
            kind = Part.kinds.get(match[1]) if match else None
            if match is None or kind in (None, Given):
                known = f"write one or more of {forms()}, joined by &"
                raise FieldError("mask", f"has no kind {match[1] if match else one!r}; {known}")
            parts.append(kind.parse([*filter(None, map(str.strip, (match[2] or "").split(",")))]))
        return cls(tuple(parts))

    def __and__(self, other: Mask) -> Mask:
        return Mask(tuple(dict.fromkeys((*self.parts, *other.parts))))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def text(self) -> str:
        """The text that `parse` reads, but only the kind of a caller's own array. Empty without parts."""
        return " & ".join(part.text for part in self.parts)

    def check(self, shape: Shape) -> None:
        """Raises FieldError if a part does not fit `shape`."""
        for part in self.parts:
            part.check(shape)

    def visible(self, place: Place) -> NDArray[np.bool_] | None:
        """True where a key is seen, broadcastable to the tile `place`; None if all are seen."""
        seen = [part.visible(place) for part in self.parts]
        return functools.reduce(operator.and_, seen) if seen else None

    def array(self, shape: Shape) -> NDArray[np.bool_] | None:
        """`visible` on the whole score matrix."""
        return self.visible(Place.whole(shape))

    def tile(self, shape: Shape, b: int, h: int, rows: slice, columns: slice) -> NDArray[np.bool_]:
        """`visible` for some rows and columns of batch element b and head h, (rows, columns)."""
        at = (np.arange(shape.queries)[rows], np.arange(shape.keys)[columns])
        seen = self.visible(Place(shape, *at, slice(b, b + 1), slice(h, h + 1)))
        return np.broadcast_to(True if seen is None else seen.reshape(seen.shape[-2:]), [*map(len, at)])

    def counts(self, shape: Shape) -> Counts:
        """How much the mask keeps: by arithmetic if each query sees contiguous keys, else by blocks of rows."""
        if not self.parts:
            return Counts(math.prod(shape), shape.batch * shape.queries, shape.batch * shape.keys)
        spans = self._spans(shape)
        if spans is None:
            pairs = 0
            queries, keys = (np.zeros((shape.batch, count), bool) for count in shape[2:])
            for rows, seen in self._row_blocks(shape):
                alike = shape.batch * shape.heads // math.prod(seen.shape[:2])
                pairs += alike * int(np.count_nonzero(seen))
                queries[:, rows] = seen.any(axis=(1, 3))
                keys |= seen.any(axis=(1, 2))
            return Counts(pairs, int(queries.sum()), int(keys.sum()))
        lengths, elements = spans[1] - spans[0], np.arange(shape.batch)[:, None]
        steps = np.zeros((shape.batch, shape.keys + 1), np.int64)
        for at, step in zip(spans, (1, -1), strict=True):
            np.add.at(steps, (elements, at), step)
        covered = np.count_nonzero(np.cumsum(steps, axis=1))
        pairs = int(lengths.sum(dtype=np.int64)) * shape.heads
        return Counts(pairs, int(np.count_nonzero(lengths)), int(covered))

    def empty_rows(self, shape: Shape) -> NDArray[np.bool_] | None:
        """True for the queries that see no key, broadcastable to (batch, heads, queries); None if there are none."""
        spans = self._spans(shape)
        if spans:
            empty = (spans[1] == spans[0])[:, None, :]
        else:
            empty = np.concatenate([~seen.any(axis=-1) for _, seen in self._row_blocks(shape)], axis=2)
        return empty if empty.any() else None

    def _spans(self, shape: Shape) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
        """The first key that a query sees and the one after the last, (batch, queries) each. None if not contiguous.

        They are equal if a query sees no key.
        """
        found = [part.spans(shape) for part in self.parts]
        if None in found:
            return None
        first, end = np.zeros((1, 1), np.intp), np.full((1, 1), shape.keys, np.intp)
        for starts, ends in filter(None, found):
            first, end = np.maximum(first, starts), np.minimum(end, ends)
        end, whole = np.maximum(end, 0), (shape.batch, shape.queries)
        return np.broadcast_to(np.minimum(first, end), whole), np.broadcast_to(end, whole)

    def _row_blocks(self, shape: Shape) -> Iterator[tuple[NDArray[Any], NDArray[np.bool_]]]:
        """Blocks of rows and the keys they see, (1 or batch, 1 or heads, rows, keys): a whole mask may be large."""
        size = max(1, _TILE // (shape.batch * shape.keys))
        for start in range(0, shape.queries, size):
            rows = np.arange(start, min(start + size, shape.queries))
            seen = np.asarray(self.visible(Place(shape, rows, np.arange(shape.keys))))
            yield rows, np.broadcast_to(seen, (*(1, 1, 1, 1, *seen.shape)[-4:-2], rows.size, shape.keys))


#: every query sees every key
EVERYTHING = Mask()


def masked_by(*, causal: bool | str = False, window: Any = None, key_lengths: Any = None) -> Mask:
    """The mask of the three conditions that have their own keywords. Raises FieldError for a malformed one."""
    parts: list[Part] = []
    alignment = "top_left" if causal in (True, False, None) else str(causal)
    if causal not in (False, None):  # NumPy's False and 0 too
        parts.append(Causal(alignment))
    if window is not None:
        try:
            left, right = map(operator.index, window)
        except (TypeError, ValueError):
            wanted = f"two whole numbers, keys before and after, {OPEN} for no limit"
            raise FieldError("window", f"must be {wanted}, got {window!r}") from None
        parts.append(Window(left, right, alignment))
    if key_lengths is not None:
        parts.append(KeyLengths(tuple(held("key_lengths", key_lengths).ravel().tolist())))
    return Mask(tuple(parts))


#: the attribute of a part that is the value of its field of a workload
_HOLDS = {"causal": "alignment", "window": "sides", "key_lengths": "lengths"}


def fields_of(mask: Mask) -> dict[str, Any]:
    """The fields of a workload for `mask`: causal, window and key_lengths hold one part each, mask the rest as text."""
    found: dict[str, Any] = {"causal": False, "window": None, "key_lengths": None}
    further: list[Part] = []
    for part in sorted(mask.parts, key=lambda part: (part.kind != "causal", part.text)):
        along = not isinstance(part, Window) or part.alignment == (found["causal"] or "top_left")
        if along and not found.get(part.kind, True):
            found[part.kind] = getattr(part, _HOLDS[part.kind])
        else:
            further.append(part)
    given = any(part.kind == Given.kind for part in further)
    return {**found, "mask": Given.kind if given else Mask(tuple(further)).text}
