"""MLX on the CPU: its lazy arrays, gradients, and the operations that computed a result."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.libraries.library import Arrays, Call, Library
from attnlab.workload.number_formats import round_to

#: an operation in a graph that MLX writes down
_OPERATION = re.compile(r'\[label ="(\w+)", shape=rectangle\]')


class Mlx(Library):
    """An operation only notes what is to be computed; a call computes it (``mlx.core.eval``) before it returns."""

    no_backward_alone = "MLX computes the forward pass again for its gradients; ask for direction training"
    name = "mlx"
    modules = ("mlx.core",)
    runs = "attnlab runs MLX"
    without_gradients = None
    in_place = False
    #: what is computed in this process is written down here while it is attested
    _graphs: ClassVar[list[str] | None] = None

    def __init__(self, mx: Any) -> None:
        super().__init__(mx)
        mx.set_default_device(mx.cpu)
        self.completed = self._computed
        self.refill = self._refilled

    def _computed(self, results: Any) -> Any:
        if self._graphs is not None:
            written = io.StringIO()
            self.module.export_to_dot(written, results)
            self._graphs.append(written.getvalue())
        self.module.eval(results)
        return results

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        if array.dtype == np.bool_:
            return self.module.array(np.array(array, order="C"))
        held = np.array(round_to(array, dtype), order="C")
        found = self.module.array(held, dtype=getattr(self.module, dtype))
        self.module.eval(found)
        return found

    def to_numpy(self, array: Any) -> NDArray[Any]:
        mx = self.module
        return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).rpartition(".")[2]

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.module.broadcast_to(array, shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return self.module.where(where, self.module.array(number, dtype=array.dtype), array)

    def _refilled(self, array: Any, other: Any) -> None:
        words = getattr(self.module, f"uint{8 * array.itemsize}")  # NumPy knows no bfloat16 of MLX's
        held, numbers = (np.asarray(memoryview(one.view(words))) for one in (array, other))
        held[...] = numbers

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether they are one object: MLX tells nobody where an array lies, and writes into none that is in use."""
        return one is other

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        raise Declined(self.no_backward_alone)

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        def call() -> Any:
            (output,), gradients = self.module.vjp(
                lambda *leaves: attend(*leaves), list(arrays), [output_gradient]
            )
            return self._computed((output, *gradients))

        return call

    def attest(self, call: Call) -> str:
        """The operations in the graph that one call computes, as MLX writes it down."""
        graphs: list[str] = []
        Mlx._graphs = graphs
        try:
            call()
        finally:
            Mlx._graphs = None
        names = [name for graph in graphs for name in _OPERATION.findall(graph)]
        return f"MLX CPU: {', '.join(dict.fromkeys(names))}"


LIBRARIES = (Mlx,)
