"""Requirement: attention as its definition says, in float64, in blocks of rows that fit in memory.

This is the truth that errors are measured against. One head at a time is held in float64, or as many as are small:
what is done to a block costs some dozen calls however little is in it.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import Array, one_of

# Elements of one (query rows × keys) block of float64; some six such blocks are alive at once.
_BLOCK = 1 << 20
# Elements up to which heads and batches share a block: it still lies in cache.
_SHARED = 1 << 16


class Rows(NamedTuple):
    """A block of query rows of one or several heads, with all their keys; arrays are (batches, heads, length, dim).

    at : batches, heads and chosen rows, where results belong. at_keys : batches and key heads.
    """

    at: tuple[slice, slice, slice]
    at_keys: tuple[slice, slice]
    q: Array
    k: Array
    v: Array
    visible: NDArray[np.bool_] | None  # (…, rows, keys), None where all are


class Softmax(NamedTuple):
    scores: Array
    weights: Array
    fall: Array  # s − m, 0 at masked keys
    top: Array  # m, (…, rows, 1); 0 where no key is seen
    partition: Array  # Σ e^{s − m}, (…, rows, 1)
    output: Array

    @property
    def log_sum(self) -> Array:
        """ln l, l = Σ e^{s − m}, (…, rows, 1); 0 where no key is seen."""
        return np.log(np.where(self.partition > 0, self.partition, 1.0))

    @property
    def log_partition(self) -> Array:
        """ln Z = m + ln l, (…, rows, 1); 0 where no key is seen."""
        return self.top + self.log_sum


def softmax_rows(part: Rows, scale: float) -> Softmax:
    """Scores, weights and output of one block; rows that see no key get weights and output 0."""
    scores = part.q @ turned(part.k) * scale
    if part.visible is None:
        top = scores.max(axis=-1, keepdims=True)
        fall = scores - top
        boltzmann = np.exp(fall)
    else:
        top = np.max(scores, axis=-1, keepdims=True, where=part.visible, initial=-math.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        fall = np.where(part.visible, scores - top, 0.0)
        boltzmann = np.where(part.visible, np.exp(fall), 0.0)
    partition = boltzmann.sum(axis=-1, keepdims=True)
    weights = boltzmann / np.where(partition > 0, partition, 1.0)
    return Softmax(scores, weights, fall, top, partition, weights @ part.v)


def turned(x: Array) -> Array:
    """The last two axes exchanged."""
    return x.swapaxes(-1, -2)


def blocks(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    chosen: NDArray[np.intp],
    causal: bool,
    causal_alignment: str,
    mask: ArrayLike | None,
) -> Iterator[Rows]:
    """Every block of chosen query rows, with its keys, values and visibility: small heads together, others apart."""
    one_of("causal_alignment", causal_alignment, ("top-left", "bottom-right"))
    batch, heads, queries, _ = q.shape
    n = k.shape[2]
    group = heads // k.shape[1]
    offset = n - queries if causal_alignment == "bottom-right" else 0
    open_keys = _open_keys(mask, (batch, heads, queries, n))
    for batches, members in _together(batch, heads, group, chosen.size * n):
        at_keys = (batches, slice(members.start // group, (members.stop - 1) // group + 1))
        # only these heads in float64: the whole input would double or quadruple its memory
        key, value = k[at_keys].astype(np.float64), v[at_keys].astype(np.float64)
        query = q[batches, members]
        size = max(1, _BLOCK // (n * query.shape[0] * query.shape[1]))
        for start in range(0, chosen.size, size):
            index = chosen[start : start + size]
            visible = None if open_keys is None else open_keys[batches, members][:, :, index]
            if causal:
                reach = np.arange(n)[None, :] <= (index + offset)[:, None]
                visible = reach if visible is None else visible & reach
            at = (batches, members, slice(start, start + index.size))
            yield Rows(at, at_keys, query[:, :, index].astype(np.float64), key, value, visible)


def _together(batch: int, heads: int, group: int, pairs: int) -> Iterator[tuple[slice, slice]]:
    """Batches and heads that share a block, `pairs` each; heads of one key head never do."""
    fit = max(1, _SHARED // pairs) if group == 1 else 1
    if fit >= heads:
        step = fit // heads
        for b in range(0, batch, step):
            yield slice(b, min(b + step, batch)), slice(0, heads)
        return
    for b in range(batch):
        for h in range(0, heads, fit):
            yield slice(b, b + 1), slice(h, min(h + fit, heads))


def checked_inputs(
    q: ArrayLike, k: ArrayLike, v: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """q, k and v as floating-point arrays of matching shapes, in the precision they came in.

    Raises ValueError for shapes that do not fit and for NaN or infinity.
    """
    found = []
    for name, given in (("q", q), ("k", k), ("v", v)):
        x = np.asarray(given)
        if x.dtype.kind != "f":
            x = x.astype(np.float64)
        if x.ndim != 4 or 0 in x.shape:
            raise ValueError(
                f"{name} must be a non-empty (batch, heads, length, dim) array, got shape {x.shape}"
            )
        if not np.isfinite(x).all():
            raise ValueError(f"{name} must be finite, got a NaN or an infinity")
        found.append(x)
    query, key, value = found
    if key.shape[:3] != value.shape[:3]:
        raise ValueError(f"k and v must share batch, heads and length, got {key.shape} and {value.shape}")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise ValueError(f"q and k must share batch and head_dim, got {query.shape} and {key.shape}")
    if query.shape[1] % key.shape[1]:
        raise ValueError(
            f"heads of q must be a multiple of those of k, got {query.shape[1]} and {key.shape[1]}"
        )
    return query, key, value


def chosen_rows(rows: ArrayLike | None, queries: int) -> NDArray[np.intp]:
    """The query rows to compute, all if None. Raises ValueError for an index out of range."""
    if rows is None:
        return np.arange(queries)
    found = np.asarray(rows)
    if found.ndim != 1 or found.size == 0 or found.dtype.kind not in "iu":
        raise ValueError(
            f"rows must be a non-empty list of indexes, got shape {found.shape} of {found.dtype}"
        )
    if found.min() < 0 or found.max() >= queries:
        raise ValueError(f"rows must lie in 0..{queries - 1}, got {found.min()}..{found.max()}")
    return found.astype(np.intp)


def _open_keys(mask: ArrayLike | None, shape: tuple[int, int, int, int]) -> NDArray[np.bool_] | None:
    if mask is None:
        return None
    found = np.asarray(mask)
    if found.dtype != np.bool_:
        raise ValueError(f"mask must be boolean, True where a key is seen, got {found.dtype}")
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise ValueError(f"mask must broadcast to {shape}, got {found.shape}") from None
