"""One implementation of attention: what it declines, and its calls, ready for a clock."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.calling import UNKNOWN_GRADIENTS, Calling, laid_out
from attnlab.backends.contract import Definition, defined
from attnlab.backends.keywords import in_form, not_in_form, unsupported
from attnlab.backends.library import Library, array_type, open_library
from attnlab.backends.storage import not_stored
from attnlab.errors import Declined, Refusal
from attnlab.workload.drawing import problem_of
from attnlab.workload.inputs import PROJECTIONS, Inputs
from attnlab.workload.vocabulary import LOG_SUM, OUTPUT
from attnlab.workload.workload import Workload


class Backend(Definition):
    """One implementation: read from a file by `load`, or made by hand from a function."""

    @classmethod
    def of(cls, name: str, module: ModuleType, settings: dict[str, str] | None = None) -> Backend:
        """The backend that a file defines; settings and errors as of `attnlab.backends.contract.defined`."""
        return cls(**defined(name, module, settings))

    def open(self, device: str) -> Library:
        """This backend's array library on `device`. Raises Unavailable."""
        return open_library(self.library, device)

    def declines(self, workload: Workload, projection: str | None = None) -> Refusal | None:
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
            or self._no_log_sum(workload)
            or self._no_gradients(workload, library)
            or self._own_refusal(told.core if self.block is None else told)
        )

    def _no_block(self, workload: Workload, projection: str | None, library: Library) -> Refusal | None:
        reason: str | None = None
        if workload.d_model is None:
            if self.block is not None:
                reason = "it computes whole multi-head blocks; give --d-model"
            elif projection is not None:
                reason = "projection belongs to a multi-head block; give --d-model"
        elif self.computes_in is not None:
            reason = f"its core computes in {self.computes_in}; blocks have no error budget for that"
        elif self.block is None:
            reason = library.no_projections
        elif projection is not None:
            reason = "it computes the block in one piece; leave out projection"
        elif workload.rotary and "rotary" not in self.options:
            return Refusal("rotary", "its block() takes no rotary positions")
        return Refusal("d_model", reason) if reason else None

    def _no_log_sum(self, workload: Workload) -> Refusal | None:
        if LOG_SUM in workload.results and self.attend_with_log_sum is None:
            return Refusal("direction", "it gives no ln Z: its file has no attend_with_log_sum")
        return None

    def _no_gradients(self, workload: Workload, library: Library) -> Refusal | None:
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
            return Refusal(
                "scale", "its attend() takes no scale; it can only do the default 1/sqrt(head_dim)"
            )
        found = self.own_reason(workload) if self.own_reason else None
        if not found:
            return None
        return Refusal("", found) if isinstance(found, str) else Refusal(*found)

    def require(self, workload: Workload, projection: str | None = None) -> None:
        """Raises Declined where this backend does not do `workload`."""
        refusal = self.declines(workload, projection)
        if refusal:
            raise Declined(refusal)

    def bind(
        self, workload: Workload, problem: Inputs | None = None, projection: str | None = None
    ) -> Callable[[], Any]:
        """A call without arguments that computes `workload` on the arrays of `problem`, ready for a clock.

        problem : the workload's own inputs by default. Conversion, device transfer and `prepare` happen here, once; in
        direction backward the forward pass too. The call returns what `named` names. projection : of a block, one of
        `PROJECTIONS`, "fused" unless given. Raises Declined.
        """
        self.require(workload, projection)
        arrays, left = self.arrays(workload, problem)
        return self.call(workload, left, arrays, projection=projection)

    def arrays(self, workload: Workload, problem: Inputs | None = None) -> tuple[tuple[Any, ...], Inputs]:
        """Query, key and value as its library's, on the workload's device and lying as that says; and the inputs.

        Without inputs the workload's own are drawn, and given up, array by array, for what the library makes of them. A
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
        library, results = self.open(workload.device), (returned,) if len(names) == 1 else tuple(returned)
        found = {}
        for name, result in zip(names, results, strict=True):
            self._require_fit(workload, library, name, result)
            found[name] = library.to_numpy(result)
        return found

    def _require_fit(self, workload: Workload, library: Library, name: str, result: Any) -> None:
        if name != OUTPUT and result is None:
            array = name.partition(" ")[0]
            raise ValueError(f"no {name} arrived: the output does not depend on the {array}")
        arrays = array_type(library)
        if type(result) is not arrays:  # a subclass may compute when it is read, after the clock has stopped
            raise ValueError(
                f"{self.name} returned a {_kind(type(result))}, expected a {_kind(arrays)}, as its LIBRARY says"
            )
        what = "" if name == OUTPUT else f" as {name}"
        for found, expected, kind in (
            (tuple(getattr(result, "shape", ())), workload.shape_of(name), "shape"),
            (library.dtype_of(result), workload.dtype_of(name), "dtype"),
        ):
            if found != expected:
                raise ValueError(f"{self.name} returned {kind} {found}{what}, expected {expected}")


def _kind(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
