"""The error that a correct backward pass may have, derived from its roundings and not chosen.

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
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.correctness.error_budget import FULL, SCORES, WEIGHTS, ErrorBudget, Tally, energy
from attnlab.correctness.error_budget import SOURCES as FORWARD
from attnlab.correctness.exact_attention import (
    Backward,
    Three,
    backward_rows,
    blocks,
    cap_curvature,
    chosen_rows,
    pulled_rows,
    takes_problem,
    turned,
)
from attnlab.correctness.gradient_noise import Noise, Ways
from attnlab.correctness.numbers import ONE_MANTISSA, Array, FloatFormat
from attnlab.correctness.roundings import (
    LARGEST_TANH,
    TANH,
    RoundedRows,
    Roundings,
    ScoreErrors,
    chain_variance,
    mean_square,
    rounding_variance,
)
from attnlab.workload.inputs import Inputs

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
        """The largest relative error of the sum, of its terms' absolute values; G in `_bounds`."""
        return roundings.growth(self.terms + 4) + self.stores * roundings.form.unit_roundoff


@takes_problem
def gradient_budgets(
    problem: Inputs,
    *,
    rows: ArrayLike | None = None,
) -> GradientBudgets:
    """The exact gradients of `problem` and the error that roundings to its dtype predict.

    Also as `gradient_budgets(q, k, v, output_gradient, dtype=..., **keywords of Inputs.of, **keywords of this)`. The
    arrays hold values of the dtype as cast.
    rows : indexes of the query rows whose own gradient is judged, None for all; those of key and value are whole.

    Each budget has the variances of all sources and its worst-case bound (`_bounds`).
    `ErrorBudget.restricted_to` gives those of less that is stored; `GRADIENT_CLASSES` names them. Formulas in the
    module's docstring; of first order in `exponent_error`. Query rows whose output has no gradient cost nothing: their
    own is 0 without error, and they have no part in the others.

    float64 throughout, in blocks of rows. Raises ValueError as `error_budget` does, and for a problem
    without an output_gradient.
    """
    roundings = Roundings.of(problem.dtype, any_unfused=True)
    asked, pulled = pulled_rows(problem)
    wanted, wider = chosen_rows(rows, problem.shape.queries), asked.without_sinks()
    assert asked.output_gradient is not None
    found = tuple(Tally(one.shape, SOURCES) for one in (asked.query, wider.key, wider.value))
    n, terms, every = wider.shape.keys, pulled.size * problem.group, problem.shape.queries * problem.group
    over_keys, over_queries = _Length(n, stores(n)), _Length(terms, min(stores(every), terms))
    for part in blocks(asked):
        back = backward_rows(part, asked.output_gradient)
        at = RoundedRows(part, back.soft, roundings)
        noises = _noises(at, back, over_keys, over_queries)
        places = (part.at, part.at_keys, part.at_keys)
        onto = (lambda x: x, part.onto_keys, part.onto_keys)
        three = zip(back.gradients, back.tilts, _bounds(at, back, over_keys, over_queries), strict=True)
        for one, (exact, tilt, bound) in enumerate(three):
            own = {source: of_three[one] for source, of_three in noises.items()}
            found[one].add(
                places[one],
                own,
                exact=exact,
                tilt=tilt,
                bound=bound,
                exponent_error=at.exponent_error,
                onto=onto[one],
            )
    query, *others = (one.budget() for one in found)
    keys = problem.shape.keys  # without that of a sink
    return GradientBudgets(
        _rows_of(_stored(query, over_keys, roundings), pulled, wanted),
        *(_stored(one.each(lambda x: x[:, :, :keys]), over_queries, roundings) for one in others),
    )


def _rows_of(budget: ErrorBudget, rows: NDArray[np.intp], wanted: NDArray[np.intp]) -> ErrorBudget:
    """From `budget` of these rows, in rising order, that of the wanted ones: 0 without error where they are others."""
    if np.array_equal(rows, wanted):
        return budget
    place = np.minimum(np.searchsorted(rows, wanted), rows.size - 1)
    there = (rows[place] == wanted)[:, None]
    cut = budget.each(lambda x: np.where(there, x[:, :, place], 0.0))
    scatters = {
        source: scatter * float(cut.variances[source].sum() / max(budget.variances[source].sum(), 1e-300))
        for source, scatter in budget.scatters.items()
    }
    return replace(cut, scatters=scatters)


def _stored(budget: ErrorBudget, length: _Length, roundings: Roundings) -> ErrorBudget:
    """With what depends on the whole sum: its drift and the rounding when it is stored."""
    exact, form, bound = budget.output, roundings.form, budget.worst_case
    summed = mean_square(form) * length.stores / 3 * exact**2
    rounded = rounding_variance(exact, form)
    # stored once more where the scale's root multiplies it: two halves of the smallest subnormal
    last = form.unit_roundoff * (np.abs(exact) + bound) + form.smallest_subnormal
    # a key that no query sees gets the gradient 0, to the bit
    last[(exact == 0) & (bound == 0)] = 0.0
    more = {
        "inner": (roundings.inner_variance * (length.terms / 3 + _LAST) * exact**2, 0.0),
        "sums": (summed, energy(summed)),
        "output": (rounded, energy(rounded)),
    }
    return budget.plus(more, last)


def stores(terms: int) -> int:
    """How often a partial sum of so many terms is stored before it is whole."""
    return (terms - 1) // SUM_BLOCK


def _noises(
    at: RoundedRows, back: Backward, over_keys: _Length, over_queries: _Length
) -> dict[str, tuple[tuple[Array, float], ...]]:
    """By source the variances of each of the three gradients, and their scatters."""
    ways, unit = Ways(back), mean_square(at.roundings.form) / 2
    in_query, in_key = unit * over_keys.stores, unit * over_queries.stores
    return {
        "inner": ways.through(*_inner(at, back, ways, over_queries.terms)),
        "weights": ways.through(*_weights(at, back, ways)),
        "scores": ways.through(*_scores(at, back, ways)),
        "sums": ways.through(ways.from_sums(in_query, in_key, in_key)),  # but for their drift: see `_stored`
    }


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


def _weights(at: RoundedRows, back: Backward, ways: Ways) -> tuple[Noise, ...]:
    """What a fused kernel stores."""
    form = at.roundings.form
    of_p, of_o = rounding_variance(at.soft.weights, form), rounding_variance(at.soft.output, form)
    offsets = (of_p * back.products**2).sum(axis=-1) + (of_o * back.g**2).sum(axis=-1)
    return (
        ways.from_weights(of_p),
        ways.from_raw_slopes(rounding_variance(back.raw_slopes, form)),
        ways.from_offsets(offsets[..., None]),
    )


def _scores(at: RoundedRows, back: Backward, ways: Ways) -> tuple[Noise, ...]:
    """What an unfused one stores as well."""
    p, scale, form, stored = at.soft.weights, at.part.scale, at.roundings.form, at.stored
    of_p, of_products = rounding_variance(p, form), rounding_variance(back.products, form)
    squares = ((p * back.products) ** 2).sum(axis=-1, keepdims=True)
    # who writes softmax out adds D up in one go: its terms, their weights and the result are rounded, no partial sum.
    # But A/l − D/l is rounded alike in all keys whose A/l has one exponent, D/l being one number: half of that adds up
    unit = mean_square(form)
    alike = p * np.minimum(math.sqrt(unit) * np.abs(back.products), np.abs(back.offset))
    adding_up = alike.sum(axis=-1, keepdims=True) ** 2 / 2
    excess = 2 * unit * (squares + back.offset**2) + adding_up
    # tile by tile, with more than the dtype inside, A alone is stored: weights that are may have their gradient stored
    tile_by_tile = _excess(back, stored.scores, p**2 * of_products, adding_up)
    raw = back.raw_slopes
    again = rounding_variance(raw * scale, form) / scale**2 if scale else np.zeros_like(raw)
    centred = (back.products - back.offset) ** 2
    slopes = (of_p + unit * p**2) * centred + p**2 * of_products
    bent = again + _of_cap(back, stored, unit, 1, 3)
    at_once = _largest(back, stored.scores) * ((slopes + again).sum(axis=-1, keepdims=True) + excess)
    return (
        ways.from_scores(stored.scores),
        ways.from_factors(np.full_like(back.offset, at.roundings.stored_sum_variance)),
        ways.from_products(of_products),
        ways.from_raw_slopes(at.soft.through(slopes, 2) + bent),
        ways.from_offsets(unit * chain_variance(p.shape[-1], squares, back.offset)),
        ways.from_excess(np.maximum(at_once, tile_by_tile)),
    )


def _inner(at: RoundedRows, back: Backward, ways: Ways, queries: int) -> tuple[Noise, ...]:
    """What the arithmetic rounds, over so many queries."""
    p, t, g2, scores, offset = at.soft.weights, back.slopes, back.g**2, at.inner.scores, back.offset
    (n, dim_v), summed, unit = at.part.v.shape[-2:], at.roundings.sum_variance, at.roundings.inner_variance
    products = summed(dim_v, g2 @ turned(at.part.v**2), back.products)
    with np.errstate(divide="ignore"):
        exponents = unit * ONE_MANTISSA**2 * np.where(p > 0, np.log(p), 0.0) ** 2
    offsets = (
        summed(n, ((p * back.products) ** 2).sum(axis=-1, keepdims=True), offset)
        + summed(dim_v, (g2 * at.soft.output**2).sum(axis=-1, keepdims=True), offset)
        + 2 * (t**2 * scores).sum(axis=-1, keepdims=True)
    )
    slopes = p**2 * (products + unit * back.products**2) + (exponents + _INNER_OF_SLOPES * unit) * t**2
    of_scores = 2 * (p**2 * scores).sum(axis=-1, keepdims=True)
    in_query, in_key = (unit * (1 + chain / 2) for chain in (n, queries))
    return (
        ways.from_scores(scores),
        ways.from_weights(p**2 * exponents),
        ways.from_raw_slopes(at.soft.through(slopes, 2) + _of_cap(back, at.inner, unit, TANH, 1)),
        ways.from_offsets(offsets),
        ways.from_excess(_excess(back, scores, slopes, offsets)),
        ways.from_factors(at.logarithm_variance + of_scores + at.lost_weight_variance),
        ways.from_sums(in_query, in_key, in_key),
    )


# -- the worst case

# e^{2η} need not be known beyond this: tanh(η/2) is the smaller by then
_LARGEST_ETA = 100.0


#: |f''| <= 4/(3√3 c)
_CURVATURE = 4 / 27**0.5


def _bounds(at: RoundedRows, back: Backward, over_keys: _Length, over_queries: _Length) -> Three:
    """How far roundings may carry the gradients of one block at the very most, before these are stored themselves.

    Per row, with η, γ, τ and L as in `error_budget`, A, D and T as in `exact_gradients`, and |g||v|ᵀ = B:

        |δp_j| <= b_j = min(p_j(e^{2η} − 1), tanh(η/2)) + (3u_P + (2n + 6)u_i + L) p_j + τ_P
        |δA_j| <= α_j = (γ_{d_v+2} + 2u_S) B_j
        |δD|   <= Σ_j (b_j B_j + p_j α_j) + γ_{n+d_v+4} Σ_j (p_j + b_j)B_j + u_O Σ_c|g_c o_c| + τ_O Σ_c|g_c|
        |δt_j| <= θ_j = b_j|A_j − D| + (p_j + b_j)(α_j + δD + 4u_i|A_j − D|),
                  and u(|t_j| + θ_j) + τ(1 + 1/scale) for each time that T is stored; and Σ_lθ_l more where
                  s_j >= max_{l<=j} s_l − 2η, or max_{l>=j} s_l − 2η: for who differentiates m too, what the sum of T
                  is off comes to lie on its key, and on those of the maxima on the way where there were any
        |δr_j| <= ρ_j = θ_j; with a soft cap f'_j θ_j + (|t_j| + θ_j)φ_j and what storing r adds, φ_j >= |δf'_j|
        |δ∂L/∂q| <= scale [Σ_j ρ_j|k_j| + G_n Σ_j(|r_j| + ρ_j)|k_j|], and likewise for k over queries,
        |δ∂L/∂v_j| <= Σ_i (b_ij + G_{n_q}(p_ij + b_ij))|g_i|,

    G_n = γ_{n+4}(u_i) + N u_O for a sum of n terms that is stored N times before it is whole, and each with u_O of
    itself and τ_O on top. tanh(η/2) bounds how far any single weight can move, e^{2η} how much.

    Gives query (…, rows, head_dim), and the shares of key (…, keys, head_dim) and value (…, keys, value_dim).
    """
    part, p, form = at.part, at.soft.weights, at.roundings.form
    dim_v, scale = part.v.shape[-1], abs(part.scale)
    shown = True if part.visible is None else part.visible
    absolute = np.abs(back.g) @ turned(np.abs(part.v))
    b = _of_weights(at) * shown
    alpha = (at.roundings.growth(dim_v + 2) + 2 * form.unit_roundoff) * absolute
    theta = _when_stored(_of_slopes(at, back, b, alpha, absolute), back.slopes, scale, form) * shown
    highest_so_far = back.fall + 2 * at.eta >= np.minimum(*back.highest)
    theta += shown * highest_so_far * theta.sum(axis=-1, keepdims=True)
    if part.softcap is not None:
        bent = at.soft.through(theta) + (np.abs(back.slopes) + theta) * _bound_of_cap(at, part.softcap)
        theta = _when_stored(bent, back.raw_slopes, scale, form) * shown
    reach = np.abs(back.raw_slopes) + theta
    of_keys, of_queries = (length.growth(at.roundings) for length in (over_keys, over_queries))
    return (
        scale * (theta + of_keys * reach) @ np.abs(part.k),
        scale * turned(theta + of_queries * reach) @ np.abs(part.q),
        turned(b + of_queries * (p + b)) @ np.abs(back.g),
    )


def _when_stored(error: Array, exact: Array, scale: float, form: FloatFormat) -> Array:
    """The bound of `error` after `exact` is stored as weights and as scores are, and scaled."""
    for _ in ("as weights", "as scores"):
        error = error + form.unit_roundoff * (np.abs(exact) + error)
        error += form.smallest_subnormal / 2 * (1 + 1 / max(scale, 1e-300))
    return error


def _bound_of_cap(at: RoundedRows, softcap: float) -> Array:
    """φ: of f' = 1 − y², y = f/c, for errors of x, a rounded y and roundings of y², of f' and of its products."""
    assert at.soft.slope is not None
    u, squares = (
        at.roundings.inner_roundoff + at.roundings.form.unit_roundoff,
        (at.soft.capped / softcap) ** 2,
    )
    own = u * ((2 * LARGEST_TANH + 1) * squares + 4 * at.soft.slope)
    return np.asarray(np.minimum(_CURVATURE / softcap * at.largest.raw, 1.0) + own)


def _of_weights(at: RoundedRows) -> Array:
    """b."""
    p, eta = at.soft.weights, np.minimum(at.eta, _LARGEST_ETA)
    moved = np.minimum(p * np.expm1(2 * eta), np.tanh(eta / 2))
    relative = at.largest_weight_error(2 * p.shape[-1] + 6)
    return np.asarray(moved + relative * p + at.roundings.form.smallest_subnormal / 2)


def _of_slopes(at: RoundedRows, back: Backward, b: Array, alpha: Array, absolute: Array) -> Array:
    """θ before T is stored."""
    p, roundings, form = at.soft.weights, at.roundings, at.roundings.form
    g, o = np.abs(back.g), np.abs(at.soft.output)
    offset = (b * absolute + p * alpha).sum(axis=-1, keepdims=True)
    offset += roundings.growth(sum(at.part.v.shape[-2:]) + 4) * ((p + b) * absolute).sum(
        axis=-1, keepdims=True
    )
    offset += form.unit_roundoff * (g * o).sum(axis=-1, keepdims=True)
    offset += form.smallest_subnormal / 2 * g.sum(axis=-1, keepdims=True)
    centred = np.abs(back.products - back.offset)
    return np.asarray(b * centred + (p + b) * (alpha + offset + 4 * roundings.inner_roundoff * centred))
