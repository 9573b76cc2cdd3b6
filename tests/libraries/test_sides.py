"""A band of the score matrix is the same along the bottom-right diagonal of the keys that some query sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnlab.backends.keywords import told
from attnlab.libraries.torch_attention import KEYWORDS, Sides
from attnlab.workload.workload import Workload

LENGTHS = st.integers(1, 12)
SIDE = st.none() | st.integers(0, 12)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Any lengths with up to one causal mask and one window, each of either alignment."""
    queries, keys = draw(LENGTHS), draw(LENGTHS)
    window = draw(st.none() | st.tuples(SIDE, SIDE))
    aligned = draw(st.sampled_from(["top_left", "bottom_right"]))
    sides = [] if window is None else [-1 if one is None else min(one, keys) for one in window]
    return Workload(
        heads=1,
        queries=queries,
        keys=keys,
        causal=draw(st.sampled_from((False, "top_left", "bottom_right"))),  # type: ignore[arg-type]  # joined to object
        mask=f"window({sides[0]},{sides[1]},{aligned})" if sides else "",
    )


def seen_along(sides: Sides, workload: Workload) -> NDArray[np.bool_]:
    """By the definition of `Sides`."""
    keys = np.arange(workload.keys)
    distance = keys - (np.arange(workload.queries)[:, None] + sides.keys - workload.queries)
    seen = np.broadcast_to(keys < sides.keys, distance.shape).copy()
    if sides.left >= 0:
        seen &= distance >= -sides.left
    if sides.right >= 0:
        seen &= distance <= sides.right
    return seen


def asked(workload: Workload) -> NDArray[np.bool_]:
    whole = np.ones((workload.queries, workload.keys), bool)
    array = workload.masked.array(workload.shape)
    return whole if array is None else np.broadcast_to(array, whole.shape)


@given(workloads())
def test_a_band_is_the_same_along_the_bottom_right_diagonal_or_not_told_so(workload: Workload) -> None:
    """It cannot be told where no query sees a key, or where the last one sees none."""
    sides, seen = Sides.of_flags(workload, told(workload, KEYWORDS)), asked(workload)
    if sides is None:
        assert not seen[-1].any()
    else:
        np.testing.assert_array_equal(seen_along(sides, workload), seen)
        assert sides.keys <= workload.keys and min(sides.left, sides.right) >= -1


def test_what_no_band_can_say_is_told() -> None:
    for one in (Workload(mask="random(0.5)"), Workload(batch=2, key_lengths=(3, 4))):
        assert Sides.of_flags(one, told(one, KEYWORDS)) is None
