"""Does a backend give the same bits again: alone in a batch, per head, per query, with other threads? Its gradients?

Where it does not, both answers are right, and differ by rounding (He et al. 2025, "Defeating nondeterminism in LLM
inference"). One question of each number format is asked, without a mask, so that every part has one meaning by itself.
A backend that gives other bits there depends on what is computed beside it. One that gives the same may do otherwise
at other sizes, where it may choose another kernel or cut the work elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnlab.backends.backend import Backend
from attnlab.backends.contender import Contender
from attnlab.errors import Declined
from attnlab.libraries.library import thread_variables
from attnlab.processes import Failed, Process
from attnlab.system import cores, processor_seconds
from attnlab.workload.drawing import inputs_of
from attnlab.workload.result import GRADIENTS_AGAIN, SAME_BITS, Invariance
from attnlab.workload.workload import OUTPUT, Workload

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
#: a backend that would take longer than this for one call is asked about a 25th of the size
_LONG_SECONDS, _SMALLER, _TRIALS = 0.5, 5, 3
#: parts are asked for until so many seconds are spent: some libraries compile for each
_PATIENCE_SECONDS = 15.0
#: calls whose gradients are compared, and seconds that a process has for one number format
_AGAIN, _SECONDS = 3, 60.0


# -- in the child


def asked(backend: Backend, dtype: str, device: str, size: int | None) -> dict[str, Any]:
    """The output, whether parts of it have the same bits when they are computed alone, and why not all were asked for.

    With a `size` (1 for all of it) the output alone. Raises Declined.
    """
    workload = _workload(dtype, device, size or _SMALLER)
    backend.require(workload)
    if size is not None:
        return {"output": _answers(backend, workload)[OUTPUT]}
    call, library = backend.bind(workload), backend.open(device)
    # the first call carries a library's start-up, and a busy machine makes any of them long
    seconds = min(library.time_calls(call, 1) for _ in range(_TRIALS))
    size = _SMALLER if seconds * _SMALLER**2 > _LONG_SECONDS else 1
    workload, started = _workload(dtype, device, size), processor_seconds()
    expected, inputs = _answers(backend, workload)[OUTPUT], inputs_of(workload)
    found: dict[str, Any] = {"output": expected, "size": size, "same": {}, "reason": None}
    for name, (batch, heads, queries) in _PARTS.items():
        if processor_seconds() - started > _PATIENCE_SECONDS:
            return found | {"reason": f"its calls took over {_PATIENCE_SECONDS:g} s"}
        alone = inputs.with_(
            query=inputs.query[batch, heads, queries],
            key=inputs.key[batch, heads],
            value=inputs.value[batch, heads],
        )
        part = Workload.of_inputs(alone, device=device)
        bits = _answers(backend, part, alone)[OUTPUT].tobytes()
        found["same"][name] = bits == expected[batch, heads, queries].tobytes()
    training = workload.with_(direction="training")
    try:
        several = [_answers(backend, training) for _ in range(_AGAIN)]
    except Declined:
        return found
    alike = {tuple(one[name].tobytes() for name in training.results) for one in several}
    found["same"][GRADIENTS_AGAIN] = len(alike) == 1
    return found


def _workload(dtype: str, device: str, size: int) -> Workload:
    return Workload(
        batch=2, heads=4, queries=_QUERIES // size, keys=_KEYS // size, dtype=dtype, device=device
    )


def _answers(backend: Backend, workload: Workload, *inputs: Any) -> dict[str, Any]:
    named = backend.named(workload, backend.bind(workload, *inputs)())
    return {name: one.copy() for name, one in named.items()}


# -- in the process that asks


def with_other_threads(contender: Contender) -> Contender:
    """`contender` with 1 thread, or 2 where it has 1 itself, by its settings or by the environment."""
    variables = {**os.environ, **dict(contender.variables)}
    said = (variables.get(name, "") for name in thread_variables())
    now = contender.threads or min(
        [int(one) for one in said if one.isdecimal() and int(one) > 0] or [cores()]
    )
    return replace(contender, threads=1 if now > 1 else 2)


def same_bits(
    contender: Contender, process: Process, other: Process, dtypes: Sequence[str], device: str
) -> list[Invariance]:
    """What `contender` does in each of `dtypes`, asked in its `process` and in one with other threads.

    A dtype that it declines is left out.
    """
    found: list[Invariance] = []
    for dtype in dtypes:
        how: dict[str, Any] = {"seconds": _SECONDS, "dtype": dtype, "device": device}
        one = Invariance(contender.name, dtype)
        try:
            told = process.ask("same_bits", **how)
            size = told["size"]
            one = replace(
                one, queries=_QUERIES // size, keys=_KEYS // size, same=told["same"], reason=told["reason"]
            )
            threaded = other.ask("same_bits", **how, size=size)["output"]
            same = threaded.tobytes() == told["output"].tobytes()
            one = replace(one, same={**one.same, SAME_BITS[-1]: same})
        except Failed as fault:
            if fault.kind == "declined":
                continue
            one = replace(one, reason=one.reason or str(fault))
        found.append(one)
    return found
