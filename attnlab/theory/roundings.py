"""Requirement: where an implementation of attention rounds, as data, and what one rounding costs."""

from typing import NamedTuple

import numpy as np

from .checks import Array, one_of, whole
from .exact_attention import Rows, Softmax, turned
from .floating_point import ONE_MANTISSA, ROUNDING_RMS, FloatFormat, float_format

#: roundings of a product q_c k_c where both are stored again after the scale's root was folded into them
FOLDED = 2
#: roundings of a weight where softmax is written out and each step stored: e^{s − m}, its sum, and the quotient (or,
#: divided late, the sum over keys)
WRITTEN_OUT = 3


class Roundings(NamedTuple):
    output: FloatFormat
    weights: FloatFormat | None
    scores: FloatFormat | None
    score_roundings: int
    inner: FloatFormat
    normalised: bool
    block: int | None
    any_unfused: bool = False

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

    @property
    def weights_roundoff(self) -> float:
        """Largest error that storing it gives a weight, relative; 0 where none is stored."""
        if self.weights is None:
            return 0.0
        return self.weights.unit_roundoff * (WRITTEN_OUT if self.any_unfused else 1)

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


def logarithm_variance(soft: Softmax, roundings: Roundings) -> Array:
    """What ln Z in one number costs all weights of a row alike, (…, rows, 1): min{(u_i ln Z)²/3, a²} + (u_i ln l)²/3.

    exp(s_j − ln Z) with ln Z = m + ln l has the roundings of ln Z and of ln l in every weight: not the scatter of
    log-uniform numbers, since the ln Z of many rows are alike in size and in mantissa. a : `_absorbed`.
    """
    alike = roundings.inner_variance * ONE_MANTISSA**2
    lost = np.minimum(alike * soft.log_partition**2, _absorbed(soft) ** 2)
    return np.asarray(lost + alike * soft.log_sum**2)


def largest_logarithm_error(soft: Softmax, u: float) -> Array:
    """What no weight of a row is further off than, relative, for ln Z in one number: min(u|ln Z|, a) + u ln l."""
    return np.asarray(np.minimum(u * np.abs(soft.log_partition), _absorbed(soft)) + u * soft.log_sum)


def _absorbed(soft: Softmax) -> Array:
    """a: ln l, the most that ln l can lose beside an m of few bits, such as float32 holds; else no limit.

    With m itself rounded, while s_j − ln Z is not (one fused multiply-add makes it of products), m adds its own.
    """
    with np.errstate(over="ignore"):
        few_bits = soft.top == soft.top.astype(np.float32)
    return np.where(few_bits, soft.log_sum, np.inf)


def stored_score_variance(part: Rows, soft: Softmax, scale: float, roundings: Roundings) -> Array | None:
    """What storing the scores adds to it, or None where they are not stored: r(c u_S)² s².

    For any unfused form (c u_S)² [max(r s², 2 scale² Σ_c q_c²k_c²) + (s − m)² + 1]: q and k may each be multiplied by
    the scale's root and stored again, which is far more of a score near 0, and where a row sees few keys one score
    decides; and a softmax that is written out stores s − m and e^{s − m}.
    """
    if roundings.scores is None or not roundings.score_roundings:
        return None
    squares = roundings.score_roundings * soft.scores**2
    if roundings.any_unfused:
        products = (part.q * part.q) @ turned(part.k * part.k) * scale**2
        squares = np.maximum(squares, FOLDED * products) + soft.fall**2 + 1
    return np.asarray(mean_square(roundings.scores) * squares)


def stored_sum_variance(roundings: Roundings) -> float:
    """What storing l = Σe^{s − m} costs all weights of a row alike, where softmax is written out: (c u_S)²."""
    if roundings.scores is None or not roundings.any_unfused:
        return 0.0
    return mean_square(roundings.scores)


def largest_score_error(part: Rows, soft: Softmax, scale: float, roundings: Roundings) -> Array:
    """What no score is further off than, relative to the row's largest; 0 where masked. (…, rows, keys).

    γ_{d+2}(u_i)·scale·Σ|q_c k_c| + u_i|s − m| + r u_S|s|, γ_k(u) = ku/(1 − ku). Higham 2002, §3.1. For any unfused form
    2u_S·scale·Σ|q_c k_c| if that is more than r u_S|s|, and u_S|s − m| on top.
    """
    products = np.abs(part.q) @ turned(np.abs(part.k)) * abs(scale)
    moved = growth(part.k.shape[-1] + 2, roundings) * products
    moved -= roundings.inner_roundoff * soft.fall
    if roundings.scores is not None:
        stored = roundings.score_roundings * np.abs(soft.scores)
        if roundings.any_unfused:
            stored = np.maximum(stored, FOLDED * products) - soft.fall
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
    any_unfused: bool = False,
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
        any_unfused=any_unfused,
    )
