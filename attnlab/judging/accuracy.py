"""The gate before the clock: is the output right, against float64 on the inputs as cast?"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.inputs import inputs
from attnlab.ground.result import Accuracy
from attnlab.ground.workload import Workload

#: query rows are sampled so that at most about this many scores are computed in float64
_SCORES = 2**21


def sampled_rows(workload: Workload) -> list[int]:
    """The query rows that are checked: all where they are few, else the first, the last and a random sample."""
    per_row = workload.batch * workload.heads * workload.keys
    count = max(8, _SCORES // per_row)
    if count >= workload.queries:
        return list(range(workload.queries))
    generator = np.random.default_rng([workload.seed, 4])
    drawn = generator.choice(workload.queries, size=count - 2, replace=False)
    return sorted({0, workload.queries - 1, *map(int, drawn)})


@lru_cache(maxsize=2)
def truth(workload: Workload, rows: tuple[int, ...]) -> NDArray[np.float64]:
    """The output at `rows` in float64: (batch, heads, len(rows), value_dim)."""
    from threadpoolctl import threadpool_limits

    q, k, v = (array.astype(np.float64) for array in inputs(workload))
    with threadpool_limits(1):  # no idle thread of ours may spin while a contender is on the clock
        scores = (q[:, :, rows, :] @ k.swapaxes(-1, -2)) * workload.scale
        if workload.causal:
            allowed = np.arange(workload.keys) <= np.array(rows)[:, None]
            scores = np.where(allowed, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        output: NDArray[np.float64] = weights @ v
    return output


def judge(workload: Workload, rows: list[int], output: NDArray[Any]) -> Accuracy:
    """The gate's answer on `output`, (batch, heads, len(rows), value_dim), the query rows `rows`."""
    exact = truth(workload, tuple(rows))
    error = output.astype(np.float64) - exact
    budget = {"float64": 1e-14, "float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}[workload.dtype]
    relative = float(np.linalg.norm(error) / max(float(np.linalg.norm(exact)), 1e-300))
    passed = math.isfinite(relative) and relative <= budget
    bad = int(np.count_nonzero(~np.isfinite(output)))
    reason = None
    if bad:
        reason = f"{bad} of {output.size} values checked are NaN or infinite"
    elif not passed:
        reason = f"relative error {relative:.3g} against float64, at most {budget:.3g} is right"
    return Accuracy(
        relative_error=relative,
        budget=budget,
        largest_error=float(np.abs(error).max()),
        rows_checked=len(rows),
        rows=workload.queries,
        passed=passed,
        reason=reason,
    )
