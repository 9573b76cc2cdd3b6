"""Which keys a query sees, as a value: masks compare, combine with ``&``, count their pairs and name themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.problem.mask_kinds import Given
from attnlab.problem.mask_part import Part, Place, Positions, Shape

#: elements of the largest tile that is looked at at once, where pairs are counted one by one
_TILE = 1 << 22


@dataclass(frozen=True)
class Mask:
    """The intersection of `parts`; without any, every query sees every key."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, given: Mask | Part | NDArray[np.bool_] | str | None) -> Mask:
        """A mask from a mask, a part, a boolean array, or its text. Raises ValueError for anything else."""
        if given is None:
            return cls()
        if isinstance(given, Mask):
            return given
        if isinstance(given, Part):
            return cls((given,))
        return cls.parse(given) if isinstance(given, str) else cls((Given(np.asarray(given)),))

    @classmethod
    def parse(cls, text: str) -> Mask:
        """From text: parts as ``window(256,0) & random(0.5)``. Raises ValueError for what is none."""
        parts = []
        for one in filter(None, (part.strip() for part in text.split("&"))):
            match = re.fullmatch(r"(\w+)(?:\((.*)\))?", one)
            known = match and Part.kinds.get(match[1])
            if match is None or known is None or known is Given:
                kinds = ", ".join(sorted(set(Part.kinds) - {Given.kind}))
                raise ValueError(f"a mask is written as one or more of {kinds}, joined by &, got {one!r}")
            arguments = [piece.strip() for piece in (match[2] or "").split(",") if piece.strip()]
            try:
                parts.append(known.parse(*arguments))
            except TypeError:
                raise ValueError(f"{match[1]} does not take {len(arguments)} values, got {one!r}") from None
        return cls(tuple(parts))

    def __and__(self, other: Mask) -> Mask:
        return Mask(tuple(dict.fromkeys((*self.parts, *other.parts))))

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def text(self) -> str:
        """What `parse` reads, but for a given array; empty without parts."""
        return " & ".join(part.text for part in self.parts)

    def check(self, shape: Shape) -> None:
        """Raises ValueError, in one line, where a part does not fit `shape`."""
        for part in self.parts:
            part.check(shape)

    def visible(self, place: Place) -> NDArray[np.bool_] | None:
        """True where a key is seen, broadcastable to the place's tile; None where all are."""
        found: NDArray[np.bool_] | None = None
        for part in self.parts:
            seen = part.visible(place)
            found = seen if found is None else found & seen
        return found

    def array(self, shape: Shape) -> NDArray[np.bool_] | None:
        """`visible` on the whole score matrix."""
        return self.visible(Place.whole(shape))

    def tile(
        self, shape: Shape, batch: int, head: int, rows: slice, columns: slice
    ) -> NDArray[np.bool_] | None:
        """`visible` of some rows and columns of one head, (rows, columns); None where all are seen."""
        at = (np.arange(shape.queries)[rows], np.arange(shape.keys)[columns])
        place = Place(shape, *at, slice(batch, batch + 1), slice(head, head + 1))
        seen = self.visible(place)
        if seen is None:
            return None
        return np.broadcast_to(seen.reshape(seen.shape[-2:]), (at[0].size, at[1].size))

    def pairs(self, shape: Shape) -> int:
        """How many pairs of query and key are kept, over all batches and heads; exactly."""
        lengths = self._lengths(shape)
        if lengths is not None:
            return (
                int(np.broadcast_to(lengths, (shape.batch, shape.queries)).sum(dtype=np.int64)) * shape.heads
            )
        return sum(
            int(np.count_nonzero(seen)) * (shape.batch * shape.heads * rows.size * shape.keys // seen.size)
            for rows, seen in self._row_blocks(shape)
        )

    def kept_by_some(self, shape: Shape) -> int:
        """Pairs of query and key that some batch element and head keeps."""
        spans = self._spans(shape)
        if (
            spans is not None
        ):  # what differs between batch elements is where the keys end, never where they begin
            first, end = (np.broadcast_to(one, (shape.batch, shape.queries)) for one in spans)
            return int(np.maximum(end.max(axis=0) - first.min(axis=0), 0).sum())
        return sum(
            int(np.count_nonzero(seen.any(axis=tuple(range(seen.ndim - 2)))))
            for _, seen in self._row_blocks(shape)
        )

    def empty_rows(self, shape: Shape) -> NDArray[np.bool_] | None:
        """True for the queries that see no key, broadcastable to (batch, heads, queries); None where all see one."""
        lengths = self._lengths(shape)
        if lengths is not None:
            empty = np.asarray(lengths == 0)[:, None, :]
        else:
            found = []
            for rows, seen in self._row_blocks(shape):
                none = ~seen.reshape((1,) * (4 - seen.ndim) + seen.shape).any(axis=-1)
                found.append(np.broadcast_to(none, (*none.shape[:2], rows.size)))
            empty = np.concatenate(found, axis=2)
        return empty if empty.any() else None

    def used(self, shape: Shape) -> tuple[int, int]:
        """Queries that see a key and keys that some query sees, over all batch elements, by whichever head."""
        spans = self._spans(shape)
        if spans is None:
            queries = np.zeros((shape.batch, shape.queries), bool)
            keys = np.zeros((shape.batch, shape.keys), bool)
            for rows, seen in self._row_blocks(shape):
                tile = np.any(seen.reshape((1,) * (4 - seen.ndim) + seen.shape), axis=1)
                queries[:, rows] = tile.any(axis=-1)
                keys |= tile.any(axis=-2)
            return int(queries.sum()), int(keys.sum())
        first, end = (np.broadcast_to(one, (shape.batch, shape.queries)) for one in spans)
        seeing = end > first
        starts, ends = np.zeros((2, shape.batch, shape.keys + 1), np.int64)
        element = np.broadcast_to(np.arange(shape.batch)[:, None], seeing.shape)[seeing]
        np.add.at(starts, (element, first[seeing]), 1)
        np.add.at(ends, (element, end[seeing]), 1)
        covered = np.cumsum(starts - ends, axis=1)[:, : shape.keys] > 0
        return int(seeing.sum()), int(covered.sum())

    def _lengths(self, shape: Shape) -> Positions | None:
        """Keys seen, broadcastable to (batch, queries), where every part keeps one stretch of them a row."""
        spans = self._spans(shape)
        return None if spans is None else np.asarray(np.maximum(spans[1] - spans[0], 0))

    def _spans(self, shape: Shape) -> tuple[Positions, Positions] | None:
        """The stretch of keys that each query sees, broadcastable to (batch, queries), where it is one."""
        first = np.zeros((1, 1), np.intp)
        end = np.full((1, 1), shape.keys, np.intp)
        for part in self.parts:
            span = part.spans(shape)
            if span is None:
                return None
            first, end = np.maximum(first, span[0]), np.minimum(end, span[1])
        return first, end

    def _row_blocks(self, shape: Shape) -> Iterator[tuple[Positions, NDArray[np.bool_]]]:
        """Blocks of rows, and which keys they see, (..., rows, keys)."""
        size = max(1, _TILE // (shape.batch * shape.keys))
        for start in range(0, shape.queries, size):
            rows = np.arange(start, min(start + size, shape.queries))
            seen = self.visible(Place(shape, rows, np.arange(shape.keys)))
            assert seen is not None, "a mask without parts has a length of its rows"
            lead = (1,) * (2 - seen.ndim)
            full = np.broadcast_shapes(seen.reshape(lead + seen.shape).shape, (rows.size, shape.keys))
            yield rows, np.broadcast_to(seen, full)


#: every query sees every key
EVERYTHING = Mask()
