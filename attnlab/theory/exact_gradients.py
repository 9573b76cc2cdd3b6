"""Requirement: the gradients of attention as the chain rule says, in float64, block by block.

With P = softmax(scale · q kᵀ), o = P v and g = ∂L/∂o, per head:

    ∂L/∂v = Pᵀ g,   A = g vᵀ,   D_i = Σ_j P_ij A_ij = g_i·o_i,   T = P ∘ (A − D),
    ∂L/∂q = scale · T k,   ∂L/∂k = scale · Tᵀ q.

T = ∂L/∂S, S the scaled scores: each of its rows sums to 0. Dao et al. 2022, appendix B.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .checks import Array, real
from .exact_attention import Rows, Softmax, blocks, checked_inputs, chosen_rows, softmax_rows, turned


class Backward(NamedTuple):
    """What the chain rule meets on its way back through one block of query rows."""

    part: Rows
    soft: Softmax
    g: Array  # (…, rows, value_dim)
    products: Array  # A, (…, rows, keys)
    offset: Array  # D, (…, rows, 1)
    slopes: Array  # T, (…, rows, keys)


def backward_rows(part: Rows, output_gradient: NDArray[Any], scale: float) -> Backward:
    """The way back through `part`; `output_gradient` is the whole (batch, heads, queries, value_dim)."""
    soft = softmax_rows(part, scale)
    g = output_gradient[part.at].astype(np.float64)
    products = g @ turned(part.v)
    offset = (soft.weights * products).sum(axis=-1, keepdims=True)
    return Backward(part, soft, g, products, offset, soft.weights * (products - offset))


def exact_gradients(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    output_gradient: ArrayLike,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Array, Array, Array]:
    """(∂L/∂q, ∂L/∂k, ∂L/∂v) where ∂L/∂o = `output_gradient`, each in its input's shape, float64.

    q : (batch, heads, queries, head_dim); k : (batch, key_heads, keys, head_dim); v : (…, keys, value_dim);
    heads is a multiple of key_heads. output_gradient : (batch, heads, queries, value_dim). causal : query i
    sees keys 0 to i. scale : 1/√head_dim if None. Formulas in the module's docstring.

    Raises ValueError for shapes that do not fit and for NaN or infinity.
    """
    queries, keys, values = checked_inputs(q, k, v)
    upstream = checked_upstream(output_gradient, queries, values)
    factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else real("scale", scale)
    found = tuple(np.zeros(one.shape) for one in (queries, keys, values))
    rows = chosen_rows(None, queries.shape[2])
    for part in blocks(queries, keys, values, rows, causal, "top-left", None):
        back = backward_rows(part, upstream, factor)
        found[0][part.at] = factor * back.slopes @ part.k
        found[1][part.at_keys] += factor * turned(back.slopes) @ part.q
        found[2][part.at_keys] += turned(back.soft.weights) @ back.g
    return found[0], found[1], found[2]


def checked_upstream(output_gradient: ArrayLike, q: NDArray[Any], v: NDArray[Any]) -> NDArray[Any]:
    """∂L/∂o as a floating-point array. Raises ValueError for another shape than the output's, NaN and infinity."""
    found = np.asarray(output_gradient)
    expected = (*q.shape[:3], v.shape[-1])
    if found.shape != expected:
        raise ValueError(f"output_gradient must have the output's shape {expected}, got {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("output_gradient must be finite, got a NaN or an infinity")
    return found
