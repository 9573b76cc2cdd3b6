"""Figures carried on beyond what was measured, where the law is known: the interval covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.stats.prediction import FAR, predict
from attnlab.workload.workload import Workload

LENGTHS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


@settings(deadline=None, max_examples=25)
@given(
    fixed=st.floats(0, 1e7),
    linear=st.floats(0, 1e4),
    square=st.floats(0.01, 100),
    length=st.sampled_from((4096, 8192, 32768)),
)
def test_a_law_without_noise_is_carried_on_exactly(
    fixed: float, linear: float, square: float, length: int
) -> None:
    """As bytes are: the inputs' share, a row's, a score matrix's."""

    def law(n: int) -> float:
        return fixed + linear * n + square * n**2

    found = predict({n: law(n) for n in LENGTHS}, length)
    assert found is not None
    assert found.value == pytest.approx(law(length), rel=1e-3)
    assert found.low * (1 - 1e-3) <= law(length) <= found.high * (1 + 1e-3)
    assert found.high / found.low < 1.01
    assert (found.length, found.lengths, found.longest) == (length, len(LENGTHS), 2048)


@pytest.mark.parametrize(("scatter", "widest"), [(0.01, 2.0), (0.05, 6.0)])
@pytest.mark.parametrize("bend", [0.0, 0.1])
def test_the_interval_covers_what_noise_and_a_law_that_bends_leave_open(
    scatter: float, widest: float, bend: float
) -> None:
    """Of 60 random laws at least 55, the cost of a pair growing by a power of the length or not."""
    rng = np.random.default_rng(5)
    covered, widths = 0, []
    for _ in range(60):
        a, b, c = np.exp(rng.uniform(np.log([1e-6, 1e-8, 1e-9]), np.log([3e-4, 3e-7, 3e-8])))
        times = {n: a + b * n + c * n**2 * (n / 64) ** bend for n in (*LENGTHS, 8192)}
        true = times.pop(8192)
        found = predict({n: one * np.exp(rng.normal(0, scatter)) for n, one in times.items()}, 8192)
        assert found is not None and found.low <= found.value <= found.high
        covered += found.low <= true <= found.high
        widths.append(found.high / found.low)
    assert covered >= 55
    assert bend or np.median(widths) < widest


def test_a_mask_that_is_skipped_grows_with_the_pairs_that_it_keeps() -> None:
    """A window's time is carried on in proportion to the length."""
    at = (*LENGTHS, 16384)
    windows = {n: Workload(heads=1, queries=n, keys=n, window=(min(n, 100), 0)) for n in at}
    kept = {n: float(one.pairs) for n, one in windows.items()}
    times = {n: 1e-5 + 1e-8 * kept[n] for n in at}
    true = times.pop(16384)
    found = predict(times, 16384, kept)
    assert found is not None and found.value == pytest.approx(true, rel=0.01)


def test_too_few_lengths_say_nothing_and_a_long_way_is_told() -> None:
    """Two lengths at least must be foretold by others, at half of them."""
    times = {n: 1e-5 + 1e-9 * n**2 for n in LENGTHS}
    assert predict({n: times[n] for n in LENGTHS[:6]}, 4096) is None
    far, near = predict(times, FAR * 2048 + 1), predict(times, FAR * 2048)
    assert far is not None and far.far
    assert near is not None and not near.far
