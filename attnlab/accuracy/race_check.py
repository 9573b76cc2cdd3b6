"""The gate before the clock: is the output right, on the race's own inputs, against float64?

The same evidence as the whole gate, on one workload and a sample of its query rows. What it allows follows from
the workload's dtype and inputs (`attnlab.theory.error_budget`); no tolerance is chosen.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy.evidence import DIRECTED_SHARED, IMMATERIAL_ANYWHERE, weigh
from attnlab.accuracy.reference import Reference, refer
from attnlab.contract.inputs import inputs
from attnlab.contract.result import Accuracy
from attnlab.contract.workload import Workload

#: query rows are sampled so that at most about this many scores are computed in float64
_SCORES = 2**19


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
def reference(workload: Workload, rows: tuple[int, ...]) -> Reference:
    """The right answer at `rows` and its bounds, kept for the other contenders of the same race."""
    from threadpoolctl import threadpool_limits

    q, k, v = inputs(workload)
    with threadpool_limits(1):  # no idle thread of ours may spin while a contender is on the clock
        return refer(
            q, k, v, causal=workload.causal, scale=workload.scale, dtype=workload.dtype, rows=list(rows)
        )


def judge(workload: Workload, rows: list[int], output: NDArray[Any]) -> Accuracy:
    """The gate's answer on `output`, (batch, heads, len(rows), value_dim), the query rows `rows`.

    Raises ValueError for an output of another shape.
    """
    exact = reference(workload, tuple(rows))
    if output.shape != exact.output.shape:
        raise ValueError(f"output must have shape {exact.output.shape}, got {output.shape}")
    found = weigh(exact, output, directions=DIRECTED_SHARED, immaterial=IMMATERIAL_ANYWHERE)
    return Accuracy(
        relative_error=found.relative_error,
        budget=found.allowed if math.isfinite(found.allowed) else exact.lenient.relative,
        largest_error=found.largest_error,
        rows_checked=len(rows),
        rows=workload.queries,
        passed=found.fault is None,
        reason=found.fault,
        kind=found.kind,
        ratio=found.ratio,
        max_ulp=found.max_ulp,
        bias=found.bias,
    )
