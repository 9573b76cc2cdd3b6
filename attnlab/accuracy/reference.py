"""What a right answer looks like: the exact output of one call, and how far roundings may move it.

Truth is float64 on the inputs as cast. The budgets are those of `attnlab.theory.error_budget`, for the three
ways in which an honest implementation rounds. Nothing here is chosen: every bound follows from the inputs and
from the unit roundoff of their dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.theory.error_budget import ErrorBudget
from attnlab.theory.exact_attention import blocks, softmax_rows
from attnlab.theory.floating_point import ONE_MANTISSA, float_format
from attnlab.theory.precision_class import FULL, SCORES, precision_classes
from attnlab.theory.roundings import largest_logarithm_error

Array = NDArray[np.float64]

#: above this predicted rms error of a score the budget, of first order in it, says nothing any more
FIRST_ORDER = 0.3


@dataclass(frozen=True, eq=False)
class Reference:
    """The truth of one call and its bounds; all arrays are (batch, heads, rows, value_dim).

    output : the exact result. classes : the three budgets, tightest first. bound : what no right answer exceeds.
    low, high : least and greatest value that the row sees, per component. hull_slack : how far beyond them
    rounding may carry. tilt : d output / d ln(scale), where a wrong scale moves the output. mantissa : factor on
    the budgets where one mantissa decides, see `ONE_MANTISSA`. shared : axes along which components share roundings.
    gained : what it means that all are too large or too small by the same part. rows : which rows of the whole answer
    these are, None for all.
    """

    dtype: str
    output: Array
    classes: dict[str, ErrorBudget]
    bound: Array
    low: Array
    high: Array
    hull_slack: Array
    tilt: Array
    mantissa: float = 1.0
    shared: tuple[int, ...] = (3,)
    gained: str = "outputs are {} on average: the weights do not sum to 1, or are cut off instead of rounded"
    rows: NDArray[np.intp] | None = None

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
    def first_order(self) -> bool:
        """Whether the budgets may be trusted: the predicted error of a score is small."""
        return self.lenient.exponent_error <= FIRST_ORDER


def refer(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    *,
    causal: bool,
    scale: float,
    dtype: str,
    rows: list[int] | None = None,
) -> Reference:
    """The reference of softmax(scale · q kᵀ) v on the query rows `rows`, all where None.

    q : (batch, heads, n_q, d), k : (…, n_k, d), v : (…, n_k, d_v), values of `dtype` as cast.
    Raises ValueError as `attnlab.theory.error_budget` does.
    """
    chosen = np.arange(q.shape[2]) if rows is None else np.asarray(rows)
    classes = precision_classes(
        q, k, v, dtype=dtype, causal=causal, scale=scale, rows=chosen, worst_case=True, any_unfused=True
    )
    lenient = classes[SCORES]
    assert lenient.worst_case is not None
    low, high = _hull(v.astype(np.float64), chosen, causal)
    form, inner = float_format(dtype), float_format("float64" if dtype == "float64" else "float32")
    n = k.shape[2]
    # weights, their sum and output rounded, sums of n terms, ln Z in one number: the weights need not add to 1
    relative = 3 * form.unit_roundoff + (2 * n + 6) * inner.unit_roundoff
    tilt, logarithms, one_size = _along_the_scale(
        q, k, v, chosen, causal, scale, lenient.output, inner.unit_roundoff
    )
    relative = relative + logarithms
    slack = (relative + n * form.smallest_subnormal) * np.maximum(np.abs(low), np.abs(high))
    return Reference(
        dtype=dtype,
        output=lenient.output,
        classes=classes,
        bound=lenient.worst_case,
        low=low,
        high=high,
        hull_slack=slack + form.smallest_subnormal,
        tilt=tilt,
        mantissa=ONE_MANTISSA if one_size else 1.0,
        rows=chosen,
    )


def _hull(v: Array, rows: NDArray[np.intp], causal: bool) -> tuple[Array, Array]:
    if not causal:
        shape = (*v.shape[:2], rows.size, v.shape[3])
        low, high = v.min(axis=2, keepdims=True), v.max(axis=2, keepdims=True)
        return np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    last = np.minimum(rows, v.shape[2] - 1)
    return np.minimum.accumulate(v, axis=2)[:, :, last], np.maximum.accumulate(v, axis=2)[:, :, last]


def _along_the_scale(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    rows: NDArray[np.intp],
    causal: bool,
    scale: float,
    output: Array,
    inner: float,
) -> tuple[Array, Array, bool]:
    """Cov_p(v, s) per component, the derivative of the output in the logarithm of the scale; what ln Z in one number
    may cost each row; and whether all scores lie within a factor of two, so that their mantissas are alike."""
    tilt, logarithms = np.empty_like(output), np.empty((*output.shape[:3], 1))
    least, greatest = np.inf, 0.0
    for part in blocks(q, k, v, rows, causal, "top-left", None):
        soft = softmax_rows(part, scale)
        moment = soft.weights * soft.fall  # s − m serves as well as s, and does not cancel
        tilt[part.at] = moment @ part.v - moment.sum(axis=-1, keepdims=True) * soft.output
        logarithms[part.at] = largest_logarithm_error(soft, inner)
        sizes = np.abs(soft.scores)
        least, greatest = min(least, float(sizes.min())), max(greatest, float(sizes.max()))
    return tilt, logarithms, greatest < 2 * least
