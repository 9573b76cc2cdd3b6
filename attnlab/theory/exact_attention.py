"""Requirement: attention as its definition says, in float64, in blocks of rows that fit in memory.

This is the truth that errors are measured against. Only one head at a time is held in float64.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import Array, one_of

# Elements of one (query rows × keys) block of float64; some six such blocks are alive at once.
_BLOCK = 1 << 20


class Rows(NamedTuple):
    """A block of query rows of one head, with all its keys."""

    at: tuple[int, int, slice]
    q: Array
    k: Array
    v: Array
    visible: NDArray[np.bool_] | None  # (rows, keys), None where all are


class Softmax(NamedTuple):
    scores: Array
    weights: Array
    fall: Array  # s − m, 0 at masked keys
    partition: Array  # Σ e^{s − m}, (rows, 1)
    output: Array


def softmax_rows(part: Rows, scale: float) -> Softmax:
    """Scores, weights and output of one block; rows that see no key get weights and output 0."""
    scores = part.q @ part.k.T * scale
    if part.visible is None:
        top = scores.max(axis=1, keepdims=True)
        fall = scores - top
        boltzmann = np.exp(fall)
    else:
        top = np.max(scores, axis=1, keepdims=True, where=part.visible, initial=-math.inf)
        top = np.where(np.isfinite(top), top, 0.0)
        fall = np.where(part.visible, scores - top, 0.0)
        boltzmann = np.where(part.visible, np.exp(fall), 0.0)
    partition = boltzmann.sum(axis=1, keepdims=True)
    weights = boltzmann / np.where(partition > 0, partition, 1.0)
    return Softmax(scores, weights, fall, partition, weights @ part.v)


def blocks(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    chosen: NDArray[np.intp],
    causal: bool,
    causal_alignment: str,
    mask: ArrayLike | None,
) -> Iterator[Rows]:
    """Every block of chosen query rows, head by head, with its keys, values and visibility."""
    one_of("causal_alignment", causal_alignment, ("top-left", "bottom-right"))
    batch, heads, queries, _ = q.shape
    n = k.shape[2]
    group = heads // k.shape[1]
    offset = n - queries if causal_alignment == "bottom-right" else 0
    open_keys = _open_keys(mask, (batch, heads, queries, n))
    size = max(1, _BLOCK // n)
    for b in range(batch):
        for h in range(heads):
            # only this head in float64: the whole input would double or quadruple its memory
            key, value = k[b, h // group].astype(np.float64), v[b, h // group].astype(np.float64)
            for start in range(0, chosen.size, size):
                index = chosen[start : start + size]
                visible = None if open_keys is None else open_keys[b, h, index]
                if causal:
                    reach = np.arange(n)[None, :] <= (index + offset)[:, None]
                    visible = reach if visible is None else visible & reach
                at = (b, h, slice(start, start + index.size))
                yield Rows(at, q[b, h, index].astype(np.float64), key, value, visible)


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
