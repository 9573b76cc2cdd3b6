"""Rounding to a number format gives the bits that hardware gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnlab.problem.dtypes import DTYPES, carrier, round_to

any_float32 = arrays.arrays(
    np.uint32, arrays.array_shapes(min_dims=0, max_dims=3), elements=st.integers(0, 2**32 - 1)
)


@given(any_float32)
def test_bfloat16_is_rounded_as_torch_rounds_it(bits: np.ndarray) -> None:
    """Every bit pattern of float32: subnormal, ties, overflow to infinity; NaN stays NaN."""
    import torch

    values = bits.view(np.float32)
    ours = round_to(values, "bfloat16")
    theirs = torch.from_numpy(values.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    assert ours.shape == values.shape
    assert ours.dtype == np.float32
    nan = np.isnan(values)
    assert np.array_equal(np.isnan(ours), nan)
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])


@given(any_float32)
def test_float16_is_rounded_as_torch_rounds_it(bits: np.ndarray) -> None:
    """Overflow becomes infinity, without a warning."""
    import torch

    values = bits.view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN, which no input of ours is
        ours = round_to(values, "float16")
    theirs = torch.from_numpy(values.copy()).to(torch.float16).numpy()
    assert ours.dtype == np.float16
    assert np.array_equal(ours, theirs, equal_nan=True)


@given(st.sampled_from(DTYPES), arrays.arrays(np.float64, 5, elements=st.floats(-1e5, 1e5)))
def test_rounding_twice_changes_nothing(dtype: str, values: np.ndarray) -> None:
    """What came out is a value of the format."""
    once = round_to(values, dtype)
    assert np.array_equal(round_to(once, dtype), once)


def test_an_array_without_axes_keeps_none() -> None:
    """A scalar must not grow an axis on its way."""
    assert round_to(np.array(1.1), "bfloat16").shape == ()


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    """Not with NumPy's own error."""
    with pytest.raises(
        ValueError, match="dtype must be one of float16, bfloat16, float32, float64, got 'fp8'"
    ):
        carrier("fp8")
