"""How far each backend lies from float64 in each number format, on the inputs of a model.

The truth is the exact answer to the inputs as they were captured, so that an error holds what rounding query, key and
value to the number format does, whoever computes; `INPUTS` is that part alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
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


def formats(dtype: str) -> tuple[str, ...]:
    """The number formats no wider than `dtype`, narrow first."""
    return tuple(one for one in DTYPES if ITEM_BYTES[one] <= ITEM_BYTES[dtype])


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
    asked = formats(problems[order[0]].dtype)
    found = [_measured(INPUTS, dtype, problems, order, exact, _exact) for dtype in asked]
    for name in backends:
        on_event(name)
        try:
            backend = in_this_process(name, folders)
        except Unavailable as reason:
            found.append(BackendError(name, asked[-1], reason=one_line(str(reason))))
            continue
        found += [_asked(name, dtype, problems, order, exact, _through(backend)) for dtype in asked]
    return found


def _asked(
    name: str,
    dtype: str,
    problems: Mapping[int, Problem],
    order: Sequence[int],
    exact: Mapping[int, Array],
    attend: Attend,
) -> BackendError:
    """As `_measured`, but for a backend that takes too long: a small part of the inputs tells."""
    first = problems[order[0]]
    part = _part(first).cast(dtype)
    pairs = math.prod(first.shape) / math.prod(part.shape)
    try:
        seconds = min(_timed(attend, part) for _ in range(2))
    except Exception:  # what is wrong is told on the inputs themselves
        seconds = 0.0
    if seconds * pairs * len(order) > _LONGEST:
        return BackendError(name, dtype, reason=f"its calls would take more than {_LONGEST:g} s")
    return _measured(name, dtype, problems, order, exact, attend)


def _part(problem: Problem) -> Problem:
    """The first queries and keys of one head of keys, all of them seen."""
    group = problem.group
    arrays = (
        problem.query[:1, :group, :_SMALL],
        problem.key[:1, :1, :_SMALL],
        problem.value[:1, :1, :_SMALL],
    )
    return Problem.of(*arrays, scale=problem.scale, dtype=problem.dtype)


def _timed(attend: Attend, problem: Problem) -> float:
    begun = time.process_time()
    attend(problem)
    return time.process_time() - begun


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
