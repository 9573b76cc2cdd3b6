"""Where an implementation of attention rounds, as data, and what that does to the scores and weights of some rows."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.exact_attention import Rows, Softmax, blocks, cap_slope, softmax_rows, turned
from attnlab.correctness.numbers import ONE_MANTISSA, ROUNDING_RMS, Array, FloatFormat, float_format, whole
from attnlab.workload.inputs import Inputs

#: roundings of a product q_c k_c where both are stored again after the scale's root was folded into them
FOLDED = 2
#: roundings of a weight where softmax is written out and each step stored: e^{s − m}, its sum, and the quotient (or,
#: divided late, the sum over keys)
WRITTEN_OUT = 3
#: mean square of the error of tanh, in roundings, and its largest, in u: libraries are good to two units in the last
#: place
TANH, LARGEST_TANH = 4, 4
#: roundings of a bias that its format does not hold: of the slope of ALiBi, and of its product with the distance
BIAS = 2


class Roundings(NamedTuple):
    """Where an implementation rounds whose arrays are of one format.

    form : of the output, and of weights and scores where these are stored. inner : of the arithmetic. score_roundings :
    of scale · q·k where scores are stored. any_unfused : whoever stores scores may also have stored a q and a k after
    the scale's root was folded into both, and may write softmax out and store each step.
    """

    form: FloatFormat
    inner: FloatFormat
    score_roundings: int = 2
    any_unfused: bool = False

    @classmethod
    def of(cls, dtype: str, score_roundings: int = 2, any_unfused: bool = False) -> "Roundings":
        """With float32 inside, float64 for float64. Raises ValueError for an unknown dtype, and a negative number."""
        inner = float_format("float64" if dtype == "float64" else "float32")
        times = whole("score_roundings", score_roundings, 0)
        return cls(float_format(dtype), inner, times, any_unfused)

    @property
    def truths(self) -> int:
        """How many of the two results compared have the inner error: both where the inner is float64."""
        return 2 if self.inner.precision == 53 else 1

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
        """Largest error that storing it gives a weight, relative."""
        return self.form.unit_roundoff * (WRITTEN_OUT if self.any_unfused else 1)

    @property
    def stored_sum_variance(self) -> float:
        """What storing l = Σe^{s − m} costs all weights of a row alike, where softmax is written out: (c u_S)²."""
        return mean_square(self.form) if self.any_unfused else 0.0

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


def rounding_variance(x: Array, form: FloatFormat) -> Array:
    """Mean square error of one rounding of x to nearest: (c u x)², or τ²/3 where x is subnormal.

    Below τ a number is lost whole, which is the smaller error.
    """
    half = form.smallest_subnormal / 2
    found = np.asarray((ROUNDING_RMS * form.unit_roundoff * x) ** 2)
    subnormal = np.abs(x) < form.smallest_normal
    if subnormal.any():
        found[subnormal] = np.minimum(half * half / 3, x[subnormal] ** 2)
    return found


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


def _holds(form: FloatFormat, x: Array) -> NDArray[np.bool_]:
    """Where x has no more bits than the format."""
    bits = np.ldexp(np.frexp(x)[0], form.precision)
    return np.asarray(bits == np.rint(bits))


class ScoreErrors(NamedTuple):
    """Of a block, both (…, rows, keys): of x = scale q·k and of the scores s = f(x) + bias. Variances or bounds."""

    raw: Array
    scores: Array


@dataclass(frozen=True, eq=False)
class RoundedRows:
    """A block of rows, its exact softmax, and what rounding does to its scores and weights: what every budget takes."""

    part: Rows
    soft: Softmax
    roundings: Roundings

    @cached_property
    def inner(self) -> ScoreErrors:
        """Inner σ² of each score, the rounding of its exponent and of exp included.

        f'²[(1 + N/2)Σ_c (scale q_c k_c)² + (N/3 + 1) x²] + 2(s − m)² + 2 in (c u_i)²; with a soft cap x² f'² for x/c,
        5 f² for tanh and its product with c, and 4 (c f'/2)² for a tanh by exponentials; with a bias s² for the sum,
        and 2 bias² where the format does not hold it.
        """
        part, soft, unit = self.part, self.soft, self.roundings.inner_variance
        raw = self.roundings.sum_variance(part.k.shape[-1], part.squared_products, soft.raw)
        raw += unit * (1 if part.softcap is None else 2) * soft.raw**2
        own = 2 * soft.fall**2 + 2
        if part.softcap is not None:
            own += (TANH + 1) * soft.capped**2 + 4 * self._by_exponentials**2
        if part.bias is not None:
            own += self._of_bias(self.roundings.inner, 2)
        return ScoreErrors(raw, soft.through(raw, 2) + unit * own)

    @cached_property
    def stored(self) -> ScoreErrors:
        """What storing the scores adds to it: r(c u_S)² x² f'².

        For any unfused form (c u_S)² [max(r x², 2 scale² Σ_c q_c²k_c²) f'² + (s − m)² + 1]: q and k may each be
        multiplied by the scale's root and stored again, which is far more of a score near 0, and where a row sees few
        keys one score decides; and a softmax that is written out stores s − m and e^{s − m}. A soft cap adds
        x² f'² + 2 f² for x/c, tanh and their product with c, a bias s² for the sum.
        """
        part, soft, unit = self.part, self.soft, mean_square(self.roundings.form)
        raw, own = self.roundings.score_roundings * soft.raw**2, np.zeros(1)
        if self.roundings.any_unfused:
            raw, own = np.maximum(raw, FOLDED * part.squared_products), soft.fall**2 + 1
        if part.softcap is not None:
            raw, own = raw + soft.raw**2, own + 2 * soft.capped**2
        if part.bias is not None:
            own = own + self._of_bias(self.roundings.form, 2)
        return ScoreErrors(unit * raw, unit * (soft.through(raw, 2) + own))

    @cached_property
    def largest(self) -> ScoreErrors:
        """What no score is further off than, relative to the row's largest; 0 where masked.

        γ_{d+2}(u_i)·scale·Σ|q_c k_c| + r u_S|x|, times the largest f' that lies so near, + u_i|s − m|;
        γ_k(u) = k u/(1 − k u). Higham 2002, §3.1. For any unfused form 2u_S·scale·Σ|q_c k_c| if that is more than
        r u_S|x|, and u_S|s − m| on top. A soft cap adds (u_i + u_S)|x|, (5u_i + 2u_S)|f| and 2u_i c f', a bias
        (u_i + u_S)|s|, and 2u|bias| where a format does not hold it.
        """
        part, soft, roundings = self.part, self.soft, self.roundings
        products = np.abs(part.q) @ turned(np.abs(part.k)) * abs(part.scale)
        u, u_stored = roundings.inner_roundoff, roundings.form.unit_roundoff
        grown = (part.k.shape[-1] + 2) * u
        raw, own = grown / (1 - grown) * products, -u * soft.fall
        kept = roundings.score_roundings * np.abs(soft.raw)
        if roundings.any_unfused:
            kept = np.maximum(kept, FOLDED * products)
            own -= u_stored * soft.fall
        raw += u_stored * kept
        moved = raw
        if part.softcap is not None:
            size = np.abs(soft.raw)
            raw = raw + (u + u_stored) * size
            moved = raw * cap_slope(np.maximum(size - raw, 0), part.softcap)
            own += ((LARGEST_TANH + 1) * u + 2 * u_stored) * np.abs(
                soft.capped
            ) + 4 * u * self._by_exponentials
        if part.bias is not None:
            own += u * self._of_bias(roundings.inner, 1) + u_stored * self._of_bias(roundings.form, 1)
        moved = moved + own
        return ScoreErrors(raw, moved if part.visible is None else moved * part.visible)

    @cached_property
    def eta(self) -> Array:
        """η, the largest error of a score in each row, (…, rows, 1)."""
        return np.asarray(self.largest.scores.max(axis=-1, keepdims=True))

    @cached_property
    def exponent_error(self) -> float:
        """The largest predicted rms error of a score, weighted over a row."""
        errors = self.soft.weights * (self.inner.scores + self.stored.scores)
        return math.sqrt(errors.sum(axis=-1).max())

    @property
    def lost_weight_variance(self) -> Array:
        """λ²/3, (…, rows, 1), λ = Σ_j p_j [p_j < u_i]: what adding up the weights in a chain may lose altogether."""
        small = np.where(self.soft.weights < self.roundings.inner_roundoff, self.soft.weights, 0.0)
        return np.asarray(small.sum(axis=-1, keepdims=True) ** 2 / 3)

    @property
    def logarithm_variance(self) -> Array:
        """What ln Z in one number costs all weights of a row alike: min{(u_i ln Z)²/3, a²} + (u_i ln l)²/3.

        exp(s_j − ln Z) with ln Z = m + ln l has the roundings of ln Z and of ln l in every weight: not the scatter of
        log-uniform numbers, since the ln Z of many rows are alike in size and in mantissa. a : `_absorbed`.
        """
        alike = self.roundings.inner_variance * ONE_MANTISSA**2
        lost = np.minimum(alike * self.soft.log_partition**2, _absorbed(self.soft) ** 2)
        return np.asarray(lost + alike * self.soft.log_sum**2)

    @cached_property
    def largest_weight_error(self) -> Array:
        """What no weight is further off than, relative, but for the errors of scores: 3u_P + (2n + 6)u_i + L."""
        u = self.roundings.inner_roundoff
        bound = self.roundings.weights_roundoff + (2 * self.part.seen + 6) * u
        return np.asarray(bound + largest_logarithm_error(self.soft, u))

    @property
    def _by_exponentials(self) -> Array:
        """c f'/2: what one relative error in e = e^{−2|x|/c} costs c(1 − e)/(1 + e), as kernels compute their tanh.

        Near x = 0, where e is nearly 1, that is all of a small score's digits.
        """
        assert self.part.softcap is not None and self.soft.slope is not None
        return np.asarray(self.part.softcap / 2 * self.soft.slope)

    def _of_bias(self, form: FloatFormat, power: int) -> Array:
        """|s|^power where two numbers are added, neither 0; twice |bias|^power where the format does not hold it."""
        bias, soft = self.part.bias, self.soft
        assert bias is not None
        added = np.abs(soft.scores) ** power * ((bias != 0) & (soft.capped != 0))
        return np.asarray(added + BIAS * np.abs(bias) ** power * ~_holds(form, bias))


def rounded_rows(inputs: Inputs, roundings: Roundings) -> Iterator[RoundedRows]:
    """Every block of query rows of `inputs`, rounded so."""
    for part in blocks(inputs):
        yield RoundedRows(part, softmax_rows(part), roundings)
