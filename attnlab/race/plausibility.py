"""A speed held against what this machine can do: its ceilings are measured where one looks too high, and remembered."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import numpy as np

from attnlab.backends.contender import Contender
from attnlab.backends.library import libraries, products
from attnlab.libraries.host import is_there
from attnlab.race import ceilings
from attnlab.race.disturbance import Watch
from attnlab.race.worker_process import NoAnswer, Refused, WorkerProcess
from attnlab.remembered import Remembered
from attnlab.stats.analysis import BELIEVED, rate
from attnlab.system import cores
from attnlab.workload.result import Ceiling, Outcome, Result

#: others who take less of the machine, in cores, leave gaps in which its best is found
_GAPS = 0.5
#: FLOP/s that no device reaches, where a product here says nothing of it
_UNREACHED = 1e16
#: a product of matrices of this size, repeated so often, takes some milliseconds
_SIZE, _TIMES = 384, 8


def plausible(result: Result) -> Result:
    """`result`, or what is filed in its place where its speed is far above the machine's ceiling.

    The ceiling is looked up, or measured and remembered, only for a rate that is above what a product of NumPy's in a
    few milliseconds makes likely: that takes some seconds, once.
    """
    latency, workload = result.latency, result.workload
    if latency is None or workload.flops / latency.median <= BELIEVED[workload.device] * _likely(
        workload.device
    ):
        return result
    ceiling = measure_ceiling(workload.device, result.computes_in or workload.dtype, Remembered(afresh=False))
    fault = None
    if ceiling is not None:
        fault = rate(workload, latency.median, ceiling, cold=latency.facts.get("cache") == "cold").beyond
    return (
        replace(
            result, outcome=Outcome.WRONG, reason=f"beyond the machine's {fault}: no speed", measurements=()
        )
        if fault
        else result
    )


@cache
def _likely(device: str) -> float:
    """A rate in FLOP/s that all cores reach here, by the product of one."""
    if device != "cpu":
        return _UNREACHED
    from threadpoolctl import threadpool_limits

    matrix, seconds = np.ones((_SIZE, _SIZE), np.float32), []
    with threadpool_limits(1):
        for _ in range(_TIMES):
            started = time.perf_counter()
            _ = matrix @ matrix
            seconds.append(time.perf_counter() - started)
    return cores() * 2.0 * _SIZE**3 / min(seconds)


def measure_ceiling(device: str, dtype: str, remembered: Remembered) -> Ceiling | None:
    """The best matrix-multiply rate and copy bandwidth over the array libraries here, each in a fresh worker.

    Or what is `remembered`; kept is what was measured while nobody else took much of the machine and no worker failed.
    """
    question = {"asked": "ceiling", "device": device, "dtype": dtype}
    for known in remembered.recall(question, Ceiling) or ():
        return known
    found: dict[str, dict[str, float] | None] = {}
    watch, failed = Watch(), False
    for library in products():
        if not all(map(is_there, libraries()[library].modules)):
            continue  # a library that is not here sets no ceiling
        worker = WorkerProcess(Contender(library, library))
        try:
            worker.start("ceiling", library=library, device=device, dtype=dtype)
            found[library] = worker.finish_start()
        except NoAnswer as fault:
            failed = failed or not isinstance(fault, Refused)
        finally:
            worker.end()
    best = ceilings.best(device, dtype, found)
    if best is not None and not failed and watch.others(()).cores < _GAPS:
        remembered.keep(question, [best])
    return best
