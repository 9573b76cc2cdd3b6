"""JAX on the CPU or on CUDA, and MLX on the CPU: libraries that differentiate functions (``vjp``)."""

from __future__ import annotations

import ctypes
import io
import os
import re
import tempfile
import time
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Unavailable
from attnlab.libraries.library import Arrays, Call, Library, declining
from attnlab.workload.number_formats import FORMATS, round_to


class Jax(Library):
    """JAX on one device, compiled by XLA.

    JAX itself returns before it has computed. On the CPU each call waits for its result. On CUDA calls are queued, and
    the clock waits for the last one.
    """

    name = "jax"
    modules = ("jax", "jaxlib")
    #: XLA reads the size of its CPU thread pool from it, once; without it the pool has all cores of the process
    thread_variables = ("NPROC",)
    without_gradients = None
    in_place = False

    @classmethod
    def opened(cls) -> Any:
        """The module jax, set up as attnlab uses it. Raises Unavailable if it is not installed.

        float64 is enabled. Device memory is allocated as needed: by default JAX takes three quarters of it at its
        start, and other contenders would not have enough.
        """
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax = super().opened()
        jax.config.update("jax_enable_x64", True)
        return jax

    @classmethod
    def open_on(cls, device: str) -> Jax:
        """JAX on `device`. Raises Unavailable if it is not installed or has no such device."""
        jax = cls.opened()
        try:
            return cls(jax, device, jax.devices(device)[0])
        except RuntimeError:
            raise Unavailable(f"no {device} device is usable by this JAX; use --device cpu") from None

    def __init__(self, jax: Any, device: str, place: Any) -> None:
        super().__init__(jax)
        self.device, self._place = device, place
        self.completed = jax.block_until_ready if device == "cpu" else None
        self.refill = self._refilled if device == "cpu" else None
        self._next = jax.jit(lambda number: number + 1)
        self._number = jax.device_put(np.zeros((), np.float32), place)

    # -- arrays in and out -------------------------------------------------------------------------

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        held = array if array.dtype == np.bool_ else round_to(array, dtype).astype(FORMATS[dtype], copy=False)
        return self.module.device_put(np.array(held, order="C"), self._place)

    def to_numpy(self, array: Any) -> NDArray[Any]:
        found = np.asarray(array)
        return found.astype(np.float32) if found.dtype == FORMATS["bfloat16"] else found

    def _refilled(self, array: Any, other: Any) -> None:
        self.module.block_until_ready((array, other))
        ctypes.memmove(array.unsafe_buffer_pointer(), other.unsafe_buffer_pointer(), array.nbytes)

    def shares_memory(self, one: Any, other: Any) -> bool:
        arrays = [array for array in (one, other) if isinstance(array, self.module.Array)]
        return len({array.unsafe_buffer_pointer() for array in arrays}) < len(arrays)

    # -- gradients ---------------------------------------------------------------------------------

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        function, settings, given = _parts(attend, self.module.Array)
        with declining("JAX"):
            _, back = _compiled("forward", function, settings)(arrays, given)
        # the results of the forward pass are arguments, so that none of them is compiled in as a constant
        return self._waiting(partial(_compiled("backward"), back, output_gradient))

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        function, settings, given = _parts(attend, self.module.Array)
        compiled = _compiled("training", function, settings)

        def step() -> Any:
            with declining("JAX"):
                return compiled(arrays, given, output_gradient)

        return self._waiting(step)

    def _waiting(self, call: Call) -> Call:
        return call if self.completed is None else lambda: self.module.block_until_ready(call())

    # -- instruments -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for the queue of a CUDA device. It runs in order, so a call that is queued last waits for all others."""
        if self.device == "cuda":
            self._next(self._number).block_until_ready()

    def time_calls(self, call: Call, iterations: int) -> float:
        if self.device == "cpu":
            return super().time_calls(call, iterations)
        self.finish()
        start = time.perf_counter()
        for _ in range(iterations - 1):
            call()
        self.module.block_until_ready(call())
        return (time.perf_counter() - start) / iterations

    def peak_bytes(self, call: Call) -> int | None:
        """None on the CPU. Raises RuntimeError on CUDA: JAX reports only the peak since the process began."""
        if self.device == "cuda":
            raise RuntimeError("JAX tells a device's peak since the process began, and not that of one call")
        return None

    def free_bytes(self) -> int:
        if self.device == "cuda":
            told = self._place.memory_stats()
            return int(told["bytes_limit"]) - int(told["bytes_in_use"])
        return super().free_bytes()

    def attest(self, call: Call) -> str:
        """The instructions of XLA's compiled programs that one call ran, from JAX's profiler."""
        names = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]
        pool = sum(name.startswith("tf_XLAEigen") for name in names)
        threads = f"; {pool} threads" if self.device == "cpu" else ""
        return f"XLA {self._place.platform}: {', '.join(_instructions(self.module, call))}{threads}"

    def set_threads(self, count: int) -> None:
        """Raises RuntimeError if `count` differs from the size of XLA's pool, which is fixed when XLA starts."""
        if os.environ.get("NPROC") != str(count):
            raise RuntimeError(f"XLA reads its number of threads when it starts: start with NPROC={count}")


def _parts(
    attend: Callable[..., Any], array: type
) -> tuple[Callable[..., Any], tuple[tuple[str, Any], ...], dict[str, Any]]:
    """A function, its keywords that are settings, and those that are arrays. The first two decide the code."""
    if not isinstance(attend, partial):
        return attend, (), {}
    given = {name: value for name, value in attend.keywords.items() if isinstance(value, array)}
    return attend.func, tuple(one for one in attend.keywords.items() if one[0] not in given), given


@lru_cache(maxsize=64)
def _compiled(way: str, function: Any = None, settings: tuple[tuple[str, Any], ...] = ()) -> Any:
    """A compiled function of the arrays and of the keywords that are arrays.

    "forward" returns the output and the backward function. "training" also takes the output's gradient, and returns the
    output and the gradients. "backward" calls a backward function.
    """
    jax = Jax.opened()

    def forward(arrays: Arrays, given: dict[str, Any]) -> Any:
        return jax.vjp(partial(function, **dict(settings), **given), *arrays)

    def training(arrays: Arrays, given: dict[str, Any], output_gradient: Any) -> Any:
        output, back = forward(arrays, given)
        return output, *back(output_gradient)

    ways = {"forward": forward, "training": training, "backward": lambda back, gradient: back(gradient)}
    return jax.jit(ways[way])


def _instructions(jax: Any, call: Call) -> list[str]:
    """The instructions of the compiled programs that `call` runs, each once, without their numbers."""
    with tempfile.TemporaryDirectory(prefix="attnlab-jax-") as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(call())
        (file,) = Path(folder).rglob("*.xplane.pb")
        profile = jax.profiler.ProfileData.from_file(str(file))
    events = [event for plane in profile.planes for line in plane.lines for event in line.events]
    ran = [event.name for event in events if "hlo_op" in dict(event.stats)]
    return list(dict.fromkeys(name.rpartition(".")[0] or name for name in ran))


# -- MLX ------------------------------------------------------------------------------------------------

#: an operation in the text of a graph that MLX exports
_OPERATION = re.compile(r'\[label ="(\w+)", shape=rectangle\]')


class Mlx(Library):
    """MLX on the CPU. Operations are lazy; a call computes its results before it returns."""

    no_backward_alone = "MLX computes the forward pass again for its gradients; ask for direction training"
    name = "mlx"
    modules = ("mlx.core",)
    runs = "attnlab runs MLX"
    without_gradients = None
    in_place = False
    #: the graphs that this process computes while a call is attested
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

    def _refilled(self, array: Any, other: Any) -> None:
        words = getattr(self.module, f"uint{8 * array.itemsize}")  # NumPy cannot read MLX's bfloat16
        held, numbers = (np.asarray(memoryview(one.view(words))) for one in (array, other))
        held[...] = numbers

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether they are one object: MLX gives no address of an array, and never writes into an array in use."""
        return one is other

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        def call() -> Any:
            (output,), gradients = self.module.vjp(
                lambda *leaves: attend(*leaves), list(arrays), [output_gradient]
            )
            return self._computed((output, *gradients))

        return call

    def attest(self, call: Call) -> str:
        """The operations in the graph that one call computes, as MLX exports it."""
        graphs: list[str] = []
        Mlx._graphs = graphs
        try:
            call()
        finally:
            Mlx._graphs = None
        names = [name for graph in graphs for name in _OPERATION.findall(graph)]
        return f"MLX CPU: {', '.join(dict.fromkeys(names))}"


LIBRARIES = (Jax, Mlx)
