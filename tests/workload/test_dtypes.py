"""Rounding to a number format gives the bits that hardware gives."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from attnlab.workload.vocabulary import round_to

any_float32 = arrays.arrays(
    np.uint32, arrays.array_shapes(min_dims=0, max_dims=3), elements=st.integers(0, 2**32 - 1)
)


@given(any_float32)
@example(np.array(0x7F800001, np.uint32))
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
