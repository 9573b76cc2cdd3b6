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


def attend(
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
) -> NDArray[Any]:
    """softmax(cap(scale · Q Kᵀ) + bias) V over the keys that are seen, with a sink in its sum.

    query (batch, heads, n_q, d), key (batch, kv_heads, n_k, d), value (…, n_k, d_v), mask and bias broadcastable to
    (batch, heads, n_q, n_k), sinks (heads,).
    """
    weights, _, total, value = _weighed(query, key, value, causal, scale, mask, bias, softcap, sinks)
    return _mean(weights, total, value, query.dtype)


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
    """What `attend` returns, and ln Z, (batch, heads, n_q), −inf where no key is seen."""
    weights, highest, total, value = _weighed(query, key, value, causal, scale, mask, bias, softcap, sinks)
    with np.errstate(divide="ignore"):  # a row that sees no key
        log_sum = highest + np.log(total)
    return _mean(weights, total, value, query.dtype), log_sum[..., 0]


def _weighed(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    causal: bool,
    scale: float,
    mask: NDArray[np.bool_] | None,
    bias: NDArray[Any] | None,
    softcap: float | None,
    sinks: NDArray[Any] | None,
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Of every row: e^{s − m}, the largest score m, Σ e^{s − m} with the sink; and the values, a head of them each."""
    if query.dtype == np.float16:
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
        n_q, n_k = scores.shape[-2:]
        scores = np.where(np.tri(n_q, n_k, dtype=bool), scores, -np.inf)
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
    return weights, highest, total, value


def _mean(
    weights: NDArray[Any], total: NDArray[Any], value: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """The mean of the values; 0 where no key is seen."""
    output: NDArray[Any] = (weights / np.where(total > 0, total, 1)) @ value
    return output.astype(dtype, copy=False)
