"""The conditions that a mask is made of, one class each, and the tile of a score matrix that they are asked about.

Defining a class makes it known to text, plans, the command line and the random questions of the check. A part says

* ``spans``: the stretch of keys that each row keeps, where it keeps one; counting is then arithmetic;
* ``visible(place)``: the boolean array of a tile, True where a key is seen; a part without spans has to say it;
* ``flag``: the keywords by which a library takes it instead of the array;
* ``text``: how it is written, in labels, plans and on the command line;
* ``check(shape)``: what is wrong with a shape that it does not fit.

Positions are counted from the first query and the first key (top-left), unless a part says otherwise.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import FieldError

Positions = NDArray[np.intp]
#: pairs of a mask that are drawn one by one
_MOST_DRAWN = 2**30
#: times that a part is drawn whose kind refuses what was drawn
_DRAWS = 20
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

    def cut(self, array: NDArray[Any]) -> NDArray[Any]:
        """What lies here of an array that can be broadcast to all scores; with as many axes as it has itself."""
        parts: tuple[Any, ...] = (self.batches, self.heads, self.rows, self.columns)
        for axis, at in enumerate(parts, array.ndim - 4):
            if axis >= 0 and array.shape[axis] != 1:
                array = array[(*(slice(None),) * axis, at)]
        return array


class Part:
    """One condition that a pair of query and key must meet to be kept."""

    #: the name in text and of the keyword by which a backend may take it
    kind: ClassVar[str]
    #: keywords by which a backend may take it instead of the array, see `flag`
    keywords: ClassVar[tuple[str, ...]] = ()
    #: by name; filled as classes are defined
    kinds: ClassVar[dict[str, type[Part]]] = {}

    def __init_subclass__(cls) -> None:
        if "kind" in cls.__dict__:
            Part.kinds[cls.kind] = cls

    def spans(self, shape: Shape) -> tuple[Positions, Positions] | None:
        """First key seen and first one no more, by (batch, query), for a part that keeps one stretch of keys a row."""
        return None

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """True where a key is seen; broadcastable to (batches, heads, rows, columns) of `place`."""
        spans = self.spans(place.shape)
        assert spans is not None
        first, end = (place.cut(one[:, None, :, None] if len(one) > 1 else one[0, :, None]) for one in spans)
        return np.asarray((first <= place.columns) & (place.columns < end))

    @property
    def text(self) -> str:
        """Its kind and its fields: ``window(256,0,top_left)``; the kind alone of a caller's array."""
        values = [getattr(self, one.name) for one in fields(self) if one.repr]  # type: ignore[arg-type]
        flat = (one for value in values for one in (value if isinstance(value, tuple) else (value,)))
        return f"{self.kind}({','.join(map(str, flat))})" if values else self.kind

    def flag(self, shape: Shape) -> dict[str, Any]:
        """Keywords by which a library can take it. Each is enough by itself; without any it needs the array."""
        return {}

    def check(self, shape: Shape) -> None:
        """Raises FieldError where it does not fit `shape`."""

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Part:
        """The part that the arguments in its text stand for, each read as the type of its field. Raises FieldError."""
        named = fields(cls)  # type: ignore[arg-type]
        reads = {"int": int, "float": float, "str": str}
        try:
            if named and str(named[0].type).startswith("tuple"):
                return cls(tuple(map(int, arguments)))  # type: ignore[call-arg]
            read = [reads[str(one.type)](text) for one, text in zip(named, arguments, strict=False)]
            return cls(*read, *arguments[len(read) :])
        except FieldError:
            raise
        except (ValueError, TypeError):
            names = ", ".join(one.name for one in named)
            raise FieldError(
                "mask", f"{cls.kind} takes {names}; got {', '.join(arguments) or 'none'}"
            ) from None

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Part | None:
        """One that fits `shape`, each field drawn by its type, again where the kind refuses what was drawn.

        None for a kind with a field of another type, and for one that refuses everything.
        """
        draws: dict[str, Callable[[], Any]] = {
            "int": lambda: int(rng.integers(0, shape.keys + 1)),
            "float": lambda: round(float(rng.uniform(0.1, 0.9)), 3),
            "str": lambda: ALIGNMENTS[int(rng.integers(2))],
            "tuple[int, ...]": lambda: tuple(map(int, rng.integers(0, shape.keys + 1, size=shape.batch))),
        }
        types = [str(one.type) for one in fields(cls)]  # type: ignore[arg-type]
        if not set(types) <= set(draws):
            return None
        for _ in range(_DRAWS):
            with contextlib.suppress(FieldError):
                return cls(*(draws[one]() for one in types))
        return None


class _Band(Part):
    """The keys around a query's own place, from so many before to so many after it; -1 is no limit.

    Its own place is key i (``top_left``) or key i + keys − queries (``bottom_right``).
    """

    alignment: str

    @property
    def sides(self) -> tuple[int, int]:
        """Keys before and after, -1 for no limit."""
        return OPEN, 0

    def __post_init__(self) -> None:
        if self.alignment not in ALIGNMENTS:
            raise FieldError(
                self.kind, f"must be one of {', '.join(ALIGNMENTS)} or false, got {self.alignment!r}"
            )
        if min(self.sides) < OPEN:
            raise FieldError(self.kind, f"must be at least {OPEN} on each side, got {self.sides}")

    def flag(self, shape: Shape) -> dict[str, Any]:
        """The keyword of its alignment; both with as many queries as keys, where they mean the same."""
        square, value = shape.queries == shape.keys, True if isinstance(self, Causal) else self.sides
        both = zip(ALIGNMENTS, self.keywords, strict=True)
        return {keyword: value for side, keyword in both if square or side == self.alignment}

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """Around the diagonal."""
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
    """Query i sees the keys from `left` before to `right` after its own place, both included; -1: no limit there."""

    kind: ClassVar[str] = "window"
    keywords: ClassVar[tuple[str, ...]] = ("window", "window_bottom_right")
    left: int
    right: int
    alignment: str = "top_left"

    @property
    def sides(self) -> tuple[int, int]:
        """Keys before and after, -1 for no limit."""
        return self.left, self.right

    def check(self, shape: Shape) -> None:
        """No side reaches further than there are keys."""
        if max(self.sides) > shape.keys:
            raise FieldError(
                self.kind,
                f"must reach no further than the {shape.keys} keys, got {self.sides}; "
                f"give {OPEN} for no limit on a side",
            )

    @classmethod
    def of(cls, told: Any, alignment: str = "top_left") -> Window:
        """From two whole numbers, of which -1 and None stand for no limit. Raises FieldError for anything else."""
        try:
            left, right = (OPEN if one is None else operator.index(one) for one in told)
        except (TypeError, ValueError):
            wanted = f"two whole numbers, keys before and after, {OPEN} for no limit"
            raise FieldError(cls.kind, f"must be {wanted}, got {told!r}") from None
        return cls(left, right, alignment)

    @classmethod
    def drawn(cls, rng: np.random.Generator, shape: Shape) -> Window:
        """Any that fits, sometimes without a limit on a side."""
        sides = [OPEN if rng.random() < 0.2 else int(rng.integers(0, shape.keys + 1)) for _ in range(2)]
        return cls(sides[0], sides[1], ALIGNMENTS[int(rng.integers(2))])


@dataclass(frozen=True)
class KeyLengths(Part):
    """Of batch element b the first `lengths[b]` keys are there; the rest is padding."""

    kind: ClassVar[str] = "key_lengths"
    keywords: ClassVar[tuple[str, ...]] = ("key_lengths",)
    lengths: tuple[int, ...]

    def flag(self, shape: Shape) -> dict[str, Any]:
        """``key_lengths``, a tuple of int."""
        return {"key_lengths": self.lengths}

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """The keys that are there."""
        lengths = np.asarray(self.lengths, dtype=np.intp)[:, None]
        return np.zeros_like(lengths), lengths

    def check(self, shape: Shape) -> None:
        """One a batch element, none beyond the keys."""
        if len(self.lengths) != shape.batch:
            wrong = (
                f"needs one length a batch element, {shape.batch}, got {len(self.lengths)}: {self.lengths}"
            )
            raise FieldError(self.kind, wrong)
        if not all(type(one) is int and 0 <= one <= shape.keys for one in self.lengths):
            wrong = f"must be whole numbers from 0 to the {shape.keys} keys, got {self.lengths}"
            raise FieldError(self.kind, wrong)


@dataclass(frozen=True)
class Prefix(Part):
    """Causal from the first key, but the first `length` keys are seen by all queries: a prompt read both ways."""

    kind: ClassVar[str] = "prefix"
    length: int

    def spans(self, shape: Shape) -> tuple[Positions, Positions]:
        """From the first key."""
        end = np.clip(np.arange(1, shape.queries + 1)[None], self.length, shape.keys)
        return np.zeros_like(end), end

    def check(self, shape: Shape) -> None:
        """No longer than the keys."""
        if not 0 <= self.length <= shape.keys:
            raise FieldError("mask", f"prefix must have 0 to {shape.keys} keys, got {self.length}")


@dataclass(frozen=True)
class Random(Part):
    """A share of all pairs, drawn from `seed`: a mask that a backend can only take as an array."""

    kind: ClassVar[str] = "random"
    share: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.share <= 1 and self.seed >= 0):
            wrong = f"random takes the share of pairs kept, 0 to 1, and a seed from 0 on, got {self.text}"
            raise FieldError("mask", wrong)

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """One array for all batches and heads."""
        kept = _drawn_pairs(self.share, self.seed, place.shape.queries, place.shape.keys)
        return np.asarray(kept[np.ix_(place.rows, place.columns)])

    def check(self, shape: Shape) -> None:
        """Raises FieldError where its array would take more than some GB."""
        if shape.queries * shape.keys > _MOST_DRAWN:
            raise FieldError(
                "mask",
                f"random is drawn for at most {_MOST_DRAWN:,} pairs of a query and a key, "
                f"got {shape.queries:,} x {shape.keys:,}",
            )


@lru_cache(maxsize=2)
def _drawn_pairs(share: float, seed: int, queries: int, keys: int) -> NDArray[np.bool_]:
    return np.asarray(np.random.default_rng([seed, 5]).random((queries, keys), dtype=np.float32) < share)


@dataclass(frozen=True, eq=False)
class Given(Part):
    """A boolean array of the caller's, broadcastable to (batch, heads, queries, keys); True keeps."""

    kind: ClassVar[str] = "given"
    array: NDArray[np.bool_] = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.array, np.ndarray) or self.array.dtype != np.bool_:
            came = getattr(self.array, "dtype", type(self.array).__name__)
            raise FieldError(
                "mask",
                f"must be a boolean array, True where a key is seen, got {came}; "
                "give numbers that are added to the scores as bias",
            )

    def visible(self, place: Place) -> NDArray[np.bool_]:
        """Its tile, with as many axes as it has itself."""
        return place.cut(self.array)

    def check(self, shape: Shape) -> None:
        """It can be broadcast."""
        broadcastable("mask", self.array, shape)


def forms() -> str:
    """How each kind is written: ``prefix(LENGTH), random(SHARE,SEED), ...``; a caller's own array is not."""
    kinds = sorted(set(Part.kinds.values()) - {Given}, key=lambda one: one.kind)
    return ", ".join(
        f"{one.kind}({','.join(each.name.upper() for each in fields(one))})"  # type: ignore[arg-type]
        for one in kinds
    )


def broadcastable(name: str, array: NDArray[Any], shape: Shape) -> None:
    """Raises FieldError where `array` cannot be broadcast to (batch, heads, queries, keys)."""
    sizes = zip(array.shape[::-1], shape[::-1], strict=False)
    if array.ndim > len(shape) or any(one not in (1, whole) for one, whole in sizes):
        wanted = f"(batch, heads, queries, keys) = {tuple(shape)}"
        raise FieldError(name, f"must broadcast to {wanted}, got shape {array.shape}")


def band(
    n_q: int,
    n_k: int,
    causal: bool = False,
    causal_bottom_right: bool = False,
    window: tuple[int, int] | None = None,
    window_bottom_right: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """(lowest, highest): query i sees key j where lowest ≤ j − i ≤ highest; the keywords are those of backends.

    A side without a limit reaches beyond the last query, -n_q, or the last key, n_k.
    """
    lowest, highest, shift = -n_q, n_k, n_k - n_q
    sides = [((OPEN, 0), own) for asked, own in ((causal, 0), (causal_bottom_right, shift)) if asked]
    sides += [(given, own) for given, own in ((window, 0), (window_bottom_right, shift)) if given]
    for (left, right), own in sides:
        lowest = lowest if left < 0 else max(lowest, own - left)
        highest = highest if right < 0 else min(highest, own + right)
    return lowest, highest
