"""Online softmax over blocks of keys in NumPy: one pass, never an n×n array.

Each row keeps its largest score so far, the sum of its shifted exponentials and the weighted sum of values.
If a block of keys raises the largest score, the earlier sums are rescaled (Milakov and Gimelshein 2018,
"Online normalizer calculation for softmax", arXiv:1805.02867, algorithm 3).

Time: 4·b·h·n_q·n_k·d floating-point operations in matrix products of one tile at a time, and five passes
over a tile that stays in cache; causal leaves out the tiles above the diagonal, about half of them. Memory:
the output, one tile and a few of its rows, O(n). float16 is computed in float32 and rounded at the end, with
copies of one head's keys and values.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 0, "outputs": 4.1}

# the fastest of eight sizes at n = 128, 512 and 2048, d = 64: a float32 tile of 1 MiB, about one core's L2 cache
QUERY_BLOCK = 256
KEY_BLOCK = 1024

#: a function of (rows, keys) that gives the tile of a mask, True where a key is seen, or None if all are seen
Tile = Callable[[slice, slice], NDArray[Any] | None]


class _Head(NamedTuple):
    """The arguments of one head, apart from its arrays."""

    scale: float
    causal: bool
    visible: Tile | None
    bias: NDArray[Any] | None  # (n_q, n_k)
    softcap: float | None
    sink: float | None


def attend_with_log_sum(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    causal: bool,
    scale: float,
    visible: Callable[..., NDArray[np.bool_] | None] | None = None,
    bias: NDArray[Any] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax; and ln Z.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,); `visible` gives the tiles of a mask. ln Z is (batch, heads, n_q), −inf
    where no key is seen.
    """
    batch, heads, n_q, _ = query.shape
    n_k, value_dim = value.shape[-2:]
    group = heads // key.shape[1]
    inner = np.dtype(np.float32) if query.dtype == np.float16 else query.dtype
    output = np.empty((batch, heads, n_q, value_dim), dtype=query.dtype)
    log_sum = np.empty((batch, heads, n_q, 1), dtype=inner)
    tile = np.empty(min(QUERY_BLOCK, n_q) * min(KEY_BLOCK, n_k), dtype=inner)
    added = None if bias is None else np.broadcast_to(bias, (batch, heads, n_q, n_k))
    for b, h in np.ndindex(batch, heads):
        asked = _Head(
            scale=scale,
            causal=causal,
            visible=None if visible is None else partial(visible, b, h),
            bias=None if added is None else added[b, h],
            softcap=softcap,
            sink=None if sinks is None else float(sinks[h]),
        )
        of_head = query[b, h], key[b, h // group], value[b, h // group], output[b, h], log_sum[b, h]
        _attend_head(*of_head, tile, asked)
    return output, log_sum[..., 0]


def _attend_head(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    output: NDArray[Any],
    log_sum: NDArray[Any],
    tile: NDArray[Any],
    asked: _Head,
) -> None:
    """Fill one head's `output` and `log_sum`, computing in the dtype of `tile`, which is overwritten."""
    inner = tile.dtype
    k, v = key.astype(inner, copy=False), value.astype(inner, copy=False)
    finite = np.isfinite(v)
    strange = [(int(j), np.where(finite[j], 0, v[j])) for j in np.flatnonzero(~finite.all(axis=1))]
    v = np.where(finite, v, 0) if strange else v
    for start in range(0, len(query), QUERY_BLOCK):
        rows = slice(start, min(start + QUERY_BLOCK, len(query)))
        q = query[rows].astype(inner, copy=False) * inner.type(asked.scale)
        output[rows], log_sum[rows] = _attend_rows(q, k, v, strange, tile, rows, asked)


def _attend_rows(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    strange: list[tuple[int, NDArray[Any]]],
    tile: NDArray[Any],
    rows: slice,
    asked: _Head,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Output and ln Z of one block of queries, which are already scaled; `tile` is overwritten.

    strange : the NaN and infinite values, by key. In `v` they are 0, because a weight of 0 times them would be NaN.
    """
    count = len(q)
    reach = min(len(k), rows.stop) if asked.causal else len(k)
    # a sink comes before all keys: its exponential, shifted by itself, is 1, and it has no value
    highest = np.full((count, 1), -np.inf if asked.sink is None else asked.sink, dtype=q.dtype)
    total = np.full((count, 1), 0 if asked.sink is None else 1, dtype=q.dtype)
    summed = np.zeros((count, v.shape[1]), dtype=q.dtype)
    for start in range(0, reach, KEY_BLOCK):
        keys = slice(start, min(start + KEY_BLOCK, reach))
        seen = asked.visible(rows, keys) if asked.visible else None
        if seen is not None and not seen.any():
            continue
        scores = tile[: count * (keys.stop - start)].reshape(count, -1)
        np.matmul(q, k[keys].T, out=scores)
        _change(scores, rows, keys, asked, seen)
        now_highest = np.maximum(highest, scores.max(axis=1, keepdims=True))
        # a row that has seen only masked keys has no largest score yet: -inf minus -inf would be NaN
        shift = np.where(now_highest == -np.inf, 0, now_highest)
        rescale = np.exp(highest - shift)
        summed *= rescale
        for j, numbers in strange:
            if keys.start <= j < keys.stop:
                summed[scores[:, j - start] != -np.inf] += numbers
        scores -= shift
        weights = np.exp(scores, out=scores)
        total = total * rescale + weights.sum(axis=1, keepdims=True)
        summed += weights @ v[keys]
        highest = now_highest
    with np.errstate(divide="ignore"):  # a row that sees no key
        log_sum = highest + np.log(total)
    return summed / (total if asked.visible is None else np.where(total > 0, total, 1)), log_sum


def _change(
    scores: NDArray[Any], rows: slice, keys: slice, asked: _Head, seen: NDArray[np.bool_] | None
) -> None:
    """Apply cap, bias and mask to one tile of scores, in place."""
    if asked.softcap is not None:
        scores /= asked.softcap
        np.tanh(scores, out=scores)
        scores *= asked.softcap
    if asked.bias is not None:
        scores += asked.bias[rows, keys]
    if asked.causal and keys.stop > rows.start + 1:
        # row r of the tile is query rows.start + r, which sees the keys up to that number
        scores[~np.tri(len(scores), keys.stop - keys.start, rows.start - keys.start, dtype=bool)] = -np.inf
    if seen is not None:
        scores[~seen] = -np.inf
