"""Requirement: the exact law of the dot product of two independent normal vectors.

s/σ, σ = scale σ_q σ_k, is the difference of two Gamma(d/2, 1) variables: a variance-gamma law. Given ‖q‖
it is normal, hence s/σ = χ_d · N(0, 1), which is how the distribution function is computed here.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, finite_array, real, whole

_CHUNK = 2048


def score_characteristic_function(t: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """E e^{its} = (1 + σ²t²)^{−d/2}, real as the law is symmetric. Shape of `t`.

    t : reciprocal score units.
    head_dim : d >= 1.
    scale : σ = |scale| σ_q σ_k > 0, the product of the scale and both standard deviations.

    Zero means, components iid normal (Madan, Carr and Chang 1998 for the law). Raises ValueError for d < 1, σ <= 0 or a
    t that is not finite.
    """
    d, sigma = _law(head_dim, scale)
    return np.asarray(np.exp(-0.5 * d * np.log1p((sigma * finite_array("t", t)) ** 2)))


def score_cdf(s: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """P(S <= s) = E Φ(s/(σχ_d)), absolute error below 1e-13. Shape of `s`.

    The trapezoid rule in ln χ, where the integrand is analytic and its ends vanish fast. Its cost is some
    400 normal distribution functions a point. Arguments and errors as `score_characteristic_function`.
    """
    d, sigma = _law(head_dim, scale)
    x = finite_array("s", s) / sigma
    tail = _tail(np.abs(x), d)
    # at 0 and above the complement of the tail, so that each side keeps its relative accuracy
    return np.asarray(np.where(x < 0, tail, 1 - tail))


def _tail(x: Array, d: int) -> Array:
    """E Φ(−x/r) over r ~ χ_d, by the trapezoid rule in ln r."""
    from scipy.special import gammaln, ndtr

    step = min(0.1, 0.3 / math.sqrt(2 * d))
    reach = 40 / d + 12 / math.sqrt(d)  # the left tail is e^{d·ln χ}, the right falls off doubly fast
    log_radius = 0.5 * math.log(d) + np.arange(-reach, min(reach, 2.5) + step, step)
    radius = np.exp(log_radius)
    log_mass = d * log_radius - 0.5 * radius**2 - (d / 2 - 1) * math.log(2.0) - float(gammaln(d / 2))
    mass = np.exp(log_mass) * step
    flat = x.reshape(-1)
    mean = np.empty_like(flat)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK, None]
        mean[start : start + _CHUNK] = ndtr(-part / radius) @ mass
    return mean.reshape(x.shape)


def _law(head_dim: int, scale: float) -> tuple[int, float]:
    return whole("head_dim", head_dim, 1), real("scale", scale, above=0.0)
