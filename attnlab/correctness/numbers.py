"""Numbers: checked arguments of formulas, floating-point formats, and the variance of one rounding and of a sum.

A number outside the domain of a formula is refused in one line before any arithmetic. u is the unit roundoff, half the
distance from 1 to the next number: 2^-24 for float32.
"""

import math
import operator
from functools import cache
from typing import NamedTuple, SupportsIndex

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attnlab.workload.number_formats import FORMATS, carrier

Array = NDArray[np.float64]


def whole(name: str, number: SupportsIndex, least: int) -> int:
    """`number` as an int that is at least `least`; a bool or a fraction is refused."""
    try:
        found = None if isinstance(number, bool | np.bool_) else operator.index(number)
    except TypeError:
        found = None
    if found is None or found < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {number!r}")
    return found


def real(name: str, number: float, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """`number` as a finite float with `number >= least` and `number > above`."""
    try:
        found = float(number)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {number!r}")
    if found < least:
        raise ValueError(f"{name} must be >= {least:g}, got {found:g}")
    if found <= above:
        raise ValueError(f"{name} must be > {above:g}, got {found:g}")
    return found


def finite_array(name: str, values: ArrayLike, least_ndim: int = 0) -> Array:
    """`values` as a float64 array without NaN or infinity and with at least `least_ndim` axes."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim < least_ndim:
        raise ValueError(f"{name} must have at least {least_ndim} axes, got shape {found.shape}")
    if found.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite, got a NaN or an infinity")
    return found


def probability_rows(name: str, weights: ArrayLike, tolerance: float = 0.05) -> Array:
    """`weights` as float64 rows that are non-negative and sum to 1 within `tolerance`.

    The tolerance is wide because rows rounded to bfloat16 are legitimate input.
    """
    found = finite_array(name, weights, 1)
    if (found < 0).any():
        raise ValueError(f"{name} must be >= 0, got {found.min():g}")
    off = float(np.abs(found.sum(axis=-1) - 1).max())
    if off > tolerance:
        raise ValueError(f"{name} must sum to 1 along the last axis, got a row off by {off:.3g}")
    return found


# Relative rms error of one rounding to nearest, in u, for a log-uniform mantissa: 1/√(8 ln 2) = .42466.
ROUNDING_RMS = 1 / math.sqrt(8 * math.log(2))

# The rms of a rounding is u/(m√3) for a mantissa m in [1, 2). Numbers of the same size have similar mantissas, 1 in the
# worst case: the rms is then larger than the average by this factor.
ONE_MANTISSA = 1 / (3**0.5 * ROUNDING_RMS)


class FloatFormat(NamedTuple):
    """A binary format: p bits of significand with the hidden one, its u = 2^−p, and its extreme numbers."""

    precision: int
    unit_roundoff: float
    largest: float
    smallest_normal: float  # with the full precision
    smallest_subnormal: float  # below it the spacing is itself


@cache
def float_format(dtype: str) -> FloatFormat:
    """The format by its name. Raises ValueError for any but float16, bfloat16, float32 and float64."""
    carrier(dtype)  # refuses an unknown one
    found = ml_dtypes.finfo(FORMATS[dtype])  # type: ignore[no-untyped-call]  # its stub gives the constructor no types
    extremes = (float(one) for one in (found.max, found.smallest_normal, found.smallest_subnormal))
    return FloatFormat(found.nmant + 1, 2.0 ** -(found.nmant + 1), *extremes)


def unit_roundoff(dtype: str) -> float:
    """u: float64 2^-53, float32 2^-24, float16 2^-11, bfloat16 2^-8 (IEEE 754). ValueError for others."""
    return float_format(dtype).unit_roundoff


def overflow_threshold(dtype: str) -> float:
    """ln(max): exp of a greater logit overflows. float16 11.09, bfloat16 and float32 88.72, float64 709.78.

    An unshifted softmax fails there. Raises ValueError for an unknown dtype.
    """
    return math.log(float_format(dtype).largest)


def underflow_threshold(dtype: str) -> float:
    """The gap max − s beyond which e^{s − max} rounds to 0: −ln of half the smallest subnormal.

    float16 25 ln 2 = 17.33, bfloat16 92.9, float32 104.0, float64 745.1, where subnormals are kept (flushed
    to zero, it is −ln of the smallest normal). Raises ValueError for an unknown dtype.
    """
    return math.log(2) - math.log(float_format(dtype).smallest_subnormal)


# -- one rounding, and sums of many


def rounding_variance(x: Array, form: FloatFormat) -> Array:
    """Mean square error of one rounding of x to nearest: (c u x)², or τ²/3 where x is subnormal.

    A number below τ is lost as a whole, which is a smaller error than τ²/3.
    """
    half = form.smallest_subnormal / 2
    found = np.asarray((ROUNDING_RMS * form.unit_roundoff * x) ** 2)
    subnormal = np.abs(x) < form.smallest_normal
    if subnormal.any():
        found[subnormal] = np.minimum(half * half / 3, x[subnormal] ** 2)
    return found


def chain_variance(terms: float | Array, squares: Array, total: Array) -> Array:
    """The variance of a sum by a chain of N additions, in (c u)²: (1 + N/2)Σa² + (N/3)A².

    terms : N. squares : Σa² over the terms. total : A, their sum.
    """
    return np.asarray((1 + terms / 2) * squares + terms / 3 * total**2)
