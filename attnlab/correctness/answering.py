"""The child's side of a check: it holds one backend, asks it, and sees what else it does.

Arrays lie in memory as the question wants, because a kernel that reads past a stride is right on contiguous arrays
only. After each call the inputs are compared with what they were, and the results of the calls before with what those
were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.discovery import load
from attnlab.correctness import invariance
from attnlab.errors import Misbehaved
from attnlab.libraries.library import Library
from attnlab.processes import Channel, serve
from attnlab.system import processor_seconds
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.workload import Workload

INPUTS = ("query", "key", "value", "output gradient")
#: calls whose results are looked at again: buffers that are used in turn are two or three
_REMEMBERED = 8
#: layouts of query, key and value that differ
_MIXED = {
    "mixed": ("contiguous", "transposed", "heads_inside"),
    "mixed_2": ("heads_inside", "contiguous", "transposed"),
}


def serve_answers(channel: Channel) -> None:
    """In the child: answer until the check is done."""
    serve(channel, Child())


class Child:
    """What the child holds; requests name its methods."""

    probe: Probe

    def load(
        self, name: str, settings: Mapping[str, str], folders: Sequence[str], mask: str | None
    ) -> dict[str, Any]:
        """Import the backend; it stays for the life of the process. Or the `fault` of its file."""
        try:
            backend = replace(load(name, folders, dict(settings)), mask_form=mask)
        except ValueError as fault:
            return {"fault": str(fault)}
        self.probe = Probe(backend)
        return {"computes_in": backend.computes_in}

    def answer(
        self,
        plain: dict[str, Any],
        arrays: Sequence[NDArray[Any]],
        device: str,
        direction: str,
        layouts: tuple[str, str],
    ) -> dict[str, Any]:
        """The named results, and the processor seconds that they took."""
        inputs, started = unpack(plain, arrays), processor_seconds()
        workload = Workload.of_inputs(inputs, device=device, direction=direction)
        results = self.probe.answer(inputs, workload, *layouts)
        return {"results": results, "seconds": processor_seconds() - started}

    def same_bits(self, dtype: str, device: str, size: int | None = None) -> dict[str, Any]:
        """See `attnlab.correctness.invariance`."""
        return invariance.asked(self.probe.backend, dtype, device, size)


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
        before, beside = [self._bits(one) for one in inputs], [self._bits(one) for one in around]
        returned = call()
        results = (returned,) if len(names) == 1 else returned
        for name, array, was in zip(INPUTS, inputs, before, strict=False):
            if self._bits(array) != was:
                raise Misbehaved(f"it changed its {name} array")
        if [self._bits(one) for one in around] != beside:
            raise Misbehaved("it wrote beside its inputs")
        for result, found in zip(names, results, strict=False):
            for name, array in zip(INPUTS[:3], inputs, strict=False):
                if self._library.shares_memory(array, found):
                    raise Misbehaved(f"its {result} shares memory with its {name} array")
        for result, kept, was in (one for call_results in self._earlier for one in call_results):
            if self._bits(kept) != was:
                raise Misbehaved(f"a call changed the {result} that an earlier call had returned")
        # what is no array at all is told by the check of its shape
        arrays = [(name, one) for name, one in zip(names, results, strict=False) if hasattr(one, "shape")]
        self._earlier.append([(name, one, self._bits(one)) for name, one in arrays])
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
        inputs: Inputs,
        workload: Workload,
        layout: str = "contiguous",
        gradient_layout: str = "contiguous",
    ) -> dict[str, NDArray[Any]]:
        """The named results of `workload` on these arrays, laid out in memory as the layouts say.

        layout, gradient_layout : see `laid_out`. "refilled": asked once on other arrays, which are then filled in place
        with these and asked again; a backend that keeps results, or copies of an array, by the identity of its arrays
        answers with the old ones. Where arrays cannot be written into, it is asked once.

        Raises Declined, also where the backend cannot be differentiated; Misbehaved, also for a result that is
        missing or of a wrong shape or dtype; and whatever the backend raises.
        """
        backend = self.backend
        backend.require(workload)
        library = backend.open(workload.device)
        arrays, around = (inputs.query, inputs.key, inputs.value), list[Any]()
        given = laid_out(library, arrays, workload.dtype, layout, around)
        upstream: tuple[Any, ...] = ()
        if workload.backward:
            assert inputs.output_gradient is not None
            upstream = laid_out(library, (inputs.output_gradient,), workload.dtype, gradient_layout)

        def watched(given: tuple[Any, ...], around: Sequence[Any]) -> Any:
            self._witness = self._witness or Witness(library)
            call = backend.call(workload, inputs, given, *upstream)
            return self._witness.watch((*given, *upstream), call, workload.results, around)

        if layout == "refilled" and library.in_place:
            final = given
            # by another distance each: no two of them are stale in step
            rolled = tuple(np.roll(array, 1 + at, axis=2) for at, array in enumerate(arrays))
            given = laid_out(library, rolled, workload.dtype, layout)
            watched(given, ())
            for array, filling in zip(given, final, strict=True):
                array[...] = filling
        returned = watched(given, around)
        try:
            found = backend.named(workload, returned)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None
        return {name: np.array(one) for name, one in found.items()}


def laid_out(
    library: Library, arrays: Sequence[NDArray[Any]], dtype: str, layout: str, around: list[Any] | None = None
) -> tuple[Any, ...]:
    """`arrays` in the library, (batch, heads, length, dim) to the eye, in memory as `layout` says.

    "transposed": the length runs fastest. "heads_inside": (batch, length, heads, dim), as a projection leaves
    it. "mixed", "mixed_2": one contiguous, one transposed, one with heads inside. "packed": side by side in one
    (batch, length, 3, heads, dim), as one projection for all leaves them, where they are alike in shape. "sliced":
    every second position of a longer array, with other numbers between. "cache": positions amid a longer array of
    NaN, which is appended to `around`. "expanded", "batch_expanded": one head's or batch's memory stands for all,
    where they are alike. "one_number": one stands for all, as in the gradient of a sum. Else contiguous.
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
    exchanged = {"transposed": (2, 3), "heads_inside": (1, 2)}.get(layout)
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
    stands = {"expanded": array[:, :1], "batch_expanded": array[:1], "one_number": array[:1, :1, :1, :1]}
    one = stands.get(layout, array)
    one = one if (one == array).all() else array
    found = library.from_numpy(np.array(one, order="C"), dtype)
    return (found if one.shape == array.shape else library.expanded(found, array.shape)), found
