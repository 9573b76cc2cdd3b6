"""NumPy on the CPU: float16, float32, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import round_to
from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.library import Arrays, Call
from attnlab.libraries import host

#: of the BLAS libraries that its wheels and distributions come with
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_NO_GRADIENTS = "NumPy has no automatic differentiation"


def open_on(device: str) -> NumPy:
    """NumPy. Raises Unavailable for any device but the CPU."""
    if device != "cpu":
        raise Unavailable(f"NumPy computes on the CPU only, not on {device}")
    return NumPy()


class NumPy:
    """See `attnlab.contract.library.Library`."""

    name = "numpy"
    device = "cpu"
    cache = "warm"

    def declines(self, dtype: str) -> str | None:
        return "NumPy has no bfloat16" if dtype == "bfloat16" else None

    def no_gradients(self) -> str | None:
        return _NO_GRADIENTS

    def from_numpy(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(array if array.dtype == np.bool_ else round_to(array, dtype))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def dtype_of(self, array: Any) -> str:
        return str(np.asarray(array).dtype)

    def expanded(self, array: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(array, shape)

    def fill(self, array: Any, where: Any, number: float) -> Any:
        return np.where(where, array.dtype.type(number), array)

    def shares_memory(self, one: Any, other: Any) -> bool:
        arrays = isinstance(one, np.ndarray) and isinstance(other, np.ndarray)
        return arrays and bool(np.shares_memory(one, other))

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> NoReturn:
        raise Declined(_NO_GRADIENTS)

    training_call = backward_call

    def finish(self) -> None:
        """NumPy's calls return when they are done."""

    def time_calls(self, call: Call, iterations: int) -> float:
        return host.seconds_per_call(call, iterations, self.finish)

    def peak_bytes(self, call: Call) -> int | None:
        return None

    def free_bytes(self) -> int:
        return host.free_bytes()

    def trim(self) -> None:
        """NumPy keeps nothing that is not in use."""

    def attest(self, call: Call) -> str:
        from threadpoolctl import threadpool_info

        pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        return (
            ", ".join(f"{pool['internal_api']} {pool.get('architecture') or ''}".strip() for pool in pools)
            or "no BLAS library was loaded"
        )

    def set_threads(self, count: int) -> None:
        from threadpoolctl import threadpool_limits

        threadpool_limits(count)

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
