"""The error a correct attention call may have, derived from where it rounds and not chosen; and classes of precision.

To first order a perturbation δ_j of the scores moves the output by Σ p_j(v_j − o)δ_j, and one rounding to
nearest has the relative rms c·u, c = 1/√(8 ln 2). Independent roundings add in squares:

    rms² = (c u_O o)² + (c u_P)² Σp_j²v_j² + r(c u_S)² Σp_j²(v_j − o)²s_j² + inner²

u_O, u_P, u_S : unit roundoff at which output, weights and scores are stored; r : roundings of the scores.

The inner term is a bound: the error of arithmetic at u_i whose sums are chains of N additions, each partial sum
rounded, one term after another: N = d or n. A sum in order is honest, so its error has to be allowed. Kernels that
sum in 8 to 64 lanes have less of it, far less where the terms of a sum share a sign (with means of 3 at d = 64 some 5
%): to be far below this bound is nothing that tells against a kernel, and to be near it nothing that its lanes
explain. For terms a_t with total A the squares of N partial sums add to (N/2)Σa² by scatter and (N/3)A² by drift,
hence the variance (c u_i)²[(1 + N/2)Σa² + (N/3)A²]:

    score s_j = scale Σ_c q_c k_jc :  σ_j² = scale²[(1 + N_d/2) Σ_c q_c²k_jc²] + (1 + N_d/3) s_j²
    exponent and exp               :  σ_j² += 2(s_j − m)² + 2, m the largest score of the row
    Σ_j e^{s_j − m}                :  max{N_n/3, W(p)} o²
    Σ_j p_j v_j                    :  max{(1 + N_n/2) Σp_j²v_j² + (N_n/3) o², Σp_j²v_j² + W(pv)}
    division                       :  o²
    ln Z = m + ln l in one number  :  [(ln Z)² + (ln l)²] o²/(3c²)
    inner² = (c u_i)² [ Σp_j²(v_j − o)²σ_j² + the last four lines ] + (λo)²/3,  λ = Σ_j p_j [p_j < u_i].

A two-pass softmax may take exp(s_j − ln Z), and parts of the keys may be merged by their ln Z (split-k decoding);
where logits are large the rounding of ln Z is then the largest, and all weights of the row share it. Its 1/(3c²) is
that of the worst mantissa, since the ln Z of a call are alike. Beside an m of few bits, which float32 holds, no more
is lost than ln l itself: (u_i ln Z)²/3 is (ln l)² at most.

The last term is a loss and no scatter: of a sum that has grown, what is below half a unit is lost whole. How much of
λ comes after that is between none and all of it, a third in mean square. It counts over 10^5 keys in float32.
In float16 and bfloat16 the inner term is invisible beside the first three. Where the inner precision is float64 the
truth has the same error, and the term counts twice.

The worst case, first order in the unit roundoffs outside tanh:

    |ô − o| <= range_j(v) tanh(η/2) + (u_P + (2n + 2)u_i + L + ε_exp) Σp_j|v_j| + u_O|o| + τ_P Σ|v_j| + τ_O,

η = max_j [γ_{d+2}(u_i) scale Σ_c|q_c k_jc| + r u_S|s_j| + u_i|s_j − m|], γ_k(u) = ku/(1 − ku), l = Σe^{s−m}, L =
u_i(|ln Z| + ln l) for ln Z in one number (beside an m of few bits u_i|ln Z| is ln l at most), ε_exp = 4u_i (an exp
good to 2u_i, in numerator and denominator), 2n for the two sums over keys, τ half the smallest subnormal of the
weights' and the output's format. Higham 2002, §3.1 for γ; tanh(η/2) bounds the total variation of a perturbed
softmax. With any_unfused it has 3u_P, 2u_S scale Σ_c|q_c k_jc| where that is more than r u_S|s_j|, and u_S|s_j − m|
more. What a soft cap and a bias add says `RoundedRows.largest`.

What a soft cap and a bias add, and how the errors of x = scale q·k pass the cap, f'(x) times, say `RoundedRows.inner`
and `stored` in `roundings`. A sink is one more key whose value is 0.

Three budgets of one call nest: full precision inside (output rounded only), weights rounded, scores rounded. The
tightest that covers a measured error is the implementation's class.

Of z = ln Z = ln Σ_j e^{s_j} = m + ln l, l = Σ_j e^{s_j − m}: to first order errors δ_j of the scores move it by
Σ_j p_j δ_j, and a relative error of l by itself. With u_z the roundoff of ln Z's own format, float32 or float64, the
inner one:

    rms² = [(u_z z)² + (u_i ln l)²]/3 + (c u_P)² Σp_j² + Σp_j² σ_S,j² + (c u_S)²
           + Σp_j² σ_j² + (c u_i)² max{(1 + N_n/2) Σp_j² + N_n/3, Σp_j² + W(p)} + λ²/3

The first term is that of numbers whose mantissas are alike. (c u_S)² is l stored in the scores' format, as where a
softmax is written out; ln Z itself is never stored there. The worst case:

    |ẑ − z| <= max_j η_j + u_P + (n + 4) u_i + u_i (2|z| + |m| + ln l)
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.correctness.exact_attention import at_rows, finite, turned, visible_extremes
from attnlab.correctness.numbers import ONE_MANTISSA, Array, one_of, real
from attnlab.correctness.roundings import (
    RoundedRows,
    Roundings,
    chain_variance,
    rounded_rows,
    rounding_variance,
)
from attnlab.workload.inputs import Inputs

SOURCES = ("output", "weights", "scores", "inner")
FULL, WEIGHTS, SCORES = "full precision inside", "weights rounded", "scores rounded"
CLASSES = {
    FULL: ("output", "inner"),
    WEIGHTS: ("output", "inner", "weights"),
    SCORES: ("output", "inner", "weights", "scores"),
}
# variance of a squared error over its squared mean: 2 for a normal error, 1.08 for one rounding
SCATTER = 2.0
#: blocks of keys at whose ends partial sums are known, and chains that a kernel may cut the keys into
BLOCKS, CHAINS = 32, (1, 2, 4)
#: by source the variances of all components, and the variance of their ‖error‖²
Noises = Mapping[str, tuple[Array | float, float]]


@dataclass(eq=False)
class ErrorBudget:
    """What the error of one attention call should be, per component and as a whole.

    output : (batch, heads, rows, value_dim), the exact result in float64.
    variances : by source ("output", "weights", "scores", "inner"; a gradient's has "sums" too), arrays of the
        same shape. A source that is not there rounds nothing.
    scatters : by source, the variance of ‖ô − o‖_F² that its finitely many roundings leave.
    worst_case : the bound that no correct implementation exceeds, infinite where there is none.
    exponent_error : largest predicted rms error of a score that matters (p-weighted, over rows). The budget
        is of first order in it: trust it below about 0.3.
    tilt : d output / d ln(scale), of the same shape: where a wrong scale moves it.
    """

    output: Array
    variances: dict[str, Array]
    scatters: dict[str, float]
    worst_case: Array
    exponent_error: float
    tilt: Array

    @classmethod
    def empty(cls, shape: Sequence[int], sources: Iterable[str] = SOURCES) -> "ErrorBudget":
        """Zeros, to be added to."""
        exact, tilt, bound = (np.zeros(shape) for _ in range(3))
        return cls(
            exact, {one: np.zeros(shape) for one in sources}, dict.fromkeys(sources, 0.0), bound, 0.0, tilt
        )

    def add(self, noises: Noises, at: Any = ..., **more: Array | float) -> "ErrorBudget":
        """Itself, with independent errors at these components; `more` is added to its other arrays."""
        for name, array in more.items():
            getattr(self, name)[at] += array
        for source, (variance, scatter) in noises.items():
            self.variances[source][at] += variance
            self.scatters[source] += float(scatter)
        return self

    @property
    def rms(self) -> Array:
        """Predicted rms error of each component, in units of the values."""
        return np.asarray(np.sqrt(sum(self.variances.values())))

    @cached_property
    def relative(self) -> float:
        """Predicted ‖ô − o‖_F/‖o‖_F. NaN where the exact output is 0 throughout."""
        norm = float(np.linalg.norm(self.output))
        return math.sqrt(self._total) / norm if norm > 0 else math.nan

    @cached_property
    def relative_scatter(self) -> float:
        """Standard deviation of the measured relative error, as a fraction of `relative`.

        One rounding of a score moves a whole row of the output. So a few roundings decide a small or saturated call,
        and a limit of 1.25 budgets raises false alarms there unless some of these are added. NaN where nothing is
        rounded.
        """
        total = self._total
        return math.sqrt(sum(self.scatters.values())) / (2 * total) if total > 0 else math.nan

    def restricted_to(self, *sources: str) -> "ErrorBudget":
        """The budget of an implementation with the roundings of these sources only.

        Raises ValueError for a name that is not a source.
        """
        for source in sources:
            one_of("source", source, tuple(self.variances))
        kept = {source: one for source, one in self.variances.items() if source in sources}
        return replace(self, variances=kept, scatters={source: self.scatters[source] for source in kept})

    def cut(self, at: Any) -> "ErrorBudget":
        """The budget of these components alone."""
        kept = {name: one[at] for name, one in self.variances.items()}
        return replace(self, variances=kept, **{name: getattr(self, name)[at] for name in _ARRAYS})

    @cached_property
    def _total(self) -> float:
        return float(sum(variance.sum() for variance in self.variances.values()))


_ARRAYS = ("output", "worst_case", "tilt")


def error_budget(
    inputs: Inputs,
    *,
    rows: ArrayLike | None = None,
    worst_case: bool = False,
    score_roundings: int = 2,
    any_unfused: bool = False,
) -> ErrorBudget:
    """The exact output of `inputs` and the error that rounding output, weights and scores to its dtype predicts.

    The arrays hold the inputs *as cast*: bfloat16 values in float32 arrays. `ErrorBudget.restricted_to` gives the
    budget of an implementation that rounds less.

    rows : indexes of the query rows to judge; None for all.
    worst_case : also compute the bound that every correct implementation meets, some 60 % more work.
    score_roundings : r, how many roundings of scale · q·k where scores are stored: 1 eager with a power-of-two scale,
        else 2.
    any_unfused : the scores' part covers every unfused form, also one that stores q and k again after the scale's
        root was folded into both, and a softmax that is written out and stores each step: its r s_j² is
        max(r s_j², 2 scale² Σ_c q_c²k_jc²) + (s_j − m)² + 1, and (c u_S)² o² comes on top.

    Formulas in the module's docstring; the c of one rounding is that of a log-uniform mantissa, and too small
    by up to 1.36 where all scores have the same mantissa just above a power of two. Subnormal
    outputs add τ²/3, τ half the smallest subnormal. A row that sees no key has output and error 0. The first
    order assumes that rounding errors of scores differ between keys: where scores are huge and nearly equal
    (all near +1000, say) in a low format, they do not, and the budget is of no use.

    float64 throughout, in blocks of rows: memory beyond the results is some 100 MB plus one head. The inner
    arithmetic is float32, of float64 inputs float64.

    Raises ValueError for shapes that do not fit, inputs that are not finite, and unknown dtypes.
    """
    asked = at_rows(finite(inputs), rows)
    found = ErrorBudget.empty(asked.output_shape)
    for at in rounded_rows(asked, Roundings.of(inputs.dtype, score_roundings, any_unfused)):
        add_output(found, at, visible_extremes(at.part) if worst_case else None)
    return found


def add_output(found: ErrorBudget, at: RoundedRows, extremes: tuple[Array, Array] | None) -> None:
    """Add the output of one block. extremes : the least and greatest values that its rows see, for the worst case."""
    soft = at.soft
    found.add(
        _noises(at),
        at.part.at,
        output=soft.output,
        tilt=(soft.weights * soft.scale_response) @ at.part.v,
        worst_case=math.inf if extremes is None else _bound(at, extremes),
    )
    found.exponent_error = max(found.exponent_error, at.exponent_error)


def precision_classes(inputs: Inputs, **options: Any) -> dict[str, ErrorBudget]:
    """The three budgets of attention in the inputs' dtype, tightest first, from one pass over them.

    options : as for `error_budget`. Any `worst_case` bound is that of scores rounded.

    The classes differ where the inner precision is far above the dtype: float16 and bfloat16. In float32 and
    float64 the inner term dominates and nearly any correct implementation is "full precision inside".
    Where rows are saturated the classes meet too, and the tightest name that fits is given.

    Raises ValueError as `error_budget` does.
    """
    whole = error_budget(inputs, **options)
    return {name: whole.restricted_to(*sources) for name, sources in CLASSES.items()}


def classify(relative_error: float, budgets: Mapping[str, ErrorBudget], slack: float = 1.25) -> str | None:
    """The first class whose budget covers the error, or None: outside every budget.

    relative_error : ‖ô − o‖_F/‖o‖_F, measured. It is covered up to slack × relative × (1 + 3 relative_scatter); the
    scatter is negligible but for small or saturated calls. Raises ValueError for a negative or non-finite error.
    """
    error = real("relative_error", relative_error, least=0.0)
    for name, budget in budgets.items():
        if error <= slack * budget.relative * (1 + 3 * budget.relative_scatter):
            return name
    return None


def add_log_sum(found: ErrorBudget, empty: NDArray[np.bool_], at: RoundedRows) -> None:
    """Add ln Z of one block, and mark where it is -inf."""
    soft, roundings = at.soft, at.roundings
    empty[at.part.at] = none = soft.partition == 0
    size = 2 * np.abs(soft.log_partition) + np.abs(soft.top) + soft.log_sum
    bound = at.eta + roundings.weights_roundoff + (at.part.seen + 4 + size) * roundings.inner_roundoff
    variances = {source: np.where(none, 0.0, one) for source, one in _log_sum_variances(at).items()}
    found.add(
        {source: (one, energy(one)) for source, one in variances.items()},
        at.part.at,
        output=soft.log_partition,
        tilt=(soft.weights * soft.through(soft.raw)).sum(axis=-1, keepdims=True),
        worst_case=np.where(none, 0.0, bound),
    )
    found.exponent_error = max(found.exponent_error, at.exponent_error)


def energy(x: Array) -> float:
    """The variance of ‖error‖² that independent errors of these variances leave."""
    return SCATTER * float(np.vdot(x, x))


def moved(mass: Array, v: Array, v2: Array, o: Array) -> Array:
    """Σ_j mass_j (v_j − o)², v2 the squares of v, by expansion; where it cancels it is far below the other terms."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.maximum(mass @ v2 - 2 * o * (mass @ v) + o * o * total, 0.0))


def _over_keys(at: RoundedRows, terms: Array, squares: Array, totals: Array) -> tuple[Array, Array]:
    """What adding up Σ_j p_j a_j costs in (c u_i)², and W, the squares of its partial sums; each (…, rows, dim).

    terms : a, (…, keys, dim). squares, totals : Σ_j p_j²a_j², Σ_j p_j a_j. W is the most of one chain, of two and of
    four, one behind the other. Partial sums are exact at the ends of `BLOCKS` blocks; between two of them, S and S'
    apart, m keys give (m/3)(S² + SS' + S'²) and (m/2)Σa².
    """
    n, visible, seen = terms.shape[-2], at.part.visible, at.part.seen
    step, end = math.ceil(n / BLOCKS), np.zeros(1)
    # of each quarter: the sum before it, and what its blocks add up to for a chain that begins at 0
    quarters: list[tuple[Any, ...]] = []
    for block, start in enumerate(range(0, n, step)):
        keys = slice(start, min(start + step, n))
        count = keys.stop - start if visible is None else visible[..., keys].sum(axis=-1, keepdims=True)
        before, end = end, end + at.soft.weights[..., keys] @ terms[..., keys, :]
        more = count / 3 * (before * before + before * end + end * end), count * (before + end), count
        if block % (BLOCKS // 4):
            first, *those = quarters.pop()
            quarters.append((first, *(one + other for one, other in zip(those, more, strict=True))))
        else:
            quarters.append((before, *more))
    chains = []
    for number in CHAINS:
        begins = (quarters[at - at % (4 // number)][0] for at in range(len(quarters)))
        chains.append(sum(a - s * b + s * s * c for s, (_, a, b, c) in zip(begins, quarters, strict=True)))
    found = np.maximum.reduce(chains) + seen / BLOCKS / 2 * squares
    return np.maximum(chain_variance(seen, squares, totals), squares + found), found


def _noises(at: RoundedRows) -> Noises:
    """Of the output of one block."""
    p, o, v, roundings = at.soft.weights, at.soft.output, at.part.v, at.roundings
    squares, v2, seen = p * p, v * v, at.part.seen
    # the values, and beside them the ones whose sum is that of the weights
    with_ones = (np.concatenate([x, np.ones_like(x[..., :1])], axis=-1) for x in (v, v2, o))
    values, of_squares, whole = with_ones
    products, partial = _over_keys(at, values, squares @ of_squares, whole)
    # the sum of weights and values, that of the exponentials, and the division by it
    summed_up = 1 + np.maximum(seen / 3, partial[..., -1:])
    accumulated = roundings.inner_variance * (products[..., :-1] + summed_up * o * o)
    # a factor that all weights of a row share
    shared = at.logarithm_variance + at.lost_weight_variance
    summed = roundings.stored_sum_variance * o * o
    # one rounding of a score moves value_dim components at once: its share of ‖error‖² is squared whole
    v_norms, o_norms = v2.sum(axis=-1)[..., None, :], (o * o).sum(axis=-1, keepdims=True)
    leverage = squares * np.maximum(v_norms - 2 * o @ turned(v) + o_norms, 0.0)
    output, weights = rounding_variance(o, roundings.form), rounding_variance(p, roundings.form)
    of_stored, of_inner = (moved(squares * one.scores, v, v2, o) for one in (at.stored, at.inner))
    return {
        "output": (output, energy(output)),
        "weights": (weights @ v2, energy(weights * v_norms)),
        "scores": (
            of_stored + summed,
            energy(leverage * at.stored.scores) + energy(summed.sum(axis=-1)),
        ),
        "inner": (
            of_inner + accumulated + shared * o * o,
            energy(leverage * at.inner.scores) + energy(accumulated) + energy(shared * o_norms),
        ),
    }


def _bound(at: RoundedRows, extremes: tuple[Array, Array]) -> Array:
    part, form, (low, high), size = at.part, at.roundings.form, extremes, np.abs(at.part.v)
    total = size.sum(axis=-2, keepdims=True) if part.visible is None else part.visible @ size
    bound = (
        (high - low) * np.tanh(at.eta / 2)
        + at.largest_weight_error * (at.soft.weights @ size)
        + form.unit_roundoff * np.abs(at.soft.output)
        + form.smallest_subnormal / 2 * (total + 1)
    )
    return bound if part.visible is None else np.where(part.visible.any(axis=-1, keepdims=True), bound, 0.0)


def _log_sum_variances(at: RoundedRows) -> dict[str, Array]:
    """Of the ln Z of one block, by source, (..., rows, 1)."""
    p, soft, roundings = at.soft.weights, at.soft, at.roundings
    squares = p * p
    summed = squares.sum(axis=-1, keepdims=True)
    peak = np.where(soft.partition > 0, p.max(axis=-1, keepdims=True), 1.0)
    lost = rounding_variance(p / peak, roundings.form) * peak**2
    of_stored, of_inner = (
        (squares * one.scores).sum(axis=-1, keepdims=True) for one in (at.stored, at.inner)
    )
    alike = roundings.inner_variance * ONE_MANTISSA**2
    chained, _ = _over_keys(at, np.ones((*at.part.v.shape[:-1], 1)), summed, np.ones(1))
    return {
        "output": alike * (soft.log_partition**2 + soft.log_sum**2),
        "weights": lost.sum(axis=-1, keepdims=True),
        "scores": of_stored + roundings.stored_sum_variance,
        "inner": of_inner + roundings.inner_variance * chained + at.lost_weight_variance,
    }
