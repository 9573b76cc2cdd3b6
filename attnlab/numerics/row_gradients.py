"""The gradient that reaches each logit, by automatic differentiation through a backend as it is used in training.

Fused kernels never show their logits. But the gradient of an input does: each key gets a dimension of its own, in
which every query is 0, so that no logit changes, and the gradient of the query in that dimension is the
gradient of that key's logit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.backend import Backend
from attnlab.contract.workload import Workload


def logit_gradients(
    backend: Backend,
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    upstream: NDArray[Any],
    *,
    scale: float,
) -> NDArray[np.float64]:
    """dL/ds, (batch, heads, n_q, n_k), where dL/do is `upstream`, by autograd through `backend` on the CPU.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). v : (batch, heads, n_k, value_dim), upstream :
    (batch, heads, n_q, value_dim); value_dim at most d + n_k. scale : not 0.

    Exact value: dL/ds_j = p_j (v_j − o)·dL/do. Raises Declined for a backend without automatic differentiation or
    that declines the shapes, ValueError for scale 0.
    """
    if scale == 0:
        raise ValueError("scale must not be 0: no gradient passes to the query then")
    n_k, dim = k.shape[2:]
    # one last dimension for all, as some kernels want it
    wide = dim + n_k
    wide_q = _padded(q, wide)
    wide_k = _padded(k, wide)
    wide_k[..., range(n_k), range(dim, wide)] = 1.0
    wide_v = _padded(v, wide)
    workload = Workload.of_arrays(wide_q, wide_k, wide_v, scale=scale)
    library = backend.open("cpu")
    *arrays, output_gradient = (
        library.from_numpy(one, workload.dtype) for one in (wide_q, wide_k, wide_v, _padded(upstream, wide))
    )
    _, gradient, *_ = backend.gradients(workload, tuple(arrays), output_gradient)
    return library.to_numpy(gradient)[..., dim:].astype(np.float64) / scale


def _padded(array: NDArray[Any], width: int) -> NDArray[Any]:
    padded = np.zeros((*array.shape[:3], width), array.dtype)
    padded[..., : array.shape[-1]] = array
    return padded
