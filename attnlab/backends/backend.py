"""One implementation of attention, as data: its name, its array library, what it declines, and calls to measure.

How a file says all this is written in `attnlab.backends.discovery`, how a call is put together in
`attnlab.backends.calling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.calling import UNKNOWN_GRADIENTS, Calling, laid_out
from attnlab.backends.keywords import in_form, not_in_form, unsupported
from attnlab.backends.library import Library, array_type, open_library
from attnlab.backends.storage import not_stored
from attnlab.errors import Declined
from attnlab.workload.drawing import problem_of
from attnlab.workload.inputs import PROJECTIONS, Inputs
from attnlab.workload.vocabulary import LOG_SUM, OUTPUT
from attnlab.workload.workload import Workload


@dataclass(frozen=True)
class Backend:
    """One implementation. Made from a file by `backend_of`, or by hand from a function.

    `options` are the keywords that `attend` takes, or `block` where it computes whole multi-head blocks; `settings` its
    own settings with the values they have; `computes_in` the number format in which it computes, where that is not its
    inputs'; `mask_form` in which of `keywords.FORMS` it is handed a mask, None for as its keywords say.
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
    mask_form: str | None = None

    def open(self, device: str) -> Library:
        """This backend's array library on `device`. Raises Unavailable."""
        return open_library(self.library, device)

    def declines(self, workload: Workload, projection: str | None = None) -> str | None:
        """Why this backend does not do `workload`, or None. Raises Unavailable for a missing device.

        projection : how x of a block is to be projected, where that was asked for.
        """
        library, told = self.open(workload.device), in_form(workload, self.mask_form)
        return (
            self._no_block(workload, projection, library)
            or library.declines(workload.dtype)
            or not_in_form(workload, self.mask_form, self.options)
            or unsupported(told, self.options)
            or not_stored(workload, library)
            or self._no_log_sum(workload, library)
            or self._no_scale(workload)
            or self._no_gradients(workload, library)
            or (self.own_reason(told.core if self.block is None else told) if self.own_reason else None)
        )

    def _no_block(self, workload: Workload, projection: str | None, library: Library) -> str | None:
        if workload.d_model is None:
            if self.block is not None:
                return "it computes whole multi-head blocks; give --d-model"
            return None if projection is None else "projection belongs to a multi-head block; give --d-model"
        if self.computes_in is not None:
            return (
                f"its core computes in {self.computes_in}, and the error budget of a block knows no such core"
            )
        if self.block is None:
            reason: str | None = getattr(library, "no_projections", None)
            return reason
        if projection is not None:
            return "it computes the block in one piece; leave out projection"
        if workload.rotary and "rotary" not in self.options:
            return "its block() takes no rotary positions"
        return None

    def _no_log_sum(self, workload: Workload, library: Library) -> str | None:
        """Why it does not give ln Z where it is asked for, or None."""
        if LOG_SUM in workload.results and self.attend_with_log_sum is None:
            return "it gives no ln Z: its file has no attend_with_log_sum"
        return None

    def _no_scale(self, workload: Workload) -> str | None:
        if "scale" in self.options or math.isclose(workload.scale, workload.head_dim**-0.5):
            return None
        return "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"

    def _no_gradients(self, workload: Workload, library: Library) -> str | None:
        if not workload.backward:
            return None
        reason = library.no_gradients()
        if reason is None and OUTPUT not in workload.results:
            reason = getattr(library, "no_backward_alone", None)
        zeros = self.zeros_empty_rows(workload.device)
        if reason is None and not zeros and workload.masked.empty_rows(workload.shape) is not None:
            reason = UNKNOWN_GRADIENTS
        return reason

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
        self, workload: Workload, problem: Inputs | None = None, projection: str | None = None
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on the arrays of `problem`, ready for a clock.

        problem : by default the workload's own, see `problem_of`. Conversion, device transfer and `prepare` happen
        here, once; in direction backward the forward pass too. The call returns what `named` names. What is drawn here
        is given up, array by array, for what the library makes of it. projection : of a block, see
        `attnlab.backends.calling`; "fused" unless given. Raises Declined with the reason.
        """
        self.require(workload, projection)
        arrays, left = self.arrays(workload, problem)
        return self.call(workload, left, arrays, projection=projection)

    def arrays(self, workload: Workload, problem: Inputs | None = None) -> tuple[tuple[Any, ...], Inputs]:
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
        problem: Inputs,
        arrays: tuple[Any, ...],
        upstream: Any = None,
        projection: str | None = None,
    ) -> Callable[[], Any]:
        """As `bind`, on query, key and value (and the output's gradient) that are the library's already."""
        calling = Calling(self, workload, problem, self.open(workload.device))
        return calling.call(arrays, upstream, projection or PROJECTIONS[0])

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
        library = self.open(workload.device)
        return {
            name: self._checked(workload, library, name, result)
            for name, result in zip(names, results, strict=True)
        }

    def _checked(self, workload: Workload, library: Library, name: str, result: Any) -> NDArray[Any]:
        if name != OUTPUT and result is None:
            array = name.partition(" ")[0]
            raise ValueError(f"no {name} arrived: the output does not depend on the {array}")
        arrays, what = array_type(library), "" if name == OUTPUT else f" as {name}"
        if type(result) is not arrays:  # a subclass may compute when it is read, after the clock has stopped
            raise ValueError(
                f"{self.name} returned a {_kind(type(result))}, expected a {_kind(arrays)}, as its LIBRARY says"
            )
        for found, expected, kind in (
            (tuple(getattr(result, "shape", ())), workload.shape_of(name), "shape"),
            (library.dtype_of(result), workload.dtype_of(name), "dtype"),
        ):
            if found != expected:
                raise ValueError(f"{self.name} returned {kind} {found}{what}, expected {expected}")
        return library.to_numpy(result)


def _kind(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
