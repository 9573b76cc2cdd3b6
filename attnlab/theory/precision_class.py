"""Requirement: name an implementation's precision from its error alone.

Three budgets of one call nest: full precision inside (output rounded only), weights rounded, scores rounded.
The tightest that covers a measured error is the implementation's class.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.problem.problem import Problem

from .checks import real
from .error_budget import ErrorBudget, error_budget
from .exact_attention import takes_problem

FULL, WEIGHTS, SCORES = "full precision inside", "weights rounded", "scores rounded"
CLASSES = {
    FULL: ("output", "inner"),
    WEIGHTS: ("output", "inner", "weights"),
    SCORES: ("output", "inner", "weights", "scores"),
}


@takes_problem
def precision_classes(
    problem: Problem, *, score_roundings: int = 2, **options: Any
) -> dict[str, ErrorBudget]:
    """The three budgets of attention in the problem's dtype, tightest first, from one pass over the inputs.

    Also as `precision_classes(q, k, v, dtype=..., **keywords of Problem.of, **options)`. `options` as for
    `error_budget` (inner_dtype, rows, worst_case, any_unfused, …); the dtype is that of the output and of whatever is
    stored. Any `worst_case` bound is that of scores rounded.

    The classes differ where the inner precision is far above the dtype: float16 and bfloat16. In float32 and
    float64 the inner term dominates and nearly any correct implementation is "full precision inside".
    Where rows are saturated the classes meet too, and the tightest name that fits is given.

    Raises ValueError as `error_budget` does.
    """
    dtype = problem.dtype
    whole = error_budget(
        problem, weights_dtype=dtype, scores_dtype=dtype, score_roundings=score_roundings, **options
    )
    return {name: whole.restricted_to(*sources) for name, sources in CLASSES.items()}


def classify(
    relative_error: float, budgets: Mapping[str, ErrorBudget], slack: float = 1.25, deviations: float = 3.0
) -> str | None:
    """The first class whose budget covers the error, or None: outside every budget.

    relative_error : ‖ô − o‖_F/‖o‖_F, measured. It is covered up to slack × relative × (1 + deviations ×
    relative_scatter); the scatter is negligible but for small or saturated calls. Raises ValueError for a
    negative or non-finite error or deviations, or slack <= 0.
    """
    error = real("relative_error", relative_error, least=0.0)
    slack = real("slack", slack, above=0.0)
    deviations = real("deviations", deviations, least=0.0)
    for name, budget in budgets.items():
        if error <= slack * budget.relative * (1 + deviations * budget.relative_scatter):
            return name
    return None
