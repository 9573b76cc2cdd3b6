"""Requirement: norms of the softmax Jacobian J = diag p − ppᵀ that stay right when a row saturates.

‖J‖_F² = S₂ − 2S₃ + S₂², S_k = Σp^k, is exact and useless there: it cancels to 0 or below. With i the
argmax, r the other weights and p_i Σr in place of p_i(1 − p_i), every term is positive.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, probability_rows


class SpectralBounds(NamedTuple):
    """lower <= ‖J‖₂ <= upper, one value a row."""

    lower: Array
    upper: Array


def jacobian_norm_squared(weights: ArrayLike) -> Array:
    """‖diag p − ppᵀ‖_F² per row, with a small relative error however saturated the row.

    weights : (..., keys), non-negative, rows summing to 1. Returns (...), dimensionless, float64.

    (p_i Σr)² + Σr²(1 − r)² + 2p_i²Σr² + ((Σr²)² − Σr⁴), i the argmax and r the other weights. The sum of r
    stands for 1 − p_i, so the result follows the small weights and not the rounding of the large one.
    Weights below about 1e-154 square to 0.

    Raises ValueError for weights that are empty, not finite, negative, or whose rows do not sum to 1.
    """
    p = probability_rows("weights", weights)
    largest, others = _split(p)
    rest = others.sum(axis=-1)
    squares = others * others
    second = squares.sum(axis=-1)
    # Σ_{j≠k} r_j²r_k² = (Σr²)² − Σr⁴; where one r dominates, the difference is far below the other terms
    pairs = np.maximum(second * second - (squares * squares).sum(axis=-1), 0.0)
    diagonal = (largest * rest) ** 2 + (squares * (1 - others) ** 2).sum(axis=-1)
    return np.asarray(diagonal + 2 * largest * largest * second + pairs)


def jacobian_spectral_bounds(weights: ArrayLike) -> SpectralBounds:
    """max(p₍₂₎, max p(1 − p)) <= ‖J‖₂ <= min(2 max p(1 − p), p₍₁₎, 1 − Σp², ½), per row.

    weights : (..., keys), non-negative, rows summing to 1. Each bound has shape (...), dimensionless. The
    lower is by interlacing and the diagonal; the upper by Gershgorin's discs, J ⪯ diag p, the trace, and
    Popoviciu's inequality for the variance.

    Raises ValueError for weights that are empty, not finite, negative, or whose rows do not sum to 1.
    """
    p = probability_rows("weights", weights)
    largest, others = _split(p)
    rest = others.sum(axis=-1)
    second = others.max(axis=-1, initial=0.0)
    bernoulli = np.maximum(largest * rest, (others * (1 - others)).max(axis=-1, initial=0.0))
    trace = (1 + largest) * rest - (others * others).sum(axis=-1)  # 1 − Σp² without its cancellation
    upper = np.minimum.reduce([2 * bernoulli, largest, trace, np.full_like(largest, 0.5)])
    # for two keys all bounds meet, and rounding may cross them
    return SpectralBounds(np.minimum(np.maximum(second, bernoulli), upper), upper)


def _split(p: Array) -> tuple[Array, Array]:
    """The largest weight of each row, and the row with one copy of it set to 0."""
    at = np.expand_dims(p.argmax(axis=-1), -1)
    largest = np.take_along_axis(p, at, axis=-1)[..., 0]
    others = p.copy()
    np.put_along_axis(others, at, 0.0, axis=-1)
    return largest, others
