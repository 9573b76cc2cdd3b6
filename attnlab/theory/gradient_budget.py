"""Requirement: the error that a correct backward pass may have, derived from its roundings and not chosen.

Names as in `exact_gradients`, noise as in `gradient_noise`, roundings as in `error_budget`: c u is the rms of one
rounding, sums of N terms cost (c u_i)²[(1 + N/2)Σa² + (N/3)A²]. A backward pass rounds, by source:

    output   ∂L/∂q, ∂L/∂k, ∂L/∂v once
    weights  what a fused kernel stores: P in the sum for ∂L/∂v; T once; and o, of which it makes D = g·o:
             var(δD) = (c u)²(Σp_j²A_j² + Σg_c²o_c²), the rounding of the weights in o and that of o
    sums     what one stores that adds its gradients up in the dtype, block after block of 32 terms or more:
             with N_b blocks before the last (c u)²[(N_b/2)Σa² + (N_b/3)(Σa)²] over the terms of each sum
    scores   what an unfused one stores as well: the scores r times, r s_j², or q and k after the scale's root
             was folded into both, 2 scale²Σq_c²k_jc², whichever is more (of a gradient's few terms one may have a
             score near 0 whose products are not); s − m, e^{s−m} and l of a softmax that is written out; A; A/l,
             A − D and P in T, T · scale once more, and each partial sum of D = Σp_jA_j:
             (c u)²[(1 + N_n/2)Σp_j²A_j² + (N_n/3)D²]; with a soft cap three steps of R and those of f', 5y⁴ + f'².
             PyTorch 2.13's softmax adds up so on its way back in float16
             and bfloat16 on the CPU, in chains of about n/4
    inner    scores: σ_j² of `error_budget`;  A_j: (1 + N_v/2)Σ_c g_c²v_jc² + (N_v/3)A_j²
             D: (1 + N_n/2)Σp_j²A_j² + (N_n/3)D², with (1 + N_v/2)Σg_c²o_c² + (N_v/3)D², and 2Σt_j²σ_j²/(c u_i)²:
             D is that of the forward pass, with its roundings δ of the scores, while T has those, δ', with which
             P is made again. Σt_jδ'_j is what D would have to move by; where the products of q and k are blocked in
             another way it moves by Σt_jδ_j, of the same variance, and T no longer sums to 0
             T: 3t_j² (difference, product, scale), and p_j²A_j² where A/l is taken before the difference
             P, made again as exp(s_j − ln Z) with ln Z = m + ln l from the forward pass: κ(ln p_j)² each, and a row
             κ[(ln Z)² + (ln l)²] as in `error_budget`, + 2Σp_j²σ_j²/(c u_i)², because other roundings of the scores
             are not normalised away, and λ²/3 as for the output;
             κ = 1/(3c²), since these logarithms are alike in size and in mantissa
             with a soft cap R = T f', f' = 1 − y², y = f/c: r_j² for the product, and t_j² times what f' is off,
             2 f''² the variance of the raw score (whose error T has too) and f'² + 17 y⁴ of its own, tanh being good
             to two roundings
             the last sums over n keys (∂L/∂q) or n_q queries (∂L/∂k, ∂L/∂v), and 2 roundings of their results
             each times (c u_i)².

Where the m of s − m is differentiated too, as by who writes softmax out, the error of Σt_j = 0 comes to lie on its key;
and where that was done tile by tile, the error of each sum so far on the key of the m so far, from whichever end the
keys were walked (`_excess`). Where the t_j themselves cancel to nearly nothing, as with V = 1, this is all there is: it
is of the size of what cancelled, p_j|A_j| and |D|. Of that error a part adds up that does not elsewhere: D/l is one
number, and is rounded alike in every A_j/l − D/l whose A_j/l has the same exponent, (Σp_j min(c u|A_j|, |D|))²/2.

Sources add in squares, as if independent: an upper model, like that of the forward pass.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.problem.problem import Problem

from .checks import Array
from .error_budget import SOURCES as FORWARD
from .error_budget import ErrorBudget
from .exact_attention import blocks, chosen_rows, takes_problem, turned
from .exact_gradients import Backward, backward_rows, cap_curvature, pulled_rows
from .floating_point import ONE_MANTISSA
from .gradient_bound import gradient_bounds
from .gradient_noise import Noise, Ways
from .precision_class import FULL, SCORES, WEIGHTS
from .roundings import (
    TANH,
    Roundings,
    ScoreErrors,
    chain_variance,
    checked_roundings,
    growth,
    logarithm_variance,
    lost_weight,
    mean_square,
    rounding_variance,
    score_variance,
    stored_score_variance,
    stored_sum_variance,
)

SOURCES = (*FORWARD, "sums")
SUMS = "partial sums rounded"
GRADIENT_CLASSES = {
    FULL: ("output", "inner"),
    WEIGHTS: ("output", "inner", "weights"),
    SUMS: ("output", "inner", "weights", "sums"),
    SCORES: SOURCES,
}

#: the fewest terms that are added before a partial sum is stored: PyTorch 2.13's CPU kernel takes 32 to 256
#: queries and 512 keys at a time, and adds to the gradients where they lie
SUM_BLOCK = 32
_INNER_OF_SLOPES = 3
# rms errors by which a score may come out above the largest
_FAR = 6
# keys among which equal largest scores share
_TILE = 16
_LAST = 2


class GradientBudgets(NamedTuple):
    """One budget a gradient; `output` of each is the exact gradient, in the shape of q, k or v."""

    query: ErrorBudget
    key: ErrorBudget
    value: ErrorBudget


class _Length(NamedTuple):
    """Of a sum: its terms, and how often a partial sum is stored before it is whole."""

    terms: int
    stores: int

    def growth(self, roundings: Roundings) -> float:
        """The largest relative error of the sum, of its terms' absolute values; G in `gradient_bound`."""
        return growth(self.terms + 4, roundings) + self.stores * roundings.output.unit_roundoff


@takes_problem
def gradient_budgets(
    problem: Problem,
    *,
    rows: ArrayLike | None = None,
    score_roundings: int = 2,
    inner_dtype: str | None = None,
) -> GradientBudgets:
    """The exact gradients of `problem` and the error that roundings to its dtype predict.

    Also as `gradient_budgets(q, k, v, output_gradient, dtype=..., **keywords of Problem.of, **keywords of this)`. The
    arrays hold values of the dtype as cast.
    rows : indexes of the query rows whose own gradient is judged, None for all; those of key and value are whole.
    score_roundings : r, how often the scores are rounded where they are stored.
    inner_dtype : precision of the arithmetic; None: float64 for float64, else float32.

    Each budget has the variances of all sources and its worst-case bound (`gradient_bound`).
    `ErrorBudget.restricted_to` gives those of less that is stored; `GRADIENT_CLASSES` names them. Formulas in the
    module's docstring; of first order in `exponent_error`. Query rows whose output has no gradient cost nothing: their
    own is 0 without error, and they have no part in the others.

    float64 throughout, in blocks of rows. Raises ValueError as `attnlab.theory.error_budget` does, and for a problem
    without an output_gradient.
    """
    dtype = problem.dtype
    roundings = checked_roundings(
        dtype,
        weights_dtype=dtype,
        scores_dtype=dtype,
        score_roundings=score_roundings,
        inner_dtype=inner_dtype,
        any_unfused=True,
    )
    asked, pulled = pulled_rows(problem)
    wanted = chosen_rows(rows, problem.shape.queries)
    assert asked.output_gradient is not None
    wider = asked.without_sinks()
    sums = tuple(_Sum(one.shape) for one in (asked.query, wider.key, wider.value))
    n, terms, every = wider.shape.keys, pulled.size * problem.group, problem.shape.queries * problem.group
    over_keys, over_queries = _Length(n, stores(n)), _Length(terms, min(stores(every), terms))
    sums_grow = (over_keys.growth(roundings), over_queries.growth(roundings))
    exponent_error = 0.0
    for part in blocks(asked):
        back = backward_rows(part, asked.output_gradient)
        noises, spread = _noises(back, over_keys, over_queries, roundings)
        exponent_error = max(exponent_error, spread)
        places = (part.at, part.at_keys, part.at_keys)
        onto = (_as_it_is, part.onto_keys, part.onto_keys)
        three = zip(back.gradients, back.tilts, gradient_bounds(back, sums_grow, roundings), strict=True)
        for total, place, added, (exact, tilt, bound) in zip(sums, places, onto, three, strict=True):
            total.exact[place] += added(exact)
            total.tilt[place] += added(tilt)
            total.bound[place] += added(bound)
        for source, noise in noises.items():
            noisy = zip((noise.query, noise.key, noise.value), noise.scatters, strict=True)
            for total, place, added, (variance, scatter) in zip(sums, places, onto, noisy, strict=True):
                total.variances[source][place] += added(variance)
                total.scatters[source] += float(scatter)
    query, key, value = sums
    return GradientBudgets(
        _rows_of(query.budget(over_keys, exponent_error, roundings), pulled, wanted),
        *(
            one.first(problem.shape.keys).budget(over_queries, exponent_error, roundings)
            for one in (key, value)
        ),
    )


def _as_it_is(x: Array) -> Array:
    return x


def _rows_of(budget: ErrorBudget, rows: NDArray[np.intp], wanted: NDArray[np.intp]) -> ErrorBudget:
    """From `budget` of these rows, in rising order, that of the wanted ones: 0 without error where they are others."""
    if np.array_equal(rows, wanted):
        return budget
    place = np.minimum(np.searchsorted(rows, wanted), rows.size - 1)
    none = rows[place] != wanted

    def taken(x: Array) -> Array:
        found = x[:, :, place]
        found[:, :, none] = 0.0
        return found

    assert budget.worst_case is not None
    variances = {source: taken(one) for source, one in budget.variances.items()}
    scatters = {
        source: scatter * float(variances[source].sum() / max(budget.variances[source].sum(), 1e-300))
        for source, scatter in budget.scatters.items()
    }
    return replace(
        budget,
        output=taken(budget.output),
        variances=variances,
        scatters=scatters,
        worst_case=taken(budget.worst_case),
        tilt=taken(budget.tilt),
    )


class _Sum:
    """What the blocks of rows add up to, for one of the gradients."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.exact, self.bound, self.tilt = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.variances = {source: np.zeros(shape) for source in SOURCES}
        self.scatters = dict.fromkeys(SOURCES, 0.0)

    def first(self, keys: int) -> "_Sum":
        """Of so many keys: without that of a sink."""
        self.exact, self.bound, self.tilt = (x[:, :, :keys] for x in (self.exact, self.bound, self.tilt))
        self.variances = {source: x[:, :, :keys] for source, x in self.variances.items()}
        return self

    def budget(self, length: _Length, exponent_error: float, roundings: Roundings) -> ErrorBudget:
        """With what depends on the whole sum: its drift and the rounding when it is stored."""
        squared = self.exact**2
        drift = roundings.inner_variance * (roundings.chain(length.terms) / 3 + _LAST) * squared
        form = roundings.output
        summed = mean_square(form) * length.stores / 3 * squared
        stored = rounding_variance(self.exact, roundings.output)
        self.variances["inner"] += drift
        self.variances["sums"] += summed
        self.variances["output"] += stored
        self.scatters["output"] += 2 * float((stored**2).sum())
        self.scatters["sums"] += 2 * float((summed**2).sum())
        # stored once more where the scale's root multiplies it: two halves of the smallest subnormal
        bound = self.bound + form.unit_roundoff * (np.abs(self.exact) + self.bound) + form.smallest_subnormal
        # a key that no query sees gets the gradient 0, to the bit
        bound[(self.exact == 0) & (self.bound == 0)] = 0.0
        return ErrorBudget(self.exact, self.variances, self.scatters, bound, exponent_error, self.tilt)


def _noises(
    back: Backward, over_keys: _Length, over_queries: _Length, roundings: Roundings
) -> tuple[Mapping[str, Noise], float]:
    """By source, and the largest predicted rms error of a score."""
    ways, p = Ways(back), back.soft.weights
    scores = score_variance(back.part, back.soft, roundings)
    stored = stored_score_variance(back.part, back.soft, roundings)
    assert stored is not None
    unit = mean_square(roundings.output) / 2
    in_query, in_key = unit * over_keys.stores, unit * over_queries.stores
    found = {
        "inner": _inner(back, ways, scores, over_queries.terms, roundings),
        "weights": _weights(back, ways, roundings),
        "scores": _scores(back, ways, stored, roundings),
        "sums": ways.from_sums(in_query, in_key, in_key),  # but for their drift, which `_Sum.budget` adds
    }
    return found, math.sqrt(float((p * (scores.scores + stored.scores)).sum(axis=-1).max()))


def _of_cap(back: Backward, errors: ScoreErrors, unit: float, tanh: float, steps: float) -> Array | float:
    """Variance of R beyond that of T ∘ f': of f' = 1 − y², of y² and y in it, and of so many products with T."""
    softcap = back.part.softcap
    if softcap is None or back.soft.slope is None:
        return 0.0
    fourth = (back.soft.capped / softcap) ** 4
    slope = 2 * cap_curvature(back.part, back.soft) ** 2 * errors.raw
    slope += unit * ((4 * tanh + 1) * fourth + back.soft.slope**2)
    return np.asarray(back.slopes**2 * slope + steps * unit * back.raw_slopes**2)


def _excess(back: Backward, variance: Array, slopes: Array, row: Array) -> Array:
    """Variances of what Σt is off, on each key that may have the largest score of those walked so far; (…, rows, keys).

    variance : of the scores; one that is up to six deviations below another may still come out above it. slopes, row :
    variances of t_j and of what comes on top for a whole row. Keys are walked from the first or from the last, in tiles
    of any size: before a larger score is met, no more errors have come together than those of the keys until there,
    and of `row` the part that their weights have. Largest scores that are equal share within a tile. Parts in the
    middle that are summed up by themselves and merged are not looked at: each leaves its error on a key of its own.
    """
    shown, fall, slack = back.part.visible, back.fall, _FAR * np.sqrt(2 * variance)
    most = (slack if shown is None else slack * shown).max(axis=-1, keepdims=True)
    seen, reach, each = np.isfinite(fall), fall + slack, slopes + row * back.soft.weights
    found = np.zeros(1)
    for step, highest in zip((1, -1), back.highest, strict=True):
        largest, together = highest[..., ::step], each[..., ::step].cumsum(axis=-1)
        # the sum where the next larger score comes, seen from every key before it
        np.copyto(together[..., :-1], np.inf, where=largest[..., 1:] <= largest[..., :-1] + most)
        ends = np.minimum.accumulate(together[..., ::-1], axis=-1)[..., ::-1]
        found = np.maximum(found, (seen & (reach >= highest)) * ends[..., ::step])
    first = fall == 0
    starts = np.arange(0, fall.shape[-1], _TILE)
    equal = np.add.reduceat(first, starts, axis=-1, dtype=np.int64)
    shared = equal[..., np.arange(fall.shape[-1]) // _TILE]
    return np.asarray(np.where(first, found / np.maximum(shared, 1), found))


def _largest(back: Backward, variance: Array) -> Array:
    """1 for each key that may have the largest score of its row, for scores of these variances; equal ones share it."""
    fall = back.fall
    equal = np.count_nonzero(fall == 0, axis=-1, keepdims=True)
    near = np.isfinite(fall) & (fall + _FAR * np.sqrt(2 * variance) >= 0)
    return np.asarray(np.where(fall == 0, 1 / np.maximum(equal, 1), near))


def _weights(back: Backward, ways: Ways, roundings: Roundings) -> Noise:
    """What a fused kernel stores."""
    assert roundings.weights is not None
    of_p = rounding_variance(back.soft.weights, roundings.weights)
    of_o = rounding_variance(back.soft.output, roundings.output)
    offsets = (of_p * back.products**2).sum(axis=-1) + (of_o * back.g**2).sum(axis=-1)
    return (
        ways.from_weights(of_p)
        + ways.from_raw_slopes(rounding_variance(back.raw_slopes, roundings.weights))
        + ways.from_offsets(offsets[..., None])
    )


def _scores(back: Backward, ways: Ways, stored: ScoreErrors, roundings: Roundings) -> Noise:
    """What an unfused one stores as well. `stored` : variance of the scores by it."""
    p, scale = back.soft.weights, back.part.scale
    assert roundings.weights is not None and roundings.scores is not None
    of_p, of_products = (
        rounding_variance(p, roundings.weights),
        rounding_variance(back.products, roundings.scores),
    )
    squares = ((p * back.products) ** 2).sum(axis=-1, keepdims=True)
    # who writes softmax out adds D up in one go: its terms, their weights and the result are rounded, no partial sum.
    # But A/l − D/l is rounded alike in all keys whose A/l has one exponent, D/l being one number: half of that adds up
    unit = mean_square(roundings.scores)
    alike = (p * np.minimum(math.sqrt(unit) * np.abs(back.products), np.abs(back.offset))).sum(
        axis=-1, keepdims=True
    )
    excess = 2 * unit * (squares + back.offset**2) + alike**2 / 2
    # tile by tile, with more than the dtype inside, A alone is stored: weights that are may have their gradient stored
    tile_by_tile = _excess(back, stored.scores, p**2 * of_products, alike**2 / 2)
    summed = unit * chain_variance(roundings.chain(p.shape[-1]), squares, back.offset)
    raw = back.raw_slopes
    again = rounding_variance(raw * scale, roundings.scores) / scale**2 if scale else np.zeros_like(raw)
    centred = (back.products - back.offset) ** 2
    slopes = (of_p + unit * p**2) * centred + p**2 * of_products
    bent = again + _of_cap(back, stored, unit, 1, 3)
    at_once = _largest(back, stored.scores) * ((slopes + again).sum(axis=-1, keepdims=True) + excess)
    return (
        ways.from_scores(stored.scores)
        + ways.from_factors(np.full_like(back.offset, stored_sum_variance(roundings)))
        + ways.from_products(of_products)
        + ways.from_raw_slopes(back.soft.through(slopes, 2) + bent)
        + ways.from_offsets(summed)
        + ways.from_excess(np.maximum(at_once, tile_by_tile))
    )


def stores(terms: int) -> int:
    """How often a partial sum of so many terms is stored before it is whole."""
    return (terms - 1) // SUM_BLOCK


def _inner(back: Backward, ways: Ways, errors: ScoreErrors, queries: int, roundings: Roundings) -> Noise:
    part, p, t, g2, scores = back.part, back.soft.weights, back.slopes, back.g**2, errors.scores
    n, dim_v = part.v.shape[-2:]
    keys, values = roundings.chain(n), roundings.chain(dim_v)
    products = roundings.sum_variance(values, g2 @ turned(part.v**2), back.products)
    offset = back.offset
    offsets = roundings.sum_variance(
        keys, ((p * back.products) ** 2).sum(axis=-1, keepdims=True), offset
    ) + roundings.sum_variance(values, (g2 * back.soft.output**2).sum(axis=-1, keepdims=True), offset)
    unit = roundings.inner_variance
    in_query, in_key = (unit * (1 + chain / 2) for chain in (keys, roundings.chain(queries)))
    alike = unit * ONE_MANTISSA**2
    with np.errstate(divide="ignore"):
        exponents = alike * np.where(p > 0, np.log(p), 0.0) ** 2
    offsets = offsets + 2 * (t**2 * scores).sum(axis=-1, keepdims=True)
    slopes = p**2 * (products + unit * back.products**2) + (exponents + _INNER_OF_SLOPES * unit) * t**2
    return (
        ways.from_scores(scores)
        + ways.from_weights(p**2 * exponents)
        + ways.from_raw_slopes(back.soft.through(slopes, 2) + _of_cap(back, errors, unit, TANH, 1))
        + ways.from_offsets(offsets)
        + ways.from_excess(_excess(back, scores, slopes, offsets))
        + ways.from_factors(
            logarithm_variance(back.soft, roundings)
            + 2 * (p**2 * scores).sum(axis=-1, keepdims=True)
            + lost_weight(back.soft, roundings) ** 2 / 3
        )
        + ways.from_sums(in_query, in_key, in_key)
    )
