"""How keys and values lie between calls, and what a call does before it can attend: each way is one function.

Keys and values are laid down once, outside the clock; `Stored.read` is on it. Whatever is read is key and value of the
same question, so that answer, reference and budgets are those of contiguous arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Refusal
from attnlab.libraries.library import Arrays, Library
from attnlab.workload.workload import CONTIGUOUS, Workload

Array = NDArray[Any]
#: keys of a page
PAGE = 16
#: a preallocated cache has room for so many times the keys that are in it
ROOM = 2
#: random stream of a workload's seed by which pages are shuffled; see `attnlab.workload.drawing` for the others
_SHUFFLE = 9


class Stored(NamedTuple):
    """Keys and values of one workload, laid down in a library.

    read : returns key and value, (batch, kv_heads, keys, dim) to the eye: what every call pays for. arrays : those that
    hold the keys, and those that hold the values; laid : makes such of either in NumPy.
    """

    read: Callable[[], tuple[Any, Any]]
    arrays: Sequence[Arrays]
    laid: Callable[[Array], Arrays]


class Storage(NamedTuple):
    """One way to store keys and values.

    lay : from library, workload, key and value in NumPy, (batch, kv_heads, keys, dim), to what is stored; nothing of
    this is on the clock. needs : what of the library it needs, and what a library does not do that lacks it.
    """

    lay: Callable[[Library, Workload, Array, Array], Stored]
    needs: tuple[str, str]


def not_stored(workload: Workload, library: Library) -> Refusal | None:
    """Why `library` cannot store the keys and values of `workload` as it says, or None."""
    if workload.storage == CONTIGUOUS:
        return None
    if workload.backward:
        reason = f"gradients are computed on contiguous keys and values only, not {workload.storage}"
        return Refusal("storage", reason)
    need, lacks = STORED[workload.storage].needs
    reason = f"attnlab's {library.name} library does not {lacks}"
    return None if getattr(library, need, False) else Refusal("storage", reason)


def _cache(library: Library, workload: Workload, *of_keys: Array, grown: bool) -> Stored:
    """One stretch of keys a head, to which each call adds those of its own tokens: as many as there are queries.

    They lie as the workload's `layout` says. Preallocated, there is room for more: new rows are written where they
    belong, and a slice is attended over; what lies beyond, and where the new rows will lie, is NaN until it is
    written, so that reading it shows. Grown, it is as long as it must be: new rows are concatenated to it, which
    copies all.
    """
    keys, axis = workload.keys, 2 if workload.layout == "bhsd" else 1
    known, room = keys - min(workload.queries, keys), keys if grown else ROOM * keys
    old, fresh, every = (
        (slice(None),) * axis + (slice(*at),) for at in ((0, known), (known, keys), (0, keys))
    )

    def turned(array: Any) -> Any:  # from how it is to the eye to how it lies, and back
        return array if axis == 2 else array.swapaxes(1, 2)

    def added(held: Any, new: Any) -> Any:
        if grown:
            return library.concatenate((held, new), axis)
        held[fresh] = new
        return held[every]

    def laid(array: Array) -> Arrays:
        array = turned(array)
        held = np.full((*array.shape[:axis], room, *array.shape[axis + 1 :]), np.nan, dtype=array.dtype)
        held[old] = array[old]
        parts = np.array(held[old], order="C") if grown else held, np.array(array[fresh], order="C")
        return tuple(library.from_numpy(one, workload.dtype) for one in parts)

    pairs = [laid(array) for array in of_keys]

    def read() -> tuple[Any, Any]:
        key, value = (turned(added(*pair)) for pair in pairs)
        return key, value

    return Stored(read, pairs, laid)


def _packed(library: Library, workload: Workload, *of_keys: Array) -> Stored:
    """A jagged batch: the keys of all batch elements one after the other, without padding, (rows, kv_heads, dim).

    Element b has the rows from number b up to number b + 1 of the offsets. One row of zeros comes after all: padding is
    read from there. As `flash_attn_varlen_func` of FlashAttention's package takes it.
    """
    lengths = np.array(workload.key_lengths or (workload.keys,) * workload.batch)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    there = np.arange(workload.keys) < lengths[:, None]
    places = np.where(there, offsets[:-1, None] + np.arange(workload.keys), offsets[-1])

    def laid(array: Array) -> Array:
        return np.concatenate([array[there], np.zeros((1, *array.shape[2:]), array.dtype)])

    return _gathered(library, workload, of_keys, laid, places, lambda taken: taken)


def _paged(library: Library, workload: Workload, *of_keys: Array) -> Stored:
    """Pages of `PAGE` keys, (pages, PAGE, kv_heads, dim), in any order in a pool that all batch elements share.

    The page table is (batch, pages of the longest); one page of zeros stands where an element has none. What a page has
    beyond its element's keys is 0. As in PagedAttention (Kwon et al. 2023, section 4.1), in the order of axes that
    FlashInfer calls NHD.
    """
    lengths = np.array(workload.key_lengths or (workload.keys,) * workload.batch)
    most = -(-workload.keys // PAGE)
    used = np.arange(most) * PAGE < lengths[:, None]
    order = np.random.default_rng([workload.seed, _SHUFFLE]).permutation(int(used.sum()) + 1)
    table = np.full((workload.batch, most), order[-1])
    table[used] = order[:-1]

    def laid(array: Array) -> Array:
        there = np.arange(most * PAGE) < lengths[:, None]
        whole = np.zeros((*there.shape, *array.shape[2:]), array.dtype)
        whole[there] = array[there[:, : workload.keys]]
        pool = np.zeros((order.size, PAGE, *array.shape[2:]), array.dtype)
        pool[table[used]] = whole.reshape(workload.batch, most, *pool.shape[1:])[used]
        return pool

    def in_order(taken: Any) -> Any:
        return taken.reshape(workload.batch, most * PAGE, *taken.shape[3:])[:, : workload.keys]

    return _gathered(library, workload, of_keys, laid, table, in_order)


def _gathered(
    library: Library,
    workload: Workload,
    of_keys: tuple[Array, ...],
    laid: Callable[[Array], Array],
    places: NDArray[np.int64],
    in_order: Callable[[Any], Any],
) -> Stored:
    """Rows that lie elsewhere than in their order, and are taken from their `places`.

    laid : from (batch, keys, kv_heads, dim) to how that lies; in_order : from what is taken back to it.
    """

    def placed(array: Array) -> Arrays:
        return (library.from_numpy(laid(array.swapaxes(1, 2)), workload.dtype),)

    (key,), (value,) = lying = [placed(array) for array in of_keys]
    take = library.taking(places)

    def read() -> tuple[Any, Any]:
        return in_order(take(key)).swapaxes(1, 2), in_order(take(value)).swapaxes(1, 2)

    return Stored(read, lying, placed)


_TAKING = ("taking", "take rows by their numbers")
#: every way but the contiguous one, by its name in `attnlab.workload.workload.STORAGES`
STORED = {
    "preallocated": Storage(partial(_cache, grown=False), ("in_place", "write into an array where it lies")),
    "grown": Storage(partial(_cache, grown=True), ("concatenate", "concatenate arrays")),
    "packed": Storage(_packed, _TAKING),
    "paged": Storage(_paged, _TAKING),
}
