"""How the rounding error of gradients grows with n and with the logits, against the budget of a backward pass.

`attnlab.theory.gradient_budget` derives what a correct backward pass may be off by, in classes of what it stores. Its
sums are taken in order, so that the budget is a bound, and blocks and lanes stay below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from attnlab.backends.contender import in_this_process
from attnlab.errors import Declined
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.survey import OpenBackend, generator
from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.theory import GRADIENT_CLASSES, ErrorBudget, gradient_budgets

#: what is varied, and what the other is meanwhile
AXES: Mapping[str, tuple[float, ...]] = {"keys": (32, 128, 512), "logit_std": (1.0, 4.0, 8.0)}
_USUAL: Mapping[str, float] = {"keys": 128, "logit_std": 1.0}
_HEADS, _QUERIES, _HEAD_DIM = 2, 32, 32
FORMATS = ("float32", "bfloat16")
ERROR = "relative error of a gradient"
#: by what part of itself a budget may be off where a mantissa is not log-uniform
_OFF = 0.25


def problems(dtype: str, seed: int) -> Iterator[tuple[Where, Problem]]:
    """The questions in `dtype`, the same for every backend: where they stand, and their arrays as cast."""
    for axis, values in AXES.items():
        for value in values:
            size = {**_USUAL, axis: value}
            rng = generator(seed, 1250, list(AXES).index(axis), round(value))
            shapes = (_QUERIES, int(size["keys"]), int(size["keys"]), _QUERIES)
            arrays = [rng.standard_normal((1, _HEADS, n, _HEAD_DIM)) for n in shapes]
            arrays[0] *= size["logit_std"]
            q, k, v, g = (round_to(one, dtype) for one in arrays)
            scale = 1 / math.sqrt(_HEAD_DIM)
            problem = Problem.of(q, k, v, scale=scale, output_gradient=g, dtype=dtype)
            yield {"dtype": dtype, "axis": axis, "value": value}, problem


def through(
    one: OpenBackend,
    seed: int,
    dtype: str,
    asked: Sequence[tuple[Where, Problem, Sequence[ErrorBudget]]],
    folders: Sequence[Path | str],
) -> Iterator[Row]:
    """The relative error of each gradient against the tightest budget that covers it; nothing without autograd."""
    backend = in_this_process(one.name, folders)
    for where, problem, budgets in asked:
        workload = Workload.of_problem(problem, direction="backward")
        try:
            found = backend.named(workload, backend.bind(workload, problem)())
        except Declined:
            return
        for of, budget in zip(("query", "key", "value"), budgets, strict=True):
            error = np.asarray(found[f"{of} gradient"], dtype=np.float64) - budget.output
            relative = float(np.linalg.norm(error) / np.linalg.norm(budget.output))
            yield _bounded({"backend": one.name, "of": of, **where}, relative, budget)


def _bounded(where: Where, relative: float, budget: ErrorBudget) -> Row:
    """The error against the tightest class that covers it, or the loosest, give or take five errors or a quarter."""
    for name, sources in GRADIENT_CLASSES.items():
        covering = budget.restricted_to(*sources)
        row = Row.compare(
            ERROR,
            {**where, "precision": name},
            covering.relative,
            relative,
            standard_error=covering.relative * covering.relative_scatter,
            slack=_OFF * covering.relative,
            relation="≤",
        )
        if row.passed:
            break
    return row


def with_budgets(dtype: str, seed: int) -> list[tuple[Where, Problem, Sequence[ErrorBudget]]]:
    """The questions in `dtype` with the three budgets of each, computed once for all backends."""
    return [(where, problem, gradient_budgets(problem)) for where, problem in problems(dtype, seed)]


def told(rows: Sequence[Row]) -> str:
    """The errors at both ends of n, in a sentence with a space after it; nothing where there are none."""
    few, many = AXES["keys"][0], AXES["keys"][-1]

    def span(of: str, value: float) -> str:
        found = [row.measured for row in pick(rows, ERROR, of=of, axis="keys", value=value, dtype="bfloat16")]
        return f"{min(found):.1e} to {max(found):.1e}"

    if not pick(rows, ERROR, axis="keys", dtype="bfloat16"):
        return ""
    listed = ", ".join(f"{of} {span(of, few)} and {span(of, many)}" for of in ("query", "key", "value"))
    return (
        f"The gradients' relative errors in bfloat16 at n = {few:g} and {many:g}, by backend: {listed}; each within a "
        "budget of what a backward pass rounds. "
    )
