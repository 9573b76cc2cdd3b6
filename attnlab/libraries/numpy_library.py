"""NumPy on the CPU, in float16, float32 and float64; and Numba's loops on its arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.library import Call, Library
from attnlab.workload.number_formats import round_to

#: the reason of libraries that compute on NumPy's arrays
NO_BFLOAT16 = "NumPy, in whose arrays attnlab hands it over, has no bfloat16"


class NumPy(Library):
    """NumPy, and the arrays of the libraries that compute on its arrays."""

    name = "numpy"
    before_fork: ClassVar[tuple[str, ...] | None] = ("numpy",)
    runs = "NumPy computes"
    functions = np
    #: those of the BLAS libraries that its wheels and distributions contain
    thread_variables: ClassVar[tuple[str, ...]] = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
    )
    lacking: ClassVar[Mapping[str, str]] = {"bfloat16": "NumPy has no bfloat16"}
    without_gradients = "NumPy has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """NumPy is always installed; a library that computes on its arrays may be missing."""
        return super().opened() if cls.modules else np

    def from_numpy(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(array if array.dtype == np.bool_ else round_to(array, dtype))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return arrays and np.shares_memory(one, other)

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        return lambda array: array.take(places, axis=0)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """float16 is computed in float32, because NumPy's own product is slow; the bias is added in place."""
        wide = [one.astype(np.float32) if one.dtype == np.float16 else one for one in (x, weight, bias)]
        found = wide[0] @ wide[1].T
        found += wide[2]
        return found.astype(x.dtype, copy=False)


class Numba(NumPy):
    """Loops that Numba compiles, on NumPy's arrays."""

    name = "numba"
    modules = ("numba", "llvmlite")
    before_fork = ("numba",)
    runs = "attnlab's Numba loops run"
    arrays_of = "numpy"
    thread_variables = ("NUMBA_NUM_THREADS",)
    lacking: ClassVar[Mapping[str, str]] = {"bfloat16": "Numba has no bfloat16"}
    without_gradients = "Numba has no automatic differentiation"

    @classmethod
    def opened(cls) -> Any:
        """Numba with its threads started. That sets the threads of PyTorch too if both share OpenMP: it is undone."""
        from threadpoolctl import threadpool_limits

        numba = super().opened()
        with threadpool_limits():
            numba.get_num_threads()
        return numba

    def attest(self, call: Call) -> str:
        """The threading layer that ran the loop, and for which instructions it was compiled."""
        call()
        cpu = importlib.import_module("llvmlite.binding").get_host_cpu_name()
        threads, layer = self.module.get_num_threads(), self.module.threading_layer()
        return f"LLVM for {cpu}, {threads} threads of Numba's {layer}"

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self.module.set_num_threads(min(count, self.module.config.NUMBA_NUM_THREADS))


LIBRARIES = (NumPy, Numba)
