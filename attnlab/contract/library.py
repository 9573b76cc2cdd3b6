"""Array libraries on a device: the only place that knows both their arrays and NumPy's.

A library is asked for by name and device and imported when asked for, never earlier. It can
turn NumPy arrays into its own and back, wait for queued work, time calls by the device's own clock,
read the device's memory statistics, and say which kernels a call really ran.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import round_to
from attnlab.contract.errors import Declined, Unavailable

Call = Callable[[], Any]
Arrays = tuple[Any, ...]

#: what PyTorch says of an operator that has no backward pass
_NO_BACKWARD = ("is not implemented", "no autograd formula", "is not differentiable")


class Library(Protocol):
    """What the instruments need of an array library on one device."""

    name: str
    device: str
    #: "warm" where a timed call finds its inputs in cache as the call before left them, else "cold"
    cache: str

    def declines(self, dtype: str) -> str | None:
        """Why this library cannot compute in `dtype`, or None."""

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        """The library's array on its device; `array` holds values of `dtype` exactly."""

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """A NumPy array of the same values (bfloat16 in float32)."""

    def dtype_of(self, array: Any) -> str:
        """The name of the array's number format, as in `attnlab.contract.dtypes`."""

    def finish(self) -> None:
        """Wait until all queued work is done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        """Seconds per call over `iterations` calls, queued work included."""

    def peak_bytes(self, call: Call) -> int | None:
        """Peak device memory of one call beyond what was held, or None where the heap must be traced."""

    def free_bytes(self) -> int:
        """Bytes of memory that can still be taken on the device."""

    def trim(self) -> None:
        """Give back device memory that is kept but not in use: other contenders want it."""

    def gradients(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> tuple[Any, ...]:
        """The output of ``attend(*arrays)`` and the gradients of `arrays` where the output's is `output_gradient`.

        By automatic differentiation; raises Declined where the library or the call has none. A gradient is
        None where none arrived.
        """

    def attest(self, call: Call) -> str:
        """What computes `call`, which has run before: kernels where the library tells, or else its BLAS."""

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from now on."""

    def versions(self) -> dict[str, str]:
        """Versions that decide the speed and the numbers."""


def host_seconds_per_call(call: Call, iterations: int, finish: Callable[[], None]) -> float:
    """Seconds per call by the host's monotonic clock, with queued work finished on both sides."""
    finish()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    finish()
    return (time.perf_counter() - start) / iterations


def host_free_bytes() -> int:
    """Bytes of main memory that can still be taken, within this process's control group if it has one."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    try:
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    except (OSError, ValueError):  # no control group, or one without a limit ("max")
        return free
    return max(free, 0)


class NumPy:
    """NumPy on the CPU: float16, float32, float64."""

    name = "numpy"
    device = "cpu"
    cache = "warm"

    def declines(self, dtype: str) -> str | None:
        return "NumPy has no bfloat16" if dtype == "bfloat16" else None

    def from_numpy(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(round_to(array, dtype))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def dtype_of(self, array: Any) -> str:
        return str(np.asarray(array).dtype)

    def finish(self) -> None:
        """NumPy's calls return when they are done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        return host_seconds_per_call(call, iterations, self.finish)

    def peak_bytes(self, call: Call) -> int | None:
        return None

    def free_bytes(self) -> int:
        return host_free_bytes()

    def trim(self) -> None:
        """NumPy keeps nothing that is not in use."""

    def gradients(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> tuple[Any, ...]:
        raise Declined("NumPy has no automatic differentiation")

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

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}


class Torch:
    """PyTorch on the CPU or on the current CUDA device: all four dtypes."""

    name = "torch"

    def __init__(self, device: str) -> None:
        import torch

        if device == "cuda" and not torch.cuda.is_available():
            raise Unavailable("no CUDA device is usable by this PyTorch; use --device cpu")
        self.device = device
        self.cache = "cold" if device == "cuda" else "warm"
        self._torch = torch
        self._flush: Any = None

    def declines(self, dtype: str) -> str | None:
        return None

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        torch = self._torch
        host = torch.from_numpy(np.array(round_to(array, dtype), order="C"))
        return host.to(device=self.device, dtype=getattr(torch, dtype)).contiguous()

    def to_numpy(self, array: Any) -> NDArray[Any]:
        torch = self._torch
        host = array.detach().to("cpu")
        return np.asarray((host.to(torch.float32) if host.dtype == torch.bfloat16 else host).numpy())

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def finish(self) -> None:
        if self.device == "cuda":
            self._torch.cuda.synchronize()

    def time_calls(self, call: Call, iterations: int) -> float:
        if self.device == "cuda":
            return self._event_seconds_per_call(call, iterations)
        return host_seconds_per_call(call, iterations, self.finish)

    def _event_seconds_per_call(self, call: Call, iterations: int) -> float:
        """Device time by CUDA events around every call, the L2 cache overwritten before each.

        All is queued first and waited for once, so the host's own time is hidden as long as a call
        takes longer on the device than its launch; the overwriting gives the host that head start.
        """
        cuda = self._torch.cuda
        if self._flush is None:
            cache_bytes = max(cuda.get_device_properties(self.device).L2_cache_size, 2**22)
            self._flush = self._torch.empty(2 * cache_bytes, dtype=self._torch.int8, device=self.device)
        pairs = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(iterations)]
        for start, end in pairs:
            self._flush.zero_()
            start.record()
            call()
            end.record()
        cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in pairs)) / 1e3 / iterations

    def peak_bytes(self, call: Call) -> int | None:
        if self.device != "cuda":
            return None
        cuda = self._torch.cuda
        cuda.synchronize()
        cuda.reset_peak_memory_stats()
        before = cuda.memory_allocated()
        result = call()
        cuda.synchronize()
        peak = int(cuda.max_memory_allocated()) - int(before)
        del result
        return peak

    def free_bytes(self) -> int:
        if self.device == "cuda":
            return int(self._torch.cuda.mem_get_info()[0])
        return host_free_bytes()

    def trim(self) -> None:
        if self.device == "cuda":
            self._flush = None
            self._torch.cuda.empty_cache()

    def gradients(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> tuple[Any, ...]:
        torch = self._torch
        leaves = tuple(array.detach().requires_grad_() for array in arrays)
        try:
            with torch.enable_grad():
                output = attend(*leaves)  # some say so only when asked to remember the way
            if not getattr(output, "requires_grad", True):
                raise Declined("its output is cut off from automatic differentiation")
            found = torch.autograd.grad(output, leaves, output_gradient, allow_unused=True)
        except (NotImplementedError, RuntimeError) as refused:
            if isinstance(refused, NotImplementedError) or any(said in str(refused) for said in _NO_BACKWARD):
                raise Declined(f"PyTorch says: {' '.join(str(refused).split())[:200]}") from None
            raise
        return output.detach(), *found

    def attest(self, call: Call) -> str:
        """Kernels by the profiler's record of one call: the fused operator where there is one."""
        # PyTorch 2.13's profiler announces itself on standard error; it reads this when first started
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        # the tracing library, which takes a second to start, is needed only to see device kernels
        on_cuda = self.device == "cuda"
        with self._torch.autograd.profiler.profile(
            use_device="cuda" if on_cuda else None, use_kineto=on_cuda
        ) as record:
            call()
            self.finish()
        return kernels_of([event.key for event in record.key_averages()])

    def set_threads(self, count: int) -> None:
        self._torch.set_num_threads(count)

    def versions(self) -> dict[str, str]:
        torch = self._torch
        found = {"torch": str(torch.__version__), "numpy": np.__version__}
        if self.device == "cuda":
            found["cuda"] = str(torch.version.cuda)
            found["cudnn"] = str(torch.backends.cudnn.version())
        return found


def kernels_of(events: list[str]) -> str:
    """The attention operators among profiler event names, or else the matrix products and the softmax.

    `scaled_dot_product_attention` itself is the dispatcher, not a kernel; a device kernel has no ``aten::``.
    """
    operators = [name.removeprefix("aten::") for name in events if name.startswith("aten::")]
    fused = [name for name in operators if name.startswith("_scaled_dot_product")]
    plain = [name for name in operators if name in ("bmm", "mm", "baddbmm", "_softmax", "_safe_softmax")]
    device = [
        name
        for name in events
        if any(word in name.lower() for word in ("flash", "fmha", "cutlass", "sdpa", "gemm", "softmax"))
        and "::" not in name.split("<")[0].split("(")[0]
    ]
    shown = sorted(set(fused or plain))
    if device:
        shown.append(f"[{min(device, key=len)[:60]}]")
    return " + ".join(shown) or "unknown: the profiler named no kernel"


@functools.cache
def open_library(name: str, device: str = "cpu") -> Library:
    """The array library `name` on `device`, imported now; the same object for the same question.

    Raises Unavailable where the library or the device is missing, ValueError for an unknown name.
    """
    if name == "numpy":
        if device != "cpu":
            raise Unavailable(f"NumPy computes on the CPU only, not on {device}")
        return NumPy()
    if name == "torch":
        try:
            return Torch(device)
        except ModuleNotFoundError as missing:
            raise Unavailable(f"PyTorch is not installed ({missing}); pip install torch") from None
    raise ValueError(f"library must be numpy or torch, got {name!r}")
