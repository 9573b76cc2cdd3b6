"""An array library on one device (`Library`): its interface, and how a library is found by its name.

Each library is a class in a file ``libraries/*_library.py``, which lists its classes as ``LIBRARIES``. It imports the
library itself with `required`, when it is opened and not before. This file also holds what backends on kernels of other
packages share: `Programs`, `positive_scale`, `Made`, `Recipe`, `declining`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import pkgutil
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.errors import Declined, Refusal, Unavailable

Call = Callable[[], Any]
Arrays = tuple[Any, ...]

#: the clock as it was before any backend was imported, which could replace it
_clock = time.perf_counter


class Programs:
    """Programs that a library has prepared, one for each kind of call and number of threads.

    make : makes a program from hashable arguments, which describe the kind of call, and the number of threads.
    watched : makes the program for a call that is observed (`used_by`), if that needs another program.
    """

    def __init__(self, make: Callable[..., Any], watched: Callable[..., Any] | None = None) -> None:
        self.threads: int | None = None
        self._make, self._watched = functools.lru_cache(maxsize=64)(make), watched
        self._ran: list[Any] | None = None

    def get(self, *asked: Hashable) -> Any:
        """The program for these arguments, made now if there is none yet."""
        threads = self.threads or system.cores()
        if self._ran is None:
            return self._make(*asked, threads)
        program = (self._watched or self._make)(*asked, threads)
        self._ran.append(program)
        return program

    def used_by(self, call: Callable[[], Any]) -> list[Any]:
        """The programs that one `call` uses."""
        self._ran = []
        try:
            call()
            return self._ran
        finally:
            self._ran = None


class Library(ABC):
    """One array library on one device.

    The defaults are those of a library that computes on the CPU, before a call returns, and without gradients. Its
    `name` is that of the extra that installs its `modules`; the first of these modules is imported.
    """

    name: ClassVar[str]
    modules: ClassVar[tuple[str, ...]] = ()
    #: environment variables from which it reads its number of threads on import
    thread_variables: ClassVar[tuple[str, ...]] = ()
    #: environment variables that make it put large arrays on huge pages, if it does not do so by default
    huge_pages: ClassVar[Mapping[str, str]] = {}
    #: modules that are imported before its processes are forked; None if it cannot be forked
    before_fork: ClassVar[tuple[str, ...] | None] = None
    #: the library whose arrays it computes on, if it has none of its own
    arrays_of: ClassVar[str | None] = None
    #: its product of two matrices, if that is not the operator @ of its own arrays
    product: ClassVar[Any] = None
    #: the beginning of a sentence for users: what computes
    runs: ClassVar[str] = ""
    #: the programs that its backends have prepared
    programs: ClassVar[Programs | None] = None
    device = "cpu"
    #: "warm" if a timed call finds its inputs in the cache, where the call before left them, else "cold"
    cache = "warm"
    #: whether its calls are timed by a clock of the device, which leaves out the work of the host around them
    own_clock = False
    #: whether an array can be overwritten in place
    in_place = True
    #: the number formats in which it does not compute, and why
    lacking: ClassVar[Mapping[str, str]] = {}
    #: why it gives no gradients, or None; why no backward pass can be timed alone, or None
    without_gradients: str | None = "it has no automatic differentiation"
    no_backward_alone: str | None = None
    #: waits for the result of a call that returns before it has computed; None if this is not needed
    completed: Callable[[Any], Any] | None = None
    #: overwrites an array with the numbers of another one of the same shape and format; None if that is impossible
    refill: Callable[[Any, Any], None] | None = staticmethod(lambda a, b: operator.setitem(a, ..., b))
    #: for packed and paged keys: makes a function that takes the rows at `places` of an array, in the shape of `places`
    taking: Callable[[NDArray[np.int64]], Callable[[Any], Any]]

    #: the module of functions on its arrays that have the names and arguments of NumPy's: where, stack, broadcast_to
    functions: Any = None

    def __init__(self, module: Any = None) -> None:
        self.module = module
        self.functions = self.functions or getattr(module, "numpy", module)

    @classmethod
    def opened(cls) -> Any:
        """The first of its modules, imported and set up. Raises Unavailable if one is missing."""
        return required(*cls.modules, extra=cls.name)

    @classmethod
    def open_on(cls, device: str) -> Self:
        """The library on `device`. Raises Unavailable for any device but the CPU, and if it is not installed."""
        module = cls.opened()
        if device != "cpu":
            raise Unavailable(f"{cls.runs} on the CPU only, not on {device}")
        return cls(module)

    def declines(self, dtype: str) -> Refusal | None:
        """Why it cannot compute in `dtype`, or None."""
        return Refusal("dtype", self.lacking[dtype]) if dtype in self.lacking else None

    # -- arrays

    @abstractmethod
    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        """The library's array on its device, contiguous. `array` holds values of `dtype` exactly, or booleans."""

    @abstractmethod
    def to_numpy(self, array: Any) -> NDArray[Any]:
        """A NumPy array of the same values (bfloat16 in float32)."""

    def dtype_of(self, array: Any) -> str:
        """The name of the array's number format, as in `attnlab.workload.number_formats`."""
        return str(array.dtype).rpartition(".")[2]

    def fill(self, array: Any, where: Any, number: float) -> Any:
        """A copy of `array` with `number` where the boolean array `where`, which broadcasts to it, is True."""
        return self.functions.where(where, number, array)

    @abstractmethod
    def shares_memory(self, one: Any, other: Any) -> bool:
        """Whether two arrays use the same memory."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """x weightᵀ + bias, as users of the library write it: (…, in) with (out, in) and (out,) to (…, out)."""
        return x @ weight.T + bias

    # -- gradients

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        """A call that returns the gradients of `arrays` only. ``attend(*arrays)`` is computed now, once.

        Gradients do not add up over calls. Raises Declined as `training_call` does.
        """
        raise Declined(Refusal("direction", self.without_gradients or self.no_backward_alone or ""))

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        """A call that returns ``attend(*arrays)`` and the gradients of `arrays`, by automatic differentiation.

        A gradient is None if the output does not depend on the array. Raises Declined, now or when called, if the
        library or the call has no gradients.
        """
        raise Declined(Refusal("direction", self.without_gradients or ""))

    # -- instruments

    def finish(self) -> None:  # noqa: B027 - most have no queue
        """Wait until all queued work is done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        """Seconds per call over `iterations` calls, queued work included."""
        self.finish()
        start = _clock()
        for _ in range(iterations):
            call()
        self.finish()
        return (_clock() - start) / iterations

    def peak_bytes(self, call: Call) -> int | None:
        """Peak device memory of one call beyond what was held before, or None if the heap must be traced."""
        return None

    def free_bytes(self) -> int:
        """Bytes of free memory on the device."""
        return system.free_bytes()

    def attest(self, call: Call) -> str:
        """The kernels that ran in `call`, which has run before, as the library reports them; by default its BLAS."""
        from threadpoolctl import threadpool_info

        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        named = (f"{pool['internal_api']} {pool.get('architecture') or ''}".strip() for pool in pools)
        return ", ".join(named) or "no BLAS library was loaded"

    def set_threads(self, count: int) -> None:
        """Compute with `count` threads from now on."""
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)
        if self.programs is not None:
            self.programs.threads = count

    def modes(self) -> dict[str, str]:
        """The modes of this process that may lower the precision of float32, by name."""
        return {}

    def versions(self) -> dict[str, str]:
        """Versions that decide the speed and the numbers."""
        loaded = {name.partition(".")[0]: importlib.import_module(name) for name in ("numpy", *self.modules)}
        return {name: str(getattr(one, "__version__", "unknown")) for name, one in loaded.items()}


# -- what backends share that call kernels of other packages -----------------------------------------

#: a scale below it is folded into the query: the smallest normal number of float32
LEAST_SCALE = 2.0**-126


def positive_scale(query: Any, scale: float) -> tuple[Any, float]:
    """(query', scale') with the same logits and scale' > 0; unchanged for a scale of at least `LEAST_SCALE`.

    PyTorch's fused kernels mask with -inf and multiply by the scale afterwards, in float32: 0·(-inf) and -1·(-inf)
    turn every causal row into NaN (PyTorch 2.13, CPU flash kernel). A scale that float32 flushes to 0 has the same
    effect. Some other kernels refuse a scale of 0 or below, take 0 as none, or return NaN.
    """
    if scale >= LEAST_SCALE:
        return query, scale
    return (-query, -scale) if scale <= -LEAST_SCALE else (query * scale, 1.0)


class Recipe(NamedTuple):
    """How a compiled model is made. Recipes with equal functions and arguments are equal, so they share one model."""

    make: Callable[..., Any]
    arguments: tuple[Hashable, ...]

    def __call__(self, *more: Any) -> Any:
        return self.make(*self.arguments, *more)


@contextmanager
def declining(library: str, *telling: str) -> Iterator[None]:
    """Raises Declined if the library raises an error that says that it has no gradients.

    That is a NotImplementedError, or a RuntimeError whose text contains one of `telling`. library : the library's name.
    """
    try:
        yield
    except RuntimeError as refused:
        text = " ".join(str(refused).split())
        if not isinstance(refused, NotImplementedError) and not any(one in text for one in telling):
            raise
        raise Declined(f"{library} says: {text[:200]}") from None


class Made:
    """``make(array, *rest)``, cached while the array lives: for example a mask in the form that a kernel takes.

    A worker binds an array once and passes the same array in every call. So the result is made in the first call, not
    on the clock. It is made again after a change in place, which PyTorch counts. It must not refer to the array.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._kept: dict[Hashable, tuple[weakref.ref[Any], Any, Any]] = {}

    def __call__(self, array: Any, *rest: Hashable) -> Any:
        key, version = (id(array), rest), getattr(array, "_version", None)
        known = self._kept.get(key)
        if known is not None and known[0]() is array and known[1] == version:
            return known[2]
        found = self._make(array, *rest)
        self._kept[key] = weakref.ref(array, lambda _: self._kept.pop(key, None)), version, found
        return found


# -- libraries by name ---------------------------------------------------------------------------------


@functools.cache
def libraries() -> dict[str, type[Library]]:
    """Every library that has a class here, installed or not, by its name."""
    home = importlib.import_module("attnlab.libraries")
    files = [one.name for one in pkgutil.iter_modules(home.__path__) if one.name.endswith("_library")]
    kinds: list[type[Library]] = [
        kind for file in files for kind in importlib.import_module(f"{home.__name__}.{file}").LIBRARIES
    ]
    return {kind.name: kind for kind in sorted(kinds, key=lambda one: one.name)}


def products() -> dict[str, Callable[[Any, Any], Any]]:
    """The product of two matrices of each library that has its own, by the library's name."""
    return {
        name: one.product or operator.matmul
        for name, one in libraries().items()
        if one.product or not one.arrays_of
    }


def thread_variables() -> tuple[str, ...]:
    """Environment variables from which any library reads its number of threads on import."""
    return tuple(dict.fromkeys(name for one in libraries().values() for name in one.thread_variables))


@functools.cache
def open_library(name: str, device: str = "cpu") -> Library:
    """The array library `name` on `device`, imported now; always the same object.

    Raises Unavailable if the library or the device is missing, ValueError for an unknown name.
    """
    if name not in libraries():
        raise ValueError(f"library must be one of {', '.join(libraries())}, got {name!r}")
    try:
        return libraries()[name].open_on(device)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "attnlab":
            raise  # an error in the packaging of attnlab must not be reported as "not installed"
        raise Unavailable(f"{name} is not installed ({missing}); pip install {missing.name}") from None


# -- imported late -------------------------------------------------------------------------------------


#: modules whose import was begun in this process, in order, each with the command that reinstalls it
imports_begun: list[tuple[str, str]] = []
#: the versions of the modules that `required` has imported in this process
VERSIONS: dict[str, str] = {}


def required(*modules: str, extra: str) -> Any:
    """The first of these modules, imported now; its version is noted in `VERSIONS`. The others must be installed.

    Raises Unavailable, with the command that installs them, if one is missing or cannot be imported.
    """
    for module in modules:
        if not is_there(module):
            raise Unavailable(f"{module.partition('.')[0]} is not installed; pip install 'attnlab[{extra}]'")
    anew = f"pip install --force-reinstall 'attnlab[{extra}]'"
    imports_begun.append((modules[0], anew))
    try:
        found = importlib.import_module(modules[0])
    except (Exception, SystemExit) as fault:  # incompletely installed, or for another version of NumPy
        text = " ".join(str(fault).split())[:200]
        raise Unavailable(f"{modules[0]} fails on import ({type(fault).__name__}: {text}); {anew}") from None
    VERSIONS[modules[0].partition(".")[0]] = str(getattr(found, "__version__", "unknown"))
    return found


def is_there(module: str) -> bool:
    """Whether the package of `module` is installed. Nothing is imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):  # its parent cannot be imported, or it has no spec
        return False
