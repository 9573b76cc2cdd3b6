"""NumPy arrays computed on by loops that Numba compiles: its threads, its versions."""

from __future__ import annotations

import importlib
from typing import Any

from attnlab.backends.library import Call
from attnlab.errors import Unavailable
from attnlab.libraries.host import required
from attnlab.libraries.numpy_library import NumPy

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "numpy"

THREAD_VARIABLES = ("NUMBA_NUM_THREADS",)


def open_on(device: str) -> Numba:
    """Numba. Raises Unavailable for any device but the CPU, and where it is not installed."""
    numba = required("numba", extra="numba")
    if device != "cpu":
        raise Unavailable(f"attnlab's Numba loops run on the CPU only, not on {device}")
    return Numba(numba)


class Numba(NumPy):
    """See `attnlab.backends.library.Library`."""

    name = "numba"

    def __init__(self, numba: Any) -> None:
        self._numba = numba

    def declines(self, dtype: str) -> str | None:
        return "Numba has no bfloat16" if dtype == "bfloat16" else None

    def no_gradients(self) -> str | None:
        return "Numba has no automatic differentiation"

    def attest(self, call: Call) -> str:
        """The threading layer that ran the loop, and for which instructions it was compiled."""
        call()
        cpu = importlib.import_module("llvmlite.binding").get_host_cpu_name()
        return f"LLVM for {cpu}, {self._numba.get_num_threads()} threads of Numba's {self._numba.threading_layer()}"

    def set_threads(self, count: int) -> None:
        super().set_threads(count)
        self._numba.set_num_threads(min(count, self._numba.config.NUMBA_NUM_THREADS))

    def versions(self) -> dict[str, str]:
        llvmlite = importlib.import_module("llvmlite")
        return {**super().versions(), "numba": self._numba.__version__, "llvmlite": llvmlite.__version__}
