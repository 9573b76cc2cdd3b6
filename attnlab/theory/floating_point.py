"""Requirement: the constants of the floating-point formats, and where softmax leaves their range.

u is the unit roundoff, half the distance from 1 to the next number: 2^-24 for float32.
"""

import math
from typing import NamedTuple

import ml_dtypes

from attnlab.problem.dtypes import DTYPES, FORMATS

from .checks import one_of

# Relative rms error of one rounding to nearest, in u, for a log-uniform mantissa: 1/√(8 ln 2) = .42466.
ROUNDING_RMS = 1 / math.sqrt(8 * math.log(2))

# A rounding's rms is u/(m√3) for a mantissa m in [1, 2). Where numbers are of one size their mantissas are one, and
# in the worst case it is 1: so much more than on average.
ONE_MANTISSA = 1 / (3**0.5 * ROUNDING_RMS)


class FloatFormat(NamedTuple):
    """A binary format: p bits of significand with the hidden one, and its exponents."""

    precision: int
    least_exponent: int  # of the smallest normal number
    greatest_exponent: int  # of the largest number

    @property
    def unit_roundoff(self) -> float:
        """2^−p."""
        return math.ldexp(1.0, -self.precision)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return math.ldexp(2 - math.ldexp(1.0, 1 - self.precision), self.greatest_exponent)

    @property
    def smallest_normal(self) -> float:
        """The smallest number with the full precision."""
        return math.ldexp(1.0, self.least_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number; below it the spacing is itself."""
        return math.ldexp(1.0, self.least_exponent - self.precision + 1)


def float_format(dtype: str) -> FloatFormat:
    """The format by its name. Raises ValueError for any but float16, bfloat16, float32 and float64."""
    form = FORMATS[one_of("dtype", dtype, DTYPES)]
    found = ml_dtypes.finfo(form)  # type: ignore[no-untyped-call]  # its stub gives the constructor no types
    return FloatFormat(found.nmant + 1, int(found.minexp), int(found.maxexp) - 1)


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
    found = float_format(dtype)
    return (found.precision - found.least_exponent) * math.log(2)
