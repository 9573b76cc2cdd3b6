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

from attnlab.ground.backend import Backend, checked_output
from attnlab.ground.errors import Declined
from attnlab.ground.libraries import Library
from attnlab.ground.workload import Workload

Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


class Misbehaved(Exception):
    """The backend did what no caller expects; the message says what."""


class Witness:
    """Remembers what a call was given and what the call before returned, and compares."""

    def __init__(self, values: Callable[[Any], NDArray[Any]]) -> None:
        self._values = values
        self._earlier: tuple[Any, NDArray[Any]] | None = None

    def watch(self, inputs: tuple[Any, ...], call: Callable[[], Any]) -> Any:
        """`call`'s output. Raises Misbehaved for changed inputs, shared memory or a changed earlier output."""
        before = [self._values(array).copy() for array in inputs]
        output = call()
        for name, array, was in zip(("query", "key", "value"), inputs, before, strict=True):
            if not np.array_equal(self._values(array), was):
                raise Misbehaved(f"it changed its {name} array")
            if _shares(array, output):
                raise Misbehaved(f"its output shares memory with its {name} array")
        if self._earlier is not None:
            kept, was = self._earlier
            if not np.array_equal(self._values(kept), was, equal_nan=True):
                raise Misbehaved("a call changed the output that an earlier call had returned")
        # what is no array at all is told by the check of its shape
        self._earlier = (output, self._values(output).copy()) if hasattr(output, "shape") else None
        return output


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
        witness = self._witness = self._witness or Witness(library.to_numpy)
        first = (*arrays[:2], -arrays[2]) if layout == "refilled" else arrays
        given = tuple(laid_out(library, array, workload.dtype, layout) for array in first)
        given = backend.prepare(workload, *given) if backend.prepare else given
        options = {"causal": workload.causal, "scale": workload.scale}
        options = {name: option for name, option in options.items() if name in backend.options}
        output = witness.watch(given, lambda: backend.attend(*given, **options))
        if layout == "refilled":
            self._checked(workload, output)
            given[2][...] = -given[2]
            output = witness.watch(given, lambda: backend.attend(*given, **options))
        return self._checked(workload, output)

    def _checked(self, workload: Workload, output: Any) -> NDArray[Any]:
        try:
            return np.array(checked_output(self.backend, workload, output))
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


def laid_out(library: Library, array: NDArray[Any], dtype: str, layout: str) -> Any:
    """`array` in the library, (batch, heads, length, dim) to the eye, in memory as `layout` says.

    "transposed": the length runs fastest. "heads inside": (batch, length, heads, dim), as a projection leaves
    it. "sliced": every second position of a longer array, with other numbers between. "expanded": one head's memory
    stands for all, where they are alike. Else contiguous.
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
    return library.from_numpy(np.array(array, order="C"), dtype)


def _shares(array: Any, output: Any) -> bool:
    """Whether two arrays of one library use the same memory."""
    if isinstance(array, np.ndarray) and isinstance(output, np.ndarray):
        return bool(np.shares_memory(array, output))
    storages = [getattr(one, "untyped_storage", None) for one in (array, output)]
    if any(storage is None for storage in storages):
        return False
    places = [storage().data_ptr() for storage in storages if storage is not None]
    return bool(places[0] == places[1] != 0)
