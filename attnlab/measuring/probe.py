"""Asking a backend one question, and watching its hands: what it does to inputs and earlier outputs counts too.

Runs in the process that holds the backend. Arrays lie in memory as the question wants, because a kernel that
reads past a stride is right on contiguous arrays only; after the call the inputs are compared with what they
were, and the outputs of the calls before with what those were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.backend import Backend, checked_gradient, checked_output
from attnlab.contract.errors import Declined, Misbehaved
from attnlab.contract.library import Library
from attnlab.contract.workload import Workload

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
Gradients = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

INPUTS = ("query", "key", "value", "output gradient")
RESULTS = ("output", "query gradient", "key gradient", "value gradient")

#: calls whose results are looked at again: buffers that are used in turn are two or three
_REMEMBERED = 8


class Witness:
    """Remembers what a call was given and what the calls before returned, and compares."""

    def __init__(self, values: Callable[[Any], NDArray[Any]]) -> None:
        self._values = values
        #: of each call its results: name, array, and what the array held
        self._earlier: deque[list[tuple[str, Any, NDArray[Any]]]] = deque(maxlen=_REMEMBERED)

    def watch(
        self, inputs: tuple[Any, ...], call: Callable[[], tuple[Any, ...]], around: Sequence[Any] = ()
    ) -> tuple[Any, ...]:
        """What `call` returns: the output alone, or with the gradients of query, key and value.

        inputs : query, key, value and, for gradients, the output's gradient. around : larger arrays that hold
        them. Raises Misbehaved for changed inputs and what lies beside them, memory shared with query, key or
        value, and a changed earlier result.
        """
        before = [self._values(array).copy() for array in inputs]
        beside = [self._values(array).copy() for array in around]
        found = call()
        for name, array, was in zip(INPUTS, inputs, before, strict=False):
            if not np.array_equal(self._values(array), was):
                raise Misbehaved(f"it changed its {name} array")
        for array, was in zip(around, beside, strict=True):
            if not np.array_equal(self._values(array), was, equal_nan=True):
                raise Misbehaved("it wrote beside its inputs")
        for result, output in zip(RESULTS, found, strict=False):
            for name, array in zip(INPUTS[:3], inputs, strict=False):
                if _shares(array, output):
                    raise Misbehaved(f"its {result} shares memory with its {name} array")
        for result, kept, was in (one for results in self._earlier for one in results):
            if not np.array_equal(self._values(kept), was, equal_nan=True):
                raise Misbehaved(f"a call changed the {result} that an earlier call had returned")
        # what is no array at all is told by the check of its shape
        results = [
            (result, output, self._values(output).copy())
            for result, output in zip(RESULTS, found, strict=False)
            if hasattr(output, "shape")
        ]
        self._earlier.append(results)
        return found

    def asked(
        self,
        attend: Callable[..., Any],
        library: Library,
        arrays: Arrays,
        dtype: str,
        layout: str,
        prepare: Callable[..., tuple[Any, ...]] = lambda *given: given,
    ) -> Any:
        """What `attend` returns for `arrays` laid out as `layout`, see `laid_out`, and prepared.

        "refilled": asked once on other arrays, which are then filled in place with these and asked again; a
        backend that keeps results, or copies of an array, by the identity of its arrays answers with the old ones.
        """
        around: list[Any] = []
        given = prepare(*laid_out(library, arrays, dtype, layout, around))
        if layout == "refilled":
            final = given
            # by another distance each: no two of them are stale in step
            rolled = tuple(np.roll(array, 1 + at, axis=2) for at, array in enumerate(arrays))
            given = prepare(*laid_out(library, rolled, dtype, layout))
            self.watch(given, lambda: (attend(*given),))
            for array, filling in zip(given, final, strict=True):
                array[...] = filling
        (output,) = self.watch(given, lambda: (attend(*given),), around)
        return output


class Specimen:
    """A backend in this process, ready to be asked."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._witness: Witness | None = None

    def ask(self, workload: Workload, arrays: Arrays, layout: str = "contiguous") -> NDArray[Any]:
        """The output for `arrays` laid out as `layout`, see `Witness.asked`.

        Raises Declined, Misbehaved (also for a wrong shape or dtype), and whatever the backend raises.
        """
        backend = self.backend
        reason = backend.declines(workload)
        if reason:
            raise Declined(reason)
        library = backend.open(workload.device)
        options = backend.options_of(workload)

        def attend(*given: Any) -> Any:
            return backend.attend(*given, **options)

        def prepare(*given: Any) -> tuple[Any, ...]:
            return backend.prepare(workload, *given) if backend.prepare else given

        output = self._witnessed(library).asked(attend, library, arrays, workload.dtype, layout, prepare)
        return self._checked(workload, output)

    def gradients(
        self,
        workload: Workload,
        arrays: Arrays,
        output_gradient: NDArray[Any],
        layout: str = "contiguous",
        gradient_layout: str = "contiguous",
    ) -> Gradients:
        """The output and the gradients of query, key and value, for arrays laid out as the two layouts say.

        Raises Declined, also where the backend cannot be differentiated; Misbehaved, also for a gradient that
        is missing or of another shape or dtype than its array; and whatever the backend raises.
        """
        library = self.backend.open(workload.device)
        given = laid_out(library, arrays, workload.dtype, layout)
        (upstream,) = laid_out(library, (output_gradient,), workload.dtype, gradient_layout)
        output, *found = self._witnessed(library).watch(
            (*given, upstream), lambda: self.backend.gradients(workload, given, upstream)
        )
        answer = self._checked(workload, output)
        try:
            query, key, value = (
                np.array(checked_gradient(library, *one))
                for one in zip(INPUTS[:3], found, given, strict=True)
            )
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None
        return answer, query, key, value

    def _witnessed(self, library: Library) -> Witness:
        self._witness = self._witness or Witness(library.to_numpy)
        return self._witness

    def _checked(self, workload: Workload, output: Any) -> NDArray[Any]:
        try:
            return np.array(checked_output(self.backend, workload, output))
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


#: layouts of query, key and value that differ
_MIXED = {
    "mixed": ("contiguous", "transposed", "heads inside"),
    "mixed 2": ("heads inside", "contiguous", "transposed"),
}


def laid_out(
    library: Library,
    arrays: Sequence[NDArray[Any]],
    dtype: str,
    layout: str,
    around: list[Any] | None = None,
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
    if layout == "transposed":
        found = library.from_numpy(np.array(array.swapaxes(2, 3), order="C"), dtype)
        return found.swapaxes(2, 3), found
    if layout == "heads inside":
        found = library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype)
        return found.swapaxes(1, 2), found
    if layout == "sliced":
        longer = np.full((*array.shape[:2], 2 * n, array.shape[3]), 3.0, dtype=array.dtype)
        longer[:, :, ::2] = array
        found = library.from_numpy(longer, dtype)
        return found[:, :, ::2], found
    if layout == "cache":
        longer = np.full((*array.shape[:2], n + 70, array.shape[3]), np.nan, dtype=array.dtype)
        longer[:, :, 3 : 3 + n] = array
        found = library.from_numpy(longer, dtype)
        return found[:, :, 3 : 3 + n], found
    one = _one_for_all(array, layout)
    found = library.from_numpy(np.array(one, order="C"), dtype)
    if one.shape == array.shape:
        return found, found
    return (
        np.broadcast_to(found, array.shape) if isinstance(found, np.ndarray) else found.expand(array.shape)
    ), found


def _one_for_all(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """The part of `array` that stands for all of it in an expanded layout; itself where that is not alike."""
    parts = {"expanded": array[:, :1], "batch expanded": array[:1], "one number": array[:1, :1, :1, :1]}
    part = parts.get(layout, array)
    return part if (part == array).all() else array


def _shares(array: Any, output: Any) -> bool:
    """Whether two arrays of one library use the same memory."""
    if isinstance(array, np.ndarray) and isinstance(output, np.ndarray):
        return bool(np.shares_memory(array, output))
    storages = [getattr(one, "untyped_storage", None) for one in (array, output)]
    if any(storage is None for storage in storages):
        return False
    places = [storage().data_ptr() for storage in storages if storage is not None]
    return bool(places[0] == places[1] != 0)
