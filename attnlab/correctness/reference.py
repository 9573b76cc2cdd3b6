"""What right answers look like: the exact results of one problem, and how far roundings may move them.

Truth is float64 on the inputs as cast. The budgets are those of `attnlab.theory`, for the ways in which an honest
implementation rounds. Nothing here is chosen: every bound follows from the inputs and from the unit roundoff of their
dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.block_budget import block_classes
from attnlab.correctness.error_budget import (
    CLASSES,
    FULL,
    SCORES,
    ErrorBudget,
    log_sum_budget,
    merged_budget,
    merging_slack,
    precision_classes,
)
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES, gradient_budgets
from attnlab.correctness.numbers import ONE_MANTISSA, float_format
from attnlab.correctness.roundings import RoundedRows, largest_logarithm_error
from attnlab.workload.inputs import Inputs, places
from attnlab.workload.vocabulary import GRADIENTS, LOG_SUM, OUTPUT

Array = NDArray[np.float64]

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
    problem: Inputs,
    rows: Sequence[int] | None = None,
    *,
    output: Reference | None = None,
    log_sum: bool = False,
    splits: int = 1,
) -> dict[str, Reference]:
    """The references of what `problem` asks for, by name.

    "output" always, (batch, heads, rows, value_dim); where the problem has an output_gradient also "query gradient",
    (batch, heads, rows, head_dim), "key gradient" and "value gradient", in the shapes of key and value. Output and
    query gradient are cut to the query rows `rows`, all where None; the gradients of key and value are whole.
    With `log_sum` also "log sum", (batch, heads, rows, 1). Of a block the output alone, (batch, 1, rows, d_model).

    output : that of the output of whole keys, where it is known already. splits : parts that the keys are cut into, and
    merged from: that rounds some more. Raises ValueError as `attnlab.correctness.error_budget` does.
    """
    n_q = problem.shape.queries
    chosen = np.arange(n_q) if rows is None else np.asarray(rows)
    if problem.block is not None:
        found = {OUTPUT: _of_block(problem, chosen)}
    else:
        output = output or _of_output(problem, chosen)
        cuts = places(problem.shape.keys, splits)
        found = {OUTPUT: _merged(output, problem, chosen, cuts) if cuts else output}
        if log_sum:
            found[LOG_SUM] = _of_log_sum(output, problem, chosen, cuts)
        if problem.output_gradient is not None:
            budgets = zip(GRADIENTS, gradient_budgets(problem, rows=chosen), strict=True)
            found |= {name: _of_gradient(output, budget) for name, budget in budgets}
            found[GRADIENTS[0]] = replace(found[GRADIENTS[0]], rows=chosen)
    return {name: replace(one, of=name, checked=(chosen.size, n_q)) for name, one in found.items()}


def _of_output(problem: Inputs, chosen: NDArray[np.intp]) -> Reference:
    shape = (*problem.shape[:2], chosen.size, problem.value.shape[-1])
    form = float_format(problem.dtype)
    inner = float_format("float64" if problem.dtype == "float64" else "float32").unit_roundoff
    low, high, logarithms = np.empty(shape), np.empty(shape), np.empty((*shape[:3], 1))
    sizes: list[float] = []

    def note(block: RoundedRows, extremes: tuple[Array, Array]) -> None:
        at = block.part.at
        low[at], high[at] = extremes
        logarithms[at] = largest_logarithm_error(block.soft, inner)
        size = np.abs(block.soft.scores[..., : problem.shape.keys])
        sizes.extend((float(size.min()), float(size.max())))

    classes = precision_classes(problem, rows=chosen, worst_case=True, any_unfused=True, on_block=note)
    n = problem.shape.keys + (problem.sinks is not None)
    # weights, their sum and output rounded, sums of n terms, ln Z in one number: the weights need not add to 1
    relative = 3 * form.unit_roundoff + (2 * n + 6) * inner + logarithms
    slack = (relative + n * form.smallest_subnormal) * np.maximum(np.abs(low), np.abs(high))
    return Reference(
        dtype=problem.dtype,
        classes=classes,
        low=low,
        high=high,
        hull_slack=slack + form.smallest_subnormal,
        mantissa=ONE_MANTISSA if max(sizes) < 2 * min(sizes) else 1.0,  # their mantissas are alike then
        rows=chosen,
    )


def _classes(budget: ErrorBudget, sources: Mapping[str, Sequence[str]] = CLASSES) -> dict[str, ErrorBudget]:
    return {name: budget.restricted_to(*rounded) for name, rounded in sources.items()}


def _merged(whole: Reference, problem: Inputs, chosen: NDArray[np.intp], cuts: Sequence[int]) -> Reference:
    """That of an output that is merged from parts of the keys."""
    reach = np.maximum(np.abs(whole.low), np.abs(whole.high))
    return replace(
        whole,
        classes=_classes(merged_budget(problem, whole.lenient, chosen, cuts)),
        hull_slack=whole.hull_slack + merging_slack(problem.dtype, len(cuts) + 1) * reach,
    )


def _without_hull(dtype: str, classes: dict[str, ErrorBudget], **more: Any) -> Reference:
    """Of what averages nothing."""
    shape = classes[SCORES].output.shape
    low, high, slack = (np.broadcast_to(one, shape) for one in (-np.inf, np.inf, 0.0))
    return Reference(dtype, classes, low, high, slack, **more)


def _of_log_sum(
    output: Reference, problem: Inputs, chosen: NDArray[np.intp], cuts: Sequence[int]
) -> Reference:
    budget, empty = log_sum_budget(problem, chosen, cuts)
    return _without_hull(
        "float64" if problem.dtype == "float64" else "float32",
        _classes(budget),
        mantissa=output.mantissa,
        gained="it is {} on average: a logarithm to another base, or a factor, is wrong",
        rows=chosen,
        infinite=empty,
    )


def _of_block(problem: Inputs, chosen: NDArray[np.intp]) -> Reference:
    """Its rows share the errors of keys and values: no direction tells them apart from a shift."""
    return _without_hull(
        problem.dtype,
        block_classes(problem, chosen),
        shared=(2, 3),
        gained="outputs are {} on average: a factor is missing or wrong",
        rows=chosen,
        of_block=True,
    )


def _of_gradient(output: Reference, budget: ErrorBudget) -> Reference:
    return _without_hull(
        output.dtype,
        _classes(budget, GRADIENT_CLASSES),
        mantissa=output.mantissa,
        shared=(2, 3),
        gained="it is {} on average: a factor is missing or wrong, or numbers are cut off instead of rounded",
    )
