"""A new array library: array-api-strict, which has the array API standard and nothing beside it."""

from __future__ import annotations

from typing import Any

import array_api_strict as strict
import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import round_to
from attnlab.contract.errors import Unavailable
from attnlab.libraries.host import HostLibrary


def open_on(device: str) -> Strict:
    if device != "cpu":
        raise Unavailable(f"array-api-strict computes on the CPU only, not on {device}")
    return Strict()


class Strict(HostLibrary):
    name = "strict"

    def declines(self, dtype: str) -> str | None:
        return None if dtype in ("float32", "float64") else f"the array API standard has no {dtype}"

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Any:
        return strict.asarray(
            np.ascontiguousarray(array if array.dtype == np.bool_ else round_to(array, dtype))
        )

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array._array)

    def dtype_of(self, array: Any) -> str:
        return str(array.dtype).rpartition(".")[2]

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return strict.broadcast_to(array, shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return strict.where(where, strict.asarray(number, dtype=array.dtype), array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        return np.shares_memory(self.to_numpy(one), self.to_numpy(other))

    def versions(self) -> dict[str, str]:
        return {"array-api-strict": strict.__version__}
