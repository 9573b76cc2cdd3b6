"""What holds for every row of softmax weights, exact to rounding, the norm of its Jacobian, and scales other than 1/√d.

Bounds of ln Z, and the response of the output ∂o/∂s_j = p_j(v_j − o). Logits of −∞ are masked keys.

‖J‖_F² = S₂ − 2S₃ + S₂² of J = diag p − ppᵀ, S_k = Σp^k, is exact and useless where a row saturates: it cancels to 0 or
below. With i the argmax, r the other weights and p_i Σr in place of p_i(1 − p_i), every term is positive.

Logits at initialisation: with |x|² = d_model (after a layer norm) and weights of variance σ_w², a component of q or
k has variance d_model σ_w², and so Var(logit) = (d_model σ_w²)² under the scale 1/√d_k, at any d_k.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .numbers import Array, finite_array, one_of, probability_rows, real, whole


class Bounds(NamedTuple):
    """lower <= quantity <= upper, one value a row."""

    lower: Array
    upper: Array


def scaled_log_partition_bounds(logits: ArrayLike, beta: float) -> Bounds:
    """max s <= β⁻¹ ln Z <= max s + ln n/β, n the number of unmasked keys. Shapes (...).

    logits : (..., keys). Raises ValueError for β <= 0, for NaN and +∞, and for a row without a key.
    """
    beta, s = real("beta", beta, above=0.0), _logits(logits)
    top = s.max(axis=-1)
    return Bounds(top, top + np.log(np.isfinite(s).sum(axis=-1)) / beta)


def log_partition_bounds(logits: ArrayLike) -> Bounds:
    """ln n + s̄ <= ln Z <= ln n + s̄ + Δ²/8, Δ = max s − min s (Jensen 1906; Hoeffding 1963).

    logits : (..., keys), of which masked keys count in no term. Shapes (...). Raises ValueError as
    `scaled_log_partition_bounds` does.
    """
    s = _logits(logits)
    open_keys = np.isfinite(s)
    count = open_keys.sum(axis=-1)
    mean = np.where(open_keys, s, 0.0).sum(axis=-1) / count
    spread = s.max(axis=-1) - np.where(open_keys, s, math.inf).min(axis=-1)
    lower = np.log(count) + mean
    return Bounds(lower, lower + spread**2 / 8)


def output_response(weights: ArrayLike, values: ArrayLike) -> Array:
    """∂o/∂s_j = p_j(v_j − o), o = Σ p_j v_j: the fluctuation–dissipation relation of one row.

    weights : (..., keys), rows summing to 1; values : (..., keys, value_dim). Returns
    (..., keys, value_dim). By it dL/dk_j = scale · p_j((v_j − o)·dO) q.

    Raises ValueError for values that are not finite, or shapes that do not match.
    """
    p, v = probability_rows("weights", weights), finite_array("values", values, 2)
    if v.shape[-2] != p.shape[-1]:
        raise ValueError(f"values must have {p.shape[-1]} keys on axis -2 as weights do, got shape {v.shape}")
    return np.asarray(p[..., None] * (v - p[..., None, :] @ v))


def _logits(logits: ArrayLike) -> Array:
    """In float64, with −∞ at masked keys and at least one other key a row."""
    s = np.asarray(logits, dtype=np.float64)
    if s.ndim == 0 or s.shape[-1] == 0 or s.size == 0:
        raise ValueError(f"logits must have at least one key along the last axis, got shape {s.shape}")
    if np.isnan(s).any() or (s == math.inf).any():
        raise ValueError("logits must be finite or -inf, got a NaN or +inf")
    if (s.max(axis=-1) == -math.inf).any():
        raise ValueError("logits must leave one key unmasked in every row, got a row of -inf only")
    return s


def jacobian_norm_squared(weights: ArrayLike) -> Array:
    """‖diag p − ppᵀ‖_F² per row, with a small relative error however saturated the row.

    weights : (..., keys), non-negative, rows summing to 1. Returns (...), dimensionless, float64.

    (p_i Σr)² + Σr²(1 − r)² + 2p_i²Σr² + ((Σr²)² − Σr⁴), i the argmax and r the other weights. The sum of r
    stands for 1 − p_i, so the result follows the small weights and not the rounding of the large one.
    Weights below about 1e-154 square to 0.

    Raises ValueError for weights that are empty, not finite, negative, or whose rows do not sum to 1.
    """
    p = probability_rows("weights", weights)
    at = np.expand_dims(p.argmax(axis=-1), -1)
    largest, others = np.take_along_axis(p, at, axis=-1)[..., 0], p.copy()
    np.put_along_axis(others, at, 0.0, axis=-1)
    rest = others.sum(axis=-1)
    squares = others * others
    second = squares.sum(axis=-1)
    # Σ_{j≠k} r_j²r_k² = (Σr²)² − Σr⁴; where one r dominates, the difference is far below the other terms
    pairs = np.maximum(second * second - (squares * squares).sum(axis=-1), 0.0)
    diagonal = (largest * rest) ** 2 + (squares * (1 - others) ** 2).sum(axis=-1)
    return np.asarray(diagonal + 2 * largest * largest * second + pairs)


def scalable_softmax_beta(n: int, slope: float) -> float:
    """β = s ln n, the logit std of scalable softmax over unit-variance scores (Nakanishi 2025).

    n : keys, >= 1.
    slope : s >= 0.

    Raises ValueError outside.
    """
    return real("slope", slope, least=0.0) * math.log(whole("n", n, 1))


def scalable_softmax_freezing_length(slope: float) -> float:
    """n = e^{2/s²}: scalable softmax has β = s ln n > β_c = √(2 ln n) at any greater length.

    slope : s > 0, else ValueError. Infinite where it exceeds float64.
    """
    exponent = 2 / real("slope", slope, above=0.0) ** 2
    return math.exp(exponent) if exponent < 709.78 else math.inf


def largest_possible_weight(n: int, gap: float) -> float:
    """1/(1 + (n − 1)e^{−Δ}): no weight of n keys exceeds it, Δ = max − min logit.

    n >= 1, Δ >= 0, else ValueError. Veličković et al. 2024 for the consequence that sharpness must
    disperse with n at bounded logits.
    """
    n = whole("n", n, 1)
    return 1 / (1 + (n - 1) * math.exp(-real("gap", gap, least=0.0)))


def soft_cap_largest_weight(n: int, cap: float) -> float:
    """1/(1 + (n − 1)e^{−2c}): the largest weight under the soft cap c tanh(s/c), where Δ < 2c.

    n >= 1, c > 0, else ValueError.
    """
    return largest_possible_weight(n, 2 * real("cap", cap, above=0.0))


def required_gap(n: int, weight: float) -> float:
    """Δ = ln((n − 1)w/(1 − w)): the gap max − min that a weight w over n keys needs at least.

    n >= 2, 1/n <= w < 1, else ValueError. It is 14.0 for w = .9 at n = 131072.
    """
    n = whole("n", n, 2)
    weight = real("weight", weight, least=1 / n)
    if weight >= 1:
        raise ValueError(f"weight must be < 1, got {weight:g}")
    return max(math.log((n - 1) * weight / (1 - weight)), 0.0)


SCHEMES = ("fused_xavier", "xavier", "linear_default", "normal")


def initial_logit_variance(model_dim: int, scheme: str, weight_std: float | None = None) -> float:
    """Var(q·k/√d_k) at initialisation for an input with |x|² = model_dim, dimensionless.

    model_dim : E >= 1.
    scheme : "fused_xavier", one Xavier-uniform (3E)×E matrix as in `nn.MultiheadAttention`, ¼;
        "xavier", separate E×E Xavier matrices, 1; "linear_default", `nn.Linear`'s uniform ±1/√E with bias,
        (1/3 + 1/(3E))²; "normal", N(0, weight_std²), (E σ_w²)².
    weight_std : σ_w >= 0, for "normal" and only there.

    Glorot and Bengio 2010 for Xavier. Raises ValueError for other schemes or sizes, or a missing or idle
    `weight_std`.
    """
    width = whole("model_dim", model_dim, 1)
    one_of("scheme", scheme, SCHEMES)
    if (scheme == "normal") != (weight_std is not None):
        need = "needs weight_std" if scheme == "normal" else "takes no weight_std"
        raise ValueError(f"scheme {scheme!r} {need}")
    if weight_std is not None:
        return (width * real("weight_std", weight_std, least=0.0) ** 2) ** 2
    component = {"fused_xavier": 1 / 2, "xavier": 1.0, "linear_default": 1 / 3 + 1 / (3 * width)}[scheme]
    return component * component
