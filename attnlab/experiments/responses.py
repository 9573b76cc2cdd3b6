"""What a backend gives away beside its output: weights, logits, gradients of logits, and how it answers to a change.

Nothing here knows the weights: each function asks a backend and reads the answer out of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.experiments.black_box import Attend
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

Array = NDArray[np.float64]


def derivative(function: Callable[[float], Array], at: float, step: float) -> Array:
    """f'(at) by central differences of step h and h/2, combined to order h⁴ (Richardson 1911)."""

    def central(h: float) -> Array:
        return (function(at + h) - function(at - h)) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3


def weights_of(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float, **options: Any) -> Array:
    """Every weight p_ij, (batch, heads, n_q, n_k): the output with the identity for values.

    q : (batch, heads, n_q, d). k : (batch, heads, n_k, d). Some kernels want one last dimension for all arrays, so
    that the shorter ones are filled up with zeros. `options` go to `attend`, no causal mask by default.
    """
    n_k = k.shape[2]
    wide = max(q.shape[-1], n_k)
    unit = _padded(np.broadcast_to(np.eye(n_k, dtype=k.dtype), (*k.shape[:2], n_k, n_k)), wide)
    output = attend(_padded(q, wide), _padded(k, wide), unit, scale=scale, **{"causal": False, **options})
    return output[..., :n_k].astype(np.float64)


def read_logits(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """scale · q_i·k_j as `attend` computes it, (batch, heads, n_q, n_k), in float64.

    Weights tell logits up to a constant of the row, so one key of zeros is added, whose logit is 0 whatever the scale:
    s_j = ln(p_j/p_0), good to a few roundoffs as long as a row's logits lie within 700 of each other in float64, or 80
    in float32. Shapes as for `weights_of`; short keys and long dimensions cost least.

    Raises ValueError where a weight underflows: then the logit it stands for cannot be known.
    """
    weights = weights_of(attend, q, np.concatenate([k, np.zeros_like(k[:, :, :1])], axis=2), scale=scale)
    if not (np.isfinite(weights).all() and weights.min() > 0):
        raise ValueError(
            f"a weight is not finite or underflowed in {q.dtype}: these logits are too far apart to be read from it"
        )
    return np.log(weights[..., :-1]) - np.log(weights[..., -1:])


def energy_variance(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """Var_p(s) of each row, (batch, heads, n_q): the heat capacity d² ln Z/dβ² at β = 1.

    q : (batch, heads, n_q, d), k : (batch, heads, n_k, d). Each query gets a column of V with its logits, then one
    with their squared distance from the mean just measured: a small number is not the difference of large ones.
    Memory is O(n_q·n_k) for those columns, so few queries are best.
    """
    n_q = q.shape[2]
    wide = max(q.shape[-1], n_q)
    logits = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))

    def own_column(values: Array) -> Array:
        columns = _padded(values.swapaxes(-1, -2).astype(k.dtype), wide)
        output = attend(_padded(q, wide), _padded(k, wide), columns, causal=False, scale=scale)
        return np.diagonal(output[..., :n_q].astype(np.float64), axis1=-2, axis2=-1)

    mean = own_column(logits)
    return own_column((logits - mean[..., None]) ** 2)


def response_to_logit(
    attend: Attend, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], key: int, *, scale: float, step: float
) -> Array:
    """∂o/∂s_j for j = `key`, (batch, heads, n_q, value_dim): the logit of one key is raised and lowered.

    By one more dimension, in which every query is 1 and every other key 0.
    """
    wide, value_dim = max(q.shape[-1] + 1, v.shape[-1]), v.shape[-1]
    q, k, v = (_padded(array, wide) for array in (q, k, v))
    q[..., -1] = 1

    def output(change: float) -> Array:
        moved = k.copy()
        moved[..., key, -1] = change / scale
        return attend(q, moved, v, causal=False, scale=scale)[..., :value_dim].astype(np.float64)

    return derivative(output, 0.0, step)


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

    Fused kernels never show their logits. But each key may get a dimension of its own, in which every query is 0, so
    that no logit changes; the gradient of the query in that dimension is the gradient of that key's logit.

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
    wide_q, wide_k, wide_v, wide_upstream = (_padded(array, wide) for array in (q, k, v, upstream))
    wide_k[..., range(n_k), range(dim, wide)] = 1.0
    problem = Problem.of(wide_q, wide_k, wide_v, scale=scale, output_gradient=wide_upstream)
    workload = Workload.of_problem(problem, direction="backward")
    gradient = backend.named(workload, backend.bind(workload, problem)())["query gradient"]
    return gradient[..., dim:].astype(np.float64) / scale


def _padded(array: NDArray[Any], width: int) -> NDArray[Any]:
    padded = np.zeros((*array.shape[:3], width), array.dtype)
    padded[..., : array.shape[-1]] = array
    return padded
