"""The formula itself, in explicit Python loops over batch, head, query and key: the specification.

Every other backend is an optimisation of this one. Time: b·h·n_q·n_k iterations of a loop in Python, about
two microseconds each, hardly more for a larger dimension (30 ms for one head at n = 128). Memory: the
inputs and the output in float64 and one row of weights, O(n·d).

It computes in float64 for every dtype, and rounds once, at the end.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIBRARY = "numpy"
EMPTY_ROWS = "zeros"
MEMORY = {"scores": 0, "outputs": 24}  # the inputs in float64, in lists


def attend_with_log_sum(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    scale: float,
    causal: bool = False,
    visible: Callable[..., NDArray[np.bool_] | None] | None = None,
    bias: NDArray[Any] | None = None,
    softcap: float | None = None,
    sinks: NDArray[Any] | None = None,
    enable_gqa: bool = False,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """o_i = Σ_j p_ij v_j, p_ij = e^{s_ij}/(Σ_l e^{s_il} + e^{sink}), s_ij = cap(scale · q_i·k_j) + bias_ij.

    query: (batch, heads, n_q, d), key: (batch, kv_heads, n_k, d), value: (batch, kv_heads, n_k, d_v), bias:
    broadcastable to (batch, heads, n_q, n_k), sinks: (heads,); returns (batch, heads, n_q, d_v). Sums run over the
    keys that the query sees; cap(s) = c tanh(s/c). If causal, query i sees the keys j ≤ i; `visible` gives the rows of
    any other mask. A query that sees no key gets 0.

    It also returns ln Z_i = ln(Σ_l e^{s_il} + e^{sink}), (batch, heads, n_q), −inf if the sum is empty.
    """
    q, k, v = (array.astype(np.float64) for array in (query, key, value))
    batch, heads, n_q, _ = q.shape
    n_k, group = k.shape[2], heads // k.shape[1]
    added = np.broadcast_to(0.0 if bias is None else bias, (batch, heads, n_q, n_k))
    output = np.zeros((batch, heads, n_q, v.shape[-1]))
    log_sum = np.full((batch, heads, n_q), -np.inf)
    for b in range(batch):
        for h in range(heads):
            keys, values = list(k[b, h // group]), list(v[b, h // group])
            for i in range(n_q):
                row = visible(b, h, slice(i, i + 1), slice(None)) if visible else None
                seen = (
                    range(min(i + 1, n_k) if causal else n_k)
                    if row is None
                    else np.flatnonzero(row[0]).tolist()
                )
                scores = []
                for j in seen:
                    score = scale * float(q[b, h, i].dot(keys[j]))
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    scores.append(score + float(added[b, h, i, j]))
                rest = [] if sinks is None else [float(sinks[h])]
                # the shift changes nothing in exact arithmetic and keeps exp from overflowing
                highest = max([*scores, *rest], default=0.0)
                weights = [math.exp(score - highest) for score in scores]
                total = sum(weights) + sum(math.exp(sink - highest) for sink in rest)
                for weight, j in zip(weights, seen, strict=True):
                    output[b, h, i] += weight * values[j]
                if total:
                    output[b, h, i] /= total
                    log_sum[b, h, i] = highest + math.log(total)
    return output.astype(query.dtype), log_sum.astype(np.float32 if query.dtype != np.float64 else np.float64)
