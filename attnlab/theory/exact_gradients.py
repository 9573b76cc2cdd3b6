"""Requirement: the gradients of attention as the chain rule says, in float64, block by block.

With x = scale · q kᵀ, s = f(x) + bias, P = softmax(s), o = P v and g = ∂L/∂o, per head:

    ∂L/∂v = Pᵀ g,   A = g vᵀ,   D_i = Σ_j P_ij A_ij = g_i·o_i,   T = P ∘ (A − D),   R = T ∘ f'(x),
    ∂L/∂q = scale · R k,   ∂L/∂k = scale · Rᵀ q.

T = ∂L/∂s: each of its rows sums to 0. R = ∂L/∂x; without a soft cap f(x) = x, and it is T. Dao et al. 2022, appendix B.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attnlab.problem.problem import Problem

from .checks import Array
from .exact_attention import Rows, Softmax, at_rows, blocks, finite, softmax_rows, takes_problem, turned

Three = tuple[Array, Array, Array]


@dataclass(frozen=True, eq=False)
class Backward:
    """What the chain rule meets on its way back through one block of query rows."""

    part: Rows
    soft: Softmax
    g: Array  # (…, rows, value_dim)
    products: Array  # A, (…, rows, keys)
    offset: Array  # D, (…, rows, 1)
    slopes: Array  # T, (…, rows, keys)
    raw_slopes: Array  # R, (…, rows, keys)

    @cached_property
    def fall(self) -> Array:
        """s − m, (…, rows, keys); −inf at masked keys."""
        visible = self.part.visible
        return self.soft.fall if visible is None else np.where(visible, self.soft.fall, -np.inf)

    @cached_property
    def highest(self) -> tuple[Array, Array]:
        """The largest of `fall` among the keys up to each, and among those from each on."""
        before = np.maximum.accumulate(self.fall, axis=-1)
        return before, np.maximum.accumulate(self.fall[..., ::-1], axis=-1)[..., ::-1]

    @property
    def gradients(self) -> Three:
        """Of query, (…, rows, head_dim), and this block's share of those of key and value."""
        return (
            self.part.scale * self.raw_slopes @ self.part.k,
            self.part.scale * turned(self.raw_slopes) @ self.part.q,
            turned(self.soft.weights) @ self.g,
        )

    @property
    def tilts(self) -> Three:
        """d gradients / d ln(scale): dP = P ∘ (ds − Σ P ds) with ds = f' x, and so on through D, T and R."""
        p, scale, response = self.soft.weights, self.part.scale, self.soft.scale_response
        offset = (self.slopes * response).sum(axis=-1, keepdims=True)
        moved = self.soft.through(self.slopes * response - p * offset)
        if self.part.softcap is not None:
            moved += self.slopes * cap_curvature(self.part, self.soft) * self.soft.raw
        moved += self.raw_slopes
        return (
            scale * moved @ self.part.k,
            scale * turned(moved) @ self.part.q,
            turned(p * response) @ self.g,
        )


def cap_curvature(part: Rows, soft: Softmax) -> Array:
    """f''(x) = −2 f f'/c²; 0 without a soft cap."""
    if part.softcap is None:
        return np.zeros(1)
    return soft.through(-2 / part.softcap**2 * soft.capped)


def backward_rows(part: Rows, output_gradient: NDArray[np.floating]) -> Backward:
    """The way back through `part`; `output_gradient` is the whole (batch, heads, queries, value_dim)."""
    soft = softmax_rows(part)
    g = output_gradient[part.at].astype(np.float64)
    products = g @ turned(part.v)
    offset = (soft.weights * products).sum(axis=-1, keepdims=True)
    slopes = soft.weights * (products - offset)
    return Backward(part, soft, g, products, offset, slopes, soft.through(slopes))


def pulled_rows(problem: Problem) -> tuple[Problem, NDArray[np.intp]]:
    """`problem` at the query rows whose output has a gradient, and which they are: only they have part in any other.

    Raises ValueError without a gradient, and for NaN and infinity.
    """
    if problem.output_gradient is None:
        raise ValueError("the problem must have an output_gradient, got None; Problem.of takes it")
    rows = np.flatnonzero(finite(problem).output_gradient.any(axis=(0, 1, 3)))  # type: ignore[union-attr]
    rows = rows if rows.size else np.zeros(1, np.intp)
    return at_rows(problem, rows), rows


@takes_problem
def exact_gradients(problem: Problem) -> Three:
    """(∂L/∂q, ∂L/∂k, ∂L/∂v) where ∂L/∂o is the problem's output gradient, each in its input's shape, float64.

    Also as `exact_gradients(q, k, v, output_gradient, **keywords of Problem.of)`. Formulas in the module's docstring.

    Raises ValueError for shapes that do not fit and for NaN or infinity.
    """
    asked, rows = pulled_rows(problem)
    keys = problem.shape.keys
    query = np.zeros(problem.query.shape)
    key, value = (np.zeros(one.shape) for one in (asked.without_sinks().key, asked.without_sinks().value))
    assert asked.output_gradient is not None
    for part in blocks(asked):
        found = backward_rows(part, asked.output_gradient).gradients
        query[(*part.at[:2], rows[part.at[2]])] = found[0]
        key[part.at_keys] += part.onto_keys(found[1])
        value[part.at_keys] += part.onto_keys(found[2])
    return query, key[:, :, :keys], value[:, :, :keys]
