"""Ceilings: the highest matrix-multiply rate and copy bandwidth that array libraries reach on this machine.

A ceiling is the best over all installed libraries, each measured in a fresh process. Libraries differ: the matrix
product of a single one need not be the fastest that the machine can do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab.backends.contender import Contender
from attnlab.environment import recalled, remember
from attnlab.libraries.library import Library, is_there, libraries, open_library, products
from attnlab.processes import Failed, Process
from attnlab.race.instruments import Watch
from attnlab.workload.result import Ceiling

_BUDGET_SECONDS = 0.4
_SIZES = {"cpu": (256, 768, 1536), "cuda": (4096, 8192)}
#: seconds of the longest product that is tried: NumPy has float16, but no fast product for it
_LONGEST_SECONDS = 1.0
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}


#: seconds that a library may take; a ceiling is stored only if other programs used fewer cores than this
_SECONDS, _GAPS = 120.0, 0.5


def measure_ceiling(device: str, dtype: str, *, afresh: bool = False) -> Ceiling | None:
    """The best matrix-multiply rate and copy bandwidth of the installed array libraries, each in its own process.

    An earlier result is returned if there is one and not `afresh`. A result is stored for later if no library failed
    and other programs used less than half a core.
    """
    question = {"asked": "ceiling", "device": device, "dtype": dtype}
    known = None if afresh else recalled(question, Ceiling)
    if known is not None:
        return known
    found: dict[str, dict[str, float] | None] = {}
    watch, failed = Watch(), False
    for library in products():
        if not all(map(is_there, libraries()[library].modules)):
            continue  # it is not installed
        environment = Contender(library, library).environment(os.environ)
        process = Process("attnlab.race.ceilings:Child", environment=environment)
        asked: dict[str, Any] = {"name": library, "device": device, "dtype": dtype}
        try:
            rates = dict[str, float] | None
            found[library] = process.ask("of_library", seconds=_SECONDS, answer=rates, **asked)
        except Failed as fault:
            failed = failed or fault.kind != "unavailable"
        finally:
            process.end()
    highest = best(device, dtype, found)
    if highest is not None and not failed and watch.others() < _GAPS:
        remember(question, highest)
    return highest


class Child:
    """The object that serves requests in the process of a library."""

    def of_library(self, name: str, device: str, dtype: str) -> dict[str, float] | None:
        """See `measure`."""
        return measure(open_library(name, device), dtype)


def measure(library: Library, dtype: str) -> dict[str, float] | None:
    """Best matrix-multiply rate (FLOP/s) and copy bandwidth (bytes/s) of `library`, or None.

    None if the library lacks `dtype` or has no product. The bandwidth is missing if the library cannot write into an
    existing array, or computes on another library's arrays: then it has no copy of its own.

    Square products of growing size, and a copy of 128 MiB (1 GiB on CUDA), are each repeated for 0.4 s. The best repeat
    counts, because a ceiling is what the hardware can do undisturbed.
    """
    product = products().get(library.name)
    if library.declines(dtype) or product is None:
        return None
    rates: list[float] = []
    generator = np.random.default_rng(0)
    for size in _SIZES[library.device]:
        if rates and 2.0 * size**3 / max(rates) > _LONGEST_SECONDS:
            break
        a, b = (library.from_numpy(generator.standard_normal((size, size)), dtype) for _ in range(2))
        rates.append(2.0 * size**3 / _least_seconds(library, partial(_computed, library, product, a, b)))
    found = {"matmul_flops": max(rates)}
    if library.in_place and libraries()[library.name].arrays_of is None:
        found["copy_bytes"] = _copy_rate(library)
    return found


def _computed(library: Library, product: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    found = product(a, b)
    return found if library.completed is None else library.completed(found)


def _copy_rate(library: Library) -> float:
    """Bytes read and written per second by a copy within `library`."""
    elements = _COPY_BYTES[library.device] // 4
    source = library.from_numpy(np.ones(elements, np.float32), "float32")
    target = library.from_numpy(np.zeros(elements, np.float32), "float32")

    def copy() -> None:
        target[:] = source

    return 8.0 * elements / _least_seconds(library, copy)


def best(device: str, dtype: str, found: dict[str, dict[str, float] | None]) -> Ceiling | None:
    """The best rates that `measure` `found`, by library; None if no library has the dtype, or none has a copy."""
    there = {name: one for name, one in found.items() if one is not None}
    rates = [(one["matmul_flops"], name) for name, one in there.items()]
    copies = [(one["copy_bytes"], name) for name, one in there.items() if "copy_bytes" in one]
    return Ceiling(device, dtype, *max(rates), *max(copies)) if copies else None


def _least_seconds(library: Library, call: Callable[[], Any]) -> float:
    call()
    library.finish()
    least = float("inf")
    start = time.perf_counter()
    while time.perf_counter() - start < _BUDGET_SECONDS:
        least = min(least, library.time_calls(call, 1))
    return least
