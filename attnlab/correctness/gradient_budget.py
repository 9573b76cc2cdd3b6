"""The error that a correct backward pass may have, derived from where it rounds.

Names are as in `reference`, roundings as in `error_budget`: c u is the rms of one rounding, and a sum of N terms has
the variance (c u_i)²[(1 + N/2)Σa² + (N/3)A²]. A backward pass rounds, by source:

    output   ∂L/∂q, ∂L/∂k and ∂L/∂v once
    weights  what a fused kernel stores: P in the sum for ∂L/∂v; T once; and o, from which it computes D = g·o:
             var(δD) = (c u)²(Σp_j²A_j² + Σg_c²o_c²), from the rounding of the weights in o, and of o itself
    sums     what a kernel stores if it adds up its gradients in the dtype, in blocks of 32 terms or more:
             with N_b blocks before the last (c u)²[(N_b/2)Σa² + (N_b/3)(Σa)²] over the terms of each sum
    scores   what an unfused kernel stores in addition:
             the scores, r s_j², or q and k after both were multiplied by the root of the scale, 2 scale²Σq_c²k_jc²,
             whichever is larger (a gradient may have few terms, and the score of one may be near 0 while its
             products are not);
             s − m, e^{s−m} and l, if the softmax stores each of its steps;
             A; A/l, A − D and P in T; T · scale once more; and each partial sum of D = Σp_jA_j:
             (c u)²[(1 + N_n/2)Σp_j²A_j² + (N_n/3)D²]. PyTorch 2.13's softmax adds up like this in its backward pass
             in float16 and bfloat16 on the CPU, in chains of about n/4;
             with a soft cap three steps of R, and those of f', 5y⁴ + f'²
    inner    scores: σ_j² of `error_budget`
             A_j: (1 + N_v/2)Σ_c g_c²v_jc² + (N_v/3)A_j²
             D: (1 + N_n/2)Σp_j²A_j² + (N_n/3)D², plus (1 + N_v/2)Σg_c²o_c² + (N_v/3)D², plus 2Σt_j²σ_j².
             The last term: D comes from the forward pass, with the errors δ of its scores. T has other errors δ',
             those of the scores from which P is computed again. So D should move by Σt_jδ'_j. If the products of q
             and k are blocked in another way, D moves by Σt_jδ_j, of the same variance, and T does not sum to 0
             T: 3t_j² (difference, product, scale), and p_j²A_j² if A/l is taken before the difference;
             t_j²/(c u_i)², and p_j²/(c u_i)² for P, if they are so small that a processor may replace them by 0
             P, computed again as exp(s_j − ln Z) with ln Z = m + ln l from the forward pass: κ(ln p_j)² for each
             weight, and for each row κ[(ln Z)² + (ln l)²] as in `error_budget`, plus 2Σp_j²σ_j², because the new
             errors of the scores are not normalised away, plus λ²/3 as for the output, divided by (c u_i)²;
             κ = 1/(3c²), because these logarithms are alike in size and in mantissa
             with a soft cap R = T f', f' = 1 − y², y = f/c: r_j² for the product, and t_j² times the variance of f':
             2 f''² times that of the raw score (T has the error of this score too), and f'² + 17 y⁴ for the steps of
             f', with a tanh that is good to two roundings
             the last sums over n keys (∂L/∂q) or n_q queries (∂L/∂k, ∂L/∂v), and 2 roundings of their results
             All of these are in units of (c u_i)².

A kernel may also differentiate the m of s − m, as a softmax does that stores each of its steps. Then the key of m gets
the error of Σt_j, which should be 0. If this is done tile by tile, from either end of the keys, the key of the m so far
gets the error of the sum so far (`_excess`). If the t_j themselves cancel almost completely, as with V = 1, this is the
whole error: it is of the size of the terms that cancelled, p_j|A_j| and |D|. A part of it adds up, (Σp_j min(c u|A_j|,
|D|))²/2: D/l is one number, and is rounded in the same way in every A_j/l − D/l whose A_j/l has the same exponent.

The variances of the sources are added, as if the sources were independent: an upper bound, as in the forward pass.

How errors reach the gradients of q, k and v, to first order, with k̄ = Σ_j p_j k_j and t̄ = Σ_j t_j k_j:
    δs_j :  δp_j = p_j(δs_j − Σp_lδs_l),   δt_j = t_jδs_j − t_j Σp_lδs_l − p_j Σt_lδs_l
    δA_j :  δt_j = p_j(δA_j − Σp_lδA_l), if D is summed from P and A
    δD   :  δt_j = −p_j δD
    δt_j :  itself
    a factor 1 + ε on the row's weights (from its ln Z) :  δp_j = p_j ε, δt_j = t_j ε
    Σ_jt_j, which is 0 without roundings, if s − m is differentiated with its m :  δt_m = −Σ_jδt_j

and δ(∂L/∂q_i) = scale Σ_j δr_j k_j, δ(∂L/∂k_j) = scale Σ_i δr_ij q_i, δ(∂L/∂v_j) = Σ_i δp_ij g_i with δr_j = f'_j δt_j.
With a soft cap f, k̄ = Σ_j p_j f'_j k_j and t̄ = Σ_j t_j f'_j k_j; without one, f' = 1. Covariances within a row are
included.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnlab.correctness import error_budget as forward
from attnlab.correctness.error_budget import ONE_MANTISSA, RoundedRows, chain_variance, rounding_variance
from attnlab.correctness.reference import Backward, at_rows, blocks, chosen_rows, pulled_rows
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import Array

SOURCES = (*forward.SOURCES, "sums")
SUMS = "partial sums rounded"
GRADIENT_CLASSES = {one: forward.CLASSES[one] for one in (forward.FULL, forward.WEIGHTS)}
GRADIENT_CLASSES |= {SUMS: (*forward.CLASSES[forward.WEIGHTS], "sums"), forward.SCORES: SOURCES}
#: the least number of terms between two stored partial sums: PyTorch 2.13's CPU kernel takes 32 to 256 queries and 512
#: keys at a time, and adds to the stored gradients
SUM_BLOCK = 32
#: the number of inner roundings of T; of the result of the last sum
_INNER_OF_SLOPES, _LAST = 3, 2
#: the number of rms errors by which a rounded score may exceed a larger one; the number of keys in a tile, in which
#: equal largest scores share an error
_FAR, _TILE = 6, 16


def gradient_budgets(inputs: Inputs, *, rows: ArrayLike | None = None) -> tuple[forward.ErrorBudget, ...]:
    """The exact gradients of `inputs` and the error that roundings to its dtype predict.

    Returns the budgets for query, key and value; `output` of each is the exact gradient, in the shape of its input. The
    arrays hold values of the dtype as cast.
    rows : indexes of the query rows whose own gradient is judged; None for all. The gradients of key and value are
    whole.

    Each budget has the variances of all sources. They are 0 if no error is possible, as for a key that no query sees.
    `ErrorBudget.restricted_to` gives the budget of an implementation that stores less; `GRADIENT_CLASSES` names these.
    The docstring of the module has the formulas, which are of first order in `exponent_error`.

    All is computed in float64, in blocks of rows. Raises ValueError as `error_budget` does, and for inputs without an
    output_gradient.
    """
    roundings = forward.Roundings(inputs.dtype, any_unfused=True)
    pulled, wanted = pulled_rows(inputs), chosen_rows(rows, inputs.shape.queries)
    # rows whose output gradient is 0 contribute nothing to the gradients of key and value
    either = wanted if rows is None else np.union1d(pulled, wanted)
    asked, keys = at_rows(inputs, either), inputs.shape.keys
    wider = asked.without_sinks()
    assert asked.output_gradient is not None
    shapes = asked.query.shape, wider.key.shape, wider.value.shape
    query, key, value = found = tuple(forward.ErrorBudget.empty(one, SOURCES) for one in shapes)
    terms, every = pulled.size * inputs.group, inputs.shape.queries * inputs.group
    # for the sums over keys and over queries: the number of terms, and of stored partial sums
    over_keys = keys, (keys - 1) // SUM_BLOCK
    over_queries = terms, min((every - 1) // SUM_BLOCK, terms)
    unit = roundings.stored_variance / 2
    # the drift of these sums is added by `_stored`
    stores = _Noise(sums=(unit * over_keys[1], unit * over_queries[1]))
    for part in blocks(asked):
        back, block = Backward(part, asked.output_gradient), RoundedRows(part, roundings)
        ways = _Ways(back, inputs.sinks is not None)
        of = {"inner": _inner(block, back, terms), "weights": _weights(block, back), "sums": stores}
        of["scores"] = _scores(block, back)
        noises = {source: ways.through(one) for source, one in of.items()}
        for one, (budget, gradient, tilt) in enumerate(zip(found, back.gradients, back.tilts, strict=True)):
            at, onto = (part.at_keys, part.onto_keys) if one else (part.at, np.asarray)
            own = {source: onto(each[one]) for source, (each, _) in noises.items()}
            budget.add(own, at, block.exponent_error, output=onto(gradient), tilt=onto(tilt))
            for source, (_, shared) in noises.items():
                budget.shared[source] += shared[one]
    first = np.s_[:, :, :keys]  # without the row of a sink
    return (
        _stored(query.cut(np.s_[:, :, np.searchsorted(either, wanted)]), over_keys, roundings),
        *(_stored(one.cut(first), over_queries, roundings) for one in (key, value)),
    )


def _stored(
    budget: forward.ErrorBudget, length: tuple[int, int], roundings: forward.Roundings
) -> forward.ErrorBudget:
    """`budget` with the errors that depend on the whole sum: its drift, and the rounding when it is stored."""
    exact, (terms, stores) = budget.output, length
    summed = roundings.stored_variance * stores / 3 * exact**2
    rounded = rounding_variance(exact, roundings.form)
    inner = roundings.inner_variance * (terms / 3 + _LAST) * exact**2
    return budget.add({"inner": inner, "sums": summed, "output": rounded})


# -- what is rounded, and by how much


class _Noise(NamedTuple):
    """Variances of the independent errors of one source in one block of rows; None if there are none.

    scores, products, slopes : of s, A and R, (…, rows, keys). weights : of P, only in the sum for ∂L/∂v. excess : of
    Σ_jt_j, at the key that gets this error. offsets : of D, (…, rows, 1). factors : of all weights of a row together,
    relative, (…, rows, 1). sums : of the sums over keys and over queries, as multiples of the squares of the terms.
    """

    scores: Array | None = None
    products: Array | None = None
    slopes: Array | float = 0.0
    weights: Array | float = 0.0
    excess: Array | float = 0.0
    offsets: Array | float = 0.0
    factors: Array | float = 0.0
    sums: tuple[float, float] = (0.0, 0.0)


def _weights(block: RoundedRows, back: Backward) -> _Noise:
    """The errors from what a fused kernel stores."""
    form = block.roundings.form
    of_p, of_o = rounding_variance(back.rows.weights, form), rounding_variance(back.rows.output, form)
    offsets = (of_p * back.products**2).sum(axis=-1) + (of_o * back.g**2).sum(axis=-1)
    return _Noise(weights=of_p, slopes=rounding_variance(back.raw_slopes, form), offsets=offsets[..., None])


def _scores(block: RoundedRows, back: Backward) -> _Noise:
    """The errors from what an unfused kernel stores in addition."""
    rows, form, unit = block.rows, block.roundings.form, block.roundings.stored_variance
    p, scale, raw, stored = rows.weights, rows.scale, back.raw_slopes, block.stored.scores
    of_p, of_products = rounding_variance(p, form), rounding_variance(back.products, form)
    squares = ((p * back.products) ** 2).sum(axis=-1, keepdims=True)
    # a softmax that stores each of its steps sums up D in one call: the terms, their weights and the result are
    # rounded, but no partial sum. D/l is one number, so A/l − D/l is rounded in the same way for all keys whose A/l has
    # one exponent: half of this error adds up
    alike = p * np.minimum(math.sqrt(unit) * np.abs(back.products), np.abs(back.offset))
    adding_up = alike.sum(axis=-1, keepdims=True) ** 2 / 2
    excess = 2 * unit * (squares + back.offset**2) + adding_up
    again = rounding_variance(raw * scale, form) / scale**2 if scale else np.zeros_like(raw)
    slopes = (of_p + unit * p**2) * (back.products - back.offset) ** 2 + p**2 * of_products
    # 1 for each key that may have the largest score of its row; keys with equal largest scores share the 1
    fall = rows.fall if rows.visible is None else np.where(rows.visible, rows.fall, -np.inf)
    equal = np.count_nonzero(fall == 0, axis=-1, keepdims=True)
    near = np.isfinite(fall) & (fall + _FAR * np.sqrt(2 * stored) >= 0)
    largest = np.where(fall == 0, 1 / np.maximum(equal, 1), near)
    at_once = largest * ((slopes + again).sum(axis=-1, keepdims=True) + excess)
    return _Noise(
        scores=stored,
        factors=block.roundings.stored_sum_variance,
        products=of_products,
        slopes=rows.through(slopes, 2) + again + _of_cap(back, block.stored, unit, 1, 3),
        offsets=unit * chain_variance(p.shape[-1], squares, back.offset),
        # a tiled kernel with a higher inner precision may store only A, the gradient of the weights
        excess=np.maximum(at_once, _excess(fall, p, stored, p**2 * of_products, adding_up)),
    )


def _inner(block: RoundedRows, back: Backward, queries: int) -> _Noise:
    """The errors of the arithmetic. queries : the number of terms in the sums over queries."""
    rows, unit, scores = block.rows, block.roundings.inner_variance, block.inner.scores
    p, t2, g2, offset = rows.weights, back.slopes**2, back.g**2, back.offset
    n, dim_v = rows.v.shape[-2:]
    products = unit * chain_variance(dim_v, g2 @ (rows.v**2).mT, back.products)
    with np.errstate(divide="ignore"):
        exponents = unit * ONE_MANTISSA**2 * np.where(p > 0, np.log(p), 0.0) ** 2
    offsets = (
        unit * chain_variance(n, ((p * back.products) ** 2).sum(axis=-1, keepdims=True), offset)
        + unit * chain_variance(dim_v, (g2 * rows.output**2).sum(axis=-1, keepdims=True), offset)
        + 2 * (t2 * scores).sum(axis=-1, keepdims=True)
    )
    # a processor may replace a number below the smallest normal one by 0
    normal = block.roundings.inner.smallest_normal
    faint = p < normal
    gone = faint | (np.abs(back.slopes) * min(1.0, abs(rows.scale)) < normal)
    slopes = p**2 * (products + unit * back.products**2) + (exponents + _INNER_OF_SLOPES * unit + gone) * t2
    of_scores = 2 * (p**2 * scores).sum(axis=-1, keepdims=True)
    fall = rows.fall if rows.visible is None else np.where(rows.visible, rows.fall, -np.inf)
    return _Noise(
        scores=scores,
        weights=p**2 * (exponents + faint),
        slopes=rows.through(slopes, 2) + _of_cap(back, block.inner, unit, forward.TANH, 1),
        offsets=offsets,
        excess=_excess(fall, p, scores, slopes, offsets),
        factors=block.logarithm_variance + of_scores + block.lost_weight_variance,
        sums=(unit * (1 + n / 2), unit * (1 + queries / 2)),
    )


def _of_cap(
    back: Backward, errors: forward.ScoreErrors, unit: float, tanh: float, steps: float
) -> Array | float:
    """Variance of R that a soft cap adds: from f' = 1 − y², with y and y² in it, and from `steps` products with T."""
    rows = back.rows
    if rows.softcap is None or rows.slope is None:
        return 0.0
    slope = 2 * rows.curvature**2 * errors.raw
    slope += unit * ((4 * tanh + 1) * (rows.capped / rows.softcap) ** 4 + rows.slope**2)
    return np.asarray(back.slopes**2 * slope + steps * unit * back.raw_slopes**2)


def _excess(fall: Array, p: Array, variance: Array, slopes: Array, row: Array) -> Array:
    """The variance of the error of Σt, at each key that may have the largest score so far; (…, rows, keys).

    fall : s − m, −inf at masked keys. variance : of the scores; rounding may lift a score above one that is up to six
    standard deviations larger. slopes : variances of t_j. row : the variance of an error of the whole row. A kernel
    goes through the keys from the first or from the last, in tiles of any size. When it meets a larger score, the
    errors of all keys up to there have added up, with the part of `row` that belongs to their weights. Equal largest
    scores in a tile share this error. Parts in the middle that are summed separately and merged are not considered:
    each of them leaves its error at a key of its own.
    """
    seen, slack = np.isfinite(fall), _FAR * np.sqrt(2 * variance)
    most, reach, each = (slack * seen).max(axis=-1, keepdims=True), fall + slack, slopes + row * p
    found = np.zeros(1)
    for step in (1, -1):
        largest = np.maximum.accumulate(fall[..., ::step], axis=-1)
        together = each[..., ::step].cumsum(axis=-1)
        # the sum up to the next larger score, for every key before it
        np.copyto(together[..., :-1], np.inf, where=largest[..., 1:] <= largest[..., :-1] + most)
        ends = np.minimum.accumulate(together[..., ::-1], axis=-1)[..., ::-1]
        found = np.maximum(found, (seen & (reach >= largest[..., ::step])) * ends[..., ::step])
    first = fall == 0
    starts = np.arange(0, fall.shape[-1], _TILE)
    equal = np.add.reduceat(first, starts, axis=-1, dtype=np.int64)
    shared = equal[..., np.arange(fall.shape[-1]) // _TILE]
    return np.asarray(np.where(first, found / np.maximum(shared, 1), found))


# -- how it reaches the gradients


class _Ways:
    """How errors in one block reach the gradients, and the arrays that all these computations share.

    p2, t2, cross : P², T² and P ∘ T. mean_key, pull : k̄ and t̄. The key and the value of a sink are not among the
    inputs: its f' and its weight in ∂L/∂v count as 0.
    """

    def __init__(self, back: Backward, sink: bool) -> None:
        rows, self.p, t = back.rows, back.rows.weights, back.slopes
        self.real, self.slope = np.ones(self.p.shape[-1]), rows.slope
        if sink:
            self.real[-1] = 0.0
            self.slope = (np.ones(1) if rows.slope is None else rows.slope) * self.real
        self.q, self.k, self.g, self.factor = rows.q, rows.k, back.g, rows.scale**2
        self.g2, self.q2, self.k2 = back.g**2, rows.q**2 * self.factor, rows.k**2 * self.factor
        self.mean_key, self.pull = self._bent(self.p) @ rows.k, self._bent(t) @ rows.k
        self.p2, self.t2, self.cross = self.p**2, t**2, self.p * t

    def _bent(self, x: Array, power: int = 1) -> Array:
        return x if self.slope is None else x * self.slope**power

    def through(self, noise: _Noise) -> tuple[tuple[Array, ...], tuple[float, ...]]:
        """The variances of the gradients of query, key and value, with covariances within a row.

        Also, for each gradient, what is added to the variance of ‖error‖² because all keys share the errors of a query.
        """
        # variances by pair: `white` is multiplied by scale² k², `of_t` by scale² q², `of_p` by g²; `query` is the rest
        # of the variance of the query's gradient, by row
        white = self._bent(noise.excess + np.zeros(self.p.shape), 2) + noise.slopes
        of_t, of_p = self.p2 * noise.offsets + self.t2 * noise.factors, self.p2 * noise.factors
        query = self.factor * (self.mean_key**2 * noise.offsets + self.pull**2 * noise.factors)
        for add, variance in ((self._from_scores, noise.scores), (self._from_products, noise.products)):
            if variance is not None:
                more_t, more_p, more_query = add(variance)
                of_t, of_p, query = of_t + more_t, of_p + more_p, query + more_query
        in_query, in_sums = noise.sums
        of_t = self._bent(of_t + in_sums * self.t2, 2) + white
        of_p = (of_p + in_sums * self.p2 + noise.weights) * self.real
        found = (
            (white + in_query * self._bent(self.t2, 2)) @ self.k2 + query,
            of_t.mT @ self.q2,
            of_p.mT @ self.g2,
        )
        by_query = ((x.sum(axis=-1) * y.sum(axis=-1)) for x, y in ((of_t, self.q2), (of_p, self.g2)))
        # an expansion may cancel to less than 0, a variance cannot
        return tuple(np.maximum(one, 0.0) for one in found), (0.0, *map(forward.energy, by_query))

    def _from_scores(self, variance: Array) -> tuple[Array, Array, Array]:
        """From errors of the scores: the variances of T and P by pair, and that of the gradient of the query."""
        pp, tt, pt = self.p2 * variance, self.t2 * variance, self.cross * variance
        sum_pp, sum_tt, sum_pt = (x.sum(axis=-1, keepdims=True) for x in (pp, tt, pt))
        of_t = tt * (1 - 4 * self.p) + self.t2 * sum_pp + 2 * self.cross * sum_pt + self.p2 * sum_tt
        crossed = 2 * self.factor * self.pull * (self._bent(pt) @ self.k - self.mean_key * sum_pt)
        query = self._moved(tt, sum_tt) - crossed + self.factor * self.pull**2 * sum_pp
        return of_t, pp * (1 - 2 * self.p) + self.p2 * sum_pp, query

    def _from_products(self, variance: Array) -> tuple[Array, float, Array]:
        """The same as `_from_scores`, but from errors of A, if D is the sum of P ∘ A."""
        pp = self.p2 * variance
        total = pp.sum(axis=-1, keepdims=True)
        return pp * (1 - 2 * self.p) + self.p2 * total, 0.0, self._moved(pp, total)

    def _moved(self, mass: Array, total: Array) -> Array:
        """scale² Σ_j mass_j (f'_j k_j − k̄)², by expansion. total : Σ_j mass_j."""
        crossed = self.mean_key * (self._bent(mass) @ self.k)
        rest = self.factor * (self.mean_key**2 * total - 2 * crossed)
        return np.asarray(self._bent(mass, 2) @ self.k2 + rest)
