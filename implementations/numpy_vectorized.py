"""The textbook formula on whole arrays in NumPy: scores, shifted softmax, weighted sum.

Time: 4·b·h·n_q·n_k·d floating-point operations in two batched matrix products, and five passes over the
scores between them. Memory: three arrays of the size of the score matrix at the peak, O(n_q·n_k).

float16 is computed in float32 and rounded at the end: NumPy has no float16 matrix product of its own.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"


def attend(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], *, causal: bool, scale: float
) -> NDArray[Any]:
    """softmax(scale · Q Kᵀ) V; query (batch, heads, n_q, d), key (…, n_k, d), value (…, n_k, d_v)."""
    dtype = query.dtype
    if dtype == np.float16:
        query, key, value = (array.astype(np.float32) for array in (query, key, value))
    scores = (query @ key.swapaxes(-1, -2)) * query.dtype.type(scale)
    if causal:
        n_q, n_k = scores.shape[-2:]
        scores = np.where(np.tri(n_q, n_k, dtype=bool), scores, -np.inf)
    # the shift changes nothing in exact arithmetic and keeps exp from overflowing
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    output: NDArray[Any] = weights @ value
    return output.astype(dtype, copy=False)
