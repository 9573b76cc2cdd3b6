"""The kinds of masks, one class each: causal, window, key_lengths, prefix, random, and a caller's own array.

When a class is defined, plan files, the command line, labels and the random questions of the check know its kind. A
part of a mask has

* ``spans``: the first and the last key that each query sees, if these are contiguous: counting is then arithmetic;
* ``visible(place)``: the boolean array of a tile, True where a key is seen. A part without spans must define it;
* ``flag``: the keyword arguments by which a library can take it instead of an array;
* ``text``: how it is written in labels, plans and on the command line;
* ``check(shape)``: raises FieldError for a shape that it does not fit.

Positions count from the first query and the first key (top-left), unless a part says otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnlab.errors import FieldError

Positions = NDArray[np.intp]
#: the most pairs of a mask whose pairs are drawn one by one
_MOST_DRAWN = 2**30
#: the most attempts to draw a part: its kind may refuse the numbers that were drawn
_DRAWS = 20
ALIGNMENTS = ("top_left", "bottom_right")
#: how a window side without a limit is written
OPEN = -1


class Shape(NamedTuple):
    """The shape of the score matrix to which a mask applies."""

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
        """The whole score matrix."""
        return cls(shape, np.arange(shape.queries), np.arange(shape.keys))

    def diagonal(self, alignment: str) -> Positions:
        """The key on the diagonal of each row, (rows, 1)."""
        offset = self.shape.keys - self.shape.queries if alignment == "bottom_right" else 0
        return np.asarray(self.rows[:, None] + offset)

    def cut(self, array: NDArray[Any]) -> NDArray[Any]:
        """The tile of an array that broadcasts to all scores. It keeps the number of axes of the array."""
        parts: tuple[Any, ...] = (self.batches, self.heads, self.rows, self.columns)
        for axis, at in enumerate(parts, array.ndim - 4):
            if axis >= 0 and array.shape[axis] != 1:
                array = array[(*(slice(None),) * axis, at)]
        return array


@dataclass(frozen=True, eq=False)  # else all `Given` would be equal, and a mask would lose some
class Part:
    """One condition that a pair of query and key must meet to be kept."""

    #: the name in the text of a mask; also that of its field of a workload, if it has one
    kind: ClassVar[str]
    #: the keyword arguments by which a backend may take it instead of the array, see `flag`
    keywords: ClassVar[tuple[str, ...]] = ()
    #: all kinds by name; every class adds itself when it is defined
    kinds: ClassVar[dict[str, type[Part]]] = {}

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            Part.kinds[cls.kind] = cls

    def spans(self, shape: Shape) -> tuple[Positions, Positions] | None:
        """The first key that a query sees and the one after the last, by (batch, query). None if not contiguous."""
        return None

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """True where a key is seen; broadcastable to (batches, heads, rows, columns) of `place`."""
        spans = self.spans(place.shape)
        assert spans is not None
        first, end = (place.cut(one[:, None, :, None] if len(one) > 1 else one[0, :, None]) for one in spans)
        return np.asarray((first <= place.columns) & (place.columns < end))

    @property
    def text(self) -> str:
        """Its kind and its fields: ``window(256,0,top_left)``; for a caller's array only the kind."""
        values = [getattr(self, one.name) for one in fields(self) if one.repr]
        flat = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
        return f"{self.kind}({','.join(map(str, flat))})" if values else self.kind

    def flag(self, shape: Shape) -> dict[str, Any]:
        """Keyword arguments by which a library can take it; one is enough. If there are none, it needs the array."""
        return {}

    def check(self, shape: Shape) -> None:
        """Raises FieldError if it does not fit `shape`."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Part:
        """The part with these arguments, as its text has them. Raises FieldError."""
        kinds = {one.name: str(one.type) for one in fields(cls)}
        given = [arguments] if [*kinds.values()] == ["tuple[int, ...]"] else arguments
        try:
            if len(given) > len(kinds):
                raise ValueError(f"these are {len(given)}")
            return msgspec.convert(dict(zip(kinds, given, strict=False)), cls, strict=False)
        except ValueError as fault:
            got = f"got {', '.join(arguments) or 'none'}: {fault}"
            raise FieldError("mask", f"{cls.kind} takes {', '.join(kinds)}; {got}") from None

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Part | None:
        """A random part that fits `shape`. Each field is drawn by its type, and again if the kind refuses the numbers.

        None for a kind with a field of another type, and for a kind that refuses all attempts.
        """
        draws: dict[str, Callable[[], Any]] = {
            "int": lambda: int(rng.integers(0, shape.keys + 1)),
            "float": lambda: round(float(rng.uniform(0.1, 0.9)), 3),
            "str": lambda: ALIGNMENTS[int(rng.integers(2))],
            "tuple[int, ...]": lambda: tuple(map(int, rng.integers(0, shape.keys + 1, size=shape.batch))),
        }
        types = [str(one.type) for one in fields(cls)]
        if not set(types) <= set(draws):
            return None
        for _ in range(_DRAWS):
            with contextlib.suppress(FieldError):
                return cls(*(draws[one]() for one in types))
        return None


class _Band(Part):
    """The keys around a query's own position. `sides` is their number before and after it, -1 for no limit.

    The own position of query i is key i (``top_left``) or key i + keys − queries (``bottom_right``).
    """

    alignment: str
    sides: ClassVar[tuple[int, int]] = (OPEN, 0)

    def __post_init__(self) -> None:
        if self.alignment not in ALIGNMENTS:
            raise FieldError(self.kind, f"must be {', '.join(ALIGNMENTS)} or false, got {self.alignment!r}")
        if min(self.sides) < OPEN:
            raise FieldError(self.kind, f"must be at least {OPEN} on each side, got {self.sides}")

    def flag(self, shape: Shape) -> dict[str, Any]:
        """The keyword of its alignment. Both keywords if there are as many queries as keys: they then mean the same."""
        square, value = shape.queries == shape.keys, True if isinstance(self, Causal) else self.sides
        both = zip(ALIGNMENTS, self.keywords, strict=True)
        return {keyword: value for side, keyword in both if square or side == self.alignment}

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """The keys around the diagonal."""
        own, (left, right) = Place.whole(shape).diagonal(self.alignment).T, self.sides
        first = np.zeros_like(own) if left < 0 else own - left
        return first, np.full_like(own, shape.keys) if right < 0 else own + right + 1


@dataclass(frozen=True)
class Causal(_Band):
    """Query i sees keys up to i (``top_left``) or up to i + keys − queries (``bottom_right``)."""

    kind: ClassVar[str] = "causal"
    keywords: ClassVar[tuple[str, ...]] = ("causal", "causal_bottom_right")
    alignment: str = "top_left"


@dataclass(frozen=True)
class Window(_Band):
    """Query i sees the keys from `left` before its own position to `right` after it, both included; -1 for no limit."""

    kind: ClassVar[str] = "window"
    keywords: ClassVar[tuple[str, ...]] = ("window", "window_bottom_right")
    left: int
    right: int
    alignment: str = "top_left"

    @property
    def sides(self) -> tuple[int, int]:  # type: ignore[override]
        """Keys before and after, -1 for no limit."""
        return self.left, self.right

    def check(self, shape: Shape) -> None:
        """Raises FieldError if a side is longer than the number of keys."""
        if max(self.sides) > shape.keys:
            most = f"must reach no further than the {shape.keys} keys, got {self.sides}"
            raise FieldError(self.kind, f"{most}; give {OPEN} for no limit on a side")

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Window:
        """A random window that fits `shape`, sometimes without a limit on a side."""
        sides = [OPEN if rng.random() < 0.2 else int(rng.integers(0, shape.keys + 1)) for _ in range(2)]
        return cls(sides[0], sides[1], ALIGNMENTS[int(rng.integers(2))])


@dataclass(frozen=True)
class KeyLengths(Part):
    """The first `lengths[b]` keys of batch element b are real; the rest is padding."""

    kind: ClassVar[str] = "key_lengths"
    keywords: ClassVar[tuple[str, ...]] = ("key_lengths",)
    lengths: tuple[int, ...]

    def flag(self, shape: Shape) -> dict[str, Any]:
        """``key_lengths``, a tuple of int."""
        return {"key_lengths": self.lengths}

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """From the first key to the length of the batch element."""
        lengths = np.asarray(self.lengths, dtype=np.intp)[:, None]
        return np.zeros_like(lengths), lengths

    def check(self, shape: Shape) -> None:
        """Raises FieldError unless each batch element has one length, which is at most the number of keys."""
        right = all(type(one) is int and 0 <= one <= shape.keys for one in self.lengths)
        if not right or len(self.lengths) != shape.batch:
            wanted = f"must be a whole number from 0 to {shape.keys} for each of {shape.batch} batch elements"
            raise FieldError(self.kind, f"{wanted}, got {self.lengths}")


@dataclass(frozen=True)
class Prefix(Part):
    """Causal (top-left), but every query sees the first `length` keys: a prompt that is read in both directions."""

    kind: ClassVar[str] = "prefix"
    length: int

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """The keys from the first one."""
        end = np.clip(np.arange(1, shape.queries + 1)[None], self.length, shape.keys)
        return np.zeros_like(end), end

    def check(self, shape: Shape) -> None:
        """Raises FieldError if the prefix is longer than the keys."""
        if not 0 <= self.length <= shape.keys:
            raise FieldError("mask", f"prefix must have 0 to {shape.keys} keys, got {self.length}")


@dataclass(frozen=True)
class Random(Part):
    """A random share of all pairs, drawn from `seed`: a mask that a backend can only take as an array."""

    kind: ClassVar[str] = "random"
    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.seed >= 0):
            wrong = f"random takes the share of pairs kept, 0 to 1, and a seed from 0 on, got {self.text}"
            raise FieldError("mask", wrong)

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """One array for all batches and heads."""
        kept = _drawn_pairs(self.share, self.seed, *place.shape[2:])
        return np.asarray(kept[np.ix_(place.rows, place.columns)])

    def check(self, shape: Shape) -> None:
        """Raises FieldError if its array would take more than a few GB."""
        if shape.queries * shape.keys > _MOST_DRAWN:
            most = f"random is drawn for at most {_MOST_DRAWN:,} pairs of a query and a key"
            raise FieldError("mask", f"{most}, got {shape.queries:,} x {shape.keys:,}")


@lru_cache(maxsize=2)
def _drawn_pairs(share: float, seed: int, queries: int, keys: int) -> NDArray[np.bool_]:
    return np.asarray(np.random.default_rng([seed, 5]).random((queries, keys), dtype=np.float32) < share)


@dataclass(frozen=True, eq=False)
class Given(Part):
    """A caller's own boolean array, broadcastable to (batch, heads, queries, keys); True keeps."""

    kind: ClassVar[str] = "given"
    array: NDArray[np.bool_] = field(repr=False)

    def __post_init__(self) -> None:
        if self.array.dtype != np.bool_:
            wanted = f"must be a boolean array, True where a key is seen, got {self.array.dtype}"
            raise FieldError("mask", f"{wanted}; give numbers that are added to the scores as bias")

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """Its tile, with as many axes as the array."""
        return place.cut(self.array)

    def check(self, shape: Shape) -> None:
        """Raises FieldError if it does not broadcast to the scores."""
        broadcastable("mask", self.array, shape)


def forms() -> str:
    """How each kind is written: ``prefix(LENGTH), random(SHARE,SEED), ...``; a caller's array has no text."""
    told = {kind: ",".join(each.name.upper() for each in fields(one)) for kind, one in Part.kinds.items()}
    return ", ".join(f"{kind}({told[kind]})" for kind in sorted(told) if kind != Given.kind)


def broadcastable(name: str, array: NDArray[Any], shape: Shape) -> None:
    """Raises FieldError if `array` cannot be broadcast to (batch, heads, queries, keys)."""
    sizes = zip(array.shape[::-1], shape[::-1], strict=False)
    if array.ndim > len(shape) or any(one not in (1, whole) for one, whole in sizes):
        wanted = f"(batch, heads, queries, keys) = {tuple(shape)}"
        raise FieldError(name, f"must broadcast to {wanted}, got shape {array.shape}")


def band(n_q: int, n_k: int, *asked: Any) -> tuple[int, int]:
    """(lowest, highest): query i sees key j if lowest ≤ j − i ≤ highest.

    asked : the values of ``causal``, ``causal_bottom_right``, ``window`` and ``window_bottom_right``, as a backend gets
    them. A side without a limit is -n_q or n_k, beyond every pair.
    """
    lowest, highest = -n_q, n_k
    for given, own in zip(asked, (0, n_k - n_q) * 2, strict=True):
        if given:
            left, right = (OPEN, 0) if given is True else given
            lowest = lowest if left < 0 else max(lowest, own - left)
            highest = highest if right < 0 else min(highest, own + right)
    return lowest, highest
