"""One implementation of attention, as data: a name, its array library, `attend`, and what it declines.

A backend file needs no import from attnlab. It holds

``LIBRARY``
    whose arrays `attend` takes and returns: a name of `attnlab.contract.library.library_names`.
``attend(query, key, value, *, causal, scale)``
    the computation on arrays laid out (batch, heads, length, dim). Each further keyword that its signature names is
    something that it supports, see `attnlab.contract.keywords`; what it does not name is declined for it where a
    workload asks for it, so that ``attend(q, k, v)`` is a valid backend.
``block(parameters, heads, *, causal)``, in place of ``attend``
    for what computes a whole multi-head block by itself: from its parameters, arrays of the library by the names of
    `attnlab.contract.block.PARAMETERS`, to a function of x and memory (None where x attends to itself) that is timed
    and returns (batch, queries, d_model). Its further keywords mean what they mean to ``attend``, and ``rotary`` may be
    among them. Around any ``attend`` the harness makes the block itself (`attnlab.contract.block_call`).
``declines(workload)``, optional
    the reason why it cannot do a workload, or None.
``prepare(workload, query, key, value)``, optional
    the arrays in the layout that `attend` wants; runs outside the clock, but where gradients pass through it, and
    where key and value are gathered or cut within the call.
``attend_with_log_sum(query, key, value, **asked)``, optional
    output and ln Z, the natural logarithm of the softmax's denominator Σ_j e^{s_ij} + e^{sink}, (batch, heads, queries)
    in float32, in float64 for float64 inputs; -inf where it is empty. It is given what `attend` is given. Without it
    ln Z, and keys that are cut into parts, are declined.
``KERNEL``, optional
    the operator that must be seen running (``attest``), for a backend that forces one.
``EMPTY_ROWS``, optional
    ``"zeros"`` where a query that sees no key gets the output 0 and gradients 0, as the contract says; by device,
    ``{"cpu": "zeros"}``, where it does not everywhere. Otherwise the harness writes the zeros into the output, within
    the call, and gradients of such rows are declined.
``ON_REQUEST``, optional
    why it takes part only in runs that name it (or ``all``), in one line of text: set-up that takes long, say.
``MEMORY``, optional
    what a call holds at most: ``{"scores": S, "outputs": O}``, in score matrices and outputs.
``COMPUTES_IN``, optional
    the number format in which it computes, where that is a lower one than its inputs': its answers are held against
    the truth of inputs rounded to that format, and whatever ranks it says so.
``SETTINGS`` and ``configure(**settings)``, optional
    settings of its own, ``{"precision": ("f32", "bf16")}``, written out: names with their values, the first of which is
    the default. A contender ``name[precision=bf16]`` asks for one. `configure` is called with a value for each, once,
    when the file has been imported and before anything else of it is read, so that it may set ``LIBRARY``, ``KERNEL``
    and so on. It returns what ``COMPUTES_IN`` would say, or None, and raises ValueError for what cannot be had here.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.block_call import BlockCall, Core
from attnlab.contract.block_sizes import PROJECTIONS
from attnlab.contract.directions import DIRECTIONS, LOG_SUM, OUTPUT
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.inputs import problem_of
from attnlab.contract.keywords import given, known_keywords, unsupported
from attnlab.contract.library import Library, array_type, library_names, open_library
from attnlab.contract.problem import Problem
from attnlab.contract.splitting import hardest_part, merge, parts, places
from attnlab.contract.storage import CONTIGUOUS, Storage, not_stored
from attnlab.contract.workload import Workload

_UNKNOWN_GRADIENTS = "a query sees no key, and what its gradients are then is not known"
#: arguments of `block` before its keywords: the parameters and the heads
_OF_BLOCK = 2


@dataclass(frozen=True)
class Backend:
    """One implementation. Made from a file by `Backend.of_module`, or by hand from a function.

    `options` are the keywords that `attend` takes, or `block` where it computes whole multi-head blocks; `settings` its
    own settings with the values they have; `computes_in` the number format in which it computes, where that is not its
    inputs'.
    """

    name: str
    library: str
    attend: Callable[..., Any]
    summary: str = ""
    options: frozenset[str] = frozenset({"causal", "scale"})
    own_reason: Callable[[Workload], str | None] | None = None
    prepare: Callable[..., tuple[Any, Any, Any]] | None = None
    attend_with_log_sum: Callable[..., tuple[Any, Any]] | None = None
    kernel: str | None = None
    empty_rows: str | Mapping[str, str] | None = None
    memory: Mapping[str, float] | None = None
    block: Callable[..., Callable[[Any, Any], Any]] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    computes_in: str | None = None

    @classmethod
    def of_module(cls, name: str, module: ModuleType, settings: Mapping[str, str] | None = None) -> Backend:
        """The backend that a file defines, with these values of all its `settings`.

        Raises ValueError where ``attend`` or ``LIBRARY`` is missing or unknown, Unavailable where it refuses
        `settings`.
        """
        computes_in = _configured(name, module, settings or {})
        block = getattr(module, "block", None)
        attend = getattr(module, "attend", None) if block is None else _no_core
        if not callable(attend):
            raise ValueError(
                f"{name}: a backend file must define attend(query, key, value, *, causal, scale)"
            )
        library = getattr(module, "LIBRARY", None)
        if library not in library_names():
            known = " or ".join(f'"{one}"' for one in library_names())
            raise ValueError(f"{name}: LIBRARY must be {known}, got {library!r}")
        return cls(
            name=name,
            library=library,
            attend=attend,
            summary=(inspect.getdoc(module) or "").partition("\n")[0],
            options=_options(name, attend) if block is None else _options(name, block, _OF_BLOCK),
            own_reason=getattr(module, "declines", None),
            prepare=getattr(module, "prepare", None),
            attend_with_log_sum=getattr(module, "attend_with_log_sum", None),
            kernel=getattr(module, "KERNEL", None),
            empty_rows=getattr(module, "EMPTY_ROWS", None),
            memory=getattr(module, "MEMORY", None),
            settings=dict(settings or {}),
            computes_in=computes_in,
            block=block,
        )

    def open(self, device: str) -> Library:
        """This backend's array library on `device`. Raises Unavailable."""
        return open_library(self.library, device)

    def declines(self, workload: Workload, projection: str | None = None) -> str | None:
        """Why this backend does not do `workload`, or None. Raises Unavailable for a missing device.

        projection : how x of a block is to be projected, where that was asked for.
        """
        library = self.open(workload.device)
        reason = (
            self._no_block(workload, projection)
            or library.declines(workload.dtype)
            or unsupported(workload, self.options)
            or not_stored(workload, library)
            or self._no_log_sum(workload, library)
        )
        if reason:
            return reason
        if "scale" not in self.options and not math.isclose(workload.scale, workload.head_dim**-0.5):
            return "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"
        if workload.backward:
            reason = library.no_gradients()
            if reason:
                return reason
            if (
                not self.zeros_empty_rows(workload.device)
                and workload.masked.empty_rows(workload.shape) is not None
            ):
                return _UNKNOWN_GRADIENTS
        asked = workload.core if self.block is None else workload
        return self.own_reason(asked) if self.own_reason else None

    def _no_block(self, workload: Workload, projection: str | None) -> str | None:
        if workload.d_model is None:
            if self.block is not None:
                return "it computes whole multi-head blocks; give --d-model"
            return None if projection is None else "projection belongs to a multi-head block; give --d-model"
        if self.computes_in is not None:
            return (
                f"its core computes in {self.computes_in}, and the error budget of a block knows no such core"
            )
        if self.block is None:
            return None
        if projection is not None:
            return "it computes the block in one piece; leave out projection"
        if workload.rotary and "rotary" not in self.options:
            return "its block() takes no rotary positions"
        return None

    def _no_log_sum(self, workload: Workload, library: Library) -> str | None:
        """Why it does not give ln Z where it is asked for, or does not merge parts of the keys, or None."""
        if workload.splits == 1 and LOG_SUM not in workload.results:
            return None
        if self.attend_with_log_sum is None:
            return "it gives no ln Z: its file has no attend_with_log_sum"
        if workload.splits == 1:
            return None
        if workload.backward:
            return f"gradients are computed on whole keys only, not on {workload.splits} parts of them"
        if not hasattr(library, "namespace"):
            return f"attnlab's {library.name} library does not merge parts of the keys"
        reason = unsupported(hardest_part(workload), self.options)
        return reason and f"{reason}, as parts of the keys need"

    def zeros_empty_rows(self, device: str) -> bool:
        """Whether a query that sees no key gets zeros from it, on `device`, without anybody's help."""
        said = self.empty_rows.get(device) if isinstance(self.empty_rows, Mapping) else self.empty_rows
        return said == "zeros"

    def require(self, workload: Workload, projection: str | None = None) -> None:
        """Raises Declined, with the reason, where this backend does not do `workload`."""
        reason = self.declines(workload, projection)
        if reason:
            raise Declined(f"{self.name} declines {workload.label}: {reason}")

    def bind(
        self, workload: Workload, problem: Problem | None = None, projection: str | None = None
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on the arrays of `problem`, ready for a clock.

        problem : by default the workload's own, see `problem_of`. Conversion, device transfer and `prepare` happen
        here, once; in direction backward the forward pass too. The call returns what `named` names. What is drawn here
        is given up, array by array, for what the library makes of it. projection : of a block, see
        `attnlab.contract.block_call`; "fused" unless given. Raises Declined with the reason.
        """
        self.require(workload, projection)
        arrays, left = self.arrays(workload, problem)
        return self.call(workload, left, arrays, projection=projection)

    def arrays(self, workload: Workload, problem: Problem | None = None) -> tuple[tuple[Any, ...], Problem]:
        """Query, key and value as its library's, on the workload's device and lying as that says; and the problem.

        Without a problem the workload's own is drawn, and given up, array by array, for what the library makes of it. A
        block has no such arrays: they come from its projections.
        """
        drawn = problem is None
        problem = problem_of(workload) if problem is None else problem
        if problem.block is not None:
            return (), problem
        library, arrays = self.open(workload.device), []
        for name in ("query", "key", "value"):
            array = getattr(problem, name)
            arrays.append(laid_out(library, array, workload.dtype, workload.layout))
            if drawn:
                problem = problem.with_(**{name: np.broadcast_to(array.dtype.type(0), array.shape)})
            del array
        return tuple(arrays), problem

    def call(
        self,
        workload: Workload,
        problem: Problem,
        arrays: tuple[Any, ...],
        upstream: Any = None,
        projection: str | None = None,
    ) -> Callable[[], Any]:
        """As `bind`, on query, key and value (and the output's gradient) that are the library's already."""
        library, direction = self.open(workload.device), DIRECTIONS[workload.direction]
        if problem.block is not None:
            return self._block_call(workload, problem, library, projection or PROJECTIONS[0])
        if not direction.gradients:
            return direction.call(library, *self._forward(workload, problem, arrays, library), None)
        attend = self._attending(workload, problem, library)
        if upstream is None:
            if problem.output_gradient is None:
                raise ValueError(f"{workload.label} asks for gradients: the problem needs an output_gradient")
            upstream = laid_out(library, problem.output_gradient, workload.dtype, workload.layout)

        def prepared(*leaves: Any) -> Any:
            return attend(*self._prepared(workload, leaves))

        return direction.call(library, prepared if self.prepare else attend, arrays, upstream)

    def _forward(
        self, workload: Workload, problem: Problem, arrays: tuple[Any, ...], library: Library
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What is on the clock, a function of query, key and value, and what it is given."""
        if workload.splits > 1:
            attend, prepared = self._merging(workload, problem, library), False
        else:
            attend, prepared = self._attending(workload, problem, library), True
        if workload.storage == CONTIGUOUS:
            return attend, self._prepared(workload, arrays) if prepared else arrays
        query, *of_keys = arrays
        stored = Storage.kinds[workload.storage](library, workload, *map(library.to_numpy, of_keys))
        if prepared and stored.keyword in self.options:  # read as it lies
            told = {stored.keyword: stored.told}
            attend = self._attending(workload, problem, library, told)
            return attend, self._prepared(workload, (query, *stored.lying))
        if prepared:
            self._prepared(workload, (query, *stored.read()))  # what is compiled is compiled now

        def gathering(query: Any, *_: None) -> Any:
            found = (query, *stored.read())
            return attend(*(self._prepared(workload, found) if prepared else found))

        return gathering, (query, None, None)

    def _block_call(
        self, workload: Workload, problem: Problem, library: Library, projection: str
    ) -> Callable[[], Any]:
        block, dtype = problem.block, workload.dtype
        assert block is not None
        if self.block is None:
            core = partial(self._core, workload.core, problem, library)
            return BlockCall(library, block, dtype, core, projection)
        parameters = {name: library.from_numpy(array, dtype) for name, array in block.parameters.items()}
        options = given(problem, self.options, library, dtype)
        computed = self.block(parameters, block.heads, **options)
        x = library.from_numpy(block.x, dtype)
        memory = None if block.memory is None else library.from_numpy(block.memory, dtype)
        return lambda: computed(x, memory)

    def _core(self, workload: Workload, problem: Problem, library: Library, *arrays: Any) -> Core:
        """`attend` for query, key and value that lie as `arrays` do.

        What it does with `prepare` is done now where that leaves the arrays as they are, else in every call.
        """
        attend, prepare = self._attending(workload, problem, library), self.prepare
        if prepare is None or all(map(operator.is_, prepare(workload, *arrays), arrays)):
            return attend
        return lambda query, key, value: attend(*prepare(workload, query, key, value))

    def _prepared(self, workload: Workload, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.prepare(workload, *arrays) if self.prepare else arrays

    def _attending(
        self, workload: Workload, problem: Problem, library: Library, told: Mapping[str, Any] = {}
    ) -> Callable[..., Any]:
        """`attend`, or `attend_with_log_sum` where that is asked for, with its keywords and those that are `told`.

        With zeros, and -inf for ln Z, where a query sees no key. Raises Declined for gradients of such a query: by an
        array of a caller's own, of which the workload knows nothing.
        """
        options = {**given(problem, self.options, library, workload.dtype), **told}
        with_log_sum = LOG_SUM in workload.results
        attend = self.attend_with_log_sum if with_log_sum else self.attend
        assert attend is not None, "declined before"
        zeros = self.zeros_empty_rows(workload.device)
        empty = None if zeros else problem.mask.empty_rows(problem.shape)
        if empty is None:
            return partial(attend, **options)
        if workload.backward:
            raise Declined(f"{self.name} declines {workload.label}: {_UNKNOWN_GRADIENTS}")
        rows = library.from_numpy(np.ascontiguousarray(empty[..., None]), workload.dtype)
        if not with_log_sum:
            return lambda query, key, value: library.fill(attend(query, key, value, **options), rows, 0.0)

        def filled(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
            output, log_sum = attend(query, key, value, **options)
            if problem.sinks is None:
                log_sum = library.fill(log_sum, rows[..., 0], -math.inf)
            return library.fill(output, rows, 0.0), log_sum

        return filled

    def _merging(self, workload: Workload, problem: Problem, library: Library) -> Callable[..., Any]:
        """Attention over parts of the keys, cut and merged within the call."""
        pieces = []
        for at, part in parts(problem, places(workload.keys, workload.splits)):
            asked = Workload.of_problem(
                part, device=workload.device, direction="forward_with_log_sum", layout=workload.layout
            )
            pieces.append((at, asked, self._attending(asked, part, library)))

        def attend(query: Any, key: Any, value: Any) -> Any:
            found = [
                of_part(*self._prepared(asked, (query, key[:, :, at], value[:, :, at])))
                for at, asked, of_part in pieces
            ]
            output, log_sum = merge(library, found, workload.dtype)
            return (output, log_sum) if LOG_SUM in workload.results else output

        return attend

    def named(self, workload: Workload, returned: Any) -> dict[str, NDArray[Any]]:
        """What a call of `bind` returned, by name, as NumPy arrays.

        Raises ValueError where it is another library's array, or its shape or its dtype is not what the workload asks.
        """
        names = workload.results
        if LOG_SUM in names and not (isinstance(returned, tuple) and len(returned) == len(names)):
            raise ValueError(
                f"{self.name} returned a {_kind(type(returned))} from attend_with_log_sum, expected (output, ln Z)"
            )
        results = (returned,) if len(names) == 1 else tuple(returned)
        return {
            name: self._checked(workload, name, result) for name, result in zip(names, results, strict=True)
        }

    def _checked(self, workload: Workload, name: str, result: Any) -> NDArray[Any]:
        library, expected = self.open(workload.device), workload.shape_of(name)
        if name != OUTPUT and result is None:
            array = name.partition(" ")[0]
            raise ValueError(f"no {name} arrived: the output does not depend on the {array}")
        arrays = array_type(library)
        if not isinstance(result, arrays):
            raise ValueError(
                f"{self.name} returned a {_kind(type(result))}, expected a {_kind(arrays)}, as its LIBRARY says"
            )
        what = "" if name == OUTPUT else f" as {name}"
        shape, dtype = tuple(getattr(result, "shape", ())), library.dtype_of(result)
        if shape != expected:
            raise ValueError(f"{self.name} returned shape {shape}{what}, expected {expected}")
        if dtype != workload.dtype_of(name):
            raise ValueError(f"{self.name} returned dtype {dtype}{what}, expected {workload.dtype_of(name)}")
        return library.to_numpy(result)


def _no_core(*arrays: Any, **options: Any) -> Any:
    raise Declined("it computes whole multi-head blocks; give a block")


def laid_out(library: Library, array: NDArray[Any], dtype: str, layout: str) -> Any:
    """`array` in the library, (batch, heads, length, dim) to the eye, in memory as the workload's `layout` says."""
    if layout == "bhsd":
        return library.from_numpy(array, dtype)
    return library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype).swapaxes(1, 2)


def _configured(name: str, module: ModuleType, settings: Mapping[str, str]) -> str | None:
    """Hand the file its settings, where it has any; the number format in which it then computes."""
    computes_in = None
    if settings:
        configure = getattr(module, "configure", None)
        if not callable(configure):
            raise ValueError(f"{name}: a backend file with SETTINGS must define configure(**settings)")
        try:
            computes_in = configure(**settings)
        except ValueError as refused:
            said = ", ".join(f"{key}={value}" for key, value in settings.items())
            raise Unavailable(f"{name} refuses {said}: {' '.join(str(refused).split())}") from None
    computes_in = computes_in or getattr(module, "COMPUTES_IN", None)
    if computes_in is not None and computes_in not in DTYPES:
        raise ValueError(f"{name}: it must compute in one of {', '.join(DTYPES)}, got {computes_in!r}")
    return computes_in


def _options(name: str, attend: Callable[..., Any], positional: int = 3) -> frozenset[str]:
    """The keywords of a file's function after so many arguments."""
    try:
        parameters = list(inspect.signature(attend).parameters.values())
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: Python cannot tell which options its attend takes; "
            "wrap it in a function: def attend(query, key, value, *, causal, scale)"
        ) from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return frozenset({"causal", "scale"})
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    named = [parameter for parameter in parameters[positional:] if parameter.kind in by_keyword]
    known = known_keywords()
    for parameter in named:
        if parameter.name not in known and parameter.default is parameter.empty:
            raise ValueError(
                f"{name}: its attend needs {parameter.name!r}, which nobody gives it; "
                f"known are {', '.join(sorted(known))}; give it a default"
            )
    return frozenset(parameter.name for parameter in named) & known


def _kind(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
