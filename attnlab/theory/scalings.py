"""Requirement: what scalings other than 1/√d do to the logits and to the largest possible weight; and how the logits
vary at initialisation, from the projections' law alone.

With |x|² = d_model (after a layer norm) and weights of variance σ_w², a component of q or k has variance
d_model σ_w², and so Var(logit) = (d_model σ_w²)² under the scale 1/√d_k, at any d_k.
"""

import math

from .checks import one_of, real, whole


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
