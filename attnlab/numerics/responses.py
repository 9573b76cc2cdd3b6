"""How a backend's softmax answers to a change: of the scale, of one logit, of all.

Nothing here knows the weights: each function poses calls to a backend and reads the answer out of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.numerics.black_box import Attend

Array = NDArray[np.float64]


def derivative(function: Callable[[float], Array], at: float, step: float) -> Array:
    """f'(at) by central differences of step h and h/2, combined to order h⁴ (Richardson 1911)."""

    def central(h: float) -> Array:
        return (function(at + h) - function(at - h)) / (2 * h)

    return (4 * central(step / 2) - central(step)) / 3


def weights_of(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """Every weight p_ij, (batch, heads, n_q, n_k): the output with the identity for values."""
    n_k = k.shape[2]
    wide_q, wide_k, wide = _widened(q, k, n_k)
    v = np.zeros((*k.shape[:3], wide), k.dtype)
    v[..., range(n_k), range(n_k)] = 1
    return attend(wide_q, wide_k, v, causal=False, scale=scale)[..., :n_k].astype(np.float64)


def energy_variance(attend: Attend, q: NDArray[Any], k: NDArray[Any], *, scale: float) -> Array:
    """Var_p(s) of each row, (batch, heads, n_q): the heat capacity d² ln Z/dβ² at β = 1.

    q : (batch, heads, n_q, d), k : (batch, heads, n_k, d). Each query gets a column of V with its logits, then one
    with their squared distance from the mean just measured: a small number is not the difference of large ones.
    Memory is O(n_q·n_k) for those columns, so few queries are best.
    """
    n_q = q.shape[2]
    wide_q, wide_k, wide = _widened(q, k, n_q)
    logits = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))

    def own_column(values: Array) -> Array:
        v = np.zeros((*k.shape[:3], wide), k.dtype)
        v[..., :n_q] = values.swapaxes(-1, -2)
        output = attend(wide_q, wide_k, v, causal=False, scale=scale)[..., :n_q].astype(np.float64)
        return np.diagonal(output, axis1=-2, axis2=-1)

    mean = own_column(logits)
    return own_column((logits - mean[..., None]) ** 2)


def response_to_logit(
    attend: Attend, q: NDArray[Any], k: NDArray[Any], v: NDArray[Any], key: int, *, scale: float, step: float
) -> Array:
    """∂o/∂s_j for j = `key`, (batch, heads, n_q, value_dim): the logit of one key is raised and lowered.

    By one more dimension, in which every query is 1 and every other key 0.
    """
    q, k, wide = _widened(q, k, v.shape[-1], more=1)
    q, k = q.copy(), k.copy()
    padded = np.zeros((*v.shape[:3], wide), v.dtype)
    padded[..., : v.shape[-1]] = v
    q[..., -1] = 1

    def output(change: float) -> Array:
        moved = k.copy()
        moved[..., key, -1] = change / scale
        return attend(q, moved, padded, causal=False, scale=scale)[..., : v.shape[-1]].astype(np.float64)

    return derivative(output, 0.0, step)


def _widened(
    q: NDArray[Any], k: NDArray[Any], columns: int, more: int = 0
) -> tuple[NDArray[Any], NDArray[Any], int]:
    """`q` and `k` with zeros up to one last dimension that holds `columns` values too, and `more` dimensions."""
    wide = max(q.shape[-1] + more, columns)
    padded = []
    for array in (q, k):
        one = np.zeros((*array.shape[:3], wide), array.dtype)
        one[..., : array.shape[-1]] = array
        padded.append(one)
    return padded[0], padded[1], wide
