"""Asking a backend one question, and seeing what else it does: to its inputs, and to what it returned before.

Runs in the process that holds the backend. Arrays lie in memory as the question wants, because a kernel that
reads past a stride is right on contiguous arrays only; after the call the inputs are compared with what they
were, and the results of the calls before with what those were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.library import Library
from attnlab.errors import Misbehaved
from attnlab.system import processor_seconds
from attnlab.workload.inputs import Inputs
from attnlab.workload.workload import Workload

INPUTS = ("query", "key", "value", "output gradient")

#: processor seconds from which on an answer is asked for again: what compiles at all takes longer
_LONG_SECONDS = 0.005
#: as many second answers more may have saved less than half than have saved more
_IN_VAIN = 3
T = TypeVar("T")
#: calls whose results are looked at again: buffers that are used in turn are two or three
_REMEMBERED = 8


class Witness:
    """Remembers what a call was given and what the calls before returned, and compares."""

    def __init__(self, library: Library) -> None:
        self._library = library
        #: of each call its results: name, array, and what the array held
        self._earlier: deque[list[tuple[str, Any, bytes]]] = deque(maxlen=_REMEMBERED)

    def watch(
        self,
        inputs: tuple[Any, ...],
        call: Callable[[], Any],
        names: Sequence[str],
        around: Sequence[Any] = (),
    ) -> Any:
        """What `call` returns: the one result that `names` names, or a tuple of them.

        inputs : query, key, value and, for gradients, the output's gradient. around : larger arrays that hold
        them. Raises Misbehaved for changed inputs and what lies beside them, memory shared with query, key or
        value, and a changed earlier result.
        """
        before = [self._bits(array) for array in inputs]
        beside = [self._bits(array) for array in around]
        returned = call()
        results = (returned,) if len(names) == 1 else returned
        for name, array, was in zip(INPUTS, inputs, before, strict=False):
            if self._bits(array) != was:
                raise Misbehaved(f"it changed its {name} array")
        for array, was in zip(around, beside, strict=True):
            if self._bits(array) != was:
                raise Misbehaved("it wrote beside its inputs")
        for result, found in zip(names, results, strict=False):
            for name, array in zip(INPUTS[:3], inputs, strict=False):
                if self._library.shares_memory(array, found):
                    raise Misbehaved(f"its {result} shares memory with its {name} array")
        for result, kept, was in (one for call_results in self._earlier for one in call_results):
            if self._bits(kept) != was:
                raise Misbehaved(f"a call changed the {result} that an earlier call had returned")
        # what is no array at all is told by the check of its shape
        self._earlier.append(
            [
                (result, found, self._bits(found))
                for result, found in zip(names, results, strict=False)
                if hasattr(found, "shape")
            ]
        )
        return returned

    def _bits(self, array: Any) -> bytes:
        """What it holds; compared as bytes, which takes a fraction of comparing numbers, and NaN is itself."""
        return np.asarray(self._library.to_numpy(array)).tobytes()


class Probe:
    """A backend in this process, ready to be asked."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._witness: Witness | None = None

    def answer(
        self,
        problem: Inputs,
        workload: Workload,
        layout: str = "contiguous",
        gradient_layout: str = "contiguous",
    ) -> dict[str, NDArray[Any]]:
        """The named results of `workload` on the problem's arrays, laid out in memory as the layouts say.

        layout, gradient_layout : see `laid_out`. "refilled": asked once on other arrays, which are then filled in place
        with these and asked again; a backend that keeps results, or copies of an array, by the identity of its arrays
        answers with the old ones. Where arrays cannot be written into, it is asked once.

        Raises Declined, also where the backend cannot be differentiated; Misbehaved, also for a result that is
        missing or of a wrong shape or dtype; and whatever the backend raises.
        """
        backend = self.backend
        backend.require(workload)
        library = backend.open(workload.device)
        arrays = (problem.query, problem.key, problem.value)
        around: list[Any] = []
        given = laid_out(library, arrays, workload.dtype, layout, around)
        upstream: tuple[Any, ...] = ()
        if workload.backward:
            assert problem.output_gradient is not None
            upstream = laid_out(library, (problem.output_gradient,), workload.dtype, gradient_layout)
        if layout == "refilled" and library.in_place:
            final = given
            # by another distance each: no two of them are stale in step
            rolled = tuple(np.roll(array, 1 + at, axis=2) for at, array in enumerate(arrays))
            given = laid_out(library, rolled, workload.dtype, layout)
            self._watched(workload, problem, given, upstream, ())
            for array, filling in zip(given, final, strict=True):
                array[...] = filling
        returned = self._watched(workload, problem, given, upstream, around)
        try:
            found = backend.named(workload, returned)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None
        return {name: np.array(one) for name, one in found.items()}

    def _watched(
        self,
        workload: Workload,
        problem: Inputs,
        given: tuple[Any, ...],
        upstream: tuple[Any, ...],
        around: Sequence[Any],
    ) -> Any:
        self._witness = self._witness or Witness(self.backend.open(workload.device))
        call = self.backend.call(workload, problem, given, *upstream)
        return self._witness.watch((*given, *upstream), call, workload.results, around)


#: layouts of query, key and value that differ
_MIXED = {
    "mixed": ("contiguous", "transposed", "heads inside"),
    "mixed 2": ("heads inside", "contiguous", "transposed"),
}


def laid_out(
    library: Library, arrays: Sequence[NDArray[Any]], dtype: str, layout: str, around: list[Any] | None = None
) -> tuple[Any, ...]:
    """`arrays` in the library, (batch, heads, length, dim) to the eye, in memory as `layout` says.

    "transposed": the length runs fastest. "heads inside": (batch, length, heads, dim), as a projection leaves
    it. "mixed", "mixed 2": one contiguous, one transposed, one with heads inside. "packed": side by side in one
    (batch, length, 3, heads, dim), as one projection for all leaves them, where they are alike in shape. "sliced":
    every second position of a longer array, with other numbers between. "cache": positions amid a longer array of
    NaN, which is appended to `around`. "expanded", "batch expanded": one head's or batch's memory stands for all,
    where they are alike. "one number": one stands for all, as in the gradient of a sum. Else contiguous.
    """
    if layout == "packed":
        # stack copies, as all below: what a backend does to its input must not reach the question
        packed = library.from_numpy(np.stack([array.swapaxes(1, 2) for array in arrays], axis=2), dtype)
        return tuple(packed[:, :, at].swapaxes(1, 2) for at in range(len(arrays)))
    layouts = _MIXED.get(layout, (layout,) * len(arrays))
    found = [_alone(library, *one, dtype) for one in zip(arrays, layouts, strict=True)]
    if layout == "cache" and around is not None:
        around.extend(larger for _, larger in found)
    return tuple(array for array, _ in found)


def _alone(library: Library, array: NDArray[Any], layout: str, dtype: str) -> tuple[Any, Any]:
    """One array as `laid_out`, and the larger one that holds it, or itself."""
    n = array.shape[2]
    exchanged = {"transposed": (2, 3), "heads inside": (1, 2)}.get(layout)
    if exchanged:
        found = library.from_numpy(np.array(array.swapaxes(*exchanged), order="C"), dtype)
        return found.swapaxes(*exchanged), found
    if layout in ("sliced", "cache"):
        length, filling, at = (
            (2 * n, 3.0, np.s_[::2]) if layout == "sliced" else (n + 70, np.nan, np.s_[3 : 3 + n])
        )
        longer = np.full((*array.shape[:2], length, array.shape[3]), filling, dtype=array.dtype)
        longer[:, :, at] = array
        found = library.from_numpy(longer, dtype)
        return found[:, :, at], found
    one = _one_for_all(array, layout)
    found = library.from_numpy(np.array(one, order="C"), dtype)
    if one.shape == array.shape:
        return found, found
    return library.expanded(found, array.shape), found


def _one_for_all(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """The part of `array` that stands for all of it in an expanded layout; itself where that is not alike."""
    parts = {"expanded": array[:, :1], "batch expanded": array[:1], "one number": array[:1, :1, :1, :1]}
    part = parts.get(layout, array)
    return part if (part == array).all() else array


class Pace:
    """Seconds that answers took, and `setup` seconds that they took once, both so far.

    What a backend does once, compiling a kernel, tuning it, starting a library, is carried by the first answer to a
    question of a new kind. An answer that took long is therefore asked for again, and what the second one saves is
    set-up. A backend whose second answers save nothing is slow, and is soon not asked twice.

    By default processor seconds of this process, all its threads together, and of what it has started and waited for,
    such as a compiler: a busy machine makes nobody slow.
    """

    def __init__(self, clock: Callable[[], float] = processor_seconds) -> None:
        self._clock = clock
        self._in_vain = 0
        self.seconds = self.setup = 0.0

    def timed(self, answer: Callable[[], T]) -> T:
        """What `answer` returns, the first time; where that took long it is called twice. Raises what it raises."""
        found, first = self._once(answer)
        again = first
        if first > _LONG_SECONDS and self._in_vain < _IN_VAIN:
            again = min(first, self._once(answer)[1])
            self._in_vain += 1 if again > first / 2 else -1
        self.seconds += again
        self.setup += first - again
        return found

    def _once(self, answer: Callable[[], T]) -> tuple[T, float]:
        started = self._clock()
        found = answer()
        return found, self._clock() - started
