"""What right gradients look like: the exact ones of one call, and how far roundings may move them.

As `attnlab.accuracy.reference` for the output, with the budgets of `attnlab.theory.gradient_budget`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy.questions import Question
from attnlab.accuracy.reference import Reference
from attnlab.theory.error_budget import ErrorBudget
from attnlab.theory.exact_gradients import exact_gradients
from attnlab.theory.gradient_budget import GRADIENT_CLASSES, gradient_budgets

Array = NDArray[np.float64]
Three = tuple[Reference, Reference, Reference]

#: half the width of the difference quotient in ln(scale): both its errors are far below any that is judged
_STEP = 1e-4
_GAINED = "it is {} on average: a factor is missing or wrong, or numbers are cut off instead of rounded"


def refer_gradients(question: Question, upstream: NDArray[np.floating], *, tilted: bool) -> Three:
    """The references of the gradients of query, key and value where that of the output is `upstream`.

    upstream : (batch, heads, n_q, value_dim), values of the question's dtype. tilted : also find where a wrong
    scale would move them, else 0. Components of one head share the
    roundings of its weights. Raises ValueError as `attnlab.theory.gradient_budgets` does.
    """
    budgets = gradient_budgets(
        question.q,
        question.k,
        question.v,
        upstream,
        dtype=question.dtype,
        causal=question.causal,
        scale=question.scale,
    )
    tilts = _tilts(question, upstream) if tilted else (np.zeros(()),) * 3
    mantissa = question.reference.mantissa
    found = [_reference(question.dtype, budget, tilt) for budget, tilt in zip(budgets, tilts, strict=True)]
    query, key, value = (replace(one, mantissa=mantissa) for one in found)
    return query, key, value


def _reference(dtype: str, budget: ErrorBudget, tilt: Array) -> Reference:
    assert budget.worst_case is not None
    shape = budget.output.shape
    anything = np.broadcast_to(np.inf, shape)
    return Reference(
        dtype=dtype,
        output=budget.output,
        classes={name: budget.restricted_to(*sources) for name, sources in GRADIENT_CLASSES.items()},
        bound=budget.worst_case,
        low=-anything,
        high=anything,
        hull_slack=np.broadcast_to(0.0, shape),
        tilt=np.broadcast_to(tilt, shape),
        shared=(2, 3),
        gained=_GAINED,
    )


def _tilts(question: Question, upstream: NDArray[np.floating]) -> tuple[Array, Array, Array]:
    """d gradient / d ln(scale)."""
    above, below = (
        exact_gradients(
            question.q,
            question.k,
            question.v,
            upstream,
            causal=question.causal,
            scale=question.scale * float(np.exp(step)),
        )
        for step in (_STEP, -_STEP)
    )
    query, key, value = ((more - less) / (2 * _STEP) for more, less in zip(above, below, strict=True))
    return query, key, value
