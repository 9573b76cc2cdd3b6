"""Is an answer to a workload right, on some of its query rows, against float64?

The evidence is that of a whole check; what it allows follows from the workload's dtype and inputs. The output's
gradient should be 0 but on these rows: the gradients of key and value are known without the other rows then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.evidence import DIRECTED_SHARED, IMMATERIAL_ANYWHERE, explained, weigh
from attnlab.correctness.reference import Reference, refer
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import lower
from attnlab.workload.result import Accuracy
from attnlab.workload.workload import LOG_SUM, OUTPUT, Workload

Answers = Mapping[str, NDArray[Any]]
#: query rows are sampled so that at most about this many scores are computed in float64
_SCORES = 2**19
#: elements of a matrix of head_dim × value_dim up to which a block's rows cost about what their scores do
_HEAD = 2**12


def sampled_rows(workload: Workload, generator: np.random.Generator, most: int | None = None) -> list[int]:
    """Query rows to be checked: all where they are few, else the first, the last and some others.

    most : how many; None for what is computed fast. Of a block these are fewer where its heads are large: how the
    query's error passes is a matrix of head_dim × value_dim for each row.
    """
    per_row = workload.batch * workload.heads * workload.keys
    if workload.d_model is not None:
        per_row *= max(1, workload.head_dim * workload.value_dim // _HEAD)
    count = most or max(8, _SCORES // per_row)
    if count >= workload.queries:
        return list(range(workload.queries))
    drawn = generator.choice(workload.queries, size=count - 2, replace=False)
    return sorted({0, workload.queries - 1, *map(int, drawn)})


def judge(
    workload: Workload, inputs: Inputs, rows: Sequence[int], answers: Answers, computes_in: str | None
) -> Accuracy:
    """How exact whole `answers` are on these query rows: the worst of them, with the reason where it is wrong.

    answers : by the names of `Workload.results`. computes_in : the number format in which the contender computes. Where
    that is lower than the workload's, the truth is that of inputs rounded to it, with its budget.
    """
    less = lower(workload.dtype, computes_in)
    cast = inputs if less is None else inputs.cast(less)
    exact = refer(cast, rows, log_sum=LOG_SUM in workload.results)
    judged = []
    for name in workload.results:
        cut = workload.cut(name, answers[name], rows)
        found = weighed(workload, exact[name], cut)
        reason = found.reason
        if reason and name != OUTPUT:
            found = replace(found, reason=f"{name}: {reason}")
        elif reason:
            output = cut[:, None] if workload.d_model is not None else cut
            found = replace(found, reason=explained(cast, output, exact[name], reason, rows))
        judged.append(found)
    return max(judged, key=lambda one: (not one.passed, one.relative_error / max(one.budget, 1e-300)))


def weighed(workload: Workload, exact: Reference, answer: NDArray[Any]) -> Accuracy:
    """One named answer against its reference, both cut to the same query rows."""
    if workload.d_model is not None:
        answer = answer[:, None]  # as one head, which is how references and evidence have it
    directions = DIRECTED_SHARED if exact.of == OUTPUT else None
    return weigh(exact, answer, directions=directions, immaterial=IMMATERIAL_ANYWHERE)
