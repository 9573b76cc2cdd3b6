"""The error that a correct attention call may have, derived from where it rounds; and classes of precision.

To first order, errors δ_j of the scores move the output by Σ p_j(v_j − o)δ_j, and one rounding to nearest has the
relative rms error c·u with c = 1/√(8 ln 2). The variances of independent roundings add:

    rms² = (c u_O o)² + (c u_P)² Σp_j²v_j² + r(c u_S)² Σp_j²(v_j − o)²s_j² + inner²

u_O, u_P, u_S : unit roundoff of the formats of the stored output, weights and scores; r : the number of roundings of a
score.

The inner term is a bound. It is the error of arithmetic with roundoff u_i in which every sum is a chain of N additions
(N = d or n) and each partial sum is rounded. Such a sum is correct, so its error must be allowed. Kernels that sum in 8
to 64 lanes have a smaller error, and a far smaller one if the terms of a sum have the same sign (about 5 % with means
of 3 at d = 64). So a kernel may be far below this bound. For terms a_t with total A, the squares of the N partial sums
add up to (N/2)Σa² by scatter and (N/3)A² by drift. Hence the variance (c u_i)²[(1 + N/2)Σa² + (N/3)A²]:

    score s_j = scale Σ_c q_c k_jc :  σ_j² = scale²[(1 + N_d/2) Σ_c q_c²k_jc²] + (1 + N_d/3) s_j²
    exponent and exp               :  σ_j² += 2(s_j − m)² + 2, m the largest score of the row
    Σ_j e^{s_j − m}                :  max{N_n/3, W(p)} o²
    Σ_j p_j v_j                    :  max{(1 + N_n/2) Σp_j²v_j² + (N_n/3) o², Σp_j²v_j² + W(pv)}
    division                       :  o²
    ln Z = m + ln l in one number  :  [(ln Z)² + (ln l)²] o²/(3c²)
    inner² = (c u_i)² [ Σp_j²(v_j − o)²σ_j² + the last four lines ] + (λo)²/3,  λ = Σ_j p_j [p_j < u_i].

W is the sum of the squares of the partial sums (`RoundedRows.over_keys`).

A two-pass softmax may compute exp(s_j − ln Z), and split-k decoding merges parts of the keys by their ln Z. For large
logits, the rounding of ln Z is then the largest error, and all weights of the row share it. Its factor 1/(3c²) is that
of the worst mantissa, because the ln Z of a call are similar. If float32 holds m exactly, at most ln l itself can be
lost: (u_i ln Z)²/3 is then at most (ln l)².

The last term, (λo)²/3, is a loss and not a scatter: a sum that has grown loses every term below half a unit of its last
place. The part of λ that is added so late lies between 0 and 1, and its mean square is 1/3. This matters beyond 10^5
keys in float32. In float16 and bfloat16 the inner term is negligible beside the first three. If the inner precision is
float64, the exact result has the same error, and the term counts twice.

`RoundedRows` has the errors of the scores, with what a soft cap f and a bias add; errors of x = scale q·k pass the cap
multiplied by f'(x). A sink is one more key whose value is 0.

One call has three budgets, each larger than the one before: full precision inside (only the output is rounded), weights
rounded, scores rounded. The class of an implementation is the tightest budget that covers its measured error.

The budget of z = ln Z = ln Σ_j e^{s_j} = m + ln l with l = Σ_j e^{s_j − m}: to first order, errors δ_j of the scores
move z by Σ_j p_j δ_j, and a relative error ε of l moves z by ε. u_z is the roundoff of the format of ln Z, which is the
inner format, float32 or float64:

    rms² = [(u_z z)² + (u_i ln l)² + 2(u_i z')²]/3 + (c u_P)² Σp_j² + Σp_j² σ_S,j² + (c u_S)²
           + Σp_j² σ_j² + (c u_i)² max{(1 + N_n/2) Σp_j² + N_n/3, Σp_j² + W(p)} + λ²/3

The terms in the first bracket are those of numbers with similar mantissas. z' = dz/d ln(scale) stands for two roundings
that all keys share: of the scale, and of its product with the query. (c u_S)² is for an l that is stored in the format
of the scores, by a softmax that stores each of its steps. ln Z itself is never stored in that format.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.correctness.reference import Rows, at_rows, blocks, finite
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import Array, FloatFormat, float_format

# relative rms error of one rounding to nearest, in u, for a log-uniform mantissa: 1/√(8 ln 2) = .42466
ROUNDING_RMS = 1 / math.sqrt(8 * math.log(2))
# the rms of a rounding is u/(m√3) for a mantissa m in [1, 2). Numbers of the same size have similar mantissas; in the
# worst case all are 1, and the rms is larger than the average by this factor
ONE_MANTISSA = 1 / (3**0.5 * ROUNDING_RMS)
SOURCES = ("output", "inner", "weights", "scores")
FULL, WEIGHTS, SCORES = "full precision inside", "weights rounded", "scores rounded"
CLASSES = {FULL: SOURCES[:2], WEIGHTS: SOURCES[:3], SCORES: SOURCES}
# variance of a squared error divided by its squared mean: 2 for a normal error, 1.08 for one rounding
SCATTER = 2.0
#: the number of blocks of keys at whose ends partial sums are computed; the numbers of chains into which a kernel may
#: cut the keys
BLOCKS, CHAINS = 32, (1, 2, 4)
#: the number of roundings of a product q_c k_c if q and k are stored again after both were multiplied by the root of
#: the scale; the number for a bias that its format does not hold: the slope of ALiBi, and its product with the distance
FOLDED, BIAS = 2, 2
#: mean square error of tanh, in units of that of one rounding: libraries are good to two units in the last place
TANH = 4


@dataclass(eq=False)
class ErrorBudget:
    """The expected error of one attention call, for each component and as a whole.

    output : (batch, heads, rows, value_dim), the exact result in float64.
    variances : by source ("output", "weights", "scores", "inner"; also "sums" for gradients), arrays of the same shape.
    A source that is missing rounds nothing.
    shared : by source, the part of the variance of ‖ô − o‖_F² from roundings that several rows share.
    exponent_error : the largest predicted rms error of a score (p-weighted, over rows). The budget is a first-order
    expansion in this error: trust it below about 0.3.
    tilt : d output / d ln(scale), of the same shape: the direction in which a wrong scale moves the output.
    """

    output: Array
    variances: dict[str, Array]
    shared: dict[str, float]
    exponent_error: float
    tilt: Array

    @classmethod
    def empty(cls, shape: Sequence[int], sources: Iterable[str] = SOURCES) -> "ErrorBudget":
        """A budget of zeros, for `add`."""
        variances = {one: np.zeros(shape) for one in sources}
        return cls(np.zeros(shape), variances, dict.fromkeys(variances, 0.0), 0.0, np.zeros(shape))

    def add(
        self, variances: Mapping[str, Array], at: Any = ..., exponent_error: float = 0.0, **more: Array
    ) -> "ErrorBudget":
        """Add variances of independent errors at these components, and `more` to the other arrays. Returns itself."""
        for name, array in more.items():
            getattr(self, name)[at] += array
        for source, variance in variances.items():
            self.variances[source][at] += variance
        self.exponent_error = max(self.exponent_error, exponent_error)
        return self

    @property
    def rms(self) -> Array:
        """Predicted rms error of each component, in units of the values."""
        return np.asarray(np.sqrt(sum(self.variances.values())))

    @cached_property
    def relative(self) -> float:
        """Predicted ‖ô − o‖_F/‖o‖_F. NaN if the exact output is 0 everywhere."""
        norm = float(np.linalg.norm(self.output))
        return math.sqrt(self._total) / norm if norm > 0 else math.nan

    @cached_property
    def relative_scatter(self) -> float:
        """Standard deviation of the measured relative error, as a fraction of `relative`.

        One rounding of a score moves a whole row of the output. So each row counts as one error, except for the
        rounding of the output itself. In a small or saturated call the error comes from few roundings, and a limit of
        1.25 budgets alone would give false alarms. NaN if nothing is rounded.
        """
        total, found = self._total, sum(self.shared.values())
        for source, variance in self.variances.items():
            found += energy(variance if source == "output" else variance.sum(axis=-1))
        return math.sqrt(found) / (2 * total) if total > 0 else math.nan

    @cached_property
    def _total(self) -> float:
        return float(sum(variance.sum() for variance in self.variances.values()))

    def restricted_to(self, *sources: str) -> "ErrorBudget":
        """The budget of an implementation that rounds only at these sources.

        Raises KeyError for a name that is not a source.
        """
        kept = {source: self.variances[source] for source in sources}
        shared = {source: self.shared[source] for source in sources}
        return ErrorBudget(self.output, kept, shared, self.exponent_error, self.tilt)

    def classes(self, classes: Mapping[str, Sequence[str]] = CLASSES) -> "dict[str, ErrorBudget]":
        """The budget of each class, the tightest first. A class rounds only at its own sources.

        The classes differ if the inner precision is far above that of the dtype: in float16 and bfloat16. In float32
        and float64 the inner term dominates, and nearly every correct implementation is "full precision inside". For
        saturated rows the classes are nearly equal too. The class of an error is the tightest one that covers it.
        """
        return {name: self.restricted_to(*sources) for name, sources in classes.items()}

    def cut(self, at: Any) -> "ErrorBudget":
        """The budget of these components only."""
        kept = {name: one[at] for name, one in self.variances.items()}
        return replace(self, variances=kept, output=self.output[at], tilt=self.tilt[at])


def error_budget(
    inputs: Inputs,
    *,
    rows: ArrayLike | None = None,
    score_roundings: int = 2,
    any_unfused: bool = False,
) -> ErrorBudget:
    """The exact output of `inputs` and the error that rounding output, weights and scores to its dtype predicts.

    The arrays hold the inputs *as cast*: bfloat16 values in float32 arrays. `ErrorBudget.restricted_to` gives the
    budget of an implementation that rounds less.

    rows : indexes of the query rows to judge; None for all.
    score_roundings : r, the number of roundings of a stored score scale · q·k: 1 for eager code with a power-of-two
    scale, else 2.
    any_unfused : the variance of the scores covers every unfused form: also one that multiplies q and k by the root of
    the scale and stores both again, and a softmax that stores each of its steps. r s_j² is then max(r s_j², 2 scale²
    Σ_c q_c²k_jc²) + (s_j − m)² + 1, and (c u_S)² o² is added.

    The docstring of the module has the formulas. c is that of a log-uniform mantissa. It is too small by a factor of up
    to 1.36 if all scores have the same mantissa just above a power of two. A subnormal output has a variance of at most
    τ²/3, where τ is half the smallest subnormal. A row that sees no key has output and error 0. The first-order
    expansion assumes that the rounding errors of scores differ between keys. If scores are huge and nearly equal in a
    low format (for example all near +1000), the errors are alike, and the budget is useless.

    All is computed in float64, in blocks of rows. The memory beyond the results is about 100 MB plus one head. The
    inner arithmetic is float32, for float64 inputs float64.

    Raises ValueError for shapes that do not fit, inputs that are not finite, and unknown dtypes.
    """
    asked = at_rows(finite(inputs), rows)
    found = ErrorBudget.empty((*asked.shape[:3], asked.value.shape[-1]))
    roundings = Roundings(inputs.dtype, score_roundings, any_unfused)
    for rows_of in blocks(asked):
        add_output(found, RoundedRows(rows_of, roundings))
    return found


def classify(relative_error: float, budgets: Mapping[str, ErrorBudget], slack: float = 1.25) -> str | None:
    """The first class whose budget covers the error, or None if no budget covers it.

    relative_error : the measured ‖ô − o‖_F/‖o‖_F. A budget covers it up to slack × relative × (1 + 3 relative_scatter).
    The scatter matters only for small or saturated calls. Raises ValueError for a negative or non-finite error.
    """
    if not 0 <= relative_error < math.inf:
        raise ValueError(f"relative_error must be a finite number of at least 0, got {relative_error!r}")
    for name, budget in budgets.items():
        if relative_error <= slack * budget.relative * (1 + 3 * budget.relative_scatter):
            return name
    return None


def energy(x: Array) -> float:
    """The variance of ‖error‖² for independent errors of these variances."""
    return SCATTER * float(np.vdot(x, x))


# -- one rounding, and sums of many


def rounding_variance(x: Array, form: FloatFormat) -> Array:
    """Mean square error of one rounding of x to nearest: (c u x)², or τ²/3 if x is subnormal.

    τ is half the smallest subnormal. A number below τ becomes 0; its error x² counts if it is smaller than τ²/3.
    """
    half = form.smallest_subnormal / 2
    found = np.asarray((ROUNDING_RMS * form.unit_roundoff * x) ** 2)
    subnormal = np.abs(x) < form.smallest_normal
    if subnormal.any():
        found[subnormal] = np.minimum(half * half / 3, x[subnormal] ** 2)
    return found


def chain_variance(terms: float | Array, squares: Array, total: Array) -> Array:
    """The variance of a sum by a chain of N additions, in (c u)²: (1 + N/2)Σa² + (N/3)A².

    terms : N. squares : Σa² over the terms. total : A, their sum.
    """
    return np.asarray((1 + terms / 2) * squares + terms / 3 * total**2)


# -- where an implementation rounds, and what that does to scores and weights


class Roundings:
    """Where an implementation rounds, if all its arrays have one format.

    form : the format of the output, and of weights and scores if they are stored. inner : the format of the arithmetic,
    float32; for float64 it is float64, and then the exact result has the inner error too. score_roundings : the number
    for a stored score scale · q·k. any_unfused : whether an implementation that stores scores may also store q and k
    after it has multiplied both by the root of the scale, and may store each step of the softmax.
    inner_variance, stored_variance : relative mean squares of one rounding. inner_roundoff : the unit roundoff of the
    arithmetic. For float64 both inner numbers are doubled. stored_sum_variance : the relative variance of all weights
    of a row from storing l = Σe^{s − m}, if each step of the softmax is stored.

    Raises ValueError for an unknown dtype, and a negative number of roundings.
    """

    def __init__(self, dtype: str, score_roundings: int = 2, any_unfused: bool = False) -> None:
        inner = "float64" if dtype == "float64" else "float32"
        if score_roundings < 0:
            raise ValueError(f"score_roundings must be at least 0, got {score_roundings}")
        self.form, self.inner = float_format(dtype), float_format(inner)
        self.score_roundings, self.any_unfused = score_roundings, any_unfused
        truths = 2 if dtype == "float64" else 1
        self.inner_variance = truths * (ROUNDING_RMS * self.inner.unit_roundoff) ** 2
        self.stored_variance = (ROUNDING_RMS * self.form.unit_roundoff) ** 2
        self.inner_roundoff = truths * self.inner.unit_roundoff
        self.stored_sum_variance = self.stored_variance if any_unfused else 0.0


class ScoreErrors(NamedTuple):
    """Variances, both (…, rows, keys): of x = scale q·k, and of the scores s = f(x) + bias."""

    raw: Array
    scores: Array


class RoundedRows:
    """A block of rows, and the errors that rounding causes in its scores and weights. All budgets start from it.

    inner, stored : the errors of scores from the arithmetic, and from storing them. exponent_error : the largest
    predicted rms error of a score, weighted over a row. The others are (…, rows, 1):
    lost_weight_variance : λ²/3 with λ = Σ_j p_j [p_j < u_i], the weights that a chain of additions may lose completely.
    drift : the variance of Σp in units of (c u_i)², if the n weights between u_i and the largest are equal to within
    u_i, as for keys of one score below a sink. All of these round alike, so the errors c u_i S of the partial sums S
    add up linearly, to c u_i n(1 − M/2), where M is the sum of the n weights.
    absorbed : ln l if float32 holds m exactly, because no more can be lost then; else infinite. (If m is rounded, a
    fused multiply-add may still compute s_j − ln Z from products that are not, and the error of m counts too.)
    logarithm_variance : the relative variance of all weights of a row from ln Z in one number: min{(u_i ln Z)²/3,
    absorbed²} + (u_i ln l)²/3. exp(s_j − ln Z) with ln Z = m + ln l has the roundings of ln Z and of ln l in every
    weight. These are not the roundings of log-uniform numbers, because the ln Z of many rows are similar in size and in
    mantissa.
    """

    def __init__(self, rows: Rows, roundings: Roundings) -> None:
        self.rows, self.roundings = rows, roundings
        self.inner, self.stored = self._inner(), self._stored()
        errors = rows.weights * (self.inner.scores + self.stored.scores)
        self.exponent_error = math.sqrt(errors.sum(axis=-1).max())
        small = np.where(rows.weights < roundings.inner_roundoff, rows.weights, 0.0)
        self.lost_weight_variance = small.sum(axis=-1, keepdims=True) ** 2 / 3
        p, u = rows.weights, roundings.inner_roundoff
        rising = (p > u) & (p < p.max(axis=-1, keepdims=True))
        highest = np.max(p, axis=-1, keepdims=True, where=rising, initial=0.0)
        alike = highest - np.min(p, axis=-1, keepdims=True, where=rising, initial=1.0) <= u
        count = alike * rising.sum(axis=-1, keepdims=True)
        self.drift = (count * (1 - count * highest / 2)) ** 2
        self.log_sum = np.log(np.where(rows.partition > 0, rows.partition, 1.0))
        self.log_partition = rows.top + self.log_sum
        with np.errstate(over="ignore"):
            self.absorbed = np.where(rows.top == rows.top.astype(np.float32), self.log_sum, np.inf)
        alike = roundings.inner_variance * ONE_MANTISSA**2
        lost = np.minimum(alike * self.log_partition**2, self.absorbed**2)
        self.logarithm_variance = lost + alike * self.log_sum**2

    def _inner(self) -> ScoreErrors:
        """The inner σ² of each score, with the rounding of its exponent and of exp.

        f'²[(1 + N/2)Σ_c (scale q_c k_c)² + (N/3 + 1) x²] + 2(s − m)² + 2, in units of (c u_i)². A soft cap adds x² f'²
        for x/c, 5 f² for tanh and its product with c, and 4 (c f'/2)² for a tanh that is computed from exponentials: a
        relative error ε of e = e^{−2|x|/c} moves c(1 − e)/(1 + e) by ε c f'/2, which may be all digits of a small score
        near x = 0. A bias adds s² for the sum, and 2 bias² if the format does not hold the bias.
        """
        rows, unit = self.rows, self.roundings.inner_variance
        raw = chain_variance(rows.k.shape[-1], rows.squared_products, rows.raw)
        raw = unit * (raw + (1 if rows.softcap is None else 2) * rows.raw**2)
        own = 2 * rows.fall**2 + 2
        if rows.softcap is not None and rows.slope is not None:
            own += (TANH + 1) * rows.capped**2 + (rows.softcap * rows.slope) ** 2
        own += self._of_bias(self.roundings.inner)
        return ScoreErrors(raw, rows.through(raw, 2) + unit * own)

    def _stored(self) -> ScoreErrors:
        """The σ² of each score from storing it: r(c u_S)² x² f'².

        With `any_unfused` it is (c u_S)² [max(r x², 2 scale² Σ_c q_c²k_c²) f'² + (s − m)² + 1]. q and k may be
        multiplied by the root of the scale and stored again. The error of this is far larger for a score near 0, and
        dominates in a row of few keys. And a softmax that stores each of its steps stores s − m and e^{s − m}. A soft
        cap adds x² f'² for x/c, and 2 f² for tanh and its product with c. A bias adds the same terms as in `_inner`.
        """
        rows, unit = self.rows, self.roundings.stored_variance
        raw, own = self.roundings.score_roundings * rows.raw**2, self._of_bias(self.roundings.form)
        if self.roundings.any_unfused:
            raw, own = np.maximum(raw, FOLDED * rows.squared_products), own + rows.fall**2 + 1
        if rows.softcap is not None:
            raw, own = raw + rows.raw**2, own + 2 * rows.capped**2
        return ScoreErrors(unit * raw, unit * (rows.through(raw, 2) + own))

    def _of_bias(self, form: FloatFormat) -> Array:
        """s² if neither the bias nor the capped score is 0; plus 2 bias² if the format does not hold the bias."""
        bias, rows = self.rows.bias, self.rows
        if bias is None:
            return np.zeros(1)
        bits = np.ldexp(np.frexp(bias)[0], form.precision)
        added = rows.scores**2 * ((bias != 0) & (rows.capped != 0))
        return np.asarray(added + BIAS * bias**2 * (bits != np.rint(bits)))

    def over_keys(self, terms: Array, squares: Array, totals: Array) -> tuple[Array, Array]:
        """The variance of the sum Σ_j p_j a_j and W, both in units of (c u_i)²; each (…, rows, dim).

        terms : a, (…, keys, dim). squares, totals : Σ_j p_j²a_j², Σ_j p_j a_j. W is the sum of the squares of the
        partial sums, the largest for one, two and four successive chains of keys. Partial sums are exact at the ends of
        `BLOCKS` blocks. The m keys between two of these sums, S and S', contribute (m/3)(S² + SS' + S'²) and
        (m/2)Σp_j²a_j² over these keys.
        """
        n, visible, seen = terms.shape[-2], self.rows.visible, self.rows.seen
        step, own = math.ceil(n / BLOCKS), np.zeros(squares.shape)
        end, found = np.zeros((2, len(CHAINS), *squares.shape))
        for block, start in enumerate(range(0, n, step)):
            keys = slice(start, min(start + step, n))
            count = keys.stop - start if visible is None else visible[..., keys].sum(axis=-1, keepdims=True)
            more = self.rows.weights[..., keys] @ terms[..., keys, :]
            for at, chains in enumerate(CHAINS):
                if block % (BLOCKS // chains) == 0:
                    end[at] = 0.0
            before, end = end, end + more
            # S² + SS' + S'² = 3SS' + (S' − S)²
            found += count * (before * end)
            own += count * (more * more)
        most = found.max(axis=0) + own / 3 + seen / BLOCKS / 2 * squares
        return np.maximum(chain_variance(seen, squares, totals), squares + most), most


# -- what that does to the output, and to ln Z


def add_output(found: ErrorBudget, block: RoundedRows) -> None:
    """Add the output of one block, and its variances, to `found`."""
    rows, roundings = block.rows, block.roundings
    p, o, v = rows.weights, rows.output, rows.v
    squares, v2, o2 = p * p, v * v, o * o
    # the values, and a column of ones for the sum of the weights
    values, of_squares, sums = (np.append(x, np.ones_like(x[..., :1]), axis=-1) for x in (v, v2, o))
    products, partial = block.over_keys(values, squares @ of_squares, sums)
    # 1 for the division; the rest for the sum of the exponentials
    summed_up = 1 + np.maximum(np.maximum(rows.seen / 3, block.drift), partial[..., -1:])
    accumulated = roundings.inner_variance * (products[..., :-1] + summed_up * o2)

    def moved(variance: Array) -> Array:
        # Σ_j p_j² variance_j (v_j − o)², expanded; if it cancels, it is far below the other terms
        mass = squares * variance
        total = mass.sum(axis=-1, keepdims=True)
        return np.asarray(np.maximum(mass @ v2 - 2 * o * (mass @ v) + o2 * total, 0.0))

    # errors that all weights of a row share
    shared = block.logarithm_variance + block.lost_weight_variance
    variances = {
        "output": rounding_variance(o, roundings.form),
        "weights": rounding_variance(p, roundings.form) @ v2,
        "scores": moved(block.stored.scores) + roundings.stored_sum_variance * o2,
        "inner": moved(block.inner.scores) + accumulated + shared * o2,
    }
    found.add(variances, rows.at, block.exponent_error, output=o, tilt=(p * rows.scale_response) @ v)


def add_log_sum(found: ErrorBudget, empty: NDArray[np.bool_], block: RoundedRows) -> None:
    """Add ln Z of one block, and its variances, to `found`. Mark in `empty` where ln Z is -inf."""
    rows, roundings, p = block.rows, block.roundings, block.rows.weights
    empty[rows.at] = none = rows.partition == 0
    squares, peak = p * p, np.where(none, 1.0, p.max(axis=-1, keepdims=True))
    summed = squares.sum(axis=-1, keepdims=True)
    chained, _ = block.over_keys(np.ones((*rows.v.shape[:-1], 1)), summed, np.ones(1))
    chained = np.maximum(chained, block.drift)
    of_weights = rounding_variance(p / peak, roundings.form) * peak**2
    errors = (squares * one.scores for one in (block.stored, block.inner))
    of_stored, of_inner = (one.sum(axis=-1, keepdims=True) for one in errors)
    tilt = (p * rows.through(rows.raw)).sum(axis=-1, keepdims=True)
    logarithms = block.log_partition**2 + block.log_sum**2 + 2 * tilt**2
    variances = {
        "output": roundings.inner_variance * ONE_MANTISSA**2 * logarithms,
        "weights": of_weights.sum(axis=-1, keepdims=True),
        "scores": of_stored + roundings.stored_sum_variance,
        "inner": of_inner + roundings.inner_variance * chained + block.lost_weight_variance,
    }
    variances = {source: np.where(none, 0.0, one) for source, one in variances.items()}
    found.add(variances, rows.at, block.exponent_error, output=block.log_partition, tilt=tilt)
