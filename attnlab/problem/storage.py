"""How keys and values lie between calls, and what a call does before it can attend: each way is one class.

A storage is laid down once, outside the clock; `read` is on it. Whatever is read is key and value of the same question,
so that answer, reference and budgets are those of contiguous arrays. A backend that reads them as they lie names the
storage's keyword (`page_table`, `row_offsets`): nothing is gathered for it.

Adding one: a class here. It is then a value of `Workload.storage`, and a condition of every table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from attnlab.backends.library import Library
    from attnlab.problem.workload import Workload

Array = NDArray[Any]
CONTIGUOUS = "contiguous"
#: keys of a page
PAGE = 16
#: a preallocated cache has room for so many times the keys that are in it
ROOM = 2
#: random stream of a workload's seed by which pages are shuffled; see `attnlab.problem.inputs` for the others
_SHUFFLE = 9

#: what a library must do for a storage, and what is said where it does not
_WITHOUT = {
    "concatenate": "does not concatenate arrays",
    "write": "does not write into an array where it lies",
    "taking": "does not take rows by their numbers",
}


class Storage(ABC):
    """Keys and values of one workload, laid down in a library.

    Made from key and value in NumPy, (batch, kv_heads, keys, dim), values of the workload's dtype.
    """

    name: ClassVar[str]
    #: what a reader calls it
    words: ClassVar[str]
    #: the methods of the library that it needs
    needs: ClassVar[tuple[str, ...]]
    #: keys and values are held so many times during a call, the arrays that are read included
    copies: ClassVar[int] = 2
    #: the keyword by which a backend says that it reads them as they lie
    keyword: ClassVar[str | None] = None
    #: by name; filled as classes are defined
    kinds: ClassVar[dict[str, type[Storage]]] = {}

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            Storage.kinds[cls.name] = cls

    @abstractmethod
    def __init__(self, library: Library, workload: Workload, key: Array, value: Array) -> None:
        """Lay them down; nothing of this is on the clock."""

    @abstractmethod
    def read(self) -> tuple[Any, Any]:
        """Key and value, (batch, kv_heads, keys, dim) to the eye: what every call pays for."""

    @property
    def lying(self) -> tuple[Any, Any]:
        """Key and value as they lie, for a backend that names the `keyword`."""
        raise NotImplementedError(f"{self.name} has no keyword")

    @property
    def told(self) -> Any:
        """What that backend is given by the `keyword`."""
        raise NotImplementedError(f"{self.name} has no keyword")


class _Cache(Storage):
    """One stretch of keys a head, to which each call adds those of its own tokens: as many as there are queries.

    They lie as the workload's `layout` says.
    """

    def __init__(self, library: Library, workload: Workload, key: Array, value: Array) -> None:
        self._library, self._keys = library, workload.keys
        self._known = workload.keys - min(workload.queries, workload.keys)
        self._axis = 2 if workload.layout == "bhsd" else 1
        arrays = [self._turned(one) for one in (key, value)]
        new = self._at(self._known, self._keys)
        self._held = [library.from_numpy(self._before(one), workload.dtype) for one in arrays]
        self._new = [library.from_numpy(np.array(one[new], order="C"), workload.dtype) for one in arrays]

    def read(self) -> tuple[Any, Any]:
        key, value = (self._turned(self._after(*one)) for one in zip(self._held, self._new, strict=True))
        return key, value

    def _turned(self, array: Any) -> Any:
        """From how it is to the eye to how it lies, and back."""
        return array if self._axis == 2 else array.swapaxes(1, 2)

    def _at(self, start: int, stop: int) -> tuple[slice, ...]:
        """These positions, of arrays as they lie."""
        return (*(slice(None),) * self._axis, slice(start, stop))

    @abstractmethod
    def _before(self, array: Array) -> Array:
        """What is there before the call."""

    @abstractmethod
    def _after(self, held: Any, new: Any) -> Any:
        """All keys, once the call has added its own."""


class Preallocated(_Cache):
    """A cache with room for more: new rows are written where they belong, and a slice is attended over.

    What lies beyond, and where the new rows will lie, is NaN until it is written: reading it shows.
    """

    name = "preallocated"
    words = "preallocated cache"
    needs = ("write",)
    copies = ROOM

    def _before(self, array: Array) -> Array:
        shape = list(array.shape)
        shape[self._axis] *= ROOM
        room = np.full(shape, np.nan, dtype=array.dtype)
        room[self._at(0, self._known)] = array[self._at(0, self._known)]
        return room

    def _after(self, held: Any, new: Any) -> Any:
        self._library.write(held, self._at(self._known, self._keys), new)
        return held[self._at(0, self._keys)]


class Grown(_Cache):
    """A cache that is as long as it must be: new rows are concatenated to it, which copies all."""

    name = "grown"
    words = "grown cache"
    needs = ("concatenate",)

    def _before(self, array: Array) -> Array:
        return np.array(array[self._at(0, self._known)], order="C")

    def _after(self, held: Any, new: Any) -> Any:
        return self._library.concatenate((held, new), self._axis)


class _Gathered(Storage):
    """Rows that lie elsewhere than in their order, and are taken by number."""

    needs = ("taking",)

    def __init__(self, library: Library, workload: Workload, key: Array, value: Array) -> None:
        self._library, self._keys = library, workload.keys
        self._lengths = np.array(workload.key_lengths or (workload.keys,) * workload.batch)
        places = self._placed(workload)
        self._take = library.taking(places)
        self._numbers = self._counted(places)
        self._held = [
            library.from_numpy(self._laid(one.swapaxes(1, 2), places), workload.dtype) for one in (key, value)
        ]

    def read(self) -> tuple[Any, Any]:
        key, value = (self._in_order(self._take(one)) for one in self._held)
        return key, value

    @property
    def lying(self) -> tuple[Any, Any]:
        return self._held[0], self._held[1]

    @property
    def told(self) -> Any:
        return self._library.numbers(self._numbers)

    @abstractmethod
    def _placed(self, workload: Workload) -> NDArray[np.int64]:
        """The numbers of what is taken, (batch, ...), in order."""

    @abstractmethod
    def _counted(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """What a backend needs to know to read it as it lies."""

    @abstractmethod
    def _laid(self, array: Array, places: NDArray[np.int64]) -> Array:
        """`array`, (batch, keys, kv_heads, dim), as it lies."""

    def _in_order(self, taken: Any) -> Any:
        return taken.swapaxes(1, 2)


class Packed(_Gathered):
    """A jagged batch: the keys of all batch elements one after the other, without padding, (rows, kv_heads, dim).

    Element b has the rows from `row_offsets[b]` up to `row_offsets[b + 1]`. One row of zeros comes after all: padding
    is read from there. As `flash_attn_varlen_func` of FlashAttention's package takes it.
    """

    name = "packed"
    words = "packed batch"
    keyword = "row_offsets"

    def _placed(self, workload: Workload) -> NDArray[np.int64]:
        at, ends = np.arange(self._keys), np.cumsum(self._lengths)
        there = at < self._lengths[:, None]
        return np.asarray(np.where(there, (ends - self._lengths)[:, None] + at, ends[-1]), np.int64)

    def _counted(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self._lengths)])

    def _laid(self, array: Array, places: NDArray[np.int64]) -> Array:
        rows = [one[:length] for one, length in zip(array, self._lengths, strict=True)]
        return np.concatenate([*rows, np.zeros((1, *array.shape[2:]), array.dtype)])


class Paged(_Gathered):
    """Pages of `PAGE` keys, (pages, PAGE, kv_heads, dim), in any order in a pool that all batch elements share.

    Element b has the pages `page_table[b]`, (batch, pages of the longest); one page of zeros stands where it has none.
    What a page has beyond its element's keys is 0. As in PagedAttention (Kwon et al. 2023, section 4.1), in the order
    of axes that FlashInfer calls NHD.
    """

    name = "paged"
    words = "paged cache"
    keyword = "page_table"

    def _placed(self, workload: Workload) -> NDArray[np.int64]:
        counts = -(-self._lengths // PAGE)
        most, total = -(-self._keys // PAGE), int(counts.sum())
        order = np.random.default_rng([workload.seed, _SHUFFLE]).permutation(total + 1)
        table = np.full((workload.batch, most), order[total])
        table[np.arange(most) < counts[:, None]] = order[:total]
        return table

    def _counted(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        return places

    def _laid(self, array: Array, places: NDArray[np.int64]) -> Array:
        batch, most = places.shape
        there = np.arange(most * PAGE) < self._lengths[:, None]
        whole = np.zeros((batch, most * PAGE, *array.shape[2:]), array.dtype)
        whole[there] = array[there[:, : self._keys]]
        used = np.arange(most) * PAGE < self._lengths[:, None]
        pool = np.zeros((int(used.sum()) + 1, PAGE, *array.shape[2:]), array.dtype)
        pool[places[used]] = whole.reshape(batch, most, *pool.shape[1:])[used]
        return pool

    def _in_order(self, taken: Any) -> Any:
        batch, most = taken.shape[:2]
        return taken.reshape(batch, most * PAGE, *taken.shape[3:])[:, : self._keys].swapaxes(1, 2)


#: every way, the plain one first
STORAGES = (CONTIGUOUS, *Storage.kinds)


def keywords() -> frozenset[str]:
    """The keywords by which backends say that they read a storage as it lies."""
    return frozenset(kind.keyword for kind in Storage.kinds.values() if kind.keyword)


def not_stored(workload: Workload, library: Library) -> str | None:
    """Why `library` cannot store the keys and values of `workload` as it says, or None."""
    if workload.storage == CONTIGUOUS:
        return None
    if workload.backward:
        return f"gradients are computed on contiguous keys and values only, not {workload.storage}"
    for need in Storage.kinds[workload.storage].needs:
        if not hasattr(library, need):
            return f"storage {workload.storage}: attnlab's {library.name} library {_WITHOUT[need]}"
    return None
