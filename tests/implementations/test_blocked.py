"""The blocked NumPy backend: right for every block size, and never as large as the score matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnlab.implementations import naive_loop, numpy_blocked


def inputs(queries: int, keys: int, heads: int = 1, dim: int = 8) -> list[NDArray[Any]]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal((1, heads, length, dim)) for length in (queries, keys, keys)]


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 30),
    keys=st.integers(1, 30),
    query_block=st.integers(1, 12),
    key_block=st.integers(1, 12),
    causal=st.booleans(),
    offset=st.sampled_from([0.0, 1200.0, -52000.0]),
)
def test_the_answer_does_not_depend_on_the_blocks(
    queries: int, keys: int, query_block: int, key_block: int, causal: bool, offset: float
) -> None:
    """Blocks that divide nothing, cross the diagonal anywhere, or hold one key, agree with the specification.

    In float64, whose rounding of a logit near -52000 is below 1e-10.
    """
    query, key, value = inputs(queries, keys)
    query[..., 0], key[..., 0] = np.sqrt(abs(offset)), np.sign(offset) * np.sqrt(abs(offset))
    expected, _ = naive_loop.attend_with_log_sum(query, key, value, causal=causal, scale=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_blocked, "QUERY_BLOCK", query_block)
        patch.setattr(numpy_blocked, "KEY_BLOCK", key_block)
        output, _ = numpy_blocked.attend_with_log_sum(query, key, value, causal=causal, scale=1.0)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-9)
