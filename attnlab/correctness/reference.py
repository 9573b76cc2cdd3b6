"""What right answers look like: the exact results of one question, and how far roundings may move them.

Truth is float64 on the inputs as cast. The budgets are those of `attnlab.theory`, for the ways in which an honest
implementation rounds. Nothing here is chosen: every bound follows from the inputs and from the unit roundoff of their
dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.block_budget import block_classes
from attnlab.correctness.error_budget import CLASSES, FULL, SCORES, ErrorBudget, add_log_sum, add_output
from attnlab.correctness.exact_attention import at_rows, finite, visible_extremes
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES, gradient_budgets
from attnlab.correctness.numbers import ONE_MANTISSA, Array
from attnlab.correctness.roundings import Roundings, largest_logarithm_error, rounded_rows
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import GRADIENTS, LOG_SUM, OF_QUERIES, OUTPUT

#: above this predicted rms error of a score the budget, of first order in it, says nothing any more
FIRST_ORDER = 0.3


@dataclass(frozen=True, eq=False)
class Reference:
    """The truth of one named result and its bounds; all arrays are (batch, heads, rows, dim).

    classes : the budgets, tightest first. low, high : least and greatest value that the row sees, per component; of
    what averages nothing -inf and inf. hull_slack : how far beyond them rounding may carry. mantissa : factor on the
    budgets where one mantissa decides, see `ONE_MANTISSA`. shared : axes along which components share roundings.
    gained : what it means that all are too large or too small by the same part. rows : which rows of the whole result
    these are, None for all. infinite : where the exact result is -inf, as ln Z is of a row that sees nothing; `output`
    is 0 there. of_block : whether it is a block's output, which stands here as that of one head. of : its name.
    checked : how many query rows were chosen, of how many.
    """

    dtype: str
    classes: dict[str, ErrorBudget]
    low: Array
    high: Array
    hull_slack: Array
    mantissa: float = 1.0
    shared: tuple[int, ...] = (3,)
    gained: str = "outputs are {} on average: the weights do not sum to 1, or are cut off instead of rounded"
    rows: NDArray[np.intp] | None = None
    infinite: NDArray[np.bool_] | None = None
    of_block: bool = False
    of: str = OUTPUT
    checked: tuple[int, int] = (0, 0)

    def row(self, at: int) -> int:
        """The number, in the whole answer, of the row that is here at `at`."""
        return at if self.rows is None else int(self.rows[at])

    @property
    def lenient(self) -> ErrorBudget:
        """The budget of the least precise honest implementation: scores and weights rounded."""
        return self.classes[SCORES]

    @property
    def full(self) -> ErrorBudget:
        """The budget of an implementation that rounds its output only."""
        return self.classes[FULL]

    @property
    def output(self) -> Array:
        """The exact result."""
        return self.lenient.output

    @property
    def bound(self) -> Array:
        """What the error of no right answer exceeds."""
        return self.lenient.worst_case

    @property
    def first_order(self) -> bool:
        """Whether the budgets may be trusted: the predicted error of a score is small."""
        return self.lenient.exponent_error <= FIRST_ORDER


def refer(
    inputs: Inputs,
    rows: Sequence[int] | None = None,
    *,
    output: Reference | None = None,
    log_sum: bool = False,
) -> dict[str, Reference]:
    """The references of what `inputs` ask for, by name.

    "output" always, (batch, heads, rows, value_dim); where the inputs have an output_gradient also "query gradient",
    (batch, heads, rows, head_dim), "key gradient" and "value gradient", in the shapes of key and value. Output and
    query gradient are cut to the query rows `rows`, all where None; the gradients of key and value are whole.
    With `log_sum` also "log sum", (batch, heads, rows, 1). Of a block the output alone, (batch, 1, rows, d_model).

    output : that of the output, where it is known. Raises ValueError as `attnlab.correctness.error_budget` does.
    """
    n_q = inputs.shape.queries
    chosen = np.arange(n_q) if rows is None else np.asarray(rows)
    if inputs.block is not None:
        # its rows share the errors of keys and values: no direction tells them apart from a shift
        gained = "outputs are {} on average: a factor is missing or wrong"
        classes = block_classes(inputs, chosen)
        found = {OUTPUT: _without_hull(inputs.dtype, classes, shared=(2, 3), gained=gained, of_block=True)}
    else:
        found = _of_rows(inputs, chosen, log_sum) if output is None else {OUTPUT: output}
        gained = (
            "it is {} on average: a factor is missing or wrong, or numbers are cut off instead of rounded"
        )
        budgets = () if inputs.output_gradient is None else gradient_budgets(inputs, rows=chosen)
        for name, budget in zip(GRADIENTS, budgets, strict=False):
            classes = {kind: budget.restricted_to(*sources) for kind, sources in GRADIENT_CLASSES.items()}
            mantissa = found[OUTPUT].mantissa
            found[name] = _without_hull(
                inputs.dtype, classes, mantissa=mantissa, shared=(2, 3), gained=gained
            )
    for name, one in found.items():
        at = chosen if name in OF_QUERIES else None
        found[name] = replace(one, of=name, rows=at, checked=(chosen.size, n_q))
    return found


def _of_rows(inputs: Inputs, chosen: NDArray[np.intp], log_sum: bool) -> dict[str, Reference]:
    """That of the output, and that of ln Z where it is asked for, from one pass over the rows."""
    asked, roundings = at_rows(finite(inputs), chosen), Roundings.of(inputs.dtype, any_unfused=True)
    shape = asked.output_shape
    whole, logarithm = ErrorBudget.empty(shape), ErrorBudget.empty((*shape[:3], 1))
    low, high, logarithms = np.empty(shape), np.empty(shape), np.empty((*shape[:3], 1))
    empty, sizes = np.zeros((*shape[:3], 1), bool), [np.inf, 0.0]
    form, inner = roundings.form, roundings.inner.unit_roundoff
    for block in rounded_rows(asked, roundings):
        at, size = block.part.at, np.abs(block.soft.scores[..., : inputs.shape.keys])
        low[at], high[at] = extremes = visible_extremes(block.part)
        logarithms[at] = largest_logarithm_error(block.soft, inner)
        sizes = [min(sizes[0], float(size.min())), max(sizes[1], float(size.max()))]
        add_output(whole, block, extremes)
        if log_sum:
            add_log_sum(logarithm, empty, block)
    n = inputs.shape.keys + (inputs.sinks is not None)
    # weights, their sum and output rounded, sums of n terms, ln Z in one number: the weights need not add to 1
    relative = 3 * form.unit_roundoff + (2 * n + 6) * inner + logarithms
    slack = (relative + n * form.smallest_subnormal) * np.maximum(np.abs(low), np.abs(high))
    classes = {kind: whole.restricted_to(*sources) for kind, sources in CLASSES.items()}
    mantissa = ONE_MANTISSA if sizes[1] < 2 * sizes[0] else 1.0  # their mantissas are alike then
    slack += form.smallest_subnormal
    found = {OUTPUT: Reference(inputs.dtype, classes, low, high, slack, mantissa)}
    if log_sum:
        found[LOG_SUM] = _without_hull(
            "float64" if inputs.dtype == "float64" else "float32",
            {kind: logarithm.restricted_to(*sources) for kind, sources in CLASSES.items()},
            mantissa=mantissa,
            gained="it is {} on average: a logarithm to another base, or a factor, is wrong",
            infinite=empty,
        )
    return found


def _without_hull(dtype: str, classes: dict[str, ErrorBudget], **more: Any) -> Reference:
    """Of what averages nothing."""
    shape = classes[SCORES].output.shape
    low, high, slack = (np.broadcast_to(one, shape) for one in (-np.inf, np.inf, 0.0))
    return Reference(dtype, classes, low, high, slack, **more)
