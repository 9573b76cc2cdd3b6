"""The number formats a workload may ask for, and rounding to them in NumPy alone.

NumPy has no bfloat16, so its values travel in float32 arrays that hold them exactly; every array
library can then take them over without a second rounding.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

#: the formats by name
FORMATS: dict[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
DTYPES = tuple(FORMATS)
#: bytes one element takes, by name
ITEM_BYTES: dict[str, int] = {name: form.itemsize for name, form in FORMATS.items()}


def lower(dtype: str, computes_in: str | None) -> str | None:
    """`computes_in` where it rounds more coarsely than `dtype`, else None.

    Raises KeyError for a name that is not in `DTYPES`.
    """
    if computes_in is None:
        return None
    bits = {name: int(ml_dtypes.finfo(FORMATS[name]).nmant) for name in (dtype, computes_in)}  # type: ignore[no-untyped-call]
    return computes_in if bits[computes_in] < bits[dtype] else None


def carrier(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds every value of `dtype` exactly (float32 for bfloat16).

    Raises ValueError for a name that is not in `DTYPES`.
    """
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def round_to(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`array` rounded to nearest, ties to even, in `dtype`; any shape, returned in `carrier(dtype)`.

    Values beyond the largest finite number become infinite, as they do in hardware. bfloat16 goes
    through float32, so a float64 input is rounded twice: off by one unit for about one value in 2^29.
    """
    with np.errstate(over="ignore"):
        cast = np.asarray(array).astype(carrier(dtype), copy=False)
        return cast.astype(FORMATS[dtype], copy=False).astype(cast.dtype, copy=False)
