"""What libraries share whose functions have NumPy's names and meanings: NumPy itself, and CuPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.libraries.host import HostLibrary


class NumPyNames(HostLibrary):
    """A part of `attnlab.backends.library.Library`, on the arrays of the module `namespace`."""

    namespace: Any

    def dtype_of(self, array: Any) -> str:
        return str(self.namespace.asarray(array).dtype)

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return self.namespace.broadcast_to(array, shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return self.namespace.where(where, array.dtype.type(number), array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        arrays = all(isinstance(array, self.namespace.ndarray) for array in (one, other))
        return arrays and bool(self.namespace.shares_memory(one, other))

    def stacked(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.namespace.stack(list(arrays), axis=axis)

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return self.namespace.concatenate(list(arrays), axis=axis)

    def write(self, array: Any, at: tuple[slice, ...], rows: Any) -> None:
        array[at] = rows

    def taking(self, places: NDArray[np.int64]) -> Callable[[Any], Any]:
        index = self.namespace.asarray(places)
        return lambda array: array.take(index, axis=0)

    def numbers(self, array: NDArray[np.int64]) -> Any:
        return self.namespace.asarray(array.astype(np.int32))

    def cast(self, array: Any, dtype: str) -> Any:
        return array.astype(dtype, copy=False)
