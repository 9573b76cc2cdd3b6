"""Growth fitted to times whose law is known: terms, masks, steps, noise, and the longest length held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnlab.judge import growth
from attnlab.problem.result import Measurement
from attnlab.problem.workload import Workload

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


def noisy(time, generator, *, within=0.01, between=0.01, processes=5, rounds=7, lengths=LENGTHS):
    """Lognormal noise of rounds within processes, and of processes."""
    return {
        n: time(n)
        * np.exp(
            generator.normal(0, between, (processes, 1)) + generator.normal(0, within, (processes, rounds))
        )
        for n in lengths
    }


def test_the_coefficients_it_was_made_from_are_found():
    found = fitted(exact(law))
    assert found.coefficients == pytest.approx((A, B, C), rel=1e-6)
    assert found.label == "quadratic"
    assert sum(found.shares) == pytest.approx(1)
    assert all(high - low < 1e-9 for low, high in found.intervals)
    assert found.step is None
    assert not found.kept


def test_a_cube_is_given_no_label():
    found = fitted(exact(lambda n: 1e-9 * n**3, LENGTHS[:5]))
    assert found.label is None
    assert list(found.exponents.values()) == pytest.approx([3.0] * 4)


@pytest.mark.parametrize(("last", "first"), [(128, 256), (256, 512), (512, 1024)])
def test_a_step_in_the_cost_of_a_pair_is_found_where_it_is(last, first):
    found = fitted(exact(lambda n: stepped(n, last)))
    assert (found.step.last, found.step.first) == (last, first)
    assert found.step.ratio == pytest.approx(2, rel=0.1)
    assert found.coefficients[2] == found.step.above == pytest.approx(2 * C, rel=0.05)
    assert found.label == "quadratic"


def test_a_step_explained_by_the_machines_own_speed_is_not_believed():
    samples = exact(stepped)
    assert fitted(samples, pace=dict.fromkeys(LENGTHS, 1.0)).step is not None
    assert fitted(samples, pace={n: 2.0 if n > 256 else 1.0 for n in LENGTHS}).step is None
    # and a step down is never one of a cache
    assert fitted(exact(lambda n: stepped(n, ratio=0.5))).step is None


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


@pytest.mark.parametrize("kept", [lambda n: n, lambda n: n * (n + 1) / 2, lambda n: 0])
def test_pairs_that_are_no_other_term_than_n_or_its_square_change_nothing(kept):
    assert fitted(exact(law), kept={n: kept(n) for n in LENGTHS}) == fitted(exact(law))


def test_intervals_hold_the_scatter_between_processes():
    """Rounds agree within a process and processes do not: resampling rounds alone would give no width."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(60):
        found = fitted(noisy(law, generator, within=1e-6, between=0.05, processes=8))
        low, high = found.intervals[2]
        covered += low <= C <= high
    assert covered >= 50
    one_speed = fitted(noisy(law, generator, within=1e-6, between=1e-6, processes=8)).intervals[2]
    assert high - low > 20 * (one_speed[1] - one_speed[0])


@given(
    st.lists(st.floats(1e-6, 1e-1), min_size=4, max_size=8),
    st.floats(1e-3, 1e3),
)
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


def test_disturbed_rounds_are_left_out_unless_nothing_else_is_there():
    columns = {
        "round": (0.0, 1.0, 2.0, 3.0),
        "process": (0.0, 0.0, 1.0, 1.0),
        "disturbed": (0.0, 1.0, 0.0, 0.0),
    }
    latency = Measurement("latency", "s", (1.0, 9.0, 2.0, 3.0), columns)
    assert growth.rounds_of(latency) == [[1.0], [2.0, 3.0]]
    all_disturbed = replace(latency, columns={**columns, "disturbed": (1.0,) * 4})
    assert growth.rounds_of(all_disturbed) == [[1.0, 9.0], [2.0, 3.0]]
