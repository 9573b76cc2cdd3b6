"""Requirement: what scalings other than 1/√d do to the logits and to the largest possible weight."""

import math
from typing import NamedTuple

from .checks import one_of, real, whole
from .random_energy import critical_beta


class LogitMoments(NamedTuple):
    """Mean and standard deviation of one logit."""

    mean: float
    std: float


def aligned_logit(head_dim: int, alignment: float, scaling: str = "sqrt") -> LogitMoments:
    """Mean and std of scale · q·k for unit-variance components with correlation ρ between q_c and k_c.

    head_dim : d >= 1. alignment : ρ in [−1, 1]. scaling : "none" (scale 1), "sqrt" (1/√d) or "mup" (1/d).
    E q·k = dρ and Var q·k = d(1 + ρ²), normal components; hence mean ρ√d under "sqrt" and ρ under "mup",
    where the std is √((1 + ρ²)/d) (Yang and Hu 2021 for the 1/d rule). Raises ValueError outside.
    """
    d = whole("head_dim", head_dim, 1)
    rho = real("alignment", alignment, least=-1.0)
    if rho > 1:
        raise ValueError(f"alignment must be <= 1, got {rho:g}")
    power = {"none": 0.0, "sqrt": -0.5, "mup": -1.0}[one_of("scaling", scaling, ("none", "sqrt", "mup"))]
    scale = d**power
    return LogitMoments(scale * d * rho, scale * math.sqrt(d * (1 + rho * rho)))


def scalable_softmax_beta(n: int, slope: float) -> float:
    """β = s ln n, the logit std of scalable softmax over unit-variance scores (Nakanishi 2025).

    n : keys, >= 1. slope : s >= 0. Raises ValueError outside.
    """
    return real("slope", slope, least=0.0) * math.log(whole("n", n, 1))


def scalable_softmax_freezing_length(slope: float) -> float:
    """n = e^{2/s²}: scalable softmax has β = s ln n > β_c = √(2 ln n) at any greater length.

    slope : s > 0, else ValueError. Infinite where it exceeds float64.
    """
    exponent = 2 / real("slope", slope, above=0.0) ** 2
    return math.exp(exponent) if exponent < 709.78 else math.inf


def is_frozen(n: int, beta: float) -> bool:
    """Whether β > β_c = √(2 ln n). Raises ValueError for n < 2, β < 0 or β not finite."""
    return real("beta", beta, least=0.0) > critical_beta(n)


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
