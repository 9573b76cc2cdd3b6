"""What libraries share that compute on the host when they are called: its clock, its memory, and no gradients."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from attnlab.backends.library import Arrays, Call, begin_import
from attnlab.errors import Declined, Refusal, Unavailable
from attnlab.system import free_bytes as free_bytes

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11: workers run in 3.10 too

#: as it was before any backend was imported
_clock = time.perf_counter


def seconds_per_call(call: Callable[[], Any], iterations: int, finish: Callable[[], None]) -> float:
    """Seconds per call by the host's monotonic clock, with queued work finished on both sides."""
    finish()
    start = _clock()
    for _ in range(iterations):
        call()
    finish()
    return (_clock() - start) / iterations


def seconds_by_events(
    call: Call,
    pairs: Sequence[tuple[Any, Any]],
    flush: Callable[[], Any],
    finish: Callable[[], None],
    elapsed: Callable[[Any, Any], float],
) -> float:
    """Device time per call by pairs of CUDA events around every call, the L2 cache overwritten before each.

    All is queued first and waited for once, so the host's own time is hidden as long as a call takes longer on the
    device than its launch; the overwriting gives the host that head start. elapsed : milliseconds between two events.
    """
    for start, end in pairs:
        flush()
        start.record()
        call()
        end.record()
    finish()
    return float(sum(elapsed(start, end) for start, end in pairs)) / 1e3 / len(pairs)


#: versions of what was required in this process, by the module's name
VERSIONS: dict[str, str] = {}


def required(*modules: str, extra: str) -> Any:
    """The first of these modules, imported now, its version noted in `VERSIONS`; the others are only looked for.

    Raises Unavailable, with the line that installs them, where one is missing or cannot be
    imported. What is imported is noted first (`begin_import`): it may end this process.
    """
    mend = f"pip install 'attnlab[{extra}]'"
    anew = f"pip install --force-reinstall 'attnlab[{extra}]'"
    for module in modules:
        if not is_there(module):
            raise Unavailable(f"{module.partition('.')[0]} is not installed; {mend}")
    begin_import(modules[0], anew)
    try:
        found = importlib.import_module(modules[0])
    except (Exception, SystemExit) as fault:  # half installed, or for another version of NumPy
        text = " ".join(str(fault).split())[:200]
        raise Unavailable(f"{modules[0]} fails on import ({type(fault).__name__}: {text}); {anew}") from None
    VERSIONS[modules[0].partition(".")[0]] = str(getattr(found, "__version__", "unknown"))
    return found


def is_there(module: str) -> bool:
    """Whether the package that holds `module` is installed; nothing is imported."""
    try:
        return importlib.util.find_spec(module.partition(".")[0]) is not None
    except (ImportError, ValueError):  # what holds it cannot be imported, or it is there without a spec
        return False


def tracer() -> Any:
    """The package memray, which tells the peak of memory on the CPU.

    Raises Unavailable, with the line that installs it, where it is missing.
    """
    if not is_there("memray"):
        raise Unavailable("memray is not installed; pip install 'attnlab[memory]'")
    import memray

    return memray


#: a scale below it is folded into the query: the smallest normal number of float32
LEAST_SCALE = 2.0**-126


def positive_scale(query: Any, scale: float) -> tuple[Any, float]:
    """(query', scale') with the same logits and scale' > 0, as they are for a scale of at least `LEAST_SCALE`.

    PyTorch's fused kernels mask with -inf and multiply by the scale afterwards, in float32: 0·(-inf) and -1·(-inf)
    turn every causal row into NaN (PyTorch 2.13, CPU flash kernel). A scale that float32 takes for zero is such a 0;
    other libraries refuse it.
    """
    if scale >= LEAST_SCALE:
        return query, scale
    return (-query, -scale) if scale <= -LEAST_SCALE else (query * scale, 1.0)


class Recipe(partial[Any]):
    """How a compiled model is made: calls with equal arguments are equal, so that one can be kept for both."""

    def __hash__(self) -> int:
        return hash((self.func, self.args))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self.func, self.args) == (other.func, other.args)


class Made:
    """``make(array, *rest)``, kept while the array lives: what a kernel wants made of a mask, say.

    A worker binds an array once and hands over the same one in every call, so that it is made in the first call, before
    any clock. Of changes in place those are seen that PyTorch counts. What is made must not refer to the array.
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


class Programs:
    """What a library has prepared to compute, one program for each recipe and number of threads.

    make : from what is asked and the threads to the program; what is asked is hashable. watched : the same for a call
    that is watched, where a program has to be made otherwise for that.
    """

    def __init__(self, make: Callable[..., Any], watched: Callable[..., Any] | None = None) -> None:
        self.threads: int | None = None
        self._make, self._watched = functools.lru_cache(maxsize=64)(make), watched
        self._ran: list[Any] | None = None

    def get(self, *asked: Hashable) -> Any:
        """The program for what is asked, made now where there is none yet."""
        threads = self.threads or len(os.sched_getaffinity(0))
        program = (self._make if self._ran is None or self._watched is None else self._watched)(
            *asked, threads
        )
        if self._ran is not None:
            self._ran.append(program)
        return program

    def used_by(self, call: Call) -> list[Any]:
        """The programs that one `call` gets."""
        self._ran = []
        try:
            call()
            return self._ran
        finally:
            self._ran = None


def _refill(array: Any, other: Any) -> None:
    array[...] = other


class HostLibrary:
    """The half of `attnlab.backends.library.Library` that needs no arrays; a library adds the other half.

    As it stands it is one for the CPU alone, whose `name` is that of attnlab's extra that installs its `modules`.
    """

    name = "host"
    modules: ClassVar[tuple[str, ...]] = ()
    thread_variables: ClassVar[tuple[str, ...]] = ()
    before_fork: ClassVar[tuple[str, ...] | None] = None
    huge_pages: ClassVar[Mapping[str, str]] = {}
    arrays_of: ClassVar[str | None] = None
    product: ClassVar[Any] = None
    #: who computes, for a person
    runs = ""
    #: what its backends have prepared to compute
    programs: ClassVar[Programs | None] = None
    device = "cpu"
    cache = "warm"
    in_place = True
    completed: Callable[[Any], Any] | None = None
    refill: Callable[[Any, Any], None] | None = staticmethod(_refill)
    #: why it does not compute in a number format, by format
    lacking: ClassVar[Mapping[str, str]] = {}
    #: why it gives no gradients
    without_gradients: str | None = "it has no automatic differentiation"
    no_backward_alone: str | None = None
    no_projections: str | None = None

    def __init__(self, module: Any = None) -> None:
        self.module = module

    @classmethod
    def opened(cls) -> Any:
        """The first of its modules, imported and set up. Raises Unavailable where one is missing."""
        return required(*cls.modules, extra=cls.name)

    @classmethod
    def open_on(cls, device: str) -> Self:
        """It on `device`. Raises Unavailable for any device but the CPU, and where it is not installed."""
        module = cls.opened()
        if device != "cpu":
            raise Unavailable(f"{cls.runs} on the CPU only, not on {device}")
        return cls(module)

    def declines(self, dtype: str) -> Refusal | None:
        return Refusal("dtype", self.lacking[dtype]) if dtype in self.lacking else None

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        raise Declined(Refusal("direction", self.without_gradients or ""))

    training_call = backward_call

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def stacked(self, arrays: Sequence[Any], axis: int) -> Any:
        return arrays[0].__array_namespace__().stack(list(arrays), axis=axis)

    def finish(self) -> None:
        """Calls return when they are done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        return seconds_per_call(call, iterations, self.finish)

    def peak_bytes(self, call: Call) -> int | None:
        return None

    def free_bytes(self) -> int:
        return free_bytes()

    def attest(self, call: Call) -> str:
        from threadpoolctl import threadpool_info

        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        return (
            ", ".join(f"{pool['internal_api']} {pool.get('architecture') or ''}".strip() for pool in pools)
            or "no BLAS library was loaded"
        )

    def modes(self) -> dict[str, str]:
        return {}

    def set_threads(self, count: int) -> None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)
        if self.programs is not None:
            self.programs.threads = count

    def versions(self) -> dict[str, str]:
        loaded = {name.partition(".")[0]: importlib.import_module(name) for name in ("numpy", *self.modules)}
        return {name: str(getattr(one, "__version__", "unknown")) for name, one in loaded.items()}
