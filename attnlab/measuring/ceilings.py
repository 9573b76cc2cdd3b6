"""What this machine can do at most: matrix-multiply rate and copy bandwidth of one array library.

A ceiling is the best over the libraries that are installed, each measured in a fresh worker, because libraries
differ: no single one's matrix product is the most that the machine can do.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnlab.contract.library import Library
from attnlab.contract.result import Ceiling

_BUDGET_SECONDS = 0.4
_SIZES = {"cpu": (256, 768, 1536), "cuda": (4096, 8192)}
#: a product expected to take longer is not tried: NumPy has float16 without a fast product
_LONGEST_SECONDS = 1.0
_COPY_BYTES = {"cpu": 2**27, "cuda": 2**30}


def measure(library: Library, dtype: str) -> dict[str, float] | None:
    """Best matrix-multiply rate (FLOP/s) and copy bandwidth (bytes/s) of `library`, or None.

    None where it lacks `dtype`, and where it writes into no array that is there: it has no copy to measure.

    Square products of growing size, and a copy of 128 MiB (1 GiB on CUDA), each repeated for a while; the best
    counts, because a ceiling is what the hardware can do undisturbed.
    """
    if library.declines(dtype) or not library.in_place:
        return None
    rates: list[float] = []
    generator = np.random.default_rng(0)
    for size in _SIZES[library.device]:
        if rates and 2.0 * size**3 / max(rates) > _LONGEST_SECONDS:
            break
        a, b = (library.from_numpy(generator.standard_normal((size, size)), dtype) for _ in range(2))
        rates.append(2.0 * size**3 / _least_seconds(library, partial(operator.matmul, a, b)))
    elements = _COPY_BYTES[library.device] // 4
    source = library.from_numpy(np.ones(elements, np.float32), "float32")
    target = library.from_numpy(np.zeros(elements, np.float32), "float32")

    def copy() -> None:
        target[:] = source

    return {"matmul_flops": max(rates), "copy_bytes": 8.0 * elements / _least_seconds(library, copy)}


def best(device: str, dtype: str, found: dict[str, dict[str, float] | None]) -> Ceiling | None:
    """The best of what `measure` found, by library name; None where no library has the dtype."""
    rates = {name: one for name, one in found.items() if one is not None}
    if not rates:
        return None
    product, copy = (
        max((one[what], name) for name, one in rates.items()) for what in ("matmul_flops", "copy_bytes")
    )
    return Ceiling(device, dtype, *product, *copy)


def _least_seconds(library: Library, call: Callable[[], Any]) -> float:
    call()
    library.finish()
    least = float("inf")
    start = time.perf_counter()
    while time.perf_counter() - start < _BUDGET_SECONDS:
        least = min(least, library.time_calls(call, 1))
    return least
