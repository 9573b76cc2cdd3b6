"""A band of diagonals says what causal masks and windows say together."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attnlab.workload.mask_kinds import Causal, Part, Shape, Window, band
from attnlab.workload.masks import Mask

WINDOWS = st.none() | st.tuples(st.integers(-1, 12), st.integers(-1, 12))


@given(st.integers(1, 12), st.integers(1, 12), st.tuples(st.booleans(), st.booleans(), WINDOWS, WINDOWS))
def test_the_band_holds_the_pairs_that_all_the_masks_keep(n_q: int, n_k: int, masks: Any) -> None:
    causal, causal_bottom_right, window, window_bottom_right = masks
    parts: list[Part] = [*[Causal()] * causal, *[Causal("bottom_right")] * causal_bottom_right]
    sides = ((window, "top_left"), (window_bottom_right, "bottom_right"))
    parts += [Window.of(one, alignment) for one, alignment in sides if one is not None]
    seen = Mask(tuple(parts)).array(Shape(1, 1, n_q, n_k))
    lowest, highest = band(n_q, n_k, *masks)
    distance = np.arange(n_k) - np.arange(n_q)[:, None]
    expected = np.ones((n_q, n_k), bool) if seen is None else seen
    np.testing.assert_array_equal((lowest <= distance) & (distance <= highest), expected)
