"""The error that a correct attention call may have, derived from where it rounds; and classes of precision.

To first order a perturbation δ_j of the scores moves the output by Σ p_j(v_j − o)δ_j, and one rounding to nearest has
the relative rms c·u, c = 1/√(8 ln 2). Independent roundings add in squares:

    rms² = (c u_O o)² + (c u_P)² Σp_j²v_j² + r(c u_S)² Σp_j²(v_j − o)²s_j² + inner²

u_O, u_P, u_S : unit roundoff at which output, weights and scores are stored; r : roundings of the scores.

The inner term is a bound: the error of arithmetic at u_i whose sums are chains of N additions, N = d or n, each
partial sum rounded. A sum in order is honest, so its error must be allowed. Kernels that sum in 8 to 64 lanes have a
smaller one, far smaller if the terms of a sum share a sign (some 5 % with means of 3 at d = 64). So a kernel may well
be far below this bound. For terms a_t with total A the squares of N partial sums add to (N/2)Σa² by scatter and
(N/3)A² by drift, hence the variance (c u_i)²[(1 + N/2)Σa² + (N/3)A²]:

    score s_j = scale Σ_c q_c k_jc :  σ_j² = scale²[(1 + N_d/2) Σ_c q_c²k_jc²] + (1 + N_d/3) s_j²
    exponent and exp               :  σ_j² += 2(s_j − m)² + 2, m the largest score of the row
    Σ_j e^{s_j − m}                :  max{N_n/3, W(p)} o²
    Σ_j p_j v_j                    :  max{(1 + N_n/2) Σp_j²v_j² + (N_n/3) o², Σp_j²v_j² + W(pv)}
    division                       :  o²
    ln Z = m + ln l in one number  :  [(ln Z)² + (ln l)²] o²/(3c²)
    inner² = (c u_i)² [ Σp_j²(v_j − o)²σ_j² + the last four lines ] + (λo)²/3,  λ = Σ_j p_j [p_j < u_i].

A two-pass softmax may compute exp(s_j − ln Z), and parts of the keys may be merged by their ln Z (split-k decoding).
For large logits the rounding of ln Z is then the largest error, and all weights of the row share it. Its 1/(3c²) is
that of the worst mantissa, because the ln Z of a call are similar. If m has few bits, so that float32 holds it, no more
than ln l itself can be lost: (u_i ln Z)²/3 is then at most (ln l)².

The last term is a loss, not scatter: a sum that has grown loses whole terms below half a unit. Between none and all of
λ comes after that, a third in mean square. It matters beyond 10^5 keys in float32. In float16 and bfloat16 the inner
term is invisible beside the first three. If the inner precision is float64 the truth has the same error, and the term
counts twice.

`RoundedRows` has the errors of scores: what a soft cap and a bias add, and that errors of x = scale q·k pass the cap
times f'(x). A sink is one more key whose value is 0.

Three budgets of one call nest: full precision inside (output rounded only), weights rounded, scores rounded. The
tightest that covers a measured error is the implementation's class.

Of z = ln Z = ln Σ_j e^{s_j} = m + ln l, l = Σ_j e^{s_j − m}: to first order errors δ_j of the scores move it by
Σ_j p_j δ_j, and a relative error of l by itself. With u_z the roundoff of ln Z's own format, float32 or float64, the
inner one:

    rms² = [(u_z z)² + (u_i ln l)² + 2(u_i z')²]/3 + (c u_P)² Σp_j² + Σp_j² σ_S,j² + (c u_S)²
           + Σp_j² σ_j² + (c u_i)² max{(1 + N_n/2) Σp_j² + N_n/3, Σp_j² + W(p)} + λ²/3

The first terms are those of numbers with similar mantissas; z' = dz/d ln(scale) is what a rounding of the scale moves,
and of its product with the query, which all keys share. (c u_S)² is for l stored in the format of the scores, as in a
softmax that is written out. ln Z itself is never stored in it.
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
# the rms of a rounding is u/(m√3) for a mantissa m in [1, 2). Numbers of the same size have similar mantissas, 1 in the
# worst case: the rms is then larger than the average by this factor
ONE_MANTISSA = 1 / (3**0.5 * ROUNDING_RMS)
SOURCES = ("output", "inner", "weights", "scores")
FULL, WEIGHTS, SCORES = "full precision inside", "weights rounded", "scores rounded"
CLASSES = {FULL: SOURCES[:2], WEIGHTS: SOURCES[:3], SCORES: SOURCES}
# variance of a squared error over its squared mean: 2 for a normal error, 1.08 for one rounding
SCATTER = 2.0
#: partial sums are computed at the ends of so many blocks of keys; a kernel may cut the keys into so many chains
BLOCKS, CHAINS = 32, (1, 2, 4)
#: roundings of a product q_c k_c if both are stored again after the root of the scale was multiplied in; and of a bias
#: that its format does not hold: those of the slope of ALiBi and of its product with the distance
FOLDED, BIAS = 2, 2
#: mean square of the error of tanh, in roundings: libraries are good to two units in the last place
TANH = 4


@dataclass(eq=False)
class ErrorBudget:
    """The expected error of one attention call, for each component and as a whole.

    output : (batch, heads, rows, value_dim), the exact result in float64.
    variances : by source ("output", "weights", "scores", "inner"; also "sums" for gradients), arrays of the same shape.
        A missing source rounds nothing.
    shared : by source, the part of the variance of ‖ô − o‖_F² from roundings that several rows share.
    exponent_error : the largest predicted rms error of a score (p-weighted, over rows). The budget is of first order in
        it: trust it below about 0.3.
    tilt : d output / d ln(scale), of the same shape: the direction in which a wrong scale moves the output.
    """

    output: Array
    variances: dict[str, Array]
    shared: dict[str, float]
    exponent_error: float
    tilt: Array

    @classmethod
    def empty(cls, shape: Sequence[int], sources: Iterable[str] = SOURCES) -> "ErrorBudget":
        """Zeros, to be added to."""
        variances = {one: np.zeros(shape) for one in sources}
        return cls(np.zeros(shape), variances, dict.fromkeys(variances, 0.0), 0.0, np.zeros(shape))

    def add(
        self, variances: Mapping[str, Array], at: Any = ..., exponent_error: float = 0.0, **more: Array
    ) -> "ErrorBudget":
        """Add independent errors at these components, and `more` to the other arrays. Returns itself."""
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
        """Predicted ‖ô − o‖_F/‖o‖_F. NaN if the exact output is 0 throughout."""
        norm = float(np.linalg.norm(self.output))
        return math.sqrt(self._total) / norm if norm > 0 else math.nan

    @cached_property
    def relative_scatter(self) -> float:
        """Standard deviation of the measured relative error, as a fraction of `relative`.

        One rounding of a score moves a whole row of the output: a row counts as one error, except for the rounding of
        the output itself. So few roundings decide a small or saturated call, and a limit of 1.25 budgets alone would
        raise false alarms there. NaN if nothing is rounded.
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
        """The budget of each class, which rounds at its sources only; the tightest first.

        The classes differ if the inner precision is far above the dtype: in float16 and bfloat16. In float32 and
        float64 the inner term dominates, and nearly any correct implementation is "full precision inside". For
        saturated rows the classes meet too, and the tightest one that fits is named.
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
    any_unfused : the part of the scores covers every unfused form: also one that stores q and k again after it has
        multiplied both by the root of the scale, and a softmax that is written out and stores each step. r s_j² is then
        max(r s_j², 2 scale² Σ_c q_c²k_jc²) + (s_j − m)² + 1, and (c u_S)² o² is added.

    The docstring of the module has the formulas. c is that of a log-uniform mantissa. It is too small by a factor of up
    to 1.36 if all scores have the same mantissa just above a power of two. Subnormal outputs add τ²/3, τ half the
    smallest subnormal. A row that sees no key has output and error 0. The first order assumes that rounding errors of
    scores differ between keys. If scores are huge and nearly equal in a low format (all near +1000, say) they do not,
    and the budget is useless.

    All is computed in float64, in blocks of rows: memory beyond the results is some 100 MB plus one head. The inner
    arithmetic is float32, for float64 inputs float64.

    Raises ValueError for shapes that do not fit, inputs that are not finite, and unknown dtypes.
    """
    asked = at_rows(finite(inputs), rows)
    found = ErrorBudget.empty((*asked.shape[:3], asked.value.shape[-1]))
    roundings = Roundings(inputs.dtype, score_roundings, any_unfused)
    for rows_of in blocks(asked):
        add_output(found, RoundedRows(rows_of, roundings))
    return found


def classify(relative_error: float, budgets: Mapping[str, ErrorBudget], slack: float = 1.25) -> str | None:
    """The first class whose budget covers the error, or None: outside every budget.

    relative_error : ‖ô − o‖_F/‖o‖_F, measured. It is covered up to slack × relative × (1 + 3 relative_scatter). The
    scatter matters only for small or saturated calls. Raises ValueError for a negative or non-finite error.
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
    """Mean square error of one rounding of x to nearest: (c u x)², or τ²/3 where x is subnormal.

    A number below τ is lost as a whole, which is a smaller error than τ²/3.
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
    """Where an implementation rounds whose arrays have one format.

    form : the format of the output, and of weights and scores if they are stored. inner : that of the arithmetic,
    float32, or float64 for float64; then both compared results have the inner error. score_roundings : of a stored
    score scale · q·k. any_unfused : an implementation that stores scores may also store q and k after it has multiplied
    both by the root of the scale, and may write out the softmax and store each step.
    inner_variance, stored_variance : mean squares of one rounding, relative. inner_roundoff : the largest inner one.
    stored_sum_variance : that of all weights of a row from storing l = Σe^{s − m}, if softmax is written out.

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
    """A block of rows, and what rounding does to its scores and weights. All budgets start from it.

    inner, stored : the errors of scores from the arithmetic, and from storing them. exponent_error : the largest
    predicted rms error of a score, weighted over a row. The others are (…, rows, 1):
    lost_weight_variance : λ²/3, λ = Σ_j p_j [p_j < u_i]: the weights that a chain of additions may lose as a whole.
    drift : the variance of Σp in (c u_i)² if n terms below the largest are equal to within u_i, like keys of one score
    below a sink: all round alike, so errors c u_i S add up linearly over sums S, to c u_i n(1 − M/2), M = Σp of the n.
    absorbed : ln l, the most that can be lost if m has few bits, so that float32 holds it; else infinite. (If m itself
    is rounded and s_j − ln Z is not, because a fused multiply-add computes it from products, m adds its own error.)
    logarithm_variance : that of all weights of a row from ln Z in one number: min{(u_i ln Z)²/3, absorbed²} +
    (u_i ln l)²/3. exp(s_j − ln Z) with ln Z = m + ln l has the roundings of ln Z and of ln l in every weight. They are
    not those of log-uniform numbers, because the ln Z of many rows are similar in size and in mantissa.
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
        """Inner σ² of each score, with the rounding of its exponent and of exp.

        f'²[(1 + N/2)Σ_c (scale q_c k_c)² + (N/3 + 1) x²] + 2(s − m)² + 2 in (c u_i)². A soft cap adds x² f'² for x/c,
        5 f² for tanh and its product with c, and 4 (c f'/2)² for a tanh by exponentials: a relative error in
        e = e^{−2|x|/c} moves c(1 − e)/(1 + e) by so much, near x = 0 by all digits of a small score. A bias adds s² for
        the sum, and 2 bias² if the format does not hold it.
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
        """σ² of each score from storing it: r(c u_S)² x² f'².

        For any unfused form (c u_S)² [max(r x², 2 scale² Σ_c q_c²k_c²) f'² + (s − m)² + 1]: q and k may be multiplied
        by the root of the scale and stored again, which is far more for a score near 0 and decides in a row of few
        keys; and a softmax that is written out stores s − m and e^{s − m}. A soft cap adds x² f'² + 2 f² for x/c, tanh
        and their product with c. A bias adds s² for the sum.
        """
        rows, unit = self.rows, self.roundings.stored_variance
        raw, own = self.roundings.score_roundings * rows.raw**2, self._of_bias(self.roundings.form)
        if self.roundings.any_unfused:
            raw, own = np.maximum(raw, FOLDED * rows.squared_products), own + rows.fall**2 + 1
        if rows.softcap is not None:
            raw, own = raw + rows.raw**2, own + 2 * rows.capped**2
        return ScoreErrors(unit * raw, unit * (rows.through(raw, 2) + own))

    def _of_bias(self, form: FloatFormat) -> Array:
        """s² if two numbers are added, neither of them 0; 2 bias² if the format does not hold the bias."""
        bias, rows = self.rows.bias, self.rows
        if bias is None:
            return np.zeros(1)
        bits = np.ldexp(np.frexp(bias)[0], form.precision)
        added = rows.scores**2 * ((bias != 0) & (rows.capped != 0))
        return np.asarray(added + BIAS * bias**2 * (bits != np.rint(bits)))

    def over_keys(self, terms: Array, squares: Array, totals: Array) -> tuple[Array, Array]:
        """The error of the sum Σ_j p_j a_j in (c u_i)², and W, the squares of its partial sums; each (…, rows, dim).

        terms : a, (…, keys, dim). squares, totals : Σ_j p_j²a_j², Σ_j p_j a_j. W is the largest for one, two and four
        chains, one after the other. Partial sums are exact at the ends of `BLOCKS` blocks; the m keys between two such
        sums S and S' contribute (m/3)(S² + SS' + S'²) and (m/2)Σa².
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
    """Add the output of one block."""
    rows, roundings = block.rows, block.roundings
    p, o, v = rows.weights, rows.output, rows.v
    squares, v2, o2 = p * p, v * v, o * o
    # the values, and a column of ones whose sum is that of the weights
    values, of_squares, sums = (np.append(x, np.ones_like(x[..., :1]), axis=-1) for x in (v, v2, o))
    products, partial = block.over_keys(values, squares @ of_squares, sums)
    # the sum of weights and values, that of the exponentials, and the division by it
    summed_up = 1 + np.maximum(np.maximum(rows.seen / 3, block.drift), partial[..., -1:])
    accumulated = roundings.inner_variance * (products[..., :-1] + summed_up * o2)

    def moved(variance: Array) -> Array:
        # Σ_j p_j² variance_j (v_j − o)² by expansion; if it cancels it is far below the other terms
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
    """Add ln Z of one block, and mark where it is -inf."""
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
