"""Requirement: a number outside a formula's domain is refused in one line, before any arithmetic.

Every function of this package checks its arguments here, so that the messages have one form:
what was expected, and what came.
"""

import math
import operator
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def whole(name: str, number: SupportsIndex, least: int) -> int:
    """`number` as an int that is at least `least`; a bool or a fraction is refused."""
    try:
        if isinstance(number, bool | np.bool_):
            raise TypeError
        found = operator.index(number)
    except TypeError:
        raise ValueError(f"{name} must be a whole number >= {least}, got {number!r}") from None
    if found < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {found}")
    return found


def real(name: str, number: float, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """`number` as a finite float with `number >= least` and `number > above`."""
    try:
        found = float(number)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a finite number, got {number!r}") from None
    if not math.isfinite(found):
        raise ValueError(f"{name} must be a finite number, got {found}")
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


def one_of(name: str, choice: Any, choices: tuple[str, ...]) -> str:
    """`choice` if it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {choice!r}")
    return choice
