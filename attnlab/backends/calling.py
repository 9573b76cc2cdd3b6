"""How a call of a backend is put together: keywords, `prepare`, stored keys, parts of the keys, the block around it.

What costs time and belongs to the work is within the call; all else is done before, once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.block_call import BlockCall, Core
from attnlab.backends.keywords import given
from attnlab.backends.library import Library
from attnlab.errors import Declined
from attnlab.problem.directions import DIRECTIONS, LOG_SUM
from attnlab.problem.problem import Problem
from attnlab.problem.splitting import merge, parts, places
from attnlab.problem.storage import CONTIGUOUS, Storage
from attnlab.problem.workload import Workload

if TYPE_CHECKING:
    from attnlab.backends.backend import Backend

UNKNOWN_GRADIENTS = "a query sees no key, and what its gradients are then is not known"


@dataclass(frozen=True)
class Calling:
    """One backend, asked for `workload` on the arrays of `problem`, which its `library` has."""

    backend: Backend
    workload: Workload
    problem: Problem
    library: Library

    def call(self, arrays: tuple[Any, ...], upstream: Any, projection: str) -> Callable[[], Any]:
        """A call without arguments, on query, key and value and the output's gradient, if it is there already."""
        direction = DIRECTIONS[self.workload.direction]
        if self.problem.block is not None:
            return self._block_call(projection)
        if not direction.gradients:
            return direction.call(self.library, *self._forward(arrays), None)
        attend = self._attending()
        if upstream is None:
            given_gradient = self.problem.output_gradient
            if given_gradient is None:
                raise ValueError(
                    f"{self.workload.label} asks for gradients: the problem needs an output_gradient"
                )
            upstream = laid_out(self.library, given_gradient, self.workload.dtype, self.workload.layout)

        def prepared(*leaves: Any) -> Any:
            return attend(*self._prepared(leaves))

        return direction.call(self.library, prepared if self.backend.prepare else attend, arrays, upstream)

    def _forward(self, arrays: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What is on the clock, a function of query, key and value, and what it is given."""
        workload, whole = self.workload, self.workload.splits == 1
        attend = self._attending() if whole else self._merging()
        if workload.storage == CONTIGUOUS:
            return attend, self._prepared(arrays) if whole else arrays
        query, *of_keys = arrays
        stored = Storage.kinds[workload.storage](self.library, workload, *map(self.library.to_numpy, of_keys))
        if whole and stored.keyword in self.backend.options:  # read as it lies
            return self._attending({stored.keyword: stored.told}), self._prepared((query, *stored.lying))
        if whole:
            self._prepared((query, *stored.read()))  # what is compiled is compiled now

        def gathering(query: Any, *_: None) -> Any:
            found = (query, *stored.read())
            return attend(*(self._prepared(found) if whole else found))

        return gathering, (query, None, None)

    def _block_call(self, projection: str) -> Callable[[], Any]:
        block, dtype, library = self.problem.block, self.workload.dtype, self.library
        assert block is not None
        if self.backend.block is None:
            return BlockCall(library, block, dtype, self._core, projection)
        parameters = {name: library.from_numpy(array, dtype) for name, array in block.parameters.items()}
        options = given(self.problem, self.backend.options, library, dtype)
        computed = self.backend.block(parameters, block.heads, **options)
        x = library.from_numpy(block.x, dtype)
        memory = None if block.memory is None else library.from_numpy(block.memory, dtype)
        return lambda: computed(x, memory)

    def _core(self, *arrays: Any) -> Core:
        """`attend` for query, key and value of a block that lie as `arrays` do.

        What it does with `prepare` is done now where that leaves the arrays as they are, else in every call.
        """
        inner = Calling(self.backend, self.workload.core, self.problem, self.library)
        attend = inner._attending()
        if all(map(operator.is_, inner._prepared(arrays), arrays)):
            return attend
        return lambda query, key, value: attend(*inner._prepared((query, key, value)))

    def _prepared(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        prepare = self.backend.prepare
        return prepare(self.workload, *arrays) if prepare else arrays

    def _attending(self, told: Mapping[str, Any] = {}) -> Callable[..., Any]:
        """`attend`, or `attend_with_log_sum` where that is asked for, with its keywords and those that are `told`.

        With zeros, and -inf for ln Z, where a query sees no key. Raises Declined for gradients of such a query: by an
        array of a caller's own, of which the workload knows nothing.
        """
        backend, workload, library = self.backend, self.workload, self.library
        options = {**given(self.problem, backend.options, library, workload.dtype), **told}
        with_log_sum = LOG_SUM in workload.results
        attend = backend.attend_with_log_sum if with_log_sum else backend.attend
        assert attend is not None, "declined before"
        zeros = backend.zeros_empty_rows(workload.device)
        empty = None if zeros else self.problem.mask.empty_rows(self.problem.shape)
        if empty is None:
            return partial(attend, **options)
        if workload.backward:
            raise Declined(f"{backend.name} declines {workload.label}: {UNKNOWN_GRADIENTS}")
        rows = library.from_numpy(np.ascontiguousarray(empty[..., None]), workload.dtype)
        if not with_log_sum:
            return lambda query, key, value: library.fill(attend(query, key, value, **options), rows, 0.0)

        def filled(query: Any, key: Any, value: Any) -> tuple[Any, Any]:
            output, log_sum = attend(query, key, value, **options)
            if self.problem.sinks is None:
                log_sum = library.fill(log_sum, rows[..., 0], -math.inf)
            return library.fill(output, rows, 0.0), log_sum

        return filled

    def _merging(self) -> Callable[..., Any]:
        """Attention over parts of the keys, cut and merged within the call."""
        workload, pieces = self.workload, []
        for at, part in parts(self.problem, places(workload.keys, workload.splits)):
            asked = Workload.of_problem(
                part, device=workload.device, direction="forward_with_log_sum", layout=workload.layout
            )
            of_part = Calling(self.backend, asked, part, self.library)
            pieces.append((at, of_part, of_part._attending()))

        def attend(query: Any, key: Any, value: Any) -> Any:
            found = [
                attending(*of_part._prepared((query, key[:, :, at], value[:, :, at])))
                for at, of_part, attending in pieces
            ]
            output, log_sum = merge(self.library, found, workload.dtype)
            return (output, log_sum) if LOG_SUM in workload.results else output

        return attend


def laid_out(library: Library, array: NDArray[Any], dtype: str, layout: str) -> Any:
    """`array` in the library, (batch, heads, length, dim) to the eye, in memory as the workload's `layout` says."""
    if layout == "bhsd":
        return library.from_numpy(array, dtype)
    return library.from_numpy(np.array(array.swapaxes(1, 2), order="C"), dtype).swapaxes(1, 2)
