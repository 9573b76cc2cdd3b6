"""NumPy arrays computed on by loops that Numba compiles: its threads, its versions."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

from attnlab.backend.library import Call
from attnlab.libraries.host import on_cpu
from attnlab.libraries.numpy_library import NumPy

#: whose arrays it computes on: it has no matrix product and no copy of its own
ARRAYS_OF = "numpy"

THREAD_VARIABLES = ("NUMBA_NUM_THREADS",)


class Numba(NumPy):
    """See `attnlab.backend.library.Library`."""

    name = "numba"
    lacking: ClassVar[Mapping[str, str]] = {"bfloat16": "Numba has no bfloat16"}
    without_gradients = "Numba has no automatic differentiation"

    def __init__(self, numba: Any) -> None:
        self._numba = numba

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


open_on = on_cpu(Numba, "attnlab's Numba loops run", "numba", extra="numba")
