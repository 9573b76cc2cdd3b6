"""The error that a correct ln Z may have, and what cutting the keys into parts adds to ln Z and output.

z = ln Σ_j e^{s_j} = m + ln l, l = Σ_j e^{s_j − m}. To first order errors δ_j of the scores move it by Σ_j p_j δ_j, and
a relative error of l by itself. With the symbols of `error_budget`, and u_z the roundoff of ln Z's own format, float32
or float64, the inner one:

    rms² = [(u_z z)² + (u_i ln l)²]/3 + (c u_P)² Σp_j² + Σp_j² σ_S,j² + (c u_S)²
           + Σp_j² σ_j² + (c u_i)² [(1 + N_n/2) Σp_j² + N_n/3] + λ²/3

The first term is that of numbers whose mantissas are alike. (c u_S)² is l stored in the scores' format, as where a
softmax is written out; ln Z itself is never stored there. The worst case:

    |ẑ − z| <= max_j η_j + u_P + (n + 4) u_i + u_i (2|z| + |m| + ln l)

Merging parts s of the keys (`Problem.parts`) is attention over as many keys as there are parts, whose
scores are their z_s and whose values are their outputs o_s. With w_s = e^{z_s − z} it adds

    to o:  Σ w_s² (c u_O o_s)²                                                  each part's output is rounded
           + Σ w_s² (o_s − o)² τ_s² + (c u_i)² [Σ (2 + S/2 + N_s/3) w_s² o_s² + (2S/3) o²]
    to z:  Σ w_s² τ_s² + (c u_i)² (S/3 + 1),      τ_s² = (u_z z_s)²/3 + (c u_i)² [2(z_s − max z)² + 2]

for S parts; N_s/3 is the drift of a part's own sum where the parts cancel each other. Everything else is what it is for
whole keys: errors of scores and weights add up to the same in parts, and the chains of additions are shorter.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.problem.problem import Problem

from .error_budget import ErrorBudget, Tally, energy, seen_keys
from .exact_attention import Rows, Softmax, at_rows, blocks, finite, softmax_rows
from .numbers import ONE_MANTISSA, Array
from .roundings import (
    Roundings,
    largest_score_error,
    lost_weight,
    rounding_variance,
    score_variance,
    stored_score_variance,
)


class LogSums(NamedTuple):
    """Exact, in float64, of some query rows: ln Z, (batch, heads, rows, 1), -inf for an empty sum; and the output."""

    log_sum: Array
    output: Array


def log_sums(problem: Problem, rows: ArrayLike | None = None) -> LogSums:
    """ln Z and output of `problem` at the query rows `rows`, all if None. ValueError for inputs that are not finite."""
    asked = at_rows(finite(problem), rows)
    found = LogSums(np.empty((*asked.output_shape[:3], 1)), np.empty(asked.output_shape))
    for part in blocks(asked):
        soft = softmax_rows(part)
        found.log_sum[part.at] = np.where(soft.partition > 0, soft.log_partition, -np.inf)
        found.output[part.at] = soft.output
    return found


def log_sum_budget(
    problem: Problem, rows: ArrayLike | None = None, cuts: Sequence[int] = ()
) -> tuple[ErrorBudget, NDArray[np.bool_]]:
    """ln Z and its budget, (batch, heads, rows, 1), as `error_budget`'s: any unfused form, scores and weights stored.

    And where it is -inf: there the budget's output is 0, and nothing may be off.

    rows : indexes of the query rows, None for all.
    cuts : where the keys are cut into parts that are merged.

    Raises ValueError as `error_budget` does.
    """
    asked = at_rows(finite(problem), rows)
    rounded = Roundings.of(problem.dtype, any_unfused=True)
    found = Tally((*asked.output_shape[:3], 1))
    empty = np.zeros(found.exact.shape, bool)
    for part in blocks(asked):
        soft = softmax_rows(part)
        empty[part.at] = none = soft.partition == 0
        variances, spread = _variances(part, soft, rounded)
        found.exponent_error = max(found.exponent_error, spread)
        found.add(
            part.at,
            {name: (np.where(none, 0.0, one), 0.0) for name, one in variances.items()},
            exact=soft.log_partition,
            tilt=(soft.weights * soft.through(soft.raw)).sum(axis=-1, keepdims=True),
            bound=np.where(none, 0.0, _bound(part, soft, rounded)),
        )
    found.scatters = {source: energy(one) for source, one in found.variances.items()}
    budget = found.budget()
    if cuts:
        merging = _merging(asked, cuts, rounded)
        added = {"inner": merging.of_log_sum}
        budget = _added(budget, added, {"inner": energy(merging.of_log_sum)}, merging.log_sum_bound)
    return budget, empty


def merged_budget(
    problem: Problem, whole: ErrorBudget, rows: ArrayLike | None, cuts: Sequence[int]
) -> ErrorBudget:
    """`whole`, the budget of the output at these rows, with what cutting the keys at `cuts` and merging adds.

    rows : indexes of the query rows, None for all.
    cuts : of the keys, whole numbers.

    Raises ValueError for inputs that are not finite.
    """
    asked = at_rows(finite(problem), rows)
    merging = _merging(asked, cuts, Roundings.of(problem.dtype))
    found = {"output": merging.stored, "inner": merging.of_output}
    return _added(whole, found, merging.scatters, merging.output_bound)


def merging_slack(dtype: str, splits: int) -> float:
    """How far beyond the values that a row sees, relative to them, storing and merging so many parts may carry."""
    rounded = Roundings.of(dtype)
    return rounded.form.unit_roundoff + (splits + 8) * rounded.inner_roundoff


class _Merging(NamedTuple):
    """What merging adds: variances, scatters and bounds."""

    stored: Array
    of_output: Array
    scatters: dict[str, float]
    output_bound: Array
    of_log_sum: Array
    log_sum_bound: Array


def _merging(asked: Problem, cuts: Sequence[int], rounded: Roundings) -> _Merging:
    pieces = [(at.stop - at.start, log_sums(part)) for at, part in asked.parts(cuts)]
    z = np.stack([one.log_sum for _, one in pieces])
    o = np.stack([one.output for _, one in pieces])
    counts = np.array([count for count, _ in pieces], float).reshape(-1, 1, 1, 1, 1)
    top = z.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    seen = np.isfinite(z)
    fall = np.where(seen, z - top, 0.0)
    z = np.where(seen, z, 0.0)
    w = np.where(seen, np.exp(fall), 0.0)
    total = w.sum(axis=0)
    w = w / np.where(total > 0, total, 1.0)
    whole = (w * o).sum(axis=0)
    unit, u, number = rounded.inner_variance, rounded.inner_roundoff, len(pieces)
    tau = ONE_MANTISSA**2 * unit * z**2 + unit * (2 * fall**2 + 2)
    apart = o - whole
    stored = (w**2 * rounding_variance(o, rounded.form)).sum(axis=0)
    summed = unit * (((2 + number / 2 + counts / 3) * (w * o) ** 2).sum(axis=0) + 2 * number / 3 * whole**2)
    leverage = w**2 * tau * (apart**2).sum(axis=-1, keepdims=True)
    eta = np.where(seen, u * (np.abs(z) - fall + 4), 0.0)
    of_parts = rounded.form.unit_roundoff + (number + 6) * u
    return _Merging(
        stored=stored,
        of_output=(w**2 * tau * apart**2).sum(axis=0) + summed,
        scatters={
            "output": energy(stored),
            "inner": energy(leverage) + energy(summed),
        },
        output_bound=(w * (of_parts * np.abs(o) + 2 * np.expm1(eta) * np.abs(apart))).sum(axis=0)
        + number * rounded.form.smallest_subnormal / 2,
        of_log_sum=(w**2 * tau).sum(axis=0) + unit * (number / 3 + 1) * (total > 0),
        log_sum_bound=np.where(total > 0, eta.max(axis=0) + (number + 4) * u, 0.0),
    )


def _added(
    budget: ErrorBudget, variances: dict[str, Array], scatters: dict[str, float], bound: Array
) -> ErrorBudget:
    """`budget` with more of some sources."""
    assert budget.worst_case is not None
    return replace(
        budget,
        variances={name: one + variances.get(name, 0.0) for name, one in budget.variances.items()},
        scatters={name: one + scatters.get(name, 0.0) for name, one in budget.scatters.items()},
        worst_case=budget.worst_case + bound,
    )


def _variances(part: Rows, soft: Softmax, rounded: Roundings) -> tuple[dict[str, Array], float]:
    """By source, (..., rows, 1), and the largest rms error of a score."""
    p, alike = soft.weights, rounded.inner_variance * ONE_MANTISSA**2
    squares = p * p
    of_scores = score_variance(part, soft, rounded).scores
    stored = stored_score_variance(part, soft, rounded).scores
    summed = squares.sum(axis=-1, keepdims=True)
    peak = np.where(soft.partition > 0, p.max(axis=-1, keepdims=True), 1.0)
    lost = rounding_variance(p / peak, rounded.form) * peak**2
    found = {
        "output": alike * (soft.log_partition**2 + soft.log_sum**2),
        "weights": lost.sum(axis=-1, keepdims=True),
        "scores": (squares * stored).sum(axis=-1, keepdims=True) + rounded.stored_sum_variance,
        "inner": (squares * of_scores).sum(axis=-1, keepdims=True)
        + rounded.sum_variance(seen_keys(part), summed, np.ones_like(summed))
        + lost_weight(soft, rounded) ** 2 / 3,
    }
    return found, math.sqrt(float((p * (of_scores + stored)).sum(axis=-1).max()))


def _bound(part: Rows, soft: Softmax, rounded: Roundings) -> Array:
    u = rounded.inner_roundoff
    eta = largest_score_error(part, soft, rounded).scores.max(axis=-1, keepdims=True)
    size = 2 * np.abs(soft.log_partition) + np.abs(soft.top) + soft.log_sum
    return np.asarray(eta + rounded.weights_roundoff + (seen_keys(part) + 4) * u + u * size)
