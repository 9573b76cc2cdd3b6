"""An array library on one device, as the instruments see it, and how it is found: by name, like a backend.

The library NAME is the file ``attnlab/libraries/NAME_library.py``, imported when it is asked for; it imports the
library itself no earlier than when it is opened. It defines ``open_on(device)``, which returns a `Library` or raises
Unavailable, and may define ``THREAD_VARIABLES``, the variables from which the library reads its number of threads,
``HUGE_PAGES``, those that make it take large arrays on huge pages, with their values, and, where it computes on
another's arrays, that library's name as ``ARRAYS_OF`` and a matrix product of its own as ``product``.
"""

from __future__ import annotations

import functools
import importlib
import operator
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Unavailable

Call = Callable[[], Any]
Arrays = tuple[Any, ...]
_HOME, _SUFFIX = "attnlab.libraries", "_library"


class Library(Protocol):
    """What the instruments need of an array library on one device."""

    name: str
    device: str
    #: "warm" where a timed call finds its inputs in cache as the call before left them, else "cold"
    cache: str
    #: whether an array can be written into where it lies
    in_place: bool
    #: returns what a call gave once it is computed, for a library whose calls return before that; None for others, and
    #: on a device where the clock waits for all calls at once
    completed: Callable[[Any], Any] | None

    def declines(self, dtype: str) -> str | None:
        """Why this library cannot compute in `dtype`, or None."""

    def no_gradients(self) -> str | None:
        """Why it cannot differentiate, or None."""

    # -- arrays in and out -------------------------------------------------------------------------

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        """The library's array on its device, contiguous; `array` holds values of `dtype` exactly, or booleans."""

    def to_numpy(self, array: Any) -> NDArray[Any]:
        """A NumPy array of the same values (bfloat16 in float32)."""

    def dtype_of(self, array: Any) -> str:
        """The name of the array's number format, as in `attnlab.problem.vocabulary`."""

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

    # -- stored keys and values, and parts of the keys: what a library lacks is declined with a reason -----

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        """A new array of `arrays` one after the other along `axis`."""

    def write(self, array: Any, at: tuple[slice, ...], rows: Any) -> None:
        """Put `rows` into `array` where it lies, at these places."""

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        """A function from an array to a new one: what stands at `places` along its first axis, in their shape."""

    def numbers(self, array: NDArray[np.int64]) -> Any:
        """Whole numbers as the library's array of int32 on its device."""

    @property
    def namespace(self) -> Any:
        """The module with NumPy's names for its arrays: exp, log, maximum, where, ones_like, zeros_like."""

    def cast(self, array: Any, dtype: str) -> Any:
        """`array` rounded to `dtype`; itself where it has it."""

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

    def trim(self) -> None:
        """Give back device memory that is kept but not in use: other contenders want it."""

    def attest(self, call: Call) -> str:
        """What computes `call`, which has run before: kernels where the library tells, or else its BLAS."""

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from now on."""

    def modes(self) -> dict[str, str]:
        """Modes of this process that may lower the precision of float32, by name, as they are now."""

    def versions(self) -> dict[str, str]:
        """Versions that decide the speed and the numbers."""


@functools.cache
def library_names() -> tuple[str, ...]:
    """Every library that there is a file for, installed or not."""
    home = importlib.import_module(_HOME)
    names = (module.name for module in pkgutil.iter_modules(home.__path__))
    return tuple(sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)))


@functools.cache
def array_libraries() -> tuple[str, ...]:
    """The libraries with arrays of their own: the others compute on theirs, which their file's ARRAYS_OF names."""
    return tuple(one for one in library_names() if not hasattr(_module(one), "ARRAYS_OF"))


@functools.cache
def products() -> dict[str, Callable[[Any, Any], Any]]:
    """By library, its own product of two matrices: that of its arrays, or its file's `product` on those of another."""
    own = {name: getattr(_module(name), "product", None) for name in library_names()}
    own |= dict.fromkeys(array_libraries(), operator.matmul)
    return {name: product for name, product in own.items() if product is not None}


@functools.cache
def thread_variables() -> tuple[str, ...]:
    """Environment variables from which any of the libraries reads its number of threads when it is imported."""
    found = [
        name for library in library_names() for name in getattr(_module(library), "THREAD_VARIABLES", ())
    ]
    return tuple(dict.fromkeys(found))


@functools.cache
def huge_page_variables() -> dict[str, str]:
    """Environment variables by which the libraries take large arrays on huge pages, where they do not anyway."""
    found: dict[str, str] = {}
    for library in library_names():
        found |= getattr(_module(library), "HUGE_PAGES", {})
    return found


@functools.cache
def open_library(name: str, device: str = "cpu") -> Library:
    """The array library `name` on `device`, imported now; the same object for the same question.

    Raises Unavailable where the library or the device is missing, ValueError for an unknown name.
    """
    if name not in library_names():
        raise ValueError(f"library must be one of {', '.join(library_names())}, got {name!r}")
    try:
        library: Library = _module(name).open_on(device)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # a fault of our packaging must never read as "not installed"
        raise Unavailable(f"{name} is not installed ({missing}); pip install {missing.name}") from None
    return library


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{_HOME}.{name}{_SUFFIX}")


def array_type(library: Library) -> type:
    """The type of the library's arrays."""
    return type(library.from_numpy(np.zeros(1, np.float32), "float32"))
