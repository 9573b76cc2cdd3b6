"""One answer to one workload: is it right, on the workload's own inputs, against float64?

The same evidence as a whole check, on one workload and a sample of its query rows. What it allows follows from
the workload's dtype and inputs (`attnlab.correctness.error_budget`, `gradient_budgets`). Gradients
are those of an output gradient that is 0 but on the sampled rows (`attnlab.workload.drawing.checked_problem`): those of
key and value are whole then, and cost no more than the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.evidence import DIRECTED_SHARED, IMMATERIAL_ANYWHERE, explained, weigh
from attnlab.correctness.reference import Reference, refer
from attnlab.workload.drawing import checked_problem
from attnlab.workload.result import Accuracy
from attnlab.workload.vocabulary import LOG_SUM, OUTPUT, lower
from attnlab.workload.workload import Workload

#: query rows are sampled so that at most about this many scores are computed in float64
_SCORES = 2**19
#: what decides them, beside the seed: a backend cannot know which they are
_SECRET = secrets.randbits(64)
#: elements of a matrix of head_dim × value_dim up to which a block's rows cost about what their scores do
_HEAD = 2**12


def sampled_rows(workload: Workload) -> list[int]:
    """The query rows that are checked: all where they are few, else the first, the last and a random sample.

    Of a block fewer where its heads are large: how the query's error passes is a matrix of head_dim × value_dim a row.
    """
    per_row = workload.batch * workload.heads * workload.keys
    if workload.d_model is not None:
        per_row *= max(1, workload.head_dim * workload.value_dim // _HEAD)
    count = max(8, _SCORES // per_row)
    if count >= workload.queries:
        return list(range(workload.queries))
    generator = np.random.default_rng([workload.seed, _SECRET])
    drawn = generator.choice(workload.queries, size=count - 2, replace=False)
    return sorted({0, workload.queries - 1, *map(int, drawn)})


@lru_cache(maxsize=4)
def references(
    workload: Workload, rows: tuple[int, ...], computes_in: str | None = None
) -> dict[str, Reference]:
    """The right answers by name and their bounds, kept for the other contenders of the same race.

    "output", "log sum" and "query gradient" at `rows`, the gradients of key and value whole. computes_in : those to
    inputs rounded to that number format, with its bounds.
    """
    from threadpoolctl import threadpool_limits

    inputs = checked_problem(workload, rows)
    with threadpool_limits(1):  # no idle thread of ours may spin while a contender is on the clock
        cast = inputs if computes_in is None else inputs.cast(computes_in)
        return refer(cast, rows, log_sum=LOG_SUM in workload.results)


def judge(
    workload: Workload,
    rows: Sequence[int],
    answers: Mapping[str, NDArray[Any]] | NDArray[Any],
    computes_in: str | None = None,
) -> Accuracy:
    """How exact the named results of `workload` are: that of the worst of them, which its reason names.

    answers : by name, "output", "log sum" and "query gradient" cut to the query rows `rows`, as `references`; an array
    alone is the output. That of a block is (batch, rows, d_model). computes_in : the number format that the contender
    says it computes in; where it is lower than the workload's, answers are held against the truth of inputs rounded to
    it, by its budget. Raises ValueError for a missing name and for an answer of another shape.
    """
    format = lower(workload.dtype, computes_in)
    exact = references(workload, tuple(rows), format)
    given = answers if isinstance(answers, Mapping) else {OUTPUT: np.asarray(answers)}
    expected = set(workload.results) if isinstance(answers, Mapping) else {OUTPUT}
    if set(given) != expected:
        raise ValueError(f"answers must be {', '.join(sorted(expected))}, got {', '.join(sorted(given))}")
    judged = [_judged(workload, rows, name, answer, exact[name]) for name, answer in given.items()]
    return max(judged, key=lambda one: (not one.passed, one.relative_error / max(one.budget, 1e-300)))


def _judged(
    workload: Workload, rows: Sequence[int], name: str, answer: NDArray[Any], exact: Reference
) -> Accuracy:
    if workload.d_model is not None:
        answer = answer[:, None]  # as one head, which is how references and evidence have it
    shape = exact.output.shape[:3] if name == LOG_SUM else exact.output.shape
    if answer.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {answer.shape}")
    found = weigh(
        exact, answer, directions=DIRECTED_SHARED if name == OUTPUT else None, immaterial=IMMATERIAL_ANYWHERE
    )
    if found.reason is None:
        return found
    if name != OUTPUT:
        return replace(found, reason=f"{name}: {found.reason}")
    inputs = checked_problem(workload, rows).cast(exact.dtype)
    return replace(found, reason=explained(inputs, answer, exact, found.reason, rows))
