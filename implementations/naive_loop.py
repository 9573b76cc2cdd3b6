"""The formula itself, in explicit Python loops over batch, head, query and key: the specification.

Every other backend is an optimisation of this one. Time: b·h·n_q·n_k turns of the Python interpreter,
about two microseconds each, hardly more for a larger dimension (30 ms for one head at n = 128). Memory: the
inputs and the output in float64 and one row of weights, O(n·d).

It computes in float64 whatever the dtype and rounds once, at the end.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"


def attend(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], *, causal: bool, scale: float
) -> NDArray[Any]:
    """o_i = Σ_j softmax_j(scale · q_i·k_j) v_j, over the keys j ≤ i where causal (top-left alignment).

    query: (batch, heads, n_q, d), key: (batch, heads, n_k, d), value: (batch, heads, n_k, d_v),
    returns (batch, heads, n_q, d_v).
    """
    q, k, v = (array.astype(np.float64) for array in (query, key, value))
    batch, heads, n_q, _ = q.shape
    output = np.zeros((batch, heads, n_q, v.shape[-1]))
    for b in range(batch):
        for h in range(heads):
            keys, values = list(k[b, h]), list(v[b, h])
            for i in range(n_q):
                visible = i + 1 if causal else len(keys)
                scores = [scale * float(q[b, h, i].dot(key_j)) for key_j in keys[:visible]]
                # the shift changes nothing in exact arithmetic and keeps exp from overflowing
                highest = max(scores)
                weights = [math.exp(score - highest) for score in scores]
                for weight, value_j in zip(weights, values, strict=False):  # a causal row is shorter
                    output[b, h, i] += weight * value_j
                output[b, h, i] /= sum(weights)
    return output.astype(query.dtype)
