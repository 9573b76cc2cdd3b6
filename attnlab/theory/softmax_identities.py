"""Requirement: a row of logits as a system at inverse temperature β, with identities exact to rounding.

d ln Z/dβ = ⟨s⟩, d² ln Z/dβ² = Var_p(s), H = ln Z − β⟨s⟩, dH/dβ = −β Var_p(s), Σp^k = Z(kβ)/Z(β)^k, and the
response of the output ∂o/∂s_j = p_j(v_j − o). Logits of −∞ are masked keys: they have no weight.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, finite_array, probability_rows, real, whole


class Thermodynamics(NamedTuple):
    """Per-row quantities of softmax(β s), each of shape (...), in nats and units of the logits.

    log_partition : ln Z = ln Σ e^{βs}.
    mean_energy : ⟨s⟩ under the weights.
    heat_capacity : Var_p(s) = d²ln Z/dβ².
    entropy : H = −Σ p ln p.
    participation : Σp².
    largest_weight : max p.
    """

    log_partition: Array
    mean_energy: Array
    heat_capacity: Array
    entropy: Array
    participation: Array
    largest_weight: Array


class Bounds(NamedTuple):
    """lower <= quantity <= upper, one value a row."""

    lower: Array
    upper: Array


def softmax_weights(logits: ArrayLike, beta: float = 1.0) -> Array:
    """p = softmax(β s) along the last axis, float64, shifted by the maximum.

    logits : (..., keys), finite or −∞. β >= 0, finite.

    Raises ValueError for a NaN or +∞, for an empty or fully masked row, and for a β outside its domain.
    """
    shifted, _ = _shifted(logits, beta)
    weights = np.exp(shifted)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def thermodynamics(logits: ArrayLike, beta: float = 1.0) -> Thermodynamics:
    """ln Z, ⟨s⟩, Var_p(s), H, Σp² and max p of each row at inverse temperature β.

    logits : (..., keys), finite or −∞ (masked). β >= 0. Each result has shape (...).

    H is ln Z − β⟨s⟩ with both counted from the largest logit, so that a saturated row, whose H is tiny,
    keeps its relative accuracy.

    Raises ValueError as `softmax_weights` does.
    """
    shifted, s = _shifted(logits, beta)
    boltzmann = np.exp(shifted)
    z = boltzmann.sum(axis=-1, keepdims=True)
    p = boltzmann / z
    open_keys = np.isfinite(s)
    top = s.max(axis=-1, keepdims=True)
    gap = np.where(open_keys, s, top) - top  # energies from the top, so that large common shifts cancel
    fall = (p * gap).sum(axis=-1, keepdims=True)
    # ln z of a saturated row is log1p of what the other keys add
    others = boltzmann.copy()
    np.put_along_axis(others, np.expand_dims(s.argmax(axis=-1), -1), 0.0, axis=-1)
    log_z = np.log1p(others.sum(axis=-1, keepdims=True))
    return Thermodynamics(
        log_partition=(beta * top + log_z)[..., 0],
        mean_energy=(top + fall)[..., 0],
        heat_capacity=(p * (gap - fall) ** 2).sum(axis=-1),
        entropy=(log_z - beta * fall)[..., 0],
        participation=(p * p).sum(axis=-1),
        largest_weight=p.max(axis=-1),
    )


def power_sum(logits: ArrayLike, k: int, beta: float = 1.0) -> Array:
    """Σp^k = Z(kβ)/Z(β)^k from two partition functions alone.

    logits : (..., keys); k >= 1. Returns (...). Raises ValueError as `softmax_weights` does, and for k < 1.
    """
    k = whole("k", k, 1)
    once, many = thermodynamics(logits, beta), thermodynamics(logits, k * beta)
    return np.asarray(np.exp(many.log_partition - k * once.log_partition))


def scaled_log_partition_bounds(logits: ArrayLike, beta: float) -> Bounds:
    """max s <= β⁻¹ ln Z <= max s + ln n/β, n the number of unmasked keys. Shapes (...).

    Raises ValueError as `softmax_weights` does, and for β = 0.
    """
    beta = real("beta", beta, above=0.0)
    _, s = _shifted(logits, beta)
    top = s.max(axis=-1)
    return Bounds(top, top + np.log(np.isfinite(s).sum(axis=-1)) / beta)


def log_partition_bounds(logits: ArrayLike, beta: float = 1.0) -> Bounds:
    """ln n + βs̄ <= ln Z <= ln n + βs̄ + β²Δ²/8, Δ = max s − min s (Jensen 1906; Hoeffding 1963).

    logits : (..., keys), of which masked keys count in no term. Shapes (...). Raises ValueError as
    `softmax_weights` does.
    """
    _, s = _shifted(logits, beta)
    open_keys = np.isfinite(s)
    count = open_keys.sum(axis=-1)
    mean = np.where(open_keys, s, 0.0).sum(axis=-1) / count
    spread = s.max(axis=-1) - np.where(open_keys, s, math.inf).min(axis=-1)
    lower = np.log(count) + beta * mean
    return Bounds(lower, lower + (beta * spread) ** 2 / 8)


def total_variation_bound(perturbation: ArrayLike) -> Array:
    """TV(softmax(s + δ), softmax(s)) <= tanh(‖δ‖_∞/2), attained by two halves moved apart.

    perturbation : δ, (..., keys), finite. Returns (...). TV is half the 1-norm of the difference. Raises
    ValueError for an empty or non-finite δ.
    """
    delta = finite_array("perturbation", perturbation, 1)
    return np.asarray(np.tanh(np.abs(delta).max(axis=-1) / 2))


def output_response(weights: ArrayLike, values: ArrayLike) -> Array:
    """∂o/∂s_j = p_j(v_j − o), o = Σ p_j v_j: the fluctuation–dissipation relation of one row.

    weights : (..., keys), rows summing to 1; values : (..., keys, value_dim). Returns
    (..., keys, value_dim). By it dL/dk_j = scale · p_j((v_j − o)·dO) q.

    Raises ValueError for values that are not finite, or shapes that do not match.
    """
    p, v, output = _weighted(weights, values)
    return np.asarray(p[..., None] * (v - output[..., None, :]))


def temperature_response(weights: ArrayLike, values: ArrayLike, logits: ArrayLike) -> Array:
    """dO/dβ = Cov_p(v, s) of o = Σ p_j v_j.

    weights and logits : (..., keys), finite; values : (..., keys, value_dim). Returns (..., value_dim).
    Raises ValueError for inputs that are not finite, or shapes that do not match.
    """
    p, v, output = _weighted(weights, values)
    s = finite_array("logits", logits, 1)
    if s.shape[-1] != p.shape[-1]:
        raise ValueError(f"logits must have {p.shape[-1]} keys as weights do, got shape {s.shape}")
    centred = s - (p * s).sum(axis=-1, keepdims=True)
    return np.asarray(((p * centred)[..., None] * (v - output[..., None, :])).sum(axis=-2))


def entropy_slope_in_temperature(logits: ArrayLike, temperature: float) -> Array:
    """dH/dτ = Var_p(s)/τ³ >= 0 for weights softmax(s/τ).

    logits : (..., keys). Returns (...), in nats per unit of τ. Raises ValueError for τ <= 0 and as
    `softmax_weights` does.
    """
    tau = real("temperature", temperature, above=0.0)
    return np.asarray(thermodynamics(logits, 1 / tau).heat_capacity / tau**3)


def zero_temperature_weights(logits: ArrayLike) -> Array:
    """The limit of softmax(s/τ) as τ → 0: uniform on the set of largest logits. Shape of `logits`.

    Raises ValueError as `softmax_weights` does.
    """
    _, s = _shifted(logits, 1.0)
    top = (s == s.max(axis=-1, keepdims=True)).astype(np.float64)
    return np.asarray(top / top.sum(axis=-1, keepdims=True))


def _shifted(logits: ArrayLike, beta: float) -> tuple[Array, Array]:
    """β(s − max s), with −∞ at masked keys also at β = 0, and s itself in float64."""
    beta = real("beta", beta, least=0.0)
    s = np.asarray(logits, dtype=np.float64)
    if s.ndim == 0 or s.shape[-1] == 0 or s.size == 0:
        raise ValueError(f"logits must have at least one key along the last axis, got shape {s.shape}")
    if np.isnan(s).any() or (s == math.inf).any():
        raise ValueError("logits must be finite or -inf, got a NaN or +inf")
    top = s.max(axis=-1, keepdims=True)
    if (top == -math.inf).any():
        raise ValueError("logits must leave one key unmasked in every row, got a row of -inf only")
    open_keys = np.isfinite(s)
    return np.where(open_keys, beta * (np.where(open_keys, s, top) - top), -math.inf), s


def _weighted(weights: ArrayLike, values: ArrayLike) -> tuple[Array, Array, Array]:
    p = probability_rows("weights", weights)
    v = finite_array("values", values, 2)
    if v.shape[-2] != p.shape[-1]:
        raise ValueError(f"values must have {p.shape[-1]} keys on axis -2 as weights do, got shape {v.shape}")
    return p, v, np.asarray((p[..., None, :] @ v)[..., 0, :])
