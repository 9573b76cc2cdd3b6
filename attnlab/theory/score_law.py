"""Requirement: the exact law of the dot product of two independent normal vectors.

s/σ, σ = scale σ_q σ_k, is the difference of two Gamma(d/2, 1) variables: a variance-gamma law. Given ‖q‖
it is normal, hence s/σ = χ_d · N(0, 1), which is how the distribution function is computed here.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, finite_array, real, whole

_CHUNK = 2048


def score_characteristic_function(t: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """E e^{its} = (1 + σ²t²)^{−d/2}, real as the law is symmetric. Shape of `t`.

    t : reciprocal score units. head_dim : d >= 1. scale : σ = |scale| σ_q σ_k > 0, the product of the scale
    and both standard deviations. Zero means, components iid normal (Madan, Carr and Chang 1998 for the
    law). Raises ValueError for d < 1, σ <= 0 or a t that is not finite.
    """
    d, sigma = _law(head_dim, scale)
    return np.asarray(np.exp(-0.5 * d * np.log1p((sigma * finite_array("t", t)) ** 2)))


def score_moment_generating_function(b: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """E e^{bs} = (1 − σ²b²)^{−d/2} for |σb| < 1, infinite from there on. Shape of `b`.

    So E Z is infinite for unscaled attention (σ = b = 1), whatever n: a mean of e^s cannot be measured.
    Arguments and errors as `score_characteristic_function`.
    """
    d, sigma = _law(head_dim, scale)
    square = (sigma * finite_array("b", b)) ** 2
    inside = square < 1
    log = -0.5 * d * np.log1p(-np.where(inside, square, 0.0))
    with np.errstate(over="ignore"):
        return np.asarray(np.where(inside, np.exp(log), math.inf))


def score_density(s: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """f(s) = |x/2|^ν K_ν(|x|)/(√π Γ(d/2) σ), ν = (d − 1)/2, x = s/σ. Shape of `s`, per score unit.

    At s = 0 it is Γ(ν)/(2√π Γ(d/2) σ), infinite for d = 1. Arguments and errors as
    `score_characteristic_function`.
    """
    from scipy.special import gammaln, kve

    d, sigma = _law(head_dim, scale)
    x = np.abs(finite_array("s", s)) / sigma
    if d > 32:  # K_ν overflows; the mixture of normal densities does not
        return (
            _mixture(x, d, lambda z, radius: np.exp(-0.5 * z * z) / (radius * math.sqrt(2 * math.pi))) / sigma
        )
    order = (d - 1) / 2
    constant = 0.5 * math.log(math.pi) + float(gammaln(d / 2)) + math.log(sigma)
    at_zero = math.inf if d == 1 else math.exp(float(gammaln(order)) - math.log(2.0) - constant)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = order * np.log(x / 2) + np.log(kve(order, x)) - x - constant
    return np.asarray(np.where(x > 0, np.exp(np.where(x > 0, log, 0.0)), at_zero))


def score_cdf(s: ArrayLike, head_dim: int, scale: float = 1.0) -> Array:
    """P(S <= s) = E Φ(s/(σχ_d)), absolute error below 1e-13. Shape of `s`.

    The trapezoid rule in ln χ, where the integrand is analytic and its ends vanish fast. Its cost is some
    400 normal distribution functions a point. Arguments and errors as `score_characteristic_function`.
    """
    from scipy.special import ndtr

    d, sigma = _law(head_dim, scale)
    x = finite_array("s", s) / sigma
    tail = _mixture(np.abs(x), d, lambda z, radius: np.asarray(ndtr(-z)))
    # at 0 and above the complement of the tail, so that each side keeps its relative accuracy
    return np.asarray(np.where(x < 0, tail, 1 - tail))


def _mixture(x: Array, d: int, given_radius: Callable[[Array, Array], Array]) -> Array:
    """E g(x/r, r) over r ~ χ_d, by the trapezoid rule in ln r."""
    from scipy.special import gammaln

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
        mean[start : start + _CHUNK] = given_radius(part / radius, radius) @ mass
    return mean.reshape(x.shape)


def _law(head_dim: int, scale: float) -> tuple[int, float]:
    return whole("head_dim", head_dim, 1), real("scale", scale, above=0.0)
