"""One implementation of attention: what it declines, and its calls, ready to be timed.

A call consists of keywords, `prepare`, keys that are gathered (``storage=packed|paged``) and the block around it. What
is part of the measured work happens within the call. Everything else happens once, before it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.keywords import given, in_form, not_in_form, unsupported
from attnlab.errors import Declined, Refusal
from attnlab.libraries.library import Arrays, Call, Library, open_library
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import PARAMETERS, PROJECTIONS, Block, Inputs
from attnlab.workload.workload import CONTIGUOUS, LOG_SUM, OUTPUT, Workload

_NAMES = ("query", "key", "value")
UNKNOWN_GRADIENTS = Refusal("mask", "a query sees no key, and what its gradients are then is not known")
#: the number of keys in a page, and the random stream of a workload's seed that shuffles pages (the other streams are
#: in `attnlab.workload.input_generation`)
PAGE, _SHUFFLE = 16, 9
#: from query, key and value to the output of all heads, (batch, heads, length, dim) each
Core = Callable[[Any, Any, Any], Any]
#: arrays that a call reads in place, and a function that makes such arrays from other inputs
Held = tuple[Arrays, Callable[[Inputs], Arrays]]


@dataclass(frozen=True)
class Backend:
    """One implementation: loaded from a file by `load`, or made from a function.

    The fields are what a file may define (`attnlab.backends.discovery`). `options` are the keywords that `attend`
    takes, or that `block` takes if it computes whole multi-head blocks. `settings` are its own settings with their
    values. `mask_form` is the form of `keywords.FORMS` in which it gets a mask, None if its keywords decide.
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
        """Whether the backend itself returns zeros on `device` for a query that sees no key."""
        said = self.empty_rows.get(device) if isinstance(self.empty_rows, Mapping) else self.empty_rows
        return said == "zeros"

    # -- what it declines

    def declines(self, workload: Workload, projection: str | None = None) -> Refusal | None:
        """Why this backend does not do `workload`, or None. Raises Unavailable for a missing device.

        projection : how x of a block is to be projected, if that was asked for.
        """
        library, told = self.open(workload.device), in_form(workload, self.mask_form)
        return (
            self._not_this_block(workload, projection)
            or library.declines(workload.dtype)
            or not_in_form(workload, self.mask_form, self.options)
            or unsupported(told, self.options)
            or self._not_stored(workload, library)
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
        return None

    def _not_stored(self, workload: Workload, library: Library) -> Refusal | None:
        """Why keys and values cannot lie as the workload's `storage` says, or None."""
        if workload.storage == CONTIGUOUS:
            return None
        if workload.backward:
            reason = f"gradients are computed on contiguous keys and values only, not {workload.storage}"
            return Refusal("storage", reason)
        reason = f"attnlab's {library.name} library does not take rows by their numbers"
        return None if hasattr(library, "taking") else Refusal("storage", reason)

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
        """The reason of the file's own `declines`, or that `attend` does not take the scale; None without a reason."""
        if "scale" not in self.options and not math.isclose(workload.scale, workload.head_dim**-0.5):
            reason = "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"
            return Refusal("scale", reason)
        found = self.own_reason(workload) if self.own_reason else None
        if not found:
            return None
        return Refusal("", found) if isinstance(found, str) else Refusal(*found)

    def require(self, workload: Workload, projection: str | None = None) -> None:
        """Raises Declined if this backend does not do `workload`."""
        refusal = self.declines(workload, projection)
        if refusal:
            raise Declined(refusal)

    # -- its calls

    def bind(
        self, workload: Workload, inputs: Inputs | None = None, projection: str | None = None
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on these inputs, ready to be timed.

        inputs : the workload's own by default. Conversion, device transfer and `prepare` happen here, once; in
        direction backward the forward pass too. `named` takes what the call returns. projection : how x of a block is
        projected, one of `PROJECTIONS`, by default "fused". Raises Declined.
        """
        self.require(workload, projection)
        calling = Calling(self, workload, inputs or inputs_of(workload), self.open(workload.device))
        return calling.call(projection=projection)

    def named(self, workload: Workload, returned: Any) -> dict[str, NDArray[Any]]:
        """What a call of `bind` returned, by name, as NumPy arrays.

        Raises ValueError for an array of another library, a wrong shape or dtype, and a gradient that is missing.
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
    """The calls of one backend that compute `workload` on `inputs`, in arrays of its `library`.

    Once a call is made, `held` has the arrays that it reads and that may be filled with other numbers. `again` has a
    function that makes the call again, if other numbers must be prepared.
    """

    backend: Backend
    workload: Workload
    inputs: Inputs
    library: Library
    held: list[Held] = field(default_factory=list)
    again: list[Callable[[], Call]] = field(default_factory=list)

    def call(self, arrays: Arrays | None = None, upstream: Any = None, projection: str | None = None) -> Call:
        """A call without arguments. arrays, upstream : query, key, value and the output's gradient, made if missing."""
        if self.inputs.block is not None:
            return self._block_call(projection or PROJECTIONS[0])
        arrays = arrays or tuple(one for name in _NAMES for one in self._laid_out(name, self.inputs))
        names = _NAMES if self.workload.storage == CONTIGUOUS else _NAMES[:1]
        if OUTPUT in self.workload.results:  # a backward pass alone keeps the arrays that it was made from
            for name, one in zip(names, arrays, strict=False):
                self.held.append(((one,), partial(self._laid_out, name)))
        return self._differentiated(arrays, upstream) if self.workload.backward else self._forward(arrays)

    def function(self) -> Callable[..., Any]:
        """The call as a function of query, key and value, arrays of the library. It prepares them in every call."""
        attend = self._attending()
        return self._completed(lambda *arrays: attend(*self._prepared(arrays)))

    def _laid_out(self, name: str, inputs: Inputs) -> Arrays:
        """An array of shape (batch, heads, length, dim), in memory as the workload's `layout` says."""
        array, dtype = getattr(inputs, name), self.workload.dtype
        if self.workload.layout == "bhsd":
            return (self.library.from_numpy(array, dtype),)
        return (self.library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype).swapaxes(1, 2),)

    def _forward(self, arrays: Arrays) -> Call:
        """`attend` on query, key and value. Keys that are not stored contiguously are gathered within the call."""
        workload, attend = self.workload, self._attending()
        if workload.storage != CONTIGUOUS:
            query, *of_keys = arrays
            stored = store(self.library, workload, *map(self.library.to_numpy, of_keys))
            laid = (lambda inputs: stored.laid(inputs.key), lambda inputs: stored.laid(inputs.value))
            self.held.extend(zip(stored.arrays, laid, strict=True))
            self._prepared((query, *stored.read()))  # `prepare` may compile something: now, not later
            return self._completed(lambda: attend(*self._prepared((query, *stored.read()))))

        def made() -> Call:
            return self._completed(partial(attend, *self._prepared(arrays)))

        if self.backend.prepare:
            self.again.append(made)
        return made()

    def _completed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, which returns only when its result is computed."""
        completed = self.library.completed
        return call if completed is None else lambda *arrays: completed(call(*arrays))

    def _differentiated(self, arrays: Arrays, upstream: Any) -> Call:
        """A call that returns the gradients, and the output if that is timed too."""
        workload, attend = self.workload, self._attending()
        if upstream is None:
            if self.inputs.output_gradient is None:
                raise ValueError(f"{workload.label} asks for gradients: give an output_gradient")
            (upstream,) = self._laid_out("output_gradient", self.inputs)
            self.held.append(((upstream,), partial(self._laid_out, "output_gradient")))
        prepared = (lambda *leaves: attend(*self._prepared(leaves))) if self.backend.prepare else attend
        of = self.library.training_call if OUTPUT in workload.results else self.library.backward_call
        return of(prepared, arrays, upstream)

    def _block_call(self, projection: str) -> Call:
        block, dtype, library = self.inputs.block, self.workload.dtype, self.library
        assert block is not None
        if self.backend.block is None:
            call = BlockCall(library, block, dtype, self._core, projection)
            self.held.extend(call.held)
            return call
        zeros = self.backend.zeros_empty_rows(self.workload.device)
        if not zeros and self.inputs.mask.empty_rows(self.inputs.shape) is not None:
            raise Declined(
                Refusal("mask", "a query sees no key, and what its block answers then is not known")
            )
        parameters = {name: library.from_numpy(array, dtype) for name, array in block.parameters.items()}
        options = given(self.inputs, self.backend.options, library, dtype, self.backend.mask_form)
        computed = self.backend.block(parameters, block.heads, **options)
        x = library.from_numpy(block.x, dtype)
        memory = None if block.memory is None else library.from_numpy(block.memory, dtype)
        return lambda: computed(x, memory)

    def _core(self, *arrays: Any) -> Core:
        """`attend` for query, key and value of a block, laid out like `arrays`.

        `prepare` runs in every call, unless it returns these arrays unchanged.
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
        """`attend`, or `attend_with_log_sum` if ln Z is asked for, with its keywords.

        For a query that sees no key it returns zeros, and without sinks -inf for ln Z. Raises Declined for gradients of
        such a query: the workload does not show whether a mask of the caller's own has one.
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


# -- keys and values that do not lie in their order -----------------------------------------------------


class Stored(NamedTuple):
    """Keys and values of one workload, stored as its `storage` says, before the clock starts.

    read : gathers key and value, (batch, kv_heads, keys, dim); its time is part of every call. arrays : the arrays that
    hold the keys, and those that hold the values. laid : makes such arrays from a NumPy array.
    """

    read: Callable[[], tuple[Any, Any]]
    arrays: Sequence[Arrays]
    laid: Callable[[NDArray[Any]], Arrays]


def store(library: Library, workload: Workload, *of_keys: NDArray[Any]) -> Stored:
    """Store key and value, (batch, kv_heads, keys, dim), in the library: in one pool of pages for all batch elements.

    ``paged``: pages of `PAGE` keys, (pages, PAGE, kv_heads, dim), shuffled. The page table is (batch, pages of the
    longest element). Shorter elements have the same page of zeros in the rest of their row. After the last key of an
    element its page holds zeros. As in PagedAttention (Kwon et al. 2023, section 4.1), with the axes in the order that
    FlashInfer calls NHD.

    ``packed``: pages of one key, in their order. So this is a jagged batch: the keys of all batch elements one after
    the other, without padding, as in `flash_attn_varlen_func` of FlashAttention's package.

    The numbers are those of the inputs, so the output, the reference and the budgets are those of contiguous arrays.
    """
    batch, keys, paged = workload.batch, workload.keys, workload.storage == "paged"
    lengths, page = np.array(workload.key_lengths or (keys,) * batch)[:, None], PAGE if paged else 1
    most = -(-keys // page)
    used, there = np.arange(most) * page < lengths, np.arange(most * page) < lengths
    order = np.arange(int(used.sum()) + 1)
    if paged:
        order = np.random.default_rng([workload.seed, _SHUFFLE]).permutation(order)
    table = np.full((batch, most), order[-1])
    table[used] = order[:-1]

    def laid(array: NDArray[Any]) -> Arrays:
        rows = array.swapaxes(1, 2)
        whole = np.zeros((*there.shape, *rows.shape[2:]), rows.dtype)
        whole[there] = rows[there[:, :keys]]
        pool = np.zeros((order.size, page, *rows.shape[2:]), rows.dtype)
        pool[table[used]] = whole.reshape(batch, most, *pool.shape[1:])[used]
        return (library.from_numpy(pool, workload.dtype),)

    (key,), (value,) = arrays = [laid(array) for array in of_keys]
    take = library.taking(table)

    def in_order(pool: Any) -> Any:
        taken = take(pool)
        return taken.reshape(batch, most * page, *taken.shape[3:])[:, :keys].swapaxes(1, 2)

    return Stored(lambda: (in_order(key), in_order(value)), arrays, laid)


# -- a multi-head block around any core -----------------------------------------------------------------


class BlockCall:
    """A multi-head block, computed by the library's own operations. A call returns y, (batch, queries, d_model).

    projection : how x becomes query, key and value. ``fused``: one matrix product with all three matrices stacked. Its
    result is cut into three views. A block with a memory takes one product for the query, and one for keys and values.
    ``loop``: one small product for each head, with the rows of that head, and the results stacked, which is slow. The
    parameters are cut up before the clock starts.
    core : makes the core for the projected query, key and value, once, because a backend may prepare for them. held :
    the arrays that the call reads, and functions that make them from other inputs. project : returns query, key and
    value, (batch, heads, length, dim) each. Raises ValueError for an unknown projection.
    """

    def __init__(
        self,
        library: Library,
        block: Block,
        dtype: str,
        core: Callable[[Any, Any, Any], Core],
        projection: str = "fused",
    ) -> None:
        if projection not in PROJECTIONS:
            raise ValueError(f"projection must be one of {', '.join(PROJECTIONS)}, got {projection!r}")
        self._library, self._block, self._dtype = library, block, dtype
        self.held: list[Held] = []
        (x,) = self._kept(lambda block: [block.x])
        (source,) = (x,) if block.memory is None else self._kept(lambda block: [block.source])
        #: heads and tokens of query, key and value
        of_keys = block.kv_heads, source
        self._of = {"query": (block.heads, x), "key": of_keys, "value": of_keys}
        self._out = self._linear(lambda block: [block.parameters[name] for name in PARAMETERS[2:]])
        self.project = self._looped() if projection == "loop" else self._fused()
        self._core = core(*self.project())

    def __call__(self) -> Any:
        return self.output(self._core(*self.project()))

    def output(self, heads: Any) -> Any:
        """The heads side by side, projected: from (batch, heads, queries, value_dim) to (batch, queries, d_model)."""
        batch, count, length, dim = heads.shape
        return self._out(heads.swapaxes(1, 2).reshape(batch, length, count * dim))

    @property
    def parts(self) -> dict[str, Call]:
        """The parts of the call, each as a call on what the parts before it returned, for `race.instruments`."""
        projected = self.project()
        heads = self._core(*projected)
        return {
            "projection": self.project,
            "attention": lambda: self._core(*projected),
            "output": lambda: self.output(heads),
        }

    def _fused(self) -> Call:
        products = []
        for names in [[*self._of]] if self._block.memory is None else [["query"], ["key", "value"]]:

            def of(block: Block, names: Sequence[str] = tuple(names)) -> list[NDArray[Any]]:
                pairs = [block.projections[name] for name in names]
                return [np.concatenate(one) for one in zip(*pairs, strict=True)]

            ends = np.cumsum([len(self._block.projections[name][1]) for name in names])
            cuts = [
                (slice(start, end), self._of[name][0])
                for name, start, end in zip(names, (0, *ends), ends, strict=False)
            ]
            products.append((self._linear(of), self._of[names[0]][1], cuts))

        def project() -> list[Any]:
            found = []
            for linear, tokens, cuts in products:
                whole = linear(tokens)
                lead = whole.shape[:2]
                # (batch, length, heads · dim) as (batch, heads, length, dim): views
                found += [whole[..., cut].reshape(*lead, heads, -1).swapaxes(1, 2) for cut, heads in cuts]
            return found

        return project

    def _looped(self) -> Call:
        def of(block: Block, name: str, head: int) -> list[NDArray[Any]]:
            return [np.split(one, self._of[name][0])[head] for one in block.projections[name]]

        products = [
            (tokens, [self._linear(partial(of, name=name, head=at)) for at in range(heads)])
            for name, (heads, tokens) in self._of.items()
        ]
        stack = self._library.functions.stack
        return lambda: [stack([one(tokens) for one in each], axis=1) for tokens, each in products]

    def _linear(self, of: Callable[[Any], Sequence[NDArray[Any]]]) -> Callable[[Any], Any]:
        library, (weight, bias) = self._library, self._kept(of)
        return lambda tokens: library.linear(tokens, weight, bias)

    def _kept(self, of: Callable[[Any], Sequence[NDArray[Any]]]) -> Arrays:
        """The library's arrays of what `of` takes from a block. They are noted in `held`."""

        def made(block: Any) -> Arrays:
            arrays = map(np.ascontiguousarray, of(block))
            return tuple(self._library.from_numpy(one, self._dtype) for one in arrays)

        arrays = made(self._block)
        self.held.append((arrays, lambda inputs: made(inputs.block)))
        return arrays
