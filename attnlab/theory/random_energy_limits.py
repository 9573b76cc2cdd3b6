"""Requirement: the two asymptotes of `random_energy`, as curves beside the exact one, never instead of it.

Both miss visibly at real n: convergence is in 1/ln n. Where a limit says nothing its fields are NaN.
"""

import math

import numpy as np

from .checks import real, whole
from .random_energy import RandomEnergy, critical_beta, extreme_level


def random_energy_high_temperature(n: int, beta: float) -> RandomEnergy:
    """First order in e^{β²}/n of `random_energy`, for β ≪ β_c = √(2 ln n).

    E ln Z ≈ ln n + β²/2 − (e^{β²} − 1)/2n; E H ≈ ln n − β²/2 + [(2β² − 1)e^{β²} + 1]/2n;
    E Σp² ≈ E‖J‖_F² ≈ e^{β²}/n. Derrida 1981 for the leading terms.

    All fields are NaN at β >= β_c/2, where Σp² is no longer carried by typical keys. `largest_weight`
    is always NaN: it is a matter of extremes, of which this expansion knows nothing.

    Raises ValueError for n < 2, β < 0 or β not finite.
    """
    n = whole("n", n, 2)
    beta = real("beta", beta, least=0.0)
    if beta >= critical_beta(n) / 2:
        return _unknown(n, beta)
    square = beta * beta
    boost = math.exp(square)
    return RandomEnergy(
        n=n,
        beta=beta,
        log_partition=math.log(n) + square / 2 - (boost - 1) / (2 * n),
        entropy=math.log(n) - square / 2 + ((2 * square - 1) * boost + 1) / (2 * n),
        participation=boost / n,
        largest_weight=math.nan,
        jacobian_norm_squared=boost / n,
    )


def random_energy_frozen(n: int, beta: float) -> RandomEnergy:
    """The frozen phase, β > β_c: weights follow the Poisson–Dirichlet law PD(m, 0).

    With m = b_n/β and n φ_N(b_n) = b_n (m = β_c/β in the limit):
    E Σp² = 1 − m; E H = ψ(1) − ψ(1 − m); E‖J‖_F² = m(1 − m)/3;
    E p_max = ∫₀^∞ e^{−t} dt / (1 + m ∫₀¹ (1 − e^{−tx}) x^{−m−1} dx);
    E ln Z = E H + β²m, by the exact identity. Derrida 1981; Pitman and Yor 1997; Bovier, Kurkova and
    Löwe 2002.

    All fields are NaN where m >= 1. Raises ValueError for n < 2, β < 0 or β not finite.
    """
    n = whole("n", n, 2)
    beta = real("beta", beta, least=0.0)
    level = extreme_level(n)
    if beta <= level:
        return _unknown(n, beta)
    m = level / beta
    entropy = poisson_dirichlet_entropy(m)
    return RandomEnergy(
        n=n,
        beta=beta,
        log_partition=entropy + beta * level,
        entropy=entropy,
        participation=1 - m,
        largest_weight=poisson_dirichlet_largest(m),
        jacobian_norm_squared=m * (1 - m) / 3,
    )


def poisson_dirichlet_entropy(m: float) -> float:
    """E H = ψ(1) − ψ(1 − m) of PD(m, 0) weights, 0 < m < 1, in nats. Raises ValueError outside."""
    from scipy.special import digamma

    m = _index(m)
    return float(digamma(1.0) - digamma(1.0 - m))


def poisson_dirichlet_largest(m: float) -> float:
    """E p_max of PD(m, 0) weights, 0 < m < 1 (Pitman and Yor 1997). Raises ValueError outside.

    By parts m ∫₀¹ (1 − e^{−tx}) x^{−m−1} dx = e^{−t} − 1 + t^m γ(1 − m, t), γ the lower incomplete gamma
    function, so that E p_max = ∫₀^∞ dt / (1 + e^t t^m γ(1 − m, t)): the trapezoid rule in ln t.
    """
    from scipy.special import gamma, gammainc

    m = _index(m)
    step = 0.05
    log_t = np.arange(-45.0, 6.0, step)
    t = np.exp(log_t)
    below = gamma(1 - m) * gammainc(1 - m, t) * t**m
    decay = np.exp(-t)
    return float((t * decay / (decay + below)).sum() * step)


def frozen_tail(m: float, epsilon: float) -> float:
    """P(1 − p_max < ε) ≈ (sin πm / πm) ε^m for small ε, of PD(m, 0) weights.

    The rows counted here are those whose gradient vanishes. Raises ValueError unless 0 < m < 1 and
    0 < ε <= 1.
    """
    m = _index(m)
    epsilon = real("epsilon", epsilon, above=0.0)
    if epsilon > 1:
        raise ValueError(f"epsilon must be <= 1, got {epsilon:g}")
    return float(math.sin(math.pi * m) / (math.pi * m) * epsilon**m)


def _index(m: float) -> float:
    m = real("m", m, above=0.0)
    if m >= 1:
        raise ValueError(f"m must be < 1, got {m:g}")
    return m


def _unknown(n: int, beta: float) -> RandomEnergy:
    return RandomEnergy(n, beta, math.nan, math.nan, math.nan, math.nan, math.nan)
