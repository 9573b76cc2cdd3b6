"""The error a correct multi-head block may have, from where it rounds: projections, core, projection.

Every component of q, k and v is a sum of d_model products with a bias added. To first order, with the terms a = x_t w_t
of the sum y₀ = Σa and y = y₀ + b, it has the variance of a chain of N = d_model additions at the inner unit roundoff
(`roundings.chain_variance`), and that of storing it:

    σ² = (c u_i)²[(1 + N/2)Σa² + (N/3)y₀² + y²] + (c u)² max(y₀², y²)

A block that stores the sum y₀ and adds the bias after that rounds again, by σ₊² = (c u)²y². That error is the same for
most tokens: y₀ is a multiple of the last place of the sum, so that only the bias decides what is cut off. It does not
average out over the keys.

Rotary positions turn pairs, and the variances with them; cosine and sine are stored numbers, and so are the two
products and their sum: (c u)²(2 a²cos² + 2 b²sin² + y²) more.

How these errors pass through the core is simulated (Monte Carlo arithmetic, Parker 1997): the exact core answers 16
times, with the inputs moved by random errors of these variances, those of σ₊² of the values alike for all keys. The
core's own roundings add what `error_budget` says. Last, the output is y = o W_Oᵀ + b_O: Var y_m = Σ_c W_mc² Var o_c and
its own σ² and σ₊² as above, N = heads · value_dim. In this sum the components of a head count as independent, and it
averages out what 16 runs leave open. A score's error moves them together, so that single components of y may have more
or less; over all of them what is left out are the products Σ_m W_mc W_mc', c ≠ c', which cancel where the columns of
W_O are drawn independently.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.correctness.error_budget import CLASSES, ErrorBudget, energy, error_budget
from attnlab.correctness.exact_attention import at_rows, blocks, chosen_rows, softmax_rows
from attnlab.correctness.numbers import Array
from attnlab.correctness.roundings import Roundings, chain_variance, mean_square, rounding_variance
from attnlab.workload.inputs import Block, Inputs, angles

#: to which sources of `error_budget` σ² and σ₊² are added
_SOURCES = ("inner", "scores")
_RUNS = 16


class Projected(NamedTuple):
    """A projection's exact result, and the variances σ² and σ₊² of its error: arrays of one shape."""

    value: Array
    variance: Array
    again: Array


def block_classes(inputs: Inputs, rows: ArrayLike | None = None) -> dict[str, ErrorBudget]:
    """The budgets of the three precision classes for the block of `inputs`, tightest first, at these query rows.

    As `precision_classes`, without a worst case; every array is (batch, 1, rows, d_model). What the classes differ in
    is what the core rounds: the projections round alike in all of them.
    """
    block = inputs.block
    assert block is not None, "inputs without a block have their budgets from precision_classes"
    rounded = Roundings.of(inputs.dtype)
    index = chosen_rows(rows, inputs.shape.queries)
    projected = _inputs(block, index, rounded)
    exact = {name: one.value for name, one in projected.items()}
    core = at_rows(inputs, index).with_(**exact, block=None)
    before = error_budget(core, any_unfused=True)
    before.add({source: _through(core, projected, source, before.output) for source in _SOURCES})
    whole = _output(block, before, rounded)
    return {name: whole.restricted_to(*sources) for name, sources in CLASSES.items()}


def _linear(x: Array, weight: Array, bias: Array, rounded: Roundings) -> Projected:
    """x Wᵀ + b and its own roundings."""
    product = x @ weight.T
    value = product + bias
    # a variance needs no more than float32, which takes half the time
    squares = (x * x).astype(np.float32) @ (weight * weight).T.astype(np.float32)
    chain = chain_variance(weight.shape[1], squares.astype(np.float64), product)
    variance = rounded.inner_variance * (chain + value**2)
    variance += rounding_variance(np.maximum(np.abs(product), np.abs(value)), rounded.form)
    return Projected(value, variance, rounding_variance(value, rounded.form))


def _inputs(block: Block, index: NDArray[np.intp], rounded: Roundings) -> dict[str, Projected]:
    """Query (at these rows), key and value by name: (batch, heads, length, dim)."""
    queries, keys = block.positions
    tokens = {"query": block.x[:, index], "key": block.source, "value": block.source}
    found = {}
    for name, (weight, bias) in block.projections.items():
        x, w, b = (np.asarray(one, np.float64) for one in (tokens[name], weight, bias))
        heads = block.heads if name == "query" else block.kv_heads
        parts = (one.reshape(*one.shape[:2], heads, -1).swapaxes(1, 2) for one in _linear(x, w, b, rounded))
        found[name] = Projected(*parts)
    for name, positions in (("query", queries[index]), ("key", keys)) if block.rotary else ():
        found[name] = _turned(found[name], angles(positions, block.head_dim), rounded)
    return found


def _turned(one: Projected, by: Array, rounded: Roundings) -> Projected:
    """Each pair of components turned, and what that rounds."""
    cos, sin = np.cos(by), np.sin(by)

    def pairs(x: Array, c: Array, s: Array, sign: float) -> Array:
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * c + sign * second * s, second * c + first * s], axis=-1)

    value = pairs(one.value, cos, sin, -1.0)
    products = pairs(one.value**2, cos**2, sin**2, 1.0)
    variance, again = (pairs(each, cos**2, sin**2, 1.0) for each in (one.variance, one.again))
    variance += mean_square(rounded.form) * (2 * products + value**2)
    return Projected(value, variance, again)


def _through(core: Inputs, projected: dict[str, Projected], source: str, exact: Array) -> tuple[Array, float]:
    """Variance of the core's output, and its scatter, from errors of its inputs: by `source` from σ² or from σ₊²."""
    rng, found, energies = np.random.default_rng(0), np.zeros_like(exact), []
    for _ in range(_RUNS):
        moved: dict[str, Any] = {}
        for name, one in projected.items():
            size = np.sqrt(one.variance if source == "inner" else one.again)
            # a bias that is added to a stored sum leaves one error to all keys
            alike = (
                (*size.shape[:2], 1, size.shape[3]) if (name, source) == ("value", "scores") else size.shape
            )
            moved[name] = one.value + size * rng.standard_normal(alike)
        off = -exact
        for part in blocks(core.with_(**moved)):
            off[part.at] += softmax_rows(part).output
        found += off * off / _RUNS
        energies.append(float(np.vdot(off, off)))
    return found, float(np.var(energies, ddof=1))


def _output(block: Block, before: ErrorBudget, rounded: Roundings) -> ErrorBudget:
    """The budget of the block from that of its core: heads side by side, then the output projection."""
    weight, bias = (
        np.asarray(block.parameters[name], np.float64) for name in ("out_proj.weight", "out_proj.bias")
    )
    own = _linear(_joined(before.output), weight, bias, rounded)

    def projected(x: Array, w: Array) -> Array:
        return np.asarray((_joined(x) @ w.T)[:, None])

    after = {source: projected(one, weight**2) for source, one in before.variances.items()}
    whole = ErrorBudget(
        output=own.value[:, None],
        variances=after,
        scatters={
            source: _kept(one, before.variances[source], after[source])
            for source, one in before.scatters.items()
        },
        worst_case=np.full_like(own.value[:, None], np.inf),
        exponent_error=before.exponent_error,
        tilt=projected(before.tilt, weight),
    )
    # a bias added after the sum was stored is what the least precise of honest blocks does
    noises = zip(_SOURCES, (own.variance, own.again), strict=True)
    return whole.add({source: (one[:, None], energy(one)) for source, one in noises})


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
