"""Number formats: their sizes and limits, rounding to them, and numbers from arrays of any library.

NumPy has no bfloat16: its values are kept in float32 arrays, which hold them exactly. So no array library has to round
them a second time.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from attnlab.errors import FieldError

Array = NDArray[np.float64]
#: the formats by name
DTYPES = ("float16", "bfloat16", "float32", "float64")
#: importing ml_dtypes makes the name of bfloat16 known to NumPy
FORMATS: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in DTYPES}
#: bytes of one element, by name
ITEM_BYTES: dict[str, int] = {name: form.itemsize for name, form in FORMATS.items()}


def lower(dtype: str, computes_in: str | None) -> str | None:
    """`computes_in` if it rounds more coarsely than `dtype`, else None.

    Raises ValueError for a name that is not in `DTYPES`.
    """
    less = computes_in and float_format(computes_in).precision < float_format(dtype).precision
    return computes_in if less else None


class FloatFormat(NamedTuple):
    """A binary format: its p bits of precision (the hidden bit counts), u = 2^−p, and its extreme numbers.

    The unit roundoff u is half the distance from 1 to the next number: float64 2^-53, float32 2^-24, float16 2^-11,
    bfloat16 2^-8 (IEEE 754).
    """

    precision: int
    unit_roundoff: float
    largest: float
    smallest_normal: float  # with the full precision
    smallest_subnormal: float  # the spacing below smallest_normal


@cache
def float_format(dtype: str) -> FloatFormat:
    """The format by its name. Raises ValueError for any name but float16, bfloat16, float32 and float64."""
    carrier(dtype)  # raises for an unknown name
    found = ml_dtypes.finfo(FORMATS[dtype])  # type: ignore[no-untyped-call]  # its stub gives the constructor no types
    extremes = (float(one) for one in (found.max, found.smallest_normal, found.smallest_subnormal))
    return FloatFormat(found.nmant + 1, 2.0 ** -(found.nmant + 1), *extremes)


def overflow_threshold(dtype: str) -> float:
    """ln(max): exp of a greater logit overflows. float16 11.09, bfloat16 and float32 88.72, float64 709.78.

    An unshifted softmax fails there. Raises ValueError for an unknown dtype.
    """
    return math.log(float_format(dtype).largest)


def underflow_threshold(dtype: str) -> float:
    """The gap max − s beyond which e^{s − max} rounds to 0: −ln of half the smallest subnormal.

    float16 25 ln 2 = 17.33, bfloat16 92.9, float32 104.0, float64 745.1, if subnormals are kept. If they are flushed to
    zero, it is −ln of the smallest normal. Raises ValueError for an unknown dtype.
    """
    return math.log(2) - math.log(float_format(dtype).smallest_subnormal)


def carrier(dtype: str) -> np.dtype[Any]:
    """The NumPy dtype that holds every value of `dtype` exactly (float32 for bfloat16).

    Raises ValueError for a name that is not in `DTYPES`.
    """
    if dtype not in FORMATS:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def round_to(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """`array` rounded to nearest, ties to even, in `dtype`; any shape, returned in `carrier(dtype)`.

    Values beyond the largest finite number become infinite, as they do in hardware. A float64 input goes to bfloat16
    through float32, so it is rounded twice: about one value in 2^29 is off by one unit.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # from signalling NaN
        cast = np.asarray(array).astype(carrier(dtype), copy=False)
        return cast.astype(FORMATS[dtype], copy=False).astype(cast.dtype, copy=False)


def dtype_of(array: Any) -> str:
    """The number format of an array or a tensor of any library by its name, also "bfloat16"."""
    found = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
    return str(found).rpartition(".")[2]


def held(name: str, array: Any) -> NDArray[Any]:
    """An array, or a tensor on any device, as a NumPy array; bfloat16 in float32, which holds it exactly.

    Raises FieldError for what NumPy cannot hold, such as the float8 of PyTorch.
    """
    try:
        if hasattr(array, "detach"):  # a PyTorch tensor; NumPy knows no bfloat16
            array = (array.float() if dtype_of(array) == "bfloat16" else array).detach().cpu()
        found = np.asarray(array)
    except (NotImplementedError, TypeError) as fault:
        raise FieldError(name, f"must be an array that NumPy can hold: {fault}") from None
    return found.astype(np.float32) if found.dtype.name == "bfloat16" else found


def floating(name: str, array: Any, *, finite: bool = True) -> NDArray[Any]:
    """The numbers of an array or a tensor, as `held` gives them.

    Raises FieldError for numbers that are not floating-point, and for NaN and infinity if they must be `finite`.
    """
    found = held(name, array)
    if found.dtype.kind != "f":
        raise FieldError(name, f"must hold floating-point numbers, got {found.dtype}")
    if finite and not np.isfinite(found).all():
        raise FieldError(name, "must be finite, got a NaN or an infinity")
    return found
