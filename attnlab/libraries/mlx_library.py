"""MLX on the CPU: its lazy arrays, gradients, and the operations that computed a result."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backend.library import Arrays, Call
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.host import HostLibrary, required
from attnlab.problem.vocabulary import round_to

#: an operation in a graph that MLX writes down
_OPERATION = re.compile(r'\[label ="(\w+)", shape=rectangle\]')


def open_on(device: str) -> Mlx:
    """MLX. Raises Unavailable for any device but the CPU, and where it is not installed."""
    mx = required("mlx.core", extra="mlx")
    if device != "cpu":
        raise Unavailable(f"attnlab runs MLX on the CPU only, not on {device}")
    mx.set_default_device(mx.cpu)
    return Mlx(mx)


class Mlx(HostLibrary):
    """See `attnlab.backend.library.Library`.

    An operation only notes what is to be computed; a call computes it (``mlx.core.eval``) before it returns.
    """

    #: why no backward pass is timed by itself
    no_backward_alone = "MLX computes the forward pass again for its gradients; ask for direction training"

    name = "mlx"
    without_gradients = None
    in_place = False
    #: what is computed in this process is written down here while it is attested
    _graphs: ClassVar[list[str] | None] = None

    def __init__(self, mx: Any) -> None:
        self._mx = mx
        self.completed = self._computed

    def _computed(self, results: Any) -> Any:
        if self._graphs is not None:
            written = io.StringIO()
            self._mx.export_to_dot(written, results)
            self._graphs.append(written.getvalue())
        self._mx.eval(results)
        return results

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        if array.dtype == np.bool_:
            return self._mx.array(np.array(array, order="C"))
        held = np.array(round_to(array, dtype), order="C")
        found = self._mx.array(held, dtype=getattr(self._mx, dtype))
        self._mx.eval(found)
        return found

    def to_numpy(self, array: Any) -> NDArray[Any]:
        mx = self._mx
        return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).rpartition(".")[2]

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self._mx.broadcast_to(array, shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return self._mx.where(where, self._mx.array(number, dtype=array.dtype), array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether they are one object: MLX tells nobody where an array lies, and writes into none that is in use."""
        return one is other

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        raise Declined(self.no_backward_alone)

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        def call() -> tuple[Any, ...]:
            (output,), gradients = self._mx.vjp(
                lambda *leaves: attend(*leaves), list(arrays), [output_gradient]
            )
            results: tuple[Any, ...] = self._computed((output, *gradients))
            return results

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

    def versions(self) -> dict[str, str]:
        return {"mlx": self._mx.__version__, "numpy": np.__version__}
