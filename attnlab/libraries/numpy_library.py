"""NumPy on the CPU: float16, float32, float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.errors import Unavailable
from attnlab.libraries.numpy_names import NumPyNames
from attnlab.problem.dtypes import round_to

#: of the BLAS libraries that its wheels and distributions come with
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def open_on(device: str) -> NumPy:
    """NumPy. Raises Unavailable for any device but the CPU."""
    if device != "cpu":
        raise Unavailable(f"NumPy computes on the CPU only, not on {device}")
    return NumPy()


class NumPy(NumPyNames):
    """See `attnlab.backends.library.Library`."""

    name = "numpy"
    namespace = np

    def declines(self, dtype: str) -> str | None:
        return "NumPy has no bfloat16" if dtype == "bfloat16" else None

    def no_gradients(self) -> str | None:
        return "NumPy has no automatic differentiation"

    def from_numpy(self, array: NDArray[Any], dtype: str) -> NDArray[Any]:
        return np.ascontiguousarray(array if array.dtype == np.bool_ else round_to(array, dtype))

    def to_numpy(self, array: Any) -> NDArray[Any]:
        return np.asarray(array)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """In float32 for float16, of which NumPy has no fast product; the bias is added in place."""
        wide = [one.astype(np.float32) if one.dtype == np.float16 else one for one in (x, weight, bias)]
        found = wide[0] @ wide[1].T
        found += wide[2]
        return found.astype(x.dtype, copy=False)

    def versions(self) -> dict[str, str]:
        return {"numpy": np.__version__}
