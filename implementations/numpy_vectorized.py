"""The textbook formula on whole arrays in NumPy: scores, shifted softmax, weighted sum.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and five passes over the
scores between them. Memory: three arrays of the size of the score matrix at the peak, O(n_q·n_k).

float16 is computed in float32 and rounded at the end: NumPy has no float16 matrix product of its own.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 3.1, "outputs": 1.1}


def attend_with_log_sum(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    causal: bool,
    scale: float,
    mask: NDArray[np.bool_] | None = None,
    bias: NDArray[Any] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in the sum of the softmax; and ln Z.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,). ln Z is (batch, heads, n_q), −inf where no key is seen.
    """
    dtype = query.dtype
    if dtype == np.float16:
        query, key, value = (array.astype(np.float32) for array in (query, key, value))
    if query.shape[1] != key.shape[1]:
        group = query.shape[1] // key.shape[1]
        key, value = (np.repeat(array, group, axis=1) for array in (key, value))
    scores = (query @ key.swapaxes(-1, -2)) * query.dtype.type(scale)
    if softcap is not None:
        scores = query.dtype.type(softcap) * np.tanh(scores / query.dtype.type(softcap))
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    # the shift changes nothing in exact arithmetic and keeps exp from overflowing
    highest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        highest = np.maximum(highest, sinks[:, None, None].astype(scores.dtype))
    if mask is not None:
        highest = np.maximum(highest, np.finfo(scores.dtype).min)  # -inf in a row that sees no key
    weights = np.exp(scores - highest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks[:, None, None].astype(scores.dtype) - highest)
    output = (weights / np.where(total > 0, total, 1)) @ value  # 0 where no key is seen
    with np.errstate(divide="ignore"):  # a row that sees no key
        log_sum = highest + np.log(total)
    return output.astype(dtype, copy=False), log_sum[..., 0]
