"""Number formats: their sizes, rounding to them, and floating-point numbers from arrays of any library.

NumPy has no bfloat16: its values travel in float32 arrays, which hold them exactly. So no array library has to round
them a second time.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attnlab.errors import FieldError

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
    """`computes_in` if it rounds more coarsely than `dtype`, else None.

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
    with np.errstate(over="ignore", invalid="ignore"):  # of signalling NaN
        cast = np.asarray(array).astype(carrier(dtype), copy=False)
        return cast.astype(FORMATS[dtype], copy=False).astype(cast.dtype, copy=False)


def floating(name: str, array: Any, *, finite: bool = True) -> NDArray[Any]:
    """The numbers of an array, or of a tensor on any device; bfloat16 in float32, which holds it exactly.

    Raises FieldError for other numbers than floating-point ones, and for NaN and infinity if they must be `finite`.
    """
    if hasattr(array, "detach"):  # a PyTorch tensor; NumPy knows no bfloat16
        array = (array.float() if str(array.dtype) == "torch.bfloat16" else array).detach().cpu()
    found = np.asarray(array)
    if found.dtype.name == "bfloat16":
        found = found.astype(np.float32)
    if found.dtype.kind != "f":
        raise FieldError(name, f"must hold floating-point numbers, got {found.dtype}")
    if finite and not np.isfinite(found).all():
        raise FieldError(name, "must be finite, got a NaN or an infinity")
    return found
