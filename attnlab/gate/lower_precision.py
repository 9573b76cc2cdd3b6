"""Whether a wrong answer is what computing in a lower number format would give, as some libraries do by default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.gate.evidence import DIRECTED_SHARED, IMMATERIAL_ANYWHERE, directed, weigh
from attnlab.gate.reference import Reference, refer
from attnlab.problem.directions import OUTPUT
from attnlab.problem.dtypes import lower
from attnlab.problem.problem import Problem
from attnlab.theory.numbers import float_format

#: by increasing roundoff, as a person knows them. TF32 rounds the inputs of products as float16 does
_FORMATS = {"float32": "float32", "float16": "float16 or TF32", "bfloat16": "bfloat16"}
#: standard errors: another fault passes them once in a thousand, see `attnlab.gate.evidence.DIRECTED`
_SURELY = 4.0


def looks_like(
    problem: Problem, answer: NDArray[Any], exact: Reference, rows: Sequence[int] | None = None
) -> str | None:
    """The lower format, in words, that explains the `answer` (batch, heads, rows, value_dim) to `problem`, or None.

    exact : the problem's own reference at the query rows `rows`. A format explains the answer where that is right for
    inputs rounded to it, by its budget, and where its error has moved along with those inputs: by as much as their
    rounding moves the truth (a shift of 1; of 0 for any other fault), and more surely than by chance.
    """
    if problem.block is not None or not np.isfinite(answer).all():
        return None
    for dtype, said in _FORMATS.items():
        if lower(problem.dtype, dtype) is None:
            continue
        rounded = problem.cast(dtype).with_(output_gradient=None)
        if not all(np.isfinite(one).all() for one in (rounded.query, rounded.key, rounded.value)):
            continue
        reference = refer(rounded, rows)[OUTPUT]
        against = weigh(reference, answer, directions=DIRECTED_SHARED, immaterial=IMMATERIAL_ANYWHERE)
        rms = np.maximum(reference.lenient.rms, float_format(dtype).smallest_subnormal)
        moved = directed(answer - exact.output, reference.output - exact.output, rms, reference.shared)
        if against.fault is None and abs(moved.shift - 1) < 0.5 and moved.z > _SURELY:
            return said
    return None


def explained(
    problem: Problem, answer: NDArray[Any], exact: Reference, fault: str, rows: Sequence[int] | None = None
) -> str:
    """The `fault` of an answer, with the lower format that explains it where there is one; see `looks_like`."""
    told = looks_like(problem, answer, exact, rows)
    if told is None:
        return fault
    return (
        f"{fault}; this is the error of computing in {told}: set the precision that its library computes in, "
        "or let the backend say it (COMPUTES_IN)"
    )
