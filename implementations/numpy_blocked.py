"""Online softmax over blocks of keys in NumPy: one pass, never an n×n array.

Each row keeps its largest score so far, the sum of its shifted exponentials and the weighted sum of values;
when a block of keys raises the largest score, what was summed before is rescaled (Milakov and Gimelshein
2018, "Online normalizer calculation for softmax", arXiv:1805.02867, algorithm 3).

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of one tile at a time, and five passes
over a tile that stays in cache; causal leaves out the tiles above the diagonal, so about half. Memory: the
output, one tile and a few rows of it, O(n): one head's keys and values more for float16, which is computed
in float32 and rounded at the end.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"

# the fastest of eight at n = 128, 512 and 2048, d = 64: a float32 tile of 1 MiB, about one core's L2 cache
QUERY_BLOCK = 256
KEY_BLOCK = 1024


def attend(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], *, causal: bool, scale: float
) -> NDArray[Any]:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    batch, heads, n_q, _ = query.shape
    n_k, value_dim = value.shape[-2:]
    inner = np.dtype(np.float32) if query.dtype == np.float16 else query.dtype
    output = np.empty((batch, heads, n_q, value_dim), dtype=query.dtype)
    tile = np.empty(min(QUERY_BLOCK, n_q) * min(KEY_BLOCK, n_k), dtype=inner)
    for head in np.ndindex(batch, heads):
        _attend_head(query[head], key[head], value[head], output[head], tile, causal, scale)
    return output


def _attend_head(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    output: NDArray[Any],
    tile: NDArray[Any],
    causal: bool,
    scale: float,
) -> None:
    """Fill one head's `output`, computing in the dtype of `tile`, which is overwritten."""
    inner = tile.dtype
    k, v = key.astype(inner, copy=False), value.astype(inner, copy=False)
    for start in range(0, len(query), QUERY_BLOCK):
        block = slice(start, start + QUERY_BLOCK)
        q = query[block].astype(inner, copy=False) * inner.type(scale)
        output[block] = _attend_rows(q, k, v, tile, start if causal else None)


def _attend_rows(
    q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], tile: NDArray[Any], first_row: int | None
) -> NDArray[Any]:
    """softmax(q kᵀ) v for one block of queries; `first_row` is its place in the causal order, or None."""
    rows = len(q)
    visible = len(k) if first_row is None else min(len(k), first_row + rows)
    highest = np.full((rows, 1), -np.inf, dtype=q.dtype)
    total = np.zeros((rows, 1), dtype=q.dtype)
    summed = np.zeros((rows, v.shape[1]), dtype=q.dtype)
    for start in range(0, visible, KEY_BLOCK):
        keys = k[start : min(start + KEY_BLOCK, visible)]
        scores = tile[: rows * len(keys)].reshape(rows, len(keys))
        np.matmul(q, keys.T, out=scores)
        if first_row is not None and start + len(keys) > first_row + 1:
            # row r of the tile stands at first_row + r and sees the keys up to there
            scores[~np.tri(rows, len(keys), first_row - start, dtype=bool)] = -np.inf
        now_highest = np.maximum(highest, scores.max(axis=1, keepdims=True))
        # a row that has seen only masked keys has no largest score yet: -inf minus -inf would be NaN
        shift = np.where(now_highest == -np.inf, 0, now_highest)
        scores -= shift
        weights = np.exp(scores, out=scores)
        rescale = np.exp(highest - shift)
        total = total * rescale + weights.sum(axis=1, keepdims=True)
        summed = summed * rescale + weights @ v[start : start + len(keys)]
        highest = now_highest
    return summed / total
