"""How far each backend lies from float64 in each number format, on the inputs of a model.

The truth is the exact answer to the inputs as they were captured, so that an error holds what rounding query, key and
value to the number format does, whoever computes; `INPUTS` is that part alone.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backend.backend import Backend
from attnlab.backend.contender import in_this_process
from attnlab.errors import Declined, Unavailable
from attnlab.problem.directions import OUTPUT
from attnlab.problem.dtypes import DTYPES, ITEM_BYTES
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload
from attnlab.text import one_line
from attnlab.theory.exact_attention import blocks, softmax_rows

Array = NDArray[np.float64]

#: stands for the rounding of the inputs alone, the rest exact
INPUTS = "inputs rounded"
#: whose calls on all layers would take more seconds of processor time than this is not asked; a call on so many
#: queries and keys predicts it
_LONGEST, _SMALL = 10.0, 256
Attend = Callable[[Problem], NDArray[Any]]


@dataclass(frozen=True)
class BackendError:
    """What one backend's answers are off by in one number format: relative Frobenius errors, dimensionless.

    error : over all heads of all layers. worst : of the worst head, `layer` and `head`. seconds : of its quickest call,
    in this process, as a guide to what is worth a race. reason : why there is none of all that, empty otherwise.
    """

    backend: str
    dtype: str
    error: float = 0.0
    worst: float = 0.0
    layer: int = 0
    head: int = 0
    seconds: float = 0.0
    reason: str = ""


def errors_on(
    problems: Mapping[int, Problem],
    order: Sequence[int],
    backends: Sequence[str],
    folders: Sequence[str] = (),
    on_event: Callable[[str], None] = lambda text: None,
) -> list[BackendError]:
    """The errors of `backends` on the layers in `order`, in every format no wider than the layers' own.

    Raises ValueError for an unknown backend; one that cannot be asked, or raises, has its reason.
    """
    exact = {layer: _exact(problem) for layer, problem in problems.items()}
    first = problems[order[0]]
    asked = [one for one in DTYPES if ITEM_BYTES[one] <= ITEM_BYTES[first.dtype]]  # narrow first
    some = first.query[:1, : first.group, :_SMALL], first.key[:1, :1, :_SMALL], first.value[:1, :1, :_SMALL]
    part = Problem.of(*some, scale=first.scale, dtype=first.dtype)
    calls = math.prod(first.shape) / math.prod(part.shape) * len(order)
    found = [_measured(INPUTS, dtype, problems, order, exact, _exact) for dtype in asked]
    for name in backends:
        on_event(name)
        try:
            attend = _through(in_this_process(name, folders))
        except Unavailable as missing:
            found.append(BackendError(name, asked[-1], reason=one_line(str(missing))))
            continue
        for dtype in asked:
            if _seconds(attend, part.cast(dtype)) * calls > _LONGEST:
                reason = f"its calls would take more than {_LONGEST:g} s"
                found.append(BackendError(name, dtype, reason=reason))
            else:
                found.append(_measured(name, dtype, problems, order, exact, attend))
    return found


def _seconds(attend: Attend, problem: Problem) -> float:
    """Of processor time, of the quicker of two calls; 0 where it raises, which is told on the inputs themselves."""
    found = []
    for _ in range(2):
        begun = time.process_time()
        with contextlib.suppress(Exception):
            attend(problem)
            found.append(time.process_time() - begun)
    return min(found, default=0.0)


def _through(backend: Backend) -> Attend:
    def attend(problem: Problem) -> NDArray[Any]:
        workload = Workload.of_problem(problem)
        backend.require(workload)
        return backend.named(workload, backend.bind(workload, problem)())[OUTPUT]

    return attend


def _measured(
    name: str,
    dtype: str,
    problems: Mapping[int, Problem],
    order: Sequence[int],
    exact: Mapping[int, Array],
    attend: Attend,
) -> BackendError:
    found, wrong, size, least = BackendError(name, dtype), 0.0, 0.0, np.inf
    for layer in order:
        begun = time.monotonic()
        try:
            with np.errstate(all="ignore"):  # what overflows shows in the error
                answer = attend(problems[layer].cast(dtype)).astype(np.float64)
        except (Declined, Unavailable) as reason:
            return replace(found, reason=one_line(str(reason)))
        except Exception as fault:  # other people's code, on inputs that nobody chose
            return replace(found, reason=one_line(f"raised {type(fault).__name__}: {fault}"))
        least = min(least, time.monotonic() - begun)
        off, whole = (np.square(one).sum(axis=(0, 2, 3)) for one in (answer - exact[layer], exact[layer]))
        heads = np.sqrt(off / np.where(whole > 0, whole, 1.0))
        head = int(np.argmax(np.where(np.isnan(heads), np.inf, heads)))
        wrong, size = wrong + float(off.sum()), size + float(whole.sum())
        if not heads[head] <= found.worst:
            found = replace(found, worst=float(heads[head]), layer=layer, head=head)
    return replace(found, error=float(np.sqrt(wrong / size)) if size else 0.0, seconds=float(least))


def _exact(problem: Problem) -> Array:
    found = np.empty(problem.output_shape)
    for part in blocks(problem):
        found[part.at] = softmax_rows(part).output
    return found
