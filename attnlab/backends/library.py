"""An array library on one device, as the instruments see it, and how it is found: by name, like a backend.

Each library is a class in a file ``attnlab/libraries/*_library.py``, which lists its classes as ``LIBRARIES`` and
imports the library itself no earlier than when it is opened. `attnlab.libraries.host.HostLibrary` is their base.

What is imported is noted before (`begin_import`): an import can end its process.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Refusal, Unavailable

Call = Callable[[], Any]
Arrays = tuple[Any, ...]


class Library(Protocol):
    """What the instruments need of an array library on one device."""

    name: str
    device: str
    #: "warm" where a timed call finds its inputs in cache as the call before left them, else "cold"
    cache: str
    #: whether an array can be written into where it lies
    in_place: bool
    #: why it gives no gradients, why no backward pass is timed by itself, why no block is made around its attention
    without_gradients: str | None
    no_backward_alone: str | None
    no_projections: str | None
    #: returns what a call gave once it is computed, for a library whose calls return before that; None for others, and
    #: on a device where the clock waits for all calls at once
    completed: Callable[[Any], Any] | None
    #: puts the numbers of another array of the same shape and format into one where it lies, whatever users of the
    #: library may do; None where that cannot be done
    refill: Callable[[Any, Any], None] | None

    def declines(self, dtype: str) -> Refusal | None:
        """Why this library cannot compute in `dtype`, or None."""

    # -- arrays in and out -------------------------------------------------------------------------

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        """The library's array on its device, contiguous; `array` holds values of `dtype` exactly, or booleans."""

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """A NumPy array of the same values (bfloat16 in float32)."""

    def dtype_of(self, array: Any) -> str:
        """The name of the array's number format, as in `attnlab.workload.number_formats`."""

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        """A view of `shape` in which the array's axes of length 1 are repeated without being copied."""

    def fill(self, array: Any, where: Any, number: float) -> Any:
        """A copy of `array` with `number` where the boolean array `where`, which broadcasts to it, is True."""

    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two arrays use the same memory."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """x weightᵀ + bias, as whoever uses the library writes it: (…, in) with (out, in) and (out,) to (…, out)."""

    def stacked(self, arrays: Sequence[Any], axis: int) -> Any:
        """Arrays of one shape, one after the other along a new axis."""

    # -- stored keys and values: what a library lacks is declined with a reason -----

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """A new array of `arrays` one after the other along `axis`."""

    def write(self, array: Any, at: tuple[slice, ...], rows: Any) -> None:
        """Put `rows` into `array` where it lies, at these places."""

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        """A function from an array to a new one: what stands at `places` along its first axis, in their shape."""

    def numbers(self, array: NDArray[np.int64]) -> Any:
        """Whole numbers as the library's array of int32 on its device."""

    # -- gradients ---------------------------------------------------------------------------------

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        """A call that returns the gradients of `arrays` alone: ``attend(*arrays)`` is computed now, once.

        Every call starts from cleared gradients and adds to none. Raises Declined as `training_call` does.
        """

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        """A call that computes ``attend(*arrays)`` and returns it with the gradients of `arrays`, None where none came.

        By automatic differentiation. Raises Declined, now or when called, where the library or the call has none.
        """

    # -- instruments -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait until all queued work is done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        """Seconds per call over `iterations` calls, queued work included."""

    def peak_bytes(self, call: Call) -> int | None:
        """Peak device memory of one call beyond what was held, or None where the heap must be traced."""

    def free_bytes(self) -> int:
        """Bytes of memory that can still be taken on the device."""

    def attest(self, call: Call) -> str:
        """What computes `call`, which has run before: kernels where the library tells, or else its BLAS."""

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from now on."""

    def modes(self) -> dict[str, str]:
        """Modes of this process that may lower the precision of float32, by name, as they are now."""

    def versions(self) -> dict[str, str]:
        """Versions that decide the speed and the numbers."""


@functools.cache
def libraries() -> dict[str, type[Any]]:
    """Every library that there is a class for, installed or not, by its name."""
    home = importlib.import_module("attnlab.libraries")
    files = [one.name for one in pkgutil.iter_modules(home.__path__) if one.name.endswith("_library")]
    kinds: list[Any] = [
        kind for file in files for kind in importlib.import_module(f"{home.__name__}.{file}").LIBRARIES
    ]
    return {kind.name: kind for kind in sorted(kinds, key=lambda one: one.name)}


def products() -> dict[str, Callable[[Any, Any], Any]]:
    """By library, its own product of two matrices, of those that have one."""
    own = {
        name: one.product or (None if one.arrays_of else operator.matmul) for name, one in libraries().items()
    }
    return {name: product for name, product in own.items() if product is not None}


def thread_variables() -> tuple[str, ...]:
    """Environment variables from which any of the libraries reads its number of threads when it is imported."""
    return tuple(dict.fromkeys(name for one in libraries().values() for name in one.thread_variables))


def huge_page_variables() -> dict[str, str]:
    """Environment variables by which the libraries take large arrays on huge pages, where they do not anyway."""
    return {name: value for one in libraries().values() for name, value in one.huge_pages.items()}


@functools.cache
def open_library(name: str, device: str = "cpu") -> Library:
    """The array library `name` on `device`, imported now; the same object for the same question.

    Raises Unavailable where the library or the device is missing, ValueError for an unknown name.
    """
    if name not in libraries():
        raise ValueError(f"library must be one of {', '.join(libraries())}, got {name!r}")
    try:
        found: Library = libraries()[name].open_on(device)
        return found
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # a fault of our packaging must never read as "not installed"
        raise Unavailable(f"{name} is not installed ({missing}); pip install {missing.name}") from None


def array_type(library: Library) -> type:
    """The type of the library's arrays."""
    return type(library.from_numpy(np.zeros(1, np.float32), "float32"))


class Import(NamedTuple):
    """The module that is imported, and the line that installs it anew."""

    module: str
    mend: str


#: what was begun in this process, the last one last
imports_begun: list[Import] = []
_OURS = ("attnlab", "implementations")


def half_installed(fault: BaseException) -> Import | None:
    """Which of those begun does not hold what a file of ours looked for in it: half installed, or another version.

    None where `fault` says something else, or arose in a file of a user's or of a library.
    """
    frame = fault.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = "" if frame is None else str(frame.tb_frame.f_globals.get("__name__", ""))
    if _package(where) not in _OURS:
        return None
    module = fault.name if isinstance(fault, ImportError) else None
    if isinstance(fault, AttributeError) and isinstance(fault.obj, ModuleType):
        module = fault.obj.__name__
    named = (one for one in reversed(imports_begun) if module and _package(one.module) == _package(module))
    return next(named, None)


def _package(module: str) -> str:
    return module.partition(".")[0]


def begin_import(module: str, mend: str) -> None:
    """Note that `module` is imported next."""
    imports_begun.append(Import(module, mend))
