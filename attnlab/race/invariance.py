"""Does a backend give the same bits again: alone in a batch, per head, per query, with other threads? Its gradients?

Where it does not, both answers are right, and differ by rounding (He et al. 2025, "Defeating nondeterminism in LLM
inference"). One problem of each number format is asked, without a mask, so that every part has one meaning by itself.
A backend that gives other bits there depends on what is computed beside it; one that gives the same may do otherwise
at other sizes, where it may choose another kernel or cut the work elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import Contender
from attnlab.backends.library import thread_variables
from attnlab.errors import Declined
from attnlab.race.worker_process import NoAnswer, WorkerProcess
from attnlab.workload.drawing import problem_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.result import GRADIENTS_AGAIN, SAME_BITS, Invariance
from attnlab.workload.vocabulary import OUTPUT
from attnlab.workload.workload import Workload

_ALL = slice(None)
#: of `SAME_BITS`, the part of (batch, heads, queries) that is computed by itself; the last is asked of other threads
_PARTS: dict[str, tuple[slice, slice, slice]] = {
    "again": (_ALL, _ALL, _ALL),
    "batch alone": (slice(1, 2), _ALL, _ALL),
    "head alone": (_ALL, slice(2, 3), _ALL),
    "a chunk of queries": (_ALL, _ALL, slice(13, 50)),
    "one query alone": (_ALL, _ALL, slice(37, 38)),
}
#: no block of a kernel divides these numbers
_QUERIES, _KEYS = 300, 700
#: a backend that would take longer than this for one call is asked on a problem a 25th of the size
_LONG_SECONDS, _SMALLER, _TRIALS = 0.5, 5, 3
#: parts are asked for until so many seconds are spent: some libraries compile for each
_PATIENCE_SECONDS = 15.0
#: calls whose gradients are compared
_AGAIN = 3


def workload_in(dtype: str, device: str, size: int = 1) -> Workload:
    """What is asked, 1/`size` as long."""
    return Workload(
        batch=2, heads=4, queries=_QUERIES // size, keys=_KEYS // size, dtype=dtype, device=device
    )


def size_for(backend: Backend, dtype: str, device: str) -> int:
    """1, or `_SMALLER` for a backend that takes too long for all of it."""
    small = workload_in(dtype, device, _SMALLER)
    call, library = backend.bind(small), backend.open(device)
    # the first call carries a library's start-up, and a busy machine makes any of them long
    seconds = min(library.time_calls(call, 1) for _ in range(_TRIALS))
    return _SMALLER if seconds * _SMALLER**2 > _LONG_SECONDS else 1


def whole(backend: Backend, workload: Workload) -> NDArray[Any]:
    """The output for all of the problem."""
    return _answer(backend, workload, problem_of(workload))


def same_in_parts(
    backend: Backend, workload: Workload, expected: NDArray[Any]
) -> tuple[dict[str, bool], str | None]:
    """Whether each of `_PARTS`, computed by itself, is as in `expected`, as far as there was time; and why not all."""
    problem, started = problem_of(workload), time.monotonic()
    same: dict[str, bool] = {}
    for name, part in _PARTS.items():
        if time.monotonic() - started > _PATIENCE_SECONDS:
            return same, f"its calls took over {_PATIENCE_SECONDS:g} s"
        batch, heads, queries = part
        alone = problem.with_(
            query=problem.query[batch, heads, queries],
            key=problem.key[batch, heads],
            value=problem.value[batch, heads],
        )
        asked = workload.with_(
            batch=alone.shape.batch,
            heads=alone.shape.heads,
            kv_heads=alone.kv_heads,
            queries=alone.shape.queries,
        )
        same[name] = same_bits(_answer(backend, asked, alone), expected[batch, heads, queries])
    return same, None


def gradients_again(backend: Backend, workload: Workload) -> dict[str, bool]:
    """Whether output and gradients of all of the problem are the same bits in a second call; empty without gradients.

    On CUDA they often are not: what several blocks add to one number is added in the order in which they end.
    """
    training = workload.with_(direction="training")
    try:
        call = backend.bind(training)
    except Declined:
        return {}
    found = {fingerprint(backend.named(training, call())) for _ in range(_AGAIN)}
    return {GRADIENTS_AGAIN: len(found) == 1}


def fingerprint(named: Mapping[str, NDArray[Any]]) -> bytes:
    """What tells two sets of named arrays apart, bit for bit."""
    found = hashlib.blake2b()
    for name, array in named.items():
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
    return found.digest()


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether two arrays hold the same numbers, bit for bit."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def with_other_threads(contender: Contender, cores: int) -> Contender:
    """`contender` with 1 thread, or 2 where it has 1 itself."""
    return replace(contender, threads=1 if threads_of(contender, cores) > 1 else 2)


def invariance_of(
    contender: Contender,
    process: WorkerProcess,
    other: WorkerProcess,
    dtypes: Sequence[str],
    device: str,
    seconds: float = 60.0,
) -> list[Invariance]:
    """What `contender` does in each of `dtypes`, asked in its `process`, which runs, and in one with other threads.

    A dtype that it declines is left out. The other process, of `with_other_threads`, is started if need be, and ends.
    """
    found: list[Invariance] = []
    expected: dict[str, NDArray[Any]] = {}
    try:
        if not other.alive:
            other.start()  # which imports its library while the first is asked
        for dtype in dtypes if process.alive else ():
            asked = {"dtype": dtype, "device": device}
            try:
                reply = process.ask("invariance", seconds=seconds, **asked)
            except NoAnswer as fault:
                if getattr(fault, "kind", "") != "declined":
                    found.append(Invariance(contender.name, dtype, reason=str(fault)))
                if not process.alive:
                    break
                continue
            expected[dtype], one = reply["output"], workload_in(dtype, device, reply["size"])
            found.append(
                Invariance(contender.name, dtype, one.queries, one.keys, reply["same"], reply["reason"])
            )
        other.finish_start()
        return [_by_other(other, one, expected.get(one.dtype), device, seconds) for one in found]
    except NoAnswer as fault:
        return [replace(one, reason=one.reason or f"with other threads: {fault}") for one in found]
    finally:
        other.end()


def threads_of(contender: Contender, cores: int) -> int:
    """With how many threads it computes: as set for it or by the environment, or as many as there are `cores`."""
    variables = {**os.environ, **dict(contender.variables)}
    said = (variables.get(name, "") for name in thread_variables())
    return contender.threads or min([int(one) for one in said if one.isdecimal() and int(one) > 0] or [cores])


def _by_other(
    other: WorkerProcess, one: Invariance, expected: NDArray[Any] | None, device: str, seconds: float
) -> Invariance:
    """`one` with what the process with other threads answers. Raises NoAnswer."""
    if expected is None:
        return one
    size = _QUERIES // one.queries
    asked = {"dtype": one.dtype, "device": device, "size": size}
    answer = other.ask("invariance", seconds=seconds, **asked)["output"]
    return replace(one, same={**one.same, SAME_BITS[-1]: same_bits(answer, expected)})


def _answer(backend: Backend, workload: Workload, problem: Inputs) -> NDArray[Any]:
    return np.array(backend.named(workload, backend.bind(workload, problem)())[OUTPUT])
