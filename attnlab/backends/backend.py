"""One implementation of attention: what it declines, and its calls, ready for a clock.

A call is put together of keywords, `prepare`, stored keys and the block around it. What costs time and belongs to the
work is within the call; all else is done before, once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.block import BlockCall, Core, Held
from attnlab.backends.keywords import given, in_form, not_in_form, unsupported
from attnlab.backends.storage import STORED, not_stored
from attnlab.errors import Declined, Refusal
from attnlab.libraries.library import Arrays, Call, Library, open_library
from attnlab.workload.drawing import inputs_of
from attnlab.workload.inputs import PROJECTIONS, Inputs
from attnlab.workload.workload import CONTIGUOUS, GRADIENTS, LOG_SUM, OUTPUT, Workload

_NAMES = ("query", "key", "value")
UNKNOWN_GRADIENTS = Refusal("mask", "a query sees no key, and what its gradients are then is not known")


@dataclass(frozen=True)
class Backend:
    """One implementation: read from a file by `load`, or made by hand from a function.

    The fields are what a file may define (`attnlab.backends.discovery`). `options` are the keywords that `attend`
    takes, or `block` where it computes whole multi-head blocks; `settings` its own settings with the values they have;
    `mask_form` in which of `keywords.FORMS` it is handed a mask, None for as its keywords say.
    """

    name: str
    library: str
    attend: Callable[..., Any]
    summary: str = ""
    options: frozenset[str] = frozenset({"causal", "scale"})
    own_reason: Callable[[Workload], tuple[str, str] | str | None] | None = None
    prepare: Callable[..., tuple[Any, Any, Any]] | None = None
    attend_with_log_sum: Callable[..., tuple[Any, Any]] | None = None
    kernel: str | None = None
    empty_rows: str | Mapping[str, str] | None = None
    memory: Mapping[str, float] | None = None
    block: Callable[..., Callable[[Any, Any], Any]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    computes_in: str | None = None
    mask_form: str | None = None

    def open(self, device: str) -> Library:
        """This backend's array library on `device`. Raises Unavailable."""
        return open_library(self.library, device)

    def zeros_empty_rows(self, device: str) -> bool:
        """Whether a query that sees no key gets zeros from it, on `device`, without help."""
        said = self.empty_rows.get(device) if isinstance(self.empty_rows, Mapping) else self.empty_rows
        return said == "zeros"

    # -- what it declines

    def declines(self, workload: Workload, projection: str | None = None) -> Refusal | None:
        """Why this backend does not do `workload`, or None. Raises Unavailable for a missing device.

        projection : how x of a block is to be projected, where that was asked for.
        """
        library, told = self.open(workload.device), in_form(workload, self.mask_form)
        return (
            self._not_this_block(workload, projection)
            or library.declines(workload.dtype)
            or not_in_form(workload, self.mask_form, self.options)
            or unsupported(told, self.options)
            or not_stored(workload, library)
            or self._not_this_direction(workload, library)
            or self._own_refusal(told.core if self.block is None else told)
        )

    def _not_this_block(self, workload: Workload, projection: str | None) -> Refusal | None:
        if workload.d_model is None:
            if self.block is not None:
                return Refusal("d_model", "it computes whole multi-head blocks; give --d-model")
            if projection is not None:
                return Refusal("d_model", "projection belongs to a multi-head block; give --d-model")
        elif self.computes_in is not None:
            reason = f"its core computes in {self.computes_in}; blocks have no error budget for that"
            return Refusal("d_model", reason)
        elif self.block is not None and projection is not None:
            return Refusal("d_model", "it computes the block in one piece; leave out projection")
        elif self.block is not None and workload.rotary and "rotary" not in self.options:
            return Refusal("rotary", "its block() takes no rotary positions")
        return None

    def _not_this_direction(self, workload: Workload, library: Library) -> Refusal | None:
        if LOG_SUM in workload.results and self.attend_with_log_sum is None:
            return Refusal("direction", "it gives no ln Z: its file has no attend_with_log_sum")
        if not workload.backward:
            return None
        reason = library.without_gradients
        if reason is None and OUTPUT not in workload.results:
            reason = library.no_backward_alone
        if reason is not None:
            return Refusal("direction", reason)
        known = self.zeros_empty_rows(workload.device)
        return None if known or workload.masked.empty_rows(workload.shape) is None else UNKNOWN_GRADIENTS

    def _own_refusal(self, workload: Workload) -> Refusal | None:
        """By the file's own word; and a scale that it does not take."""
        if "scale" not in self.options and not math.isclose(workload.scale, workload.head_dim**-0.5):
            reason = "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"
            return Refusal("scale", reason)
        found = self.own_reason(workload) if self.own_reason else None
        if not found:
            return None
        return Refusal("", found) if isinstance(found, str) else Refusal(*found)

    def require(self, workload: Workload, projection: str | None = None) -> None:
        """Raises Declined where this backend does not do `workload`."""
        refusal = self.declines(workload, projection)
        if refusal:
            raise Declined(refusal)

    # -- its calls

    def bind(
        self, workload: Workload, inputs: Inputs | None = None, projection: str | None = None
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on these inputs, ready for a clock.

        inputs : the workload's own by default. Conversion, device transfer and `prepare` happen here, once; in
        direction backward the forward pass too. The call returns what `named` names. projection : of a block, one of
        `PROJECTIONS`, "fused" unless given. Raises Declined.
        """
        self.require(workload, projection)
        return self.call(workload, inputs or inputs_of(workload), projection=projection)

    def call(
        self,
        workload: Workload,
        inputs: Inputs,
        arrays: Arrays | None = None,
        upstream: Any = None,
        projection: str | None = None,
    ) -> Callable[[], Any]:
        """As `bind`, on query, key and value (and the output's gradient) that are the library's already."""
        return Calling(self, workload, inputs, self.open(workload.device)).call(arrays, upstream, projection)

    def named(self, workload: Workload, returned: Any) -> dict[str, NDArray[Any]]:
        """What a call of `bind` returned, by name, as NumPy arrays.

        Raises ValueError where it is another library's array, or its shape or its dtype is not what the workload asks.
        """
        names, library = workload.results, self.open(workload.device)
        if LOG_SUM in names and not (isinstance(returned, tuple) and len(returned) == len(names)):
            kind = _kind(type(returned))
            raise ValueError(
                f"{self.name} returned a {kind} from attend_with_log_sum, expected (output, ln Z)"
            )
        wanted, found = type(library.from_numpy(np.zeros(1, np.float32), "float32")), {}
        for name, result in zip(names, (returned,) if len(names) == 1 else returned, strict=True):
            if name != OUTPUT and result is None:
                array = name.partition(" ")[0]
                raise ValueError(f"no {name} arrived: the output does not depend on the {array}")
            # a subclass may compute when it is read, after the clock has stopped
            if type(result) is not wanted:
                kind = _kind(type(result))
                said = f"expected a {_kind(wanted)}, as its LIBRARY says"
                raise ValueError(f"{self.name} returned a {kind}, {said}")
            what = "" if name == OUTPUT else f" as {name}"
            shape, dtype = tuple(result.shape), library.dtype_of(result)
            if shape != (right := workload.shape_of(name)):
                raise ValueError(f"{self.name} returned shape {shape}{what}, expected {right}")
            if dtype != workload.dtype_of(name):
                raise ValueError(
                    f"{self.name} returned dtype {dtype}{what}, expected {workload.dtype_of(name)}"
                )
            found[name] = library.to_numpy(result)
        return found


def _kind(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


@dataclass(frozen=True)
class Calling:
    """One backend, asked for `workload` on `inputs`, whose arrays its `library` has.

    Once a call is made, `held` are the arrays that it reads, as far as its answer changes with them in a known way, and
    `again` makes the call anew where other numbers in them have to be prepared.
    """

    backend: Backend
    workload: Workload
    inputs: Inputs
    library: Library
    held: list[Held] = field(default_factory=list)
    again: list[Callable[[], Call]] = field(default_factory=list)

    def call(self, arrays: Arrays | None = None, upstream: Any = None, projection: str | None = None) -> Call:
        """A call without arguments, on query, key and value and the output's gradient, if they are there already."""
        if self.inputs.block is not None:
            return self._block_call(projection or PROJECTIONS[0])
        arrays = arrays or tuple(one for name in _NAMES for one in self._laid_out(name, self.inputs))
        names = _NAMES if self.workload.storage == CONTIGUOUS else _NAMES[:1]
        for name, one in zip(names, arrays, strict=False):
            if OUTPUT in self.workload.results:  # what a way back alone was made of stays
                self.held.append(((one,), partial(self._laid_out, name)))
        return self._differentiated(arrays, upstream) if self.workload.backward else self._forward(arrays)

    def function(self) -> Callable[..., Any]:
        """The call as a function of query, key and value, the library's arrays; it prepares them in every call."""
        attend, completed = self._attending(), self.library.completed
        if completed is None:
            return lambda *arrays: attend(*self._prepared(arrays))
        return lambda *arrays: completed(attend(*self._prepared(arrays)))

    def _laid_out(self, name: str, inputs: Inputs) -> Arrays:
        """(batch, heads, length, dim) to the eye, in memory as the workload's `layout` says."""
        array, dtype = getattr(inputs, name), self.workload.dtype
        if self.workload.layout == "bhsd":
            return (self.library.from_numpy(array, dtype),)
        return (self.library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype).swapaxes(1, 2),)

    def _forward(self, arrays: Arrays) -> Call:
        """`attend` on query, key and value; where keys are stored otherwise they are gathered within the call."""
        workload, attend = self.workload, self._attending()
        if workload.storage == CONTIGUOUS:
            return self._on_prepared(attend, arrays)
        query, *of_keys = arrays
        stored = STORED[workload.storage].lay(self.library, workload, *map(self.library.to_numpy, of_keys))

        laid = (lambda inputs: stored.laid(inputs.key), lambda inputs: stored.laid(inputs.value))
        self.held.extend(zip(stored.arrays, laid, strict=True))
        self._prepared((query, *stored.read()))  # what is compiled is compiled now
        return self._completed(lambda: attend(*self._prepared((query, *stored.read()))))

    def _on_prepared(self, attend: Callable[..., Any], arrays: Arrays) -> Call:
        def made() -> Call:
            return self._completed(partial(attend, *self._prepared(arrays)))

        if self.backend.prepare:
            self.again.append(made)
        return made()

    def _completed(self, call: Call) -> Call:
        """A call that returns once its result is computed."""
        completed = self.library.completed
        return call if completed is None else lambda: completed(call())

    def _differentiated(self, arrays: Arrays, upstream: Any) -> Call:
        """The gradients that are asked for, with the output where that is timed too."""
        workload, attend = self.workload, self._attending()
        if upstream is None:
            if self.inputs.output_gradient is None:
                raise ValueError(f"{workload.label} asks for gradients: give an output_gradient")
            (upstream,) = self._laid_out("output_gradient", self.inputs)
            self.held.append(((upstream,), partial(self._laid_out, "output_gradient")))
        asked = [at for at, name in enumerate(GRADIENTS) if name in workload.results]

        def of_leaves(*leaves: Any) -> Any:
            whole = list(arrays)
            for at, leaf in zip(asked, leaves, strict=True):
                whole[at] = leaf
            return attend(*self._prepared(tuple(whole)))

        plain = len(asked) == len(arrays) and not self.backend.prepare
        of = self.library.training_call if OUTPUT in workload.results else self.library.backward_call
        call = of(attend if plain else of_leaves, tuple(arrays[at] for at in asked), upstream)
        return call if len(workload.results) > 1 else lambda: call()[0]

    def _block_call(self, projection: str) -> Call:
        block, dtype, library = self.inputs.block, self.workload.dtype, self.library
        assert block is not None
        if self.backend.block is None:
            call = BlockCall(library, block, dtype, self._core, projection)
            self.held.extend(call.held)
            return call
        parameters = {name: library.from_numpy(array, dtype) for name, array in block.parameters.items()}
        options = given(self.inputs, self.backend.options, library, dtype, self.backend.mask_form)
        computed = self.backend.block(parameters, block.heads, **options)
        x = library.from_numpy(block.x, dtype)
        memory = None if block.memory is None else library.from_numpy(block.memory, dtype)
        return lambda: computed(x, memory)

    def _core(self, *arrays: Any) -> Core:
        """`attend` for query, key and value of a block that lie as `arrays` do.

        What it does with `prepare` is done now where that leaves the arrays as they are, else in every call.
        """
        inner = Calling(self.backend, self.workload.core, self.inputs, self.library)
        attend = inner._attending()
        if all(map(operator.is_, inner._prepared(arrays), arrays)):
            return attend
        return lambda query, key, value: attend(*inner._prepared((query, key, value)))

    def _prepared(self, arrays: Arrays) -> Arrays:
        prepare = self.backend.prepare
        return prepare(self.workload, *arrays) if prepare else arrays

    def _attending(self) -> Callable[..., Any]:
        """`attend`, or `attend_with_log_sum` where that is asked for, with its keywords.

        With zeros, and -inf for ln Z, where a query sees no key. Raises Declined for gradients of such a query: by an
        array of a caller's own, of which the workload knows nothing.
        """
        backend, workload, library = self.backend, self.workload, self.library
        options = given(self.inputs, backend.options, library, workload.dtype, backend.mask_form)
        with_log_sum = LOG_SUM in workload.results
        attend = backend.attend_with_log_sum if with_log_sum else backend.attend
        assert attend is not None, "declined before"
        zeros = backend.zeros_empty_rows(workload.device)
        empty = None if zeros else self.inputs.mask.empty_rows(self.inputs.shape)
        if empty is None:
            return partial(attend, **options)
        if workload.backward:
            raise Declined(UNKNOWN_GRADIENTS)
        rows = library.from_numpy(np.ascontiguousarray(empty[..., None]), workload.dtype)

        def filled(*arrays: Any) -> Any:
            found = attend(*arrays, **options)
            if not with_log_sum:
                return library.fill(found, rows, 0.0)
            output, log_sum = found
            if self.inputs.sinks is None:
                log_sum = library.fill(log_sum, rows[..., 0], -math.inf)
            return library.fill(output, rows, 0.0), log_sum

        return filled
