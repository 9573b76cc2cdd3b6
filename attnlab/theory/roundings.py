"""Requirement: where an implementation of attention rounds, as data, and what one rounding costs."""

from typing import NamedTuple

import numpy as np

from .checks import Array, one_of, whole
from .exact_attention import Rows, Softmax, turned
from .floating_point import ROUNDING_RMS, FloatFormat, float_format

#: roundings of a product q_c k_c where both are stored again after the scale's root was folded into them
FOLDED = 2


class Roundings(NamedTuple):
    output: FloatFormat
    weights: FloatFormat | None
    scores: FloatFormat | None
    score_roundings: int
    inner: FloatFormat
    normalised: bool
    block: int | None
    folded: bool = False

    @property
    def truths(self) -> int:
        """How many of the two results compared have the inner error: both where the inner is float64."""
        return 2 if self.inner.precision == 53 else 1

    def chain(self, terms: int) -> float:
        """Longest chain of additions in a sum of so many terms."""
        if self.block is None:
            return float(terms)
        return min(float(terms), self.block + terms / self.block)

    @property
    def inner_variance(self) -> float:
        """Mean square of one inner rounding, relative: (c u_i)²."""
        return self.truths * mean_square(self.inner)

    @property
    def inner_roundoff(self) -> float:
        """Largest inner rounding, relative."""
        return self.truths * self.inner.unit_roundoff

    def sum_variance(self, terms: float | Array, squares: Array, total: Array) -> Array:
        """`chain_variance` in the inner precision."""
        return self.inner_variance * chain_variance(terms, squares, total)


def mean_square(form: FloatFormat) -> float:
    """Of one rounding, relative: (c u)²."""
    return (ROUNDING_RMS * form.unit_roundoff) ** 2


def chain_variance(terms: float | Array, squares: Array, total: Array) -> Array:
    """Of a sum in a chain of so many additions, in (c u)²: (1 + N/2)Σa² + (N/3)A².

    squares : Σa² over the terms. total : A, their sum.
    """
    return np.asarray((1 + terms / 2) * squares + terms / 3 * total**2)


def score_variance(part: Rows, soft: Softmax, scale: float, roundings: Roundings) -> Array:
    """Inner σ² of each score, the rounding of its exponent and of exp included; (…, rows, keys)."""
    products = (part.q * part.q) @ turned(part.k * part.k) * scale**2
    summed = roundings.sum_variance(roundings.chain(part.k.shape[-1]), products, soft.scores)
    return summed + roundings.inner_variance * (soft.scores**2 + 2 * soft.fall**2 + 2)


def lost_weight(soft: Softmax, roundings: Roundings) -> Array:
    """Σ_j p_j [p_j < u_i] per row, (…, rows, 1): what adding up the weights in a chain may lose altogether."""
    small = np.where(soft.weights < roundings.inner_roundoff, soft.weights, 0.0)
    return np.asarray(small.sum(axis=-1, keepdims=True))


def stored_score_variance(part: Rows, soft: Softmax, scale: float, roundings: Roundings) -> Array | None:
    """What storing the scores adds to it, or None where they are not stored: r(c u_S)² s².

    Where the scale may be folded, at least 2(c u_S)² scale² Σ_c q_c²k_c²: q and k are each multiplied by its root
    and stored again. Of a score near 0 that is far more, and where a row sees few keys one score decides.
    """
    if roundings.scores is None or not roundings.score_roundings:
        return None
    squares = roundings.score_roundings * soft.scores**2
    if roundings.folded:
        products = (part.q * part.q) @ turned(part.k * part.k) * scale**2
        squares = np.maximum(squares, FOLDED * products)
    return np.asarray(mean_square(roundings.scores) * squares)


def largest_score_error(part: Rows, soft: Softmax, scale: float, roundings: Roundings) -> Array:
    """What no score is further off than, relative to the row's largest; 0 where masked. (…, rows, keys).

    γ_{d+2}(u_i)·scale·Σ|q_c k_c| + u_i|s − m| + r u_S|s|, γ_k(u) = ku/(1 − ku). Higham 2002, §3.1. Where the scale may
    be folded, 2u_S·scale·Σ|q_c k_c| if that is more than r u_S|s|.
    """
    products = np.abs(part.q) @ turned(np.abs(part.k)) * abs(scale)
    moved = growth(part.k.shape[-1] + 2, roundings) * products
    moved -= roundings.inner_roundoff * soft.fall
    if roundings.scores is not None:
        stored = roundings.score_roundings * np.abs(soft.scores)
        if roundings.folded:
            stored = np.maximum(stored, FOLDED * products)
        moved += roundings.scores.unit_roundoff * stored
    if part.visible is not None:
        moved *= part.visible
    return moved


def growth(count: float, roundings: Roundings) -> float:
    """γ_k(u_i) = k u_i/(1 − k u_i)."""
    grown = count * roundings.inner_roundoff
    return grown / (1 - grown)


def rounding_variance(x: Array, form: FloatFormat) -> Array:
    """Mean square error of one rounding of x to nearest: (c u x)², or τ²/3 where x is subnormal.

    Below τ a number is lost whole, which is the smaller error.
    """
    half = form.smallest_subnormal / 2
    normal = (ROUNDING_RMS * form.unit_roundoff * x) ** 2
    subnormal = np.minimum(half * half / 3, x * x)
    return np.asarray(np.where(np.abs(x) < form.smallest_normal, subnormal, normal))


def checked_roundings(
    output_dtype: str,
    weights_dtype: str | None,
    scores_dtype: str | None,
    score_roundings: int,
    inner_dtype: str | None,
    weights_stored: str,
    summation_block: int | None,
    folded_scale: bool = False,
) -> Roundings:
    times = whole("score_roundings", score_roundings, 0)
    if times and scores_dtype is None:
        raise ValueError(f"scores_dtype must be given for score_roundings={times}")
    default = "float64" if output_dtype == "float64" else "float32"
    return Roundings(
        output=float_format(output_dtype),
        weights=None if weights_dtype is None else float_format(weights_dtype),
        scores=None if scores_dtype is None else float_format(scores_dtype),
        score_roundings=times,
        inner=float_format(default if inner_dtype is None else inner_dtype),
        normalised=one_of("weights_stored", weights_stored, ("normalised", "unnormalised")) == "normalised",
        block=None if summation_block is None else whole("summation_block", summation_block, 1),
        folded=folded_scale,
    )
