"""The exact results of one question (`expect`), and how far rounding may move them; also for a multi-head block.

Exact results are computed in float64 on the inputs as cast. The budgets are those of the ways in which a correct
implementation may round. No bound is chosen: each follows from the inputs and from the unit roundoff of their dtype.

A multi-head block rounds in the projections of its inputs, in its core, and in its last projection. Every component of
q, k and v is a sum of d_model products plus a bias. Let a = x_t w_t be the terms of the sum y₀ = Σa, and y = y₀ + b. To
first order, y has the variance of a chain of N = d_model additions at the inner unit roundoff
(`error_budget.chain_variance`), plus that of storing y:

    σ² = (c u_i)²[(1 + N/2)Σa² + (N/3)y₀² + y²] + (c u)² max(y₀², y²)

A block that stores y₀ before it adds the bias rounds again, with the variance σ₊² = (c u)²y². This error is the same
for most tokens: y₀ is a multiple of the last place of the sum, so only the bias decides what is cut off. It does not
average out over the keys.

How these errors pass through the core is simulated (Monte Carlo arithmetic, Parker 1997). The exact core is computed 16
times, with the inputs moved by random errors of these variances; for σ₊² of the values, the errors are the same for all
keys. The core's own roundings add the variances of `error_budget`. Last, the output is y = o W_Oᵀ + b_O. It has Var y_m
= Σ_c W_mc² Var o_c, plus its own σ² and σ₊² as above with N = heads · value_dim. This sum treats the components of a
head as independent, and it averages out the uncertainty of 16 runs. The error of a score moves these components
together, so a single component of y may have more or less. Summed over all components of y, only the products Σ_m W_mc
W_mc', c ≠ c', are left out. They cancel if the columns of W_O are drawn independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness import error_budget as forward
from attnlab.correctness.error_budget import SCORES, ErrorBudget, Roundings, chain_variance, rounding_variance
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES, gradient_budgets
from attnlab.correctness.reference import at_rows, blocks, chosen_rows, finite
from attnlab.workload.inputs import Block, Inputs
from attnlab.workload.number_formats import Array
from attnlab.workload.workload import GRADIENTS, LOG_SUM, OF_QUERIES, OUTPUT

#: the largest predicted rms error of a score at which a budget, which is of first order in it, is trusted
FIRST_ORDER = 0.3
#: the sources of a core's error to which a block adds its σ² and σ₊²; the number of simulated runs of the core
_SOURCES, _RUNS = ("inner", "scores"), 16


@dataclass(frozen=True, eq=False)
class Expected:
    """The exact values of one named result and their bounds; all arrays are (batch, heads, rows, dim).

    dtype : the format of the result. classes : the budgets, the tightest first.
    low, high : the least and the greatest value of a component over all keys, 0 in a row that sees no key; -inf and inf
    for a result that is not an average. hull_slack : how far rounding may move a result beyond them.
    mantissa : a factor on the budgets if the scores have similar mantissas, see `ONE_MANTISSA`.
    shared : axes along which components share roundings.
    gained : the message if all components are too large or too small by the same factor.
    rows : the indexes of these rows in the whole result.
    infinite : where the exact result is -inf (ln Z of a row that sees no key); `output` is 0 there.
    of_block : whether it is the output of a block, which has the shape of one head here. of : the name of the result.
    """

    dtype: str
    classes: dict[str, ErrorBudget]
    low: Array | float = -np.inf
    high: Array | float = np.inf
    hull_slack: Array | float = 0.0
    mantissa: float = 1.0
    shared: tuple[int, ...] = (3,)
    gained: str = "outputs are {} on average: the weights do not sum to 1, or are cut off instead of rounded"
    rows: NDArray[np.intp] = field(default_factory=lambda: np.arange(0))
    infinite: NDArray[np.bool_] | None = None
    of_block: bool = False
    of: str = OUTPUT

    @property
    def lenient(self) -> ErrorBudget:
        """The budget of the least precise correct implementation: scores and weights rounded."""
        return self.classes[SCORES]

    @property
    def output(self) -> Array:
        """The exact result."""
        return self.lenient.output

    @property
    def first_order(self) -> bool:
        """Whether the budgets may be trusted: the predicted error of a score is small."""
        return self.lenient.exponent_error <= FIRST_ORDER


def expect(
    inputs: Inputs,
    rows: Sequence[int] | None = None,
    *,
    output: Expected | None = None,
    log_sum: bool = False,
) -> dict[str, Expected]:
    """The right results for `inputs`, by name.

    Always "output", (batch, heads, rows, value_dim). If the inputs have an output_gradient, also "query gradient",
    (batch, heads, rows, head_dim), "key gradient" and "value gradient", in the shapes of key and value. Output and
    query gradient have only the query `rows` (None: all); the gradients of key and value are whole. With `log_sum`,
    also "log sum", (batch, heads, rows, 1). A block has only the output, (batch, 1, rows, d_model).

    output : the result for "output", if it is already known; then there is no "log sum". Raises ValueError as
    `error_budget` does.
    """
    chosen = chosen_rows(rows, inputs.shape.queries)
    if inputs.block is not None:
        # rows of a batch element share errors of keys and values, which look like a shift: they count as one
        gained = "outputs are {} on average: a factor is missing or wrong"
        classes = _block(inputs, chosen).classes()
        found = {OUTPUT: Expected(inputs.dtype, classes, shared=(2, 3), gained=gained, of_block=True)}
    else:
        found = _of_rows(inputs, chosen, log_sum) if output is None else {OUTPUT: output}
        gained = "it is {} on average: a factor is wrong, or numbers are cut off instead of rounded"
        more: dict[str, Any] = {"mantissa": found[OUTPUT].mantissa, "shared": (2, 3), "gained": gained}
        budgets = () if inputs.output_gradient is None else gradient_budgets(inputs, rows=chosen)
        for name, budget in zip(GRADIENTS, budgets, strict=False):
            found[name] = Expected(inputs.dtype, budget.classes(GRADIENT_CLASSES), **more)
    for name, one in found.items():
        at = chosen if name in OF_QUERIES else np.arange(one.output.shape[2])
        found[name] = replace(one, of=name, rows=at)
    return found


def _of_rows(inputs: Inputs, chosen: NDArray[np.intp], log_sum: bool) -> dict[str, Expected]:
    """The output, and with `log_sum` also ln Z, from one pass over the rows."""
    asked, roundings = at_rows(finite(inputs), chosen), Roundings(inputs.dtype, any_unfused=True)
    shape = (*asked.shape[:3], asked.value.shape[-1])
    whole, logarithm = ErrorBudget.empty(shape), ErrorBudget.empty((*shape[:3], 1))
    low, high, logarithms = np.empty(shape), np.empty(shape), np.empty((*shape[:3], 1))
    empty, sizes = np.zeros((*shape[:3], 1), bool), [np.inf, 0.0]
    form, inner = roundings.form, roundings.inner.unit_roundoff
    for block in (forward.RoundedRows(one, roundings) for one in blocks(asked)):
        at, size = block.rows.at, np.abs(block.rows.scores[..., : inputs.shape.keys])
        low[at], high[at] = block.rows.extremes
        # the largest relative error of a weight from ln Z in one number: min(u|ln Z|, absorbed) + u ln l
        lost = np.minimum(inner * np.abs(block.log_partition), block.absorbed)
        logarithms[at] = lost + inner * block.log_sum
        sizes = [min(sizes[0], float(size.min())), max(sizes[1], float(size.max()))]
        forward.add_output(whole, block)
        if log_sum:
            forward.add_log_sum(logarithm, empty, block)
    n = inputs.shape.keys + (inputs.sinks is not None)
    # the weights need not add to 1: weights, their sum and the output round, sums have n terms, ln Z is one number
    relative = 3 * form.unit_roundoff + (2 * n + 6) * inner + logarithms
    slack = (relative + n * form.smallest_subnormal) * np.maximum(np.abs(low), np.abs(high))
    slack += form.smallest_subnormal
    mantissa = forward.ONE_MANTISSA if sizes[1] < 2 * sizes[0] else 1.0  # then their mantissas are similar
    found = {OUTPUT: Expected(inputs.dtype, whole.classes(), low, high, slack, mantissa)}
    if log_sum:
        gained = "it is {} on average: a logarithm to another base, or a factor, is wrong"
        wide = "float64" if inputs.dtype == "float64" else "float32"
        of_log_sum: dict[str, Any] = {"mantissa": mantissa, "gained": gained, "infinite": empty}
        found[LOG_SUM] = Expected(wide, logarithm.classes(), **of_log_sum)
    return found


# -- a multi-head block


class Projected(NamedTuple):
    """A projection's exact result, and the variances σ² and σ₊² of its error: arrays of one shape."""

    value: Array
    variance: Array
    again: Array


def _block(inputs: Inputs, index: NDArray[np.intp]) -> ErrorBudget:
    """The budget of the block of `inputs` at these query rows: (batch, 1, rows, d_model).

    The classes differ in what the core rounds. The projections round alike in all of them.
    """
    block, rounded = inputs.block, Roundings(inputs.dtype)
    assert block is not None
    projected = _projected(block, index, rounded)
    exact = {name: one.value for name, one in projected.items()}
    core = at_rows(inputs, index).with_(**exact, block=None)
    before = forward.error_budget(core, any_unfused=True)
    before.add({source: _through(core, projected, source, before.output) for source in _SOURCES})
    names = ("out_proj.weight", "out_proj.bias")
    weight, bias = (np.asarray(block.parameters[name], np.float64) for name in names)

    def joined(x: Array) -> Array:
        """(batch, heads, rows, dim) as (batch, 1, rows, heads · dim)."""
        return np.asarray(x.swapaxes(1, 2).reshape(x.shape[0], 1, x.shape[2], -1))

    own = _linear(joined(before.output), weight, bias, rounded)
    after = {source: joined(one) @ (weight**2).T for source, one in before.variances.items()}
    tilt = joined(before.tilt) @ weight.T
    whole = ErrorBudget(own.value, after, before.shared, before.exponent_error, tilt)
    # the least precise correct block adds the bias after it has stored the sum
    return whole.add(dict(zip(_SOURCES, (own.variance, own.again), strict=True)))


def _linear(x: Array, weight: Array, bias: Array, rounded: Roundings) -> Projected:
    """x Wᵀ + b, and the variances of its own roundings."""
    product = x @ weight.T
    value = product + bias
    # float32 is precise enough for a variance, and takes half the time
    squares = (x * x).astype(np.float32) @ (weight * weight).T.astype(np.float32)
    chain = chain_variance(weight.shape[1], squares.astype(np.float64), product)
    stored = rounding_variance(np.maximum(np.abs(product), np.abs(value)), rounded.form)
    variance = rounded.inner_variance * (chain + value**2) + stored
    return Projected(value, variance, rounding_variance(value, rounded.form))


def _projected(block: Block, index: NDArray[np.intp], rounded: Roundings) -> dict[str, Projected]:
    """Query (at these rows), key and value by name: (batch, heads, length, dim)."""
    tokens = {"query": block.x[:, index], "key": block.source, "value": block.source}
    found = {}
    for name, (weight, bias) in block.projections.items():
        x, w, b = (np.asarray(one, np.float64) for one in (tokens[name], weight, bias))
        heads = block.heads if name == "query" else block.kv_heads
        parts = (one.reshape(*one.shape[:2], heads, -1).swapaxes(1, 2) for one in _linear(x, w, b, rounded))
        found[name] = Projected(*parts)
    return found


def _through(core: Inputs, projected: dict[str, Projected], source: str, exact: Array) -> Array:
    """Variance of the core's output from errors of its inputs: from σ² if `source` is "inner", else from σ₊²."""
    rng, found = np.random.default_rng(0), np.zeros_like(exact)
    for _ in range(_RUNS):
        moved: dict[str, Any] = {}
        for name, one in projected.items():
            size = np.sqrt(one.variance if source == "inner" else one.again)
            # a bias that is added to a stored sum has the same error for all keys
            alike = (name, source) == ("value", "scores")
            shape = (*size.shape[:2], 1, size.shape[3]) if alike else size.shape
            moved[name] = one.value + size * rng.standard_normal(shape)
        for rows in blocks(core.with_(**moved)):
            found[rows.at] += (rows.output - exact[rows.at]) ** 2 / _RUNS
    return found
