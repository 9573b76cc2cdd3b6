"""CuPy on the current CUDA device: float16, float32 and float64; no gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.library import Call
from attnlab.errors import Unavailable
from attnlab.libraries.host import seconds_by_events
from attnlab.libraries.numpy_library import NumPyNames
from attnlab.workload.number_formats import round_to


class CuPy(NumPyNames):
    """See `attnlab.backends.library.Library`. Calls are queued on the current stream."""

    name = "cupy"
    modules = ("cupy",)
    device = "cuda"
    cache = "cold"
    lacking: ClassVar[Mapping[str, str]] = {
        "bfloat16": "not every CuPy has bfloat16, and attnlab asks it for none"
    }
    without_gradients = "cupy has no automatic differentiation"

    def __init__(self, cupy: Any) -> None:
        super().__init__(cupy)
        self.namespace = cupy
        self._flush: Any = None

    @classmethod
    def open_on(cls, device: str) -> CuPy:
        """It on `device`. Raises Unavailable for any but CUDA, where there is none, and where CuPy is not installed."""
        cupy = cls.opened()
        if device != "cuda":
            raise Unavailable(f"CuPy computes on CUDA only, not on {device}")
        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as fault:  # no device, no driver, or one that is too old
            raise Unavailable(f"no CUDA device is usable by this CuPy ({fault}); use --device cpu") from None
        return cls(cupy)

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        held = array if array.dtype == np.bool_ else round_to(array, dtype)
        return self.namespace.asarray(np.ascontiguousarray(held))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(self.namespace.asnumpy(array))

    def finish(self) -> None:
        self.namespace.cuda.Device().synchronize()

    def time_calls(self, call: Call, iterations: int) -> float:
        cuda = self.namespace.cuda
        if self._flush is None:
            cache_bytes = cuda.runtime.getDeviceProperties(cuda.runtime.getDevice())["l2CacheSize"]
            self._flush = self.namespace.empty(2 * max(cache_bytes, 2**22), dtype=np.int8)
        pairs = [(cuda.Event(), cuda.Event()) for _ in range(iterations)]
        return seconds_by_events(
            call, pairs, partial(self._flush.fill, 0), self.finish, cuda.get_elapsed_time
        )

    def peak_bytes(self, call: Call) -> int:
        """What a call takes at most of CuPy's pool of memory; what a library takes beside the pool is not in it."""
        self.finish()
        with _held(self.namespace.cuda.MemoryHook) as taken:
            result = call()
            self.finish()
        del result
        return int(taken.most)

    def free_bytes(self) -> int:
        return int(self.namespace.cuda.runtime.memGetInfo()[0])

    def attest(self, call: Call) -> str:
        """The library of its matrix products: CuPy does not tell which kernels a call ran."""
        cuda = self.namespace.cuda
        return f"cuBLAS {cuda.cublas.getVersion(cuda.get_cublas_handle())} and CuPy's own kernels"

    def set_threads(self, count: int) -> None:
        """It computes with none of the host's."""

    def modes(self) -> dict[str, str]:
        return {"TF32 in cuBLAS": "allowed" if int(os.environ.get("CUPY_TF32", "0")) > 0 else "off"}

    def versions(self) -> dict[str, str]:
        cuda = self.namespace.cuda.runtime.runtimeGetVersion()
        return {**super().versions(), "cuda": str(cuda)}


def _held(hook: Any) -> Any:
    """A hook of CuPy's that counts, while it is entered, what is held of the pool beyond what was before."""

    class Held(hook):  # type: ignore[misc]
        name = "attnlab"
        now = most = 0

        def malloc_postprocess(self, *, mem_size: int, **told: Any) -> None:
            self.now += mem_size
            self.most = max(self.most, self.now)

        def free_postprocess(self, *, mem_size: int, **told: Any) -> None:
            self.now -= mem_size

    return Held()


LIBRARIES = (CuPy,)
