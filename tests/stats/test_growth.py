"""Growth fitted to times whose law is known: terms, masks, steps, noise, and the longest length held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.stats import growth
from attnlab.workload.workload import Workload

LENGTHS = (64, 128, 256, 512, 1024, 2048)
A, B, C = 2e-5, 3e-7, 1e-9


def fitted(samples, **rest):
    return growth.fit(growth.Timed(samples, **rest))


def law(n, c=C, a=A, b=B):
    return a + b * n + c * n**2


def stepped(n, last=256, ratio=2.0):
    return law(n, C * (ratio if n > last else 1), b=0)


def exact(time, lengths=LENGTHS):
    """Three processes of five rounds each, without noise."""
    return {n: [[time(n)] * 5] * 3 for n in lengths}


def test_the_coefficients_it_was_made_from_are_found():
    found = fitted(exact(law))
    assert found.coefficients == pytest.approx((A, B, C), rel=1e-6)
    assert found.label == "quadratic"
    assert sum(found.shares) == pytest.approx(1)
    assert all(high - low < 1e-9 for low, high in found.intervals)
    assert found.step is None
    assert not found.kept


@pytest.mark.parametrize(("last", "first"), [(128, 256), (256, 512), (512, 1024)])
def test_a_step_in_the_cost_of_a_pair_is_found_where_it_is(last, first):
    found = fitted(exact(lambda n: stepped(n, last)))
    assert (found.step.last, found.step.first) == (last, first)
    assert found.step.ratio == pytest.approx(2, rel=0.1)
    assert found.coefficients[2] == found.step.above == pytest.approx(2 * C, rel=0.05)
    assert found.label == "quadratic"


def test_noise_makes_a_step_in_at_most_one_fit_of_fifty_and_hides_few():
    generator = np.random.default_rng(4)
    false = found = 0
    for _ in range(100):
        times = np.exp(generator.normal(0, 0.05, 6))
        plain, step = (
            {n: [[time(n) * x]] for n, x in zip(LENGTHS, times, strict=True)} for time in (law, stepped)
        )
        false += fitted(plain).step is not None
        found += fitted(step).step is not None
    assert false <= 2
    assert found >= 70


def test_a_kernel_that_skips_what_a_window_hides_follows_the_pairs_that_are_kept():
    workloads = {n: Workload(queries=n, keys=n, causal="bottom_right", window=(63, 0)) for n in LENGTHS}
    kept = {n: one.pairs / one.heads for n, one in workloads.items()}
    skips = fitted(exact(lambda n: A + 1e-8 * kept[n]), kept=kept)
    assert skips.kept
    assert skips.label == "kept pairs"
    assert skips.coefficients == pytest.approx((A, 0, 1e-8), rel=1e-3, abs=1e-9)
    assert skips.forecast.error == pytest.approx(0, abs=1e-3)
    computes_all = fitted(exact(law), kept=kept)
    assert not computes_all.kept
    assert computes_all.label == "quadratic"


def test_intervals_hold_the_scatter_between_processes():
    """Rounds agree within a process and processes do not: resampling rounds alone would give no width."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        samples = {n: law(n) * np.exp(generator.normal(0, 0.05, (8, 1))) * np.ones((8, 7)) for n in LENGTHS}
        low, high = fitted(samples).intervals[2]
        covered += low <= C <= high
    assert covered >= 50


@given(st.lists(st.floats(1e-6, 1e-1), min_size=4, max_size=8), st.floats(1e-3, 1e3))
def test_whatever_the_times_no_term_is_negative_and_the_unit_does_not_matter(times, unit):
    samples = {64 * 2**i: [[time]] for i, time in enumerate(times)}
    found = fitted(samples)
    assert min(found.coefficients) >= 0
    assert all(0 <= share <= 1 + 1e-9 for share in found.shares)
    assert (found.forecast is None) == (len(times) < 5)
    if found.step is not None:
        assert found.step.ratio >= 1.25
        assert found.step.last < found.step.first
    other = fitted({n: [[unit * one[0][0]]] for n, one in samples.items()})
    assert other.largest_error == pytest.approx(found.largest_error, rel=1e-6, abs=1e-6)
