"""Asking a backend one question, and watching its hands: what it does to inputs and earlier outputs counts too.

Runs in the process that holds the backend. Arrays lie in memory as the question wants, because a kernel that
reads past a stride is right on contiguous arrays only; after the call the inputs are compared with what they
were, and the output of the call before with what that was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.backend import Backend, checked_gradient, checked_output
from attnlab.ground.errors import Declined
from attnlab.ground.libraries import Library, NumPy
from attnlab.ground.workload import Workload

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
Gradients = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

INPUTS = ("query", "key", "value", "output gradient")
RESULTS = ("output", "query gradient", "key gradient", "value gradient")


class Misbehaved(Exception):
    """The backend did what no caller expects; the message says what."""


class Witness:
    """Remembers what a call was given and what the call before returned, and compares."""

    def __init__(self, values: Callable[[Any], NDArray[Any]]) -> None:
        self._values = values
        self._earlier: list[tuple[str, Any, NDArray[Any]]] = []

    def watch(self, inputs: tuple[Any, ...], call: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """What `call` returns: the output alone, or with the gradients of query, key and value.

        inputs : query, key, value and, for gradients, the output's gradient. Raises Misbehaved for changed
        inputs, memory shared with query, key or value, and a changed earlier result.
        """
        before = [self._values(array).copy() for array in inputs]
        found = call()
        for name, array, was in zip(INPUTS, inputs, before, strict=False):
            if not np.array_equal(self._values(array), was):
                raise Misbehaved(f"it changed its {name} array")
        for result, output in zip(RESULTS, found, strict=False):
            for name, array in zip(INPUTS[:3], inputs, strict=False):
                if _shares(array, output):
                    raise Misbehaved(f"its {result} shares memory with its {name} array")
        for result, kept, was in self._earlier:
            if not np.array_equal(self._values(kept), was, equal_nan=True):
                raise Misbehaved(f"a call changed the {result} that an earlier call had returned")
        # what is no array at all is told by the check of its shape
        self._earlier = [
            (result, output, self._values(output).copy())
            for result, output in zip(RESULTS, found, strict=False)
            if hasattr(output, "shape")
        ]
        return found


class Specimen:
    """A backend in this process, ready to be asked."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._witness: Witness | None = None

    def ask(self, workload: Workload, arrays: Arrays, layout: str = "contiguous") -> NDArray[Any]:
        """The output for `arrays` laid out as `layout`, see `laid_out`.

        "refilled": asked once, then its value array is refilled in place with other numbers and asked again;
        a backend that keeps results by the identity of its arrays answers with the old ones.
        Raises Declined, Misbehaved (also for a wrong shape or dtype), and whatever the backend raises.
        """
        backend = self.backend
        reason = backend.declines(workload)
        if reason:
            raise Declined(reason)
        library = backend.open(workload.device)
        first = (*arrays[:2], -arrays[2]) if layout == "refilled" else arrays
        given = tuple(laid_out(library, array, workload.dtype, layout) for array in first)
        given = backend.prepare(workload, *given) if backend.prepare else given
        options = backend.options_of(workload)

        def call() -> tuple[Any]:
            return (backend.attend(*given, **options),)

        (output,) = self._watch(library, given, call)
        if layout == "refilled":
            self._checked(workload, output)
            given[2][...] = -given[2]
            (output,) = self._watch(library, given, call)
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
        given = tuple(laid_out(library, array, workload.dtype, layout) for array in arrays)
        upstream = laid_out(library, output_gradient, workload.dtype, gradient_layout)
        output, *found = self._watch(
            library, (*given, upstream), lambda: self.backend.gradients(workload, given, upstream)
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

    def _watch(self, library: Library, inputs: tuple[Any, ...], call: Callable[[], tuple[Any, ...]]) -> Any:
        self._witness = self._witness or Witness(library.to_numpy)
        return self._witness.watch(inputs, call)

    def _checked(self, workload: Workload, output: Any) -> NDArray[Any]:
        try:
            return np.array(checked_output(self.backend, workload, output))
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


def laid_out(library: Library, array: NDArray[Any], dtype: str, layout: str) -> Any:
    """`array` in the library, (batch, heads, length, dim) to the eye, in memory as `layout` says.

    "transposed": the length runs fastest. "heads inside": (batch, length, heads, dim), as a projection leaves
    it. "sliced": every second position of a longer array, with other numbers between. "expanded": one head's memory
    stands for all, where they are alike. "one number": one stands for all, as in the gradient of a sum. Else
    contiguous.
    """
    # np.array copies: what a backend does to its input must not reach the question
    if layout == "transposed":
        return library.from_numpy(np.array(array.swapaxes(2, 3), order="C"), dtype).swapaxes(2, 3)
    if layout == "heads inside":
        return library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype).swapaxes(1, 2)
    if layout == "sliced":
        longer = np.full((*array.shape[:2], 2 * array.shape[2], array.shape[3]), 3.0, dtype=array.dtype)
        longer[:, :, ::2] = array
        return library.from_numpy(longer, dtype)[:, :, ::2]
    if layout == "expanded" and (array == array[:, :1]).all():
        one = library.from_numpy(np.array(array[:, :1], order="C"), dtype)
        return np.broadcast_to(one, array.shape) if isinstance(one, np.ndarray) else one.expand(array.shape)
    if layout == "one number" and (array == array.flat[0]).all():
        one = library.from_numpy(np.array(array[:1, :1, :1, :1], order="C"), dtype)
        return np.broadcast_to(one, array.shape) if isinstance(one, np.ndarray) else one.expand(array.shape)
    return library.from_numpy(np.array(array, order="C"), dtype)


def laid_out_in_numpy(array: NDArray[Any], layout: str) -> NDArray[Any]:
    """`laid_out` for NumPy's own arrays, in the dtype that carries them."""
    found: NDArray[Any] = laid_out(NumPy(), array, str(array.dtype), layout)
    return found


def _shares(array: Any, output: Any) -> bool:
    """Whether two arrays of one library use the same memory."""
    if isinstance(array, np.ndarray) and isinstance(output, np.ndarray):
        return bool(np.shares_memory(array, output))
    storages = [getattr(one, "untyped_storage", None) for one in (array, output)]
    if any(storage is None for storage in storages):
        return False
    places = [storage().data_ptr() for storage in storages if storage is not None]
    return bool(places[0] == places[1] != 0)
