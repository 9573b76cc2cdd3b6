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
             (c u)²[(1 + N_n/2)Σp_j²A_j² + (N_n/3)D²]. PyTorch 2.13's softmax adds up so on its way back in float16
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
             the last sums over n keys (∂L/∂q) or n_q queries (∂L/∂k, ∂L/∂v), and 2 roundings of their results
             each times (c u_i)².

Where the m of s − m is differentiated too, as by who writes softmax out, the error of Σt_j = 0 comes to lie on its key;
and where that was done tile by tile, with more than the dtype inside, on the key of every m on the way. Of that error
a part adds up that does not elsewhere: D/l is one number, and is rounded alike in every A_j/l − D/l whose A_j/l has the
same exponent, (Σp_j min(c u|A_j|, |D|))²/2.

Sources add in squares, as if independent: an upper model, like that of the forward pass.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .checks import Array, real
from .error_budget import SOURCES as FORWARD
from .error_budget import ErrorBudget
from .exact_attention import blocks, checked_inputs, chosen_rows, turned
from .exact_gradients import Backward, backward_rows, checked_upstream
from .floating_point import ONE_MANTISSA
from .gradient_bound import gradient_bounds
from .gradient_noise import Noise, Ways
from .precision_class import FULL, SCORES, WEIGHTS
from .roundings import (
    Roundings,
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
# keys between two looks at the largest score
_TILE = 16
_LAST = 2


class GradientBudgets(NamedTuple):
    """One budget a gradient; `output` of each is the exact gradient, in the shape of q, k or v."""

    query: ErrorBudget
    key: ErrorBudget
    value: ErrorBudget


def gradient_budgets(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    output_gradient: ArrayLike,
    *,
    dtype: str,
    causal: bool = False,
    scale: float | None = None,
    score_roundings: int = 2,
    inner_dtype: str | None = None,
) -> GradientBudgets:
    """The exact gradients of softmax(scale · qkᵀ)v and the error that roundings to `dtype` predict.

    q : (batch, heads, queries, head_dim); k : (batch, key_heads, keys, head_dim);
    v : (batch, key_heads, keys, value_dim); output_gradient : (batch, heads, queries, value_dim). They hold values
        of `dtype` as cast. heads is a multiple of key_heads.
    causal : query i sees keys 0 to i. scale : 1/√head_dim if None.
    score_roundings : r, how often the scores are rounded where they are stored.
    inner_dtype : precision of the arithmetic; None: float64 for float64, else float32.

    Each budget has the variances of all sources and its worst-case bound (`gradient_bound`).
    `ErrorBudget.restricted_to` gives those of less that is stored; `GRADIENT_CLASSES` names them. Formulas in the
    module's docstring; of first order in `exponent_error`.

    float64 throughout, in blocks of rows. Raises ValueError as `attnlab.theory.error_budget` does, and for an
    output_gradient that does not fit.
    """
    queries, keys, values = checked_inputs(q, k, v)
    upstream = checked_upstream(output_gradient, queries, values)
    roundings = checked_roundings(
        dtype, dtype, dtype, score_roundings, inner_dtype, "normalised", None, any_unfused=True
    )
    factor = 1 / math.sqrt(queries.shape[-1]) if scale is None else real("scale", scale)
    sums = tuple(_Sum(one.shape) for one in (queries, keys, values))
    exponent_error = 0.0
    length = queries.shape[2] * (queries.shape[1] // keys.shape[1])
    lengths = (keys.shape[2], length, length)
    sums_grow = (_growth(lengths[0], roundings), _growth(length, roundings))
    for part in blocks(queries, keys, values, chosen_rows(None, queries.shape[2]), causal, "top-left", None):
        back = backward_rows(part, upstream, factor)
        places = (part.at, part.at_keys, part.at_keys)
        noises, spread = _noises(back, factor, length, roundings)
        exponent_error = max(exponent_error, spread)
        exact = (
            factor * back.slopes @ part.k,
            factor * turned(back.slopes) @ part.q,
            turned(back.soft.weights) @ back.g,
        )
        bounds = gradient_bounds(back, factor, sums_grow, roundings)
        for index, (total, place) in enumerate(zip(sums, places, strict=True)):
            total.exact[place] += exact[index]
            total.bound[place] += bounds[index]
            for source, noise in noises.items():
                total.variances[source][place] += (noise.query, noise.key, noise.value)[index]
                total.scatters[source] += float(noise.scatters[index])
    return GradientBudgets(
        *(one.budget(n, exponent_error, roundings) for one, n in zip(sums, lengths, strict=True))
    )


def _growth(terms: int, roundings: Roundings) -> float:
    """The largest relative error of a sum of so many terms, of their absolute values; G in `gradient_bound`."""
    return growth(terms + 4, roundings) + stores(terms) * roundings.output.unit_roundoff


class _Sum:
    """What the blocks of rows add up to, for one of the gradients."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.exact, self.bound = np.zeros(shape), np.zeros(shape)
        self.variances = {source: np.zeros(shape) for source in SOURCES}
        self.scatters = dict.fromkeys(SOURCES, 0.0)

    def budget(self, terms: int, exponent_error: float, roundings: Roundings) -> ErrorBudget:
        """With what depends on the whole sum, of so many terms: its drift and the rounding when it is stored."""
        squared = self.exact**2
        drift = roundings.inner_variance * (roundings.chain(terms) / 3 + _LAST) * squared
        form = roundings.output
        summed = mean_square(form) * stores(terms) / 3 * squared
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
        return ErrorBudget(self.exact, self.variances, self.scatters, bound, exponent_error)


def _noises(
    back: Backward, scale: float, queries: int, roundings: Roundings
) -> tuple[Mapping[str, Noise], float]:
    """By source, and the largest predicted rms error of a score."""
    ways, p = Ways(back, scale), back.soft.weights
    scores = score_variance(back.part, back.soft, scale, roundings)
    stored = stored_score_variance(back.part, back.soft, scale, roundings)
    assert stored is not None
    found = {
        "inner": _inner(back, ways, scores, queries, roundings),
        "weights": _weights(back, ways, roundings),
        "scores": _scores(back, ways, stored, scale, roundings),
        "sums": _sums(back, ways, queries, roundings),
    }
    return found, math.sqrt(float((p * (scores + stored)).sum(axis=-1).max()))


def _tops(back: Backward, variance: Array, tile: int) -> Array:
    """How much of it each key gets where it has the largest score so far at the end of a tile, (…, rows, keys).

    variance : of the scores; one that is up to six deviations below another may still come out above it, and get
    all. Scores that are equal share. Tiles of other sizes than multiples of `tile` are not looked at.
    """
    fall = (
        back.soft.fall if back.part.visible is None else np.where(back.part.visible, back.soft.fall, -np.inf)
    )
    starts = np.arange(0, fall.shape[-1], tile)
    owner = np.arange(fall.shape[-1]) // tile
    largest = np.maximum.accumulate(np.maximum.reduceat(fall, starts, axis=-1), axis=-1)[..., owner]
    near = np.isfinite(fall) & (fall + _FAR * np.sqrt(2 * variance) >= largest)
    first = fall == largest
    equal = np.add.reduceat(first, starts, axis=-1, dtype=np.int64)[..., owner]
    return np.asarray(np.where(first, near / np.maximum(equal, 1), near))


def _weights(back: Backward, ways: Ways, roundings: Roundings) -> Noise:
    """What a fused kernel stores."""
    assert roundings.weights is not None
    of_p = rounding_variance(back.soft.weights, roundings.weights)
    of_o = rounding_variance(back.soft.output, roundings.output)
    offsets = (of_p * back.products**2).sum(axis=-1) + (of_o * back.g**2).sum(axis=-1)
    return (
        ways.from_weights(of_p)
        + ways.from_slopes(rounding_variance(back.slopes, roundings.weights))
        + ways.from_offsets(offsets[..., None])
    )


def _scores(back: Backward, ways: Ways, stored: Array, scale: float, roundings: Roundings) -> Noise:
    """What an unfused one stores as well. `stored` : variance of the scores by it."""
    p, t = back.soft.weights, back.slopes
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
    summed = unit * chain_variance(roundings.chain(p.shape[-1]), squares, back.offset)
    again = rounding_variance(t * scale, roundings.scores) / scale**2 if scale else np.zeros_like(t)
    centred = (back.products - back.offset) ** 2
    slopes = (of_p + unit * p**2) * centred + p**2 * of_products + again
    return (
        ways.from_scores(stored)
        + ways.from_factors(np.full_like(back.offset, stored_sum_variance(roundings)))
        + ways.from_products(of_products)
        + ways.from_slopes(slopes)
        + ways.from_offsets(summed)
        + ways.from_excess(slopes.sum(axis=-1, keepdims=True) + excess, _tops(back, stored, p.shape[-1]))
    )


def _sums(back: Backward, ways: Ways, queries: int, roundings: Roundings) -> Noise:
    """Partial sums stored in the dtype, but for their drift, which `_Sum.budget` adds."""
    unit = mean_square(roundings.output) / 2
    in_query, in_key = (unit * stores(length) for length in (back.part.v.shape[-2], queries))
    return ways.from_sums(in_query, in_key, in_key)


def stores(terms: int) -> int:
    """How often a partial sum of so many terms is stored before it is whole."""
    return (terms - 1) // SUM_BLOCK


def _inner(back: Backward, ways: Ways, scores: Array, queries: int, roundings: Roundings) -> Noise:
    part, p, t, g2 = back.part, back.soft.weights, back.slopes, back.g**2
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
        + ways.from_slopes(slopes)
        + ways.from_offsets(offsets)
        + ways.from_excess(slopes.sum(axis=-1, keepdims=True) + offsets, _tops(back, scores, _TILE))
        + ways.from_factors(
            logarithm_variance(back.soft, roundings)
            + 2 * (p**2 * scores).sum(axis=-1, keepdims=True)
            + lost_weight(back.soft, roundings) ** 2 / 3
        )
        + ways.from_sums(in_query, in_key, in_key)
    )
