"""What libraries share that compute on the host when they are called: its clock, its memory, and no gradients."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.library import Arrays, Call


def seconds_per_call(call: Callable[[], Any], iterations: int, finish: Callable[[], None]) -> float:
    """Seconds per call by the host's monotonic clock, with queued work finished on both sides."""
    finish()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    finish()
    return (time.perf_counter() - start) / iterations


def free_bytes() -> int:
    """Bytes of main memory that can still be taken, within this process's control group if it has one."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return free
    return max(free, 0)


def required(*modules: str, extra: str) -> Any:
    """The first of these modules, imported now; the others are only looked for.

    Raises Unavailable, with the line that installs them, where one is missing or cannot be imported.
    """
    mend = f"pip install 'attnlab[{extra}]'"
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise Unavailable(f"{module} is not installed; {mend}")
    try:
        return importlib.import_module(modules[0])
    except Exception as fault:  # half installed, or for another version of NumPy
        text = " ".join(str(fault).split())[:200]
        raise Unavailable(f"{modules[0]} fails on import ({type(fault).__name__}: {text}); {mend}") from None


class Recipe(partial[Any]):
    """How a compiled model is made: calls with equal arguments are equal, so that one can be kept for both."""

    def __hash__(self) -> int:
        return hash((self.func, self.args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.func, self.args) == (other.func, other.args)


class HostLibrary:
    """The half of `attnlab.contract.library.Library` that needs no arrays; a library adds the other half."""

    name = "host"
    device = "cpu"
    cache = "warm"

    def declines(self, dtype: str) -> str | None:
        return None

    def no_gradients(self) -> str | None:
        return f"{self.name} has no automatic differentiation"

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        raise Declined(f"{self.no_gradients()}")

    training_call = backward_call

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def stacked(self, arrays: Sequence[Any], axis: int) -> Any:
        return arrays[0].__array_namespace__().stack(list(arrays), axis=axis)

    def finish(self) -> None:
        """Calls return when they are done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        return seconds_per_call(call, iterations, self.finish)

    def peak_bytes(self, call: Call) -> int | None:
        return None

    def free_bytes(self) -> int:
        return free_bytes()

    def trim(self) -> None:
        """Nothing is kept that is not in use."""

    def attest(self, call: Call) -> str:
        from threadpoolctl import threadpool_info

        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        return (
            ", ".join(f"{pool['internal_api']} {pool.get('architecture') or ''}".strip() for pool in pools)
            or "no BLAS library was loaded"
        )

    def set_threads(self, count: int) -> None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)
