"""The process that runs one backend in a check: it answers questions, and reports side effects of the backend.

`Held` is the side of the check, which asks. `Child` is the side of the backend, which answers. Arrays lie in memory as
the question says, because a kernel that ignores strides is right on contiguous arrays only. A call must change neither
its inputs nor the results of earlier calls (`Witness`).

`same_bits` tests whether an answer has the same bits again: for a part of the batch, heads or queries that is computed
alone, with another number of threads, and for gradients. If the bits differ, both answers are right and differ by
rounding (He et al. 2025, "Defeating nondeterminism in LLM inference"). There is one such test for each number format,
without a mask, so that each part is a complete question. If the bits of a part differ, they depend on what else the
same call computes. A backend with equal bits may still differ at other sizes, for which it may choose another kernel or
another split.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend, Calling
from attnlab.backends.contender import Contender, side_of
from attnlab.backends.discovery import load
from attnlab.correctness.questions import Question
from attnlab.correctness.weighing import judge
from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.libraries.library import Library, thread_variables
from attnlab.processes import Failed, Process
from attnlab.system import cores, processor_seconds
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.result import GRADIENTS_AGAIN, SAME_BITS, Invariance
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

SERVE = "attnlab.correctness.answering:Child"
#: seconds for loading a backend, which imports its library
_LOADING = 120.0
INPUTS = ("query", "key", "value", "output gradient")
#: the number of earlier calls whose results are compared: a backend that reuses buffers has two or three of them
_REMEMBERED = 8
#: the layouts of query, key and value, if they differ
_MIXED = {
    "mixed": ("contiguous", "transposed", "heads_inside"),
    "mixed_2": ("heads_inside", "contiguous", "transposed"),
}
_ALL = slice(None)
#: the batches, heads and queries that are computed alone, for each test of `SAME_BITS` on a part
_PARTS: dict[str, tuple[slice, slice, slice]] = {
    "again": (_ALL, _ALL, _ALL),
    "batch alone": (slice(1, 2), _ALL, _ALL),
    "head alone": (_ALL, slice(2, 3), _ALL),
    "a chunk of queries": (_ALL, _ALL, slice(13, 50)),
    "one query alone": (_ALL, _ALL, slice(37, 38)),
}
#: sizes that are not multiples of a kernel's tiles
_QUERIES, _KEYS = 100, 700
#: processor seconds after which no further part is tested: some libraries compile for each shape
_PATIENCE_SECONDS = 15.0
#: the number of calls whose gradients are compared; seconds that a process has for the tests of one number format
_AGAIN, _SECONDS = 3, 60.0
Named = dict[str, Any]
Arrays = Sequence[NDArray[Any]]
#: makes a call from (query, key, value), and from the output's gradient if there is one
Made = Callable[..., Callable[[], Any]]


class Child:
    """The side of the backend, in its process. Requests name its methods."""

    probe: Probe

    def load(self, name: str, settings: Named, folders: list[str], mask: str | None, device: str) -> Named:
        """Import a backend and its library, in place of the backend before, and describe it.

        In the result, `reason` is why the backend declines even a plain workload, or None. Raises Misbehaved for a file
        that cannot be loaded.
        """
        try:
            backend = replace(load(name, folders, dict(settings)), mask_form=mask)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None
        self.probe, versions = Probe(backend), backend.open(device).versions()
        plain = Workload(batch=2, heads=4, queries=32, keys=32, head_dim=64, device=device)
        refusal = backend.declines(plain if backend.block is None else plain.with_(d_model=256))
        told = {"library": backend.library, "summary": backend.summary, "computes_in": backend.computes_in}
        return {**told, "versions": versions, "reason": None if refusal is None else refusal.reason}

    def confirm(self, workload: Workload, run: bool) -> None:
        """Raise Declined for a declined `workload`. With `run`, run it; raise Misbehaved for a wrong answer."""
        backend = self.probe.backend
        backend.require(workload)
        if run:
            inputs, rows = inputs_of(workload), range(workload.queries)
            answers = backend.named(workload, backend.bind(workload, inputs)())
            found = judge(workload, inputs, rows, answers, backend.computes_in)
            if not found.passed:
                raise Misbehaved(found.reason or "failed the accuracy check")

    def answer(self, plain: Named, arrays: Arrays, device: str, direction: str, layouts: list[str]) -> Named:
        """The results by name, and the processor seconds that they took."""
        inputs, started = unpack(plain, arrays), processor_seconds()
        workload = Workload.of_inputs(inputs, device=device, direction=direction)
        results = self.probe.answer(inputs, workload, *layouts)
        return {"results": results, "seconds": processor_seconds() - started}

    def same_bits(self, dtype: str, device: str, whole: bool = False) -> dict[str, Any]:
        """The output; whether each part has the same bits when computed alone; and why some parts were not tested.

        Also whether further calls give gradients with the same bits. whole : return only the output. Raises Declined.
        """
        backend = self.probe.backend
        sizes: dict[str, Any] = {"batch": 2, "heads": 4, "queries": _QUERIES, "keys": _KEYS}
        workload, started = Workload(**sizes, dtype=dtype, device=device), processor_seconds()

        def answered(workload: Workload, *inputs: Any) -> dict[str, Any]:
            named = backend.named(workload, backend.bind(workload, *inputs)())
            return {name: one.copy() for name, one in named.items()}

        expected = answered(workload)[OUTPUT]
        if whole:
            return {"output": expected}
        inputs = inputs_of(workload)
        found: dict[str, Any] = {"output": expected, "same": {}, "reason": None}
        for name, at in _PARTS.items():
            if processor_seconds() - started > _PATIENCE_SECONDS:
                return found | {"reason": f"its calls took over {_PATIENCE_SECONDS:g} s"}
            key, value = inputs.key[at[:2]], inputs.value[at[:2]]
            alone = inputs.with_(query=inputs.query[at], key=key, value=value)
            part = answered(Workload.of_inputs(alone, device=device), alone)[OUTPUT]
            found["same"][name] = part.tobytes() == expected[at].tobytes()
        training = workload.with_(direction="training")
        try:
            several = [answered(training) for _ in range(_AGAIN)]
        except Declined:
            return found
        alike = {tuple(one[name].tobytes() for name in training.results) for one in several}
        found["same"][GRADIENTS_AGAIN] = len(alike) == 1
        return found


class Held:
    """A backend in a separate process, as the check holds it. A process that has ended is started again.

    said : what `Child.load` returned.
    """

    def __init__(self, contender: Contender, folders: Sequence[str], device: str) -> None:
        self.contender, self._folders, self._device = contender, folders, device
        self._process: Process | None = None
        self.said: dict[str, Any] = {}

    @property
    def process(self) -> Process:
        """The process of the backend, started if necessary. Raises Failed."""
        if self._process is not None and self._process.alive:
            return self._process
        one = self.contender
        variables = one.environment(os.environ)
        # nothing is timed here, and spinning threads would take the cores that compute right answers
        variables.setdefault("OMP_WAIT_POLICY", "passive")
        try:
            side = side_of(one, self._folders)
            self._process = Process(SERVE, environment=variables, interpreter=side.interpreter)
        except (Unavailable, OSError) as fault:
            raise Failed("unavailable", str(fault)) from None
        how: dict[str, Any] = {"settings": dict(one.settings), "mask": one.mask, "device": self._device}
        how |= {"name": one.backend, "folders": list(side.folders)}
        try:
            self.said = self._process.ask("load", seconds=_LOADING, **how)
        except BaseException:
            self.end()
            raise
        return self._process

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()


class Probe:
    """A backend that answers questions in this process."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._witness: Witness | None = None

    def ask(self, question: Question) -> dict[str, NDArray[Any]]:
        """The answers of the backend to a question on the CPU. Raises the same errors as `answer`."""
        return self.answer(question.inputs, question.workload, *question.layouts)

    def answer(self, inputs: Inputs, workload: Workload, *layouts: str) -> dict[str, NDArray[Any]]:
        """The results of `workload` on these arrays, by name. layouts : as for `Witness.asked`.

        Raises Declined, also if the backend cannot be differentiated; Misbehaved, for what `Witness` finds and for a
        result that is missing or has a wrong shape or dtype; and whatever the backend raises.
        """
        backend = self.backend
        backend.require(workload)
        library = backend.open(workload.device)
        self._witness = self._witness or Witness(library)
        made = Calling(backend, workload, inputs, library).call
        returned = self._witness.asked(inputs, workload.dtype, workload.results, made, *layouts)
        try:
            return {name: np.array(one) for name, one in backend.named(workload, returned).items()}
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


class Witness:
    """Checks that a call changes neither its inputs nor the results of earlier calls."""

    def __init__(self, library: Library) -> None:
        self._library = library
        #: for each earlier call its results: name, array, and the bytes that the array had
        self._earlier: deque[list[tuple[str, Any, bytes]]] = deque(maxlen=_REMEMBERED)

    def asked(self, inputs: Inputs, dtype: str, names: Sequence[str], made: Made, *layouts: str) -> Any:
        """Make a call with `made`, run it, and return its result: a single one, or a tuple in the order of `names`.

        layouts : of the inputs and of the output's gradient, contiguous by default; see `laid_out`. "refilled": a call
        runs first on other arrays; the right numbers are then written into these arrays, and a second call runs on
        them. A backend that keeps results or copies by the identity of its arrays then returns old results. If the
        library cannot write into arrays, only one call runs.
        """
        library, around = self._library, list[Any]()
        layout, gradient_layout = (*layouts, "contiguous", "contiguous")[:2]
        arrays = (inputs.query, inputs.key, inputs.value)
        given = laid_out(library, arrays, dtype, layout, around)
        upstream: tuple[Any, ...] = ()
        if inputs.output_gradient is not None and names[-1] in GRADIENTS:
            upstream = laid_out(library, (inputs.output_gradient,), dtype, gradient_layout)
        if layout == "refilled" and library.in_place:
            # different distances: keys and values that are rolled alike would give the same output
            rolled = tuple(np.roll(array, 1 + at, axis=2) for at, array in enumerate(arrays))
            final, given = given, laid_out(library, rolled, dtype, layout)
            self._watch((*given, *upstream), made(given, *upstream), names, ())
            for array, filling in zip(given, final, strict=True):
                array[...] = filling
        return self._watch((*given, *upstream), made(given, *upstream), names, around)

    def _watch(
        self, inputs: Any, call: Callable[[], Any], names: Sequence[str], around: Sequence[Any]
    ) -> Any:
        """Run `call` and return what it returns.

        inputs : query, key, value and, for gradients, the output's gradient. around : larger arrays that contain them.
        Raises Misbehaved for changed inputs, changed memory beside them, a result that shares memory with query, key or
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
        # a result that is no array is left out here; the check of shapes reports it
        arrays = [(name, one) for name, one in zip(names, results, strict=False) if hasattr(one, "shape")]
        self._earlier.append([(name, one, self._bits(one)) for name, one in arrays])
        return returned

    def _bits(self, array: Any) -> bytes:
        """The bytes of an array. They compare much faster than numbers, and a NaN is equal to itself."""
        return np.asarray(self._library.to_numpy(array)).tobytes()


def laid_out(
    library: Library, arrays: Sequence[NDArray[Any]], dtype: str, layout: str, around: list[Any] | None = None
) -> tuple[Any, ...]:
    """`arrays`, each (batch, heads, length, dim), as arrays of the library with this `layout` in memory.

    "transposed": the length axis is contiguous. "heads_inside": (batch, length, heads, dim), as a projection leaves it.
    "mixed", "mixed_2": one array contiguous, one transposed, one with heads inside. "packed": side by side in one array
    (batch, length, 3, heads, dim), as a single projection leaves them; their shapes must be equal. "sliced": every
    second position of a longer array, with other numbers between. "cache": positions in the middle of a longer array of
    NaN, which is appended to `around`. "expanded", "batch_expanded": heads or batches that are equal share the memory
    of the first. "one_number": elements that are all equal share one number, as in the gradient of a sum. Any other
    name: contiguous.
    """
    if layout == "packed":
        # stack copies, as all code below does: a backend that changes its input must not change the question
        packed = library.from_numpy(np.stack([array.swapaxes(1, 2) for array in arrays], axis=2), dtype)
        return tuple(packed[:, :, at].swapaxes(1, 2) for at in range(len(arrays)))
    layouts = _MIXED.get(layout, (layout,) * len(arrays))
    found = [_alone(library, *one, dtype) for one in zip(arrays, layouts, strict=True)]
    if layout == "cache" and around is not None:
        around.extend(larger for _, larger in found)
    return tuple(array for array, _ in found)


def _alone(library: Library, array: NDArray[Any], layout: str, dtype: str) -> tuple[Any, Any]:
    """One array in this layout, and the larger array that contains it (or the array itself)."""
    n = array.shape[2]
    exchanged = {"transposed": (2, 3), "heads_inside": (1, 2)}.get(layout)
    if exchanged:
        found = library.from_numpy(np.array(array.swapaxes(*exchanged), order="C"), dtype)
        return found.swapaxes(*exchanged), found
    within: dict[str, Any] = {"sliced": (2 * n, 3.0, np.s_[::2]), "cache": (n + 70, np.nan, np.s_[3 : 3 + n])}
    if layout in within:
        length, filling, at = within[layout]
        longer = np.full((*array.shape[:2], length, array.shape[3]), filling, dtype=array.dtype)
        longer[:, :, at] = array
        found = library.from_numpy(longer, dtype)
        return found[:, :, at], found
    stands = {"expanded": array[:, :1], "batch_expanded": array[:1], "one_number": array[:1, :1, :1, :1]}
    one = stands.get(layout, array)
    one = one if (one == array).all() else array
    found = library.from_numpy(np.array(one, order="C"), dtype)
    return (found if one.shape == array.shape else library.functions.broadcast_to(found, array.shape)), found


# -- the same bits again ------------------------------------------------------------------------------


def with_other_threads(contender: Contender) -> Contender:
    """`contender` with 1 thread; with 2 if its settings, the environment or the number of cores give it 1 already."""
    variables = {**os.environ, **dict(contender.variables)}
    said = [one for name in thread_variables() if (one := variables.get(name, "")).isdecimal() and int(one)]
    now = contender.threads or min(map(int, said), default=cores())
    return replace(contender, threads=1 if now > 1 else 2)


def same_bits(held: Held, other: Held, dtypes: Sequence[str], device: str) -> list[Invariance]:
    """Whether a backend gives the same bits in each of `dtypes`. other : the same backend with other threads.

    A dtype that the backend declines is left out.
    """
    found: list[Invariance] = []
    for dtype in dtypes:
        how: dict[str, Any] = {"seconds": _SECONDS, "dtype": dtype, "device": device}
        one = Invariance(held.contender.name, dtype)
        try:
            told = held.process.ask("same_bits", **how)
            one = replace(one, same=told["same"], reason=told["reason"])
            threaded = other.process.ask("same_bits", **how, whole=True)["output"]
            alike = threaded.tobytes() == told["output"].tobytes()
            one = replace(one, same={**one.same, SAME_BITS[-1]: alike})
        except Failed as fault:
            if fault.kind == "declined":
                continue
            one = replace(one, reason=one.reason or str(fault))
        found.append(one)
    return found
