"""The number formats a workload may ask for, and rounding to them in NumPy alone.

NumPy has no bfloat16, so its values travel in float32 arrays that hold them exactly; every array
library can then take them over without a second rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

#: bytes one element takes, by name
ITEM_BYTES: dict[str, int] = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

DTYPES = tuple(ITEM_BYTES)


def carrier(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds every value of `dtype` exactly (float32 for bfloat16).

    Raises ValueError for a name that is not in `DTYPES`.
    """
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def round_to(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`array` rounded to nearest, ties to even, in `dtype`; any shape, returned in `carrier(dtype)`.

    Values beyond the largest finite number become infinite, as they do in hardware. bfloat16 goes
    through float32, so a float64 input is rounded twice: off by one unit for about one value in 2^29.
    """
    with np.errstate(over="ignore"):
        cast = np.asarray(array).astype(carrier(dtype), copy=False)
    if dtype != "bfloat16":
        return cast
    bits = np.ascontiguousarray(cast).reshape(cast.shape).view(np.uint32)  # it makes an axis of none
    nearest_even = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + nearest_even) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(cast), cast, rounded)
