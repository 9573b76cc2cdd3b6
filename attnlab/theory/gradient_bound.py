"""Requirement: how far roundings may carry a gradient at the very most, whatever the inputs.

Per row, with η, γ, τ and L as in `error_budget`, A, D and T as in `exact_gradients`, and
|g||v|ᵀ = B:

    |δp_j| <= b_j = min(p_j(e^{2η} − 1), tanh(η/2)) + (3u_P + (2n + 6)u_i + L) p_j + τ_P
    |δA_j| <= α_j = (γ_{d_v+2} + 2u_S) B_j
    |δD|   <= Σ_j (b_j B_j + p_j α_j) + γ_{n+d_v+4} Σ_j (p_j + b_j)B_j + u_O Σ_c|g_c o_c| + τ_O Σ_c|g_c|
    |δt_j| <= θ_j = b_j|A_j − D| + (p_j + b_j)(α_j + δD + 4u_i|A_j − D|),
              and u(|t_j| + θ_j) + τ(1 + 1/scale) for each time that T is stored; and Σ_lθ_l more where
              s_j >= max_{l<=j} s_l − 2η, or max_{l>=j} s_l − 2η: for who differentiates m too, what the sum of T
              is off comes to lie on its key, and on those of the maxima on the way where there were any
    |δr_j| <= ρ_j = θ_j; with a soft cap f'_j θ_j + (|t_j| + θ_j)φ_j and what storing r adds, φ_j >= |δf'_j|
    |δ∂L/∂q| <= scale [Σ_j ρ_j|k_j| + G_n Σ_j(|r_j| + ρ_j)|k_j|], and likewise for k over queries,
    |δ∂L/∂v_j| <= Σ_i (b_ij + G_{n_q}(p_ij + b_ij))|g_i|,

G_n = γ_{n+4}(u_i) + N u_O for a sum of n terms that is stored N times before it is whole, and each with u_O of
itself and τ_O on top. tanh(η/2) bounds how far any single weight can move, e^{2η} how much.
"""

from typing import NamedTuple

import numpy as np

from .checks import Array
from .exact_attention import turned
from .exact_gradients import Backward
from .roundings import LARGEST_TANH, Roundings, growth, largest_logarithm_error, largest_score_error

# e^{2η} need not be known beyond this: tanh(η/2) is the smaller by then
_LARGEST_ETA = 100.0


class Bounds(NamedTuple):
    """Of one block: query (…, rows, head_dim); its share of key (…, keys, head_dim), value (…, keys, value_dim)."""

    query: Array
    key: Array
    value: Array


#: |f''| <= 4/(3√3 c)
_CURVATURE = 4 / 27**0.5


def gradient_bounds(back: Backward, sums: tuple[float, float], roundings: Roundings) -> Bounds:
    """The bounds of one block before the gradients themselves are stored.

    sums : G_n, of a sum over keys, and G_{n_q}, of one over all queries.
    """
    part, p = back.part, back.soft.weights
    dim_v, scale = part.v.shape[-1], abs(part.scale)
    shown = True if part.visible is None else part.visible
    absolute = np.abs(back.g) @ turned(np.abs(part.v))
    moved = largest_score_error(part, back.soft, roundings)
    eta = moved.scores.max(axis=-1, keepdims=True)
    b = _of_weights(back, eta, roundings) * shown
    alpha = growth(dim_v + 2, roundings) * absolute
    if roundings.scores is not None:
        alpha += 2 * roundings.scores.unit_roundoff * absolute
    theta = _stored(_of_slopes(back, b, alpha, absolute, roundings), back.slopes, scale, roundings) * shown
    highest_so_far = back.fall + 2 * eta >= np.minimum(*back.highest)
    theta += shown * highest_so_far * theta.sum(axis=-1, keepdims=True)
    if part.softcap is not None:
        bent = back.soft.through(theta) + (np.abs(back.slopes) + theta) * _of_cap(back, moved.raw, roundings)
        theta = _stored(bent, back.raw_slopes, scale, roundings) * shown
    reach = np.abs(back.raw_slopes) + theta
    over_keys, over_queries = sums
    in_query = theta + over_keys * reach
    in_key = theta + over_queries * reach
    in_value = b + over_queries * (p + b)
    return Bounds(
        scale * in_query @ np.abs(part.k),
        scale * turned(in_key) @ np.abs(part.q),
        turned(in_value) @ np.abs(back.g),
    )


def _stored(error: Array, exact: Array, scale: float, roundings: Roundings) -> Array:
    """The bound of `error` after `exact` is stored as weights and as scores are, and scaled."""
    for form in (roundings.weights, roundings.scores):
        if form is not None:
            error = error + form.unit_roundoff * (np.abs(exact) + error)
            error += form.smallest_subnormal / 2 * (1 + 1 / max(scale, 1e-300))
    return error


def _of_cap(back: Backward, raw: Array, roundings: Roundings) -> Array:
    """φ: of f' = 1 − y², y = f/c, for errors `raw` of x, a rounded y and roundings of y², of f' and of its products."""
    softcap, stored = back.part.softcap, roundings.scores
    assert softcap is not None and back.soft.slope is not None
    u = roundings.inner_roundoff + (0.0 if stored is None else stored.unit_roundoff)
    squares = (back.soft.capped / softcap) ** 2
    own = u * ((2 * LARGEST_TANH + 1) * squares + 4 * back.soft.slope)
    return np.asarray(np.minimum(_CURVATURE / softcap * raw, 1.0) + own)


def _of_weights(back: Backward, eta: Array, roundings: Roundings) -> Array:
    """b."""
    soft, u = back.soft, roundings.inner_roundoff
    eta = np.minimum(eta, _LARGEST_ETA)
    moved = np.minimum(soft.weights * np.expm1(2 * eta), np.tanh(eta / 2))
    stored = roundings.weights or roundings.inner
    relative = (2 * soft.weights.shape[-1] + 6) * u + largest_logarithm_error(soft, u)
    relative = relative + roundings.weights_roundoff
    return np.asarray(moved + relative * soft.weights + stored.smallest_subnormal / 2)


def _of_slopes(back: Backward, b: Array, alpha: Array, absolute: Array, roundings: Roundings) -> Array:
    """θ before T is stored."""
    part, p, u = back.part, back.soft.weights, roundings.inner_roundoff
    n, dim_v = part.v.shape[-2:]
    g, o = np.abs(back.g), np.abs(back.soft.output)
    offset = (b * absolute + p * alpha).sum(axis=-1, keepdims=True)
    offset += growth(n + dim_v + 4, roundings) * ((p + b) * absolute).sum(axis=-1, keepdims=True)
    offset += roundings.output.unit_roundoff * (g * o).sum(axis=-1, keepdims=True)
    offset += roundings.output.smallest_subnormal / 2 * g.sum(axis=-1, keepdims=True)
    centred = np.abs(back.products - back.offset)
    return np.asarray(b * centred + (p + b) * (alpha + offset + 4 * u * centred))
