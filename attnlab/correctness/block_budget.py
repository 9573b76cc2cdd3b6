"""The error a correct multi-head block may have, from where it rounds: projections, core, projection.

Every component of q, k and v is a sum of d_model products with a bias added. To first order, with the terms a = x_t w_t
of the sum y₀ = Σa and y = y₀ + b, it has the variance of a chain of N = d_model additions at the inner unit roundoff
(`roundings.chain_variance`), and that of storing it:

    σ² = (c u_i)²[(1 + N/2)Σa² + (N/3)y₀² + y²] + (c u)² max(y₀², y²)

Who stores the sum y₀ and adds the bias after that rounds again, by σ₊² = (c u)²y². That error is the same for most
tokens: y₀ is a multiple of the last place of the sum, so that only the bias decides what is cut off. It does not
average out over the keys.

Rotary positions turn pairs, and the variances with them; cosine and sine are stored numbers, and so are the two
products and their sum: (c u)²(2 a²cos² + 2 b²sin² + y²) more.

These errors pass through the core, whose output is o_i = Σ_j p_ij v_j, with δo = Σ_j p_j δv_j + Σ_j p_j (v_j − o) δs_j
and δs_ij = f' scale (δq_i·k_j + q_i·δk_j), f' the slope of the soft cap. Errors of values and keys are independent from
key to key, those of a query are shared by all its keys; squared and summed:

    Var o_i = Σ_j p_ij² σ_v,j² + (Σ_j p_ij σ₊v,j)²                      values
            + Σ_j p_ij² (v_j − o_i)² f'² scale² Σ_c q_ic² σ_k,jc²          keys
            + Σ_c σ_q,ic² [scale Σ_j p_ij f' (v_j − o_i) k_jc]²             the query

(σ₊² beside σ² in the last two) and the core's own roundings add what `error_budget` says. Last, the output is y = o
W_Oᵀ + b_O: Var y_m = Σ_c W_mc² Var o_c and its own σ² and σ₊² as above, N = heads · value_dim. In this sum the
components of a head count as independent. A score's error moves them together, so that single components of y may have
more or less; over all of them what is left out are the products Σ_m W_mc W_mc', c ≠ c', which cancel where the columns
of W_O are drawn independently.

The bound that no right block exceeds, to first order in the roundoffs: |δq| ≤ (N + 1)u_i √(NΣa²) + (u_i + u)(|y₀| +
|y|), likewise k and v (Higham 2002, §3.1, with the inequality of Cauchy and Schwarz for Σ|a|), 4u(|a| + |b|) more for
a rotated pair; η = scale Σ_c(|δq_c||k_c| + |q_c||δk_c| + |δq_c||δk_c|) moves the output by at most range_j(v)
tanh(η/2), as in `error_budget`, the values' errors by their largest; and |δy| ≤ |W_O||δo| with its own as above.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from attnlab.correctness.error_budget import (
    CLASSES,
    SCORES,
    ErrorBudget,
    Tally,
    energy,
    moved,
    precision_classes,
)
from attnlab.correctness.exact_attention import Rows, Softmax, at_rows, chosen_rows, turned
from attnlab.correctness.numbers import Array
from attnlab.correctness.roundings import (
    RoundedRows,
    Roundings,
    chain_variance,
    mean_square,
    rounding_variance,
)
from attnlab.workload.inputs import Block, Inputs, angles

#: to which sources of `error_budget` σ² and σ₊² are added
_SOURCES = ("inner", "scores")


class Projected(NamedTuple):
    """A projection's exact result, the variances σ² and σ₊² of its error and the bound of it: arrays of one shape."""

    value: Array
    variance: Array
    again: Array
    bound: Array


def block_classes(problem: Inputs, rows: ArrayLike | None = None) -> dict[str, ErrorBudget]:
    """The budgets of the three precision classes for the block of `problem`, tightest first, at these query rows.

    As `precision_classes`, worst case included; every array is (batch, 1, rows, d_model). What the classes differ in is
    what the core rounds: the projections round alike in all of them.
    """
    block = problem.block
    assert block is not None, "a problem without a block has its budgets from precision_classes"
    rounded = Roundings.of(problem.dtype)
    index = chosen_rows(rows, problem.shape.queries)
    inputs = _inputs(block, index, rounded)
    exact = {name: one.value for name, one in zip(("query", "key", "value"), inputs, strict=True)}
    core = at_rows(problem, index).with_(**exact, block=None)
    through = Tally(core.output_shape, _SOURCES)
    classes = precision_classes(
        core, worst_case=True, any_unfused=True, on_block=partial(_propagate, through, inputs)
    )
    whole = _output(block, through.budget(), classes[SCORES], rounded)
    return {name: whole.restricted_to(*sources) for name, sources in CLASSES.items()}


def _linear(x: Array, weight: Array, bias: Array, rounded: Roundings) -> Projected:
    """x Wᵀ + b and its own roundings."""
    terms = weight.shape[1]
    product = x @ weight.T
    value = product + bias
    # a variance needs no more than float32, which takes half the time
    squares = (x * x).astype(np.float32) @ (weight * weight).T.astype(np.float32)
    chain = chain_variance(terms, squares.astype(np.float64), product)
    variance = rounded.inner_variance * (chain + value**2)
    variance += rounding_variance(np.maximum(np.abs(product), np.abs(value)), rounded.form)
    u = rounded.inner_roundoff + rounded.form.unit_roundoff
    bound = (terms + 1) * rounded.inner_roundoff * np.sqrt(terms * squares.astype(np.float64))
    bound += u * (np.abs(product) + np.abs(value)) + rounded.form.smallest_subnormal
    return Projected(value, variance, rounding_variance(value, rounded.form), bound)


def _inputs(
    block: Block, index: np.ndarray[Any, Any], rounded: Roundings
) -> tuple[Projected, Projected, Projected]:
    """Query (at these rows), key and value: (batch, heads, length, dim)."""
    queries, keys = block.positions
    tokens = {"query": block.x[:, index], "key": block.source, "value": block.source}
    heads = {"query": block.heads, "key": block.kv_heads, "value": block.kv_heads}
    found = {}
    for name, (weight, bias) in block.projections.items():
        x, w, b = (np.asarray(one, np.float64) for one in (tokens[name], weight, bias))
        parts = (_split(one, heads[name]) for one in _linear(x, w, b, rounded))
        found[name] = Projected(*parts)
    if block.rotary:
        found["query"] = _turned(found["query"], angles(queries[index], block.head_dim), rounded)
        found["key"] = _turned(found["key"], angles(keys, block.head_dim), rounded)
    return found["query"], found["key"], found["value"]


def _split(x: Array, heads: int) -> Array:
    batch, length, width = x.shape
    return np.asarray(x.reshape(batch, length, heads, width // heads).swapaxes(1, 2))


def _turned(one: Projected, by: Array, rounded: Roundings) -> Projected:
    """Each pair of components turned, and what that rounds."""
    cos, sin = np.cos(by), np.sin(by)

    def pairs(x: Array, c: Array, s: Array, sign: float) -> Array:
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * c + sign * second * s, second * c + first * s], axis=-1)

    value = pairs(one.value, cos, sin, -1.0)
    unit = mean_square(rounded.form)
    products = pairs(one.value**2, cos**2, sin**2, 1.0)
    variance, again = (pairs(each, cos**2, sin**2, 1.0) for each in (one.variance, one.again))
    variance += unit * (2 * products + value**2)
    size = pairs(np.abs(one.value), np.abs(cos), np.abs(sin), 1.0)
    bound = pairs(one.bound, np.abs(cos), np.abs(sin), 1.0) + 4 * rounded.form.unit_roundoff * size
    return Projected(value, variance, again, bound)


def _propagate(
    found: Tally, inputs: tuple[Projected, ...], at: RoundedRows, extremes: tuple[Array, Array]
) -> None:
    """Add to `found` what the errors of query, key and value do to one block of rows of the core's output.

    Its variances are those from σ² and from σ₊², under the sources that they are added to.
    """
    part, soft, (query, key, value), (low, high) = at.part, at.soft, inputs, extremes
    p, scale2, spread, noises = soft.weights, part.scale**2, np.zeros(1), {}
    of_queries = query.variance[part.at], query.again[part.at]
    of_keys = (_of_keys(part, one) for one in (key.variance, key.again))
    by_values = p**2 @ _of_keys(part, value.variance), (p @ np.sqrt(_of_keys(part, value.again))) ** 2
    by_queries = _by_query(part, soft, of_queries)
    # of ‖δo‖²: the errors of values and keys are shared by all rows, those of keys and query by all components
    for source, of_query, of_key, of_value, own in zip(
        _SOURCES, of_queries, of_keys, by_values, by_queries, strict=True
    ):
        of_scores = soft.through(scale2 * ((part.q**2) @ turned(of_key)), 2)
        by_keys = moved(p**2 * of_scores, part.v, part.v**2, soft.output)
        scatter = energy(of_value.sum(axis=2)) + energy(by_keys.sum(axis=(2, 3))) + energy(own.sum(axis=3))
        noises[source] = of_value + by_keys + own, scatter
        spread = spread + of_scores + soft.through(scale2 * (of_query @ turned(part.k**2)), 2)
    exponent_error = math.sqrt((p * spread).sum(axis=-1).max())
    off = _of_keys(part, key.bound)
    off = query.bound[part.at] @ turned(np.abs(part.k) + off) + np.abs(part.q) @ turned(off)
    eta = abs(part.scale) * off.max(axis=-1, keepdims=True)
    of_values = _of_keys(part, value.bound).max(axis=-2, keepdims=True)
    bound = (high - low) * np.tanh(eta / 2) + of_values
    found.add(part.at, noises, bound=bound, exponent_error=exponent_error)


def _of_keys(part: Rows, array: Array) -> Array:
    """What belongs to the keys of this block, once for every query head; 0 for a sink, which nobody projected."""
    key_heads = part.at_keys[1].stop - part.at_keys[1].start
    found = np.repeat(array[part.at_keys], part.q.shape[1] // key_heads, axis=1)
    return np.concatenate([found, np.zeros_like(found[:, :, :1])], axis=2) if part.sink else found


def _by_query(part: Rows, soft: Softmax, of_queries: tuple[Array, Array]) -> tuple[Array, Array]:
    """Σ_c σ_q,c² [scale Σ_j p_j f' (v_j − o) k_jc]², a row at a time: a matrix of value_dim × head_dim for each."""
    weights, found = soft.through(soft.weights), (np.empty_like(soft.output), np.empty_like(soft.output))
    for row in range(soft.output.shape[2]):
        weighted = weights[:, :, row, :, None] * part.k
        response = turned(part.v) @ weighted
        response -= soft.output[:, :, row, :, None] * weighted.sum(axis=2)[:, :, None, :]
        squared = (part.scale * response) ** 2
        for one, of_query in zip(found, of_queries, strict=True):
            one[:, :, row] = (squared @ of_query[:, :, row, :, None])[..., 0]
    return found


def _output(block: Block, through: ErrorBudget, core: ErrorBudget, rounded: Roundings) -> ErrorBudget:
    """The budget of the block from that of its core: heads side by side, then the output projection."""
    weight, bias = (
        np.asarray(block.parameters[name], np.float64) for name in ("out_proj.weight", "out_proj.bias")
    )
    own = _linear(_joined(core.output), weight, bias, rounded)

    def projected(x: Array, w: Array) -> Array:
        return np.asarray((_joined(x) @ w.T)[:, None])

    # a bias added after the sum was stored is what the least precise of honest blocks does
    noises = {name: (through.variances[name], through.scatters[name]) for name in _SOURCES}
    before = core.plus(noises, through.worst_case)
    after = {source: projected(one, weight**2) for source, one in before.variances.items()}
    own_noises = {
        source: (one[:, None], energy(one))
        for source, one in zip(_SOURCES, (own.variance, own.again), strict=True)
    }
    return ErrorBudget(
        output=own.value[:, None],
        variances=after,
        scatters={
            source: _kept(one, before.variances[source], after[source])
            for source, one in before.scatters.items()
        },
        worst_case=projected(before.worst_case, np.abs(weight)),
        exponent_error=math.hypot(core.exponent_error, through.exponent_error),
        tilt=projected(core.tilt, weight),
    ).plus(own_noises, own.bound[:, None])


def _joined(x: Array) -> Array:
    """(batch, heads, rows, dim) as (batch, rows, heads · dim)."""
    batch, heads, rows, dim = x.shape
    return np.asarray(x.swapaxes(1, 2).reshape(batch, rows, heads * dim))


def _kept(scatter: float, before: Array, after: Array) -> float:
    """The scatter of ‖W δo‖²: relative to its mean that of ‖δo‖², twice.

    A square matrix of independent numbers leaves half as many independent components as it was given.
    """
    mean, then = float(before.sum()), float(after.sum())
    return 2 * scatter * (then / mean) ** 2 if mean > 0 else 0.0
