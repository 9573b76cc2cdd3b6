"""Whether a wrong answer is what computing in a lower number format would give, as some libraries do by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy.evidence import DIRECTED_SHARED, IMMATERIAL_ANYWHERE, Evidence, weigh
from attnlab.accuracy.reference import refer
from attnlab.contract.directions import OUTPUT
from attnlab.contract.dtypes import lower
from attnlab.contract.problem import Problem

#: by increasing roundoff, as a person knows them. TF32 rounds the inputs of products as float16 does
_FORMATS = {"float32": "float32", "float16": "float16 or TF32", "bfloat16": "bfloat16"}


def looks_like(
    problem: Problem, answer: NDArray[Any], found: Evidence, rows: Sequence[int] | None = None
) -> str | None:
    """The lower format, in words, that explains the `answer` (batch, heads, rows, value_dim) to `problem`, or None.

    It explains it where the answer is right for inputs rounded to that format, by that format's budget, and nearer to
    their truth than to that of the inputs as they are, of which it was `found` to be too far: a fault of another kind
    lies apart from both.
    """
    if not np.isfinite(answer).all():
        return None
    for dtype, said in _FORMATS.items():
        if lower(problem.dtype, dtype) is None:
            continue
        rounded = problem.cast(dtype).with_(output_gradient=None)
        if not all(np.isfinite(one).all() for one in (rounded.query, rounded.key, rounded.value)):
            continue
        reference = refer(rounded, rows)[OUTPUT]
        against = weigh(reference, answer, directions=DIRECTED_SHARED, immaterial=IMMATERIAL_ANYWHERE)
        if against.fault is None and against.relative_error < found.relative_error:
            return said
    return None


def explained(
    problem: Problem, answer: NDArray[Any], found: Evidence, rows: Sequence[int] | None = None
) -> str:
    """The fault that was `found`, with the lower format that explains it where there is one."""
    told = looks_like(problem, answer, found, rows)
    if told is None:
        return f"{found.fault}"
    return (
        f"{found.fault}; this is the error of computing in {told}: set the precision that its library computes in, "
        "or let the backend say it (COMPUTES_IN)"
    )
