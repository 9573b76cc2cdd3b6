"""A backend's own logits, one by one, read from the weights it gives.

Softmax weights tell logits up to a constant of the row, so one key of zeros is added, whose logit is 0
whatever the scale: s_j = ln(p_j/p_0). With the identity for values the output is the row of weights itself. The
quotient is good to a few roundoffs as long as no weight underflows: as long as a row's logits lie within 700 of
each other in float64, or 80 in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.numerics.black_box import Attend

Array = NDArray[np.float64]


def read_logits(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """scale · q_i·k_j as `attend` computes it, (batch, heads, n_q, n_k), in float64.

    q : (batch, heads, n_q, head_dim). k : (batch, heads, n_k, head_dim). Short keys and long dimensions cost
    least: the last dimension is padded with zeros to at least n_k + 1, and the values with it.

    Raises ValueError where a weight underflows: then the logit it stands for cannot be known.
    """
    batch, heads, n_k, dim = k.shape
    wide = max(dim, n_k + 1)
    wide_q = np.zeros((*q.shape[:3], wide), q.dtype)
    wide_q[..., :dim] = q
    wide_k = np.zeros((batch, heads, n_k + 1, wide), k.dtype)
    wide_k[..., :n_k, :dim] = k
    identity = np.zeros_like(wide_k)
    identity[..., range(n_k + 1), range(n_k + 1)] = 1
    weights = attend(wide_q, wide_k, identity, causal=False, scale=scale)[..., : n_k + 1].astype(np.float64)
    if not (np.isfinite(weights).all() and weights.min() > 0):
        raise ValueError(
            f"a weight is not finite or underflowed in {q.dtype}: these logits are too far apart to be read from it"
        )
    return np.log(weights[..., :n_k]) - np.log(weights[..., n_k:])
