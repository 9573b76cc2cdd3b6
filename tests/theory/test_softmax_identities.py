"""Identities of T4 and norms of T5, for any row of logits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.theory import (
    dropout_variance,
    entropy_slope_in_temperature,
    jacobian_norm_squared,
    jacobian_spectral_bounds,
    log_partition_bounds,
    output_response,
    power_sum,
    scaled_log_partition_bounds,
    softmax_weights,
    temperature_response,
    thermodynamics,
    total_variation_bound,
    zero_temperature_weights,
)

rows = st.lists(st.floats(-30, 30), min_size=2, max_size=12).map(np.array)
betas = st.floats(0.05, 3)
unhurried = settings(deadline=None)  # machines under load are no fault of the formula


@unhurried
@given(rows, betas)
def test_entropy_partition_and_power_sums_are_one_system(s, beta):
    p = softmax_weights(s, beta)
    found = thermodynamics(s, beta)
    direct = -(p * np.log(np.maximum(p, 1e-300))).sum()
    assert found.entropy == pytest.approx(direct, rel=1e-11, abs=1e-13)
    assert found.entropy == pytest.approx(found.log_partition - beta * found.mean_energy, abs=1e-12)
    for k in (1, 2, 3):
        assert power_sum(s, k, beta) == pytest.approx((p**k).sum(), rel=1e-12)
    assert found.participation == pytest.approx((p**2).sum(), rel=1e-12)
    assert found.largest_weight == p.max()


@unhurried
@given(st.lists(st.integers(-40, 40), min_size=2, max_size=6), st.sampled_from([0.25, 1.0, 2.0]))
def test_derivatives_by_beta_are_energy_heat_capacity_and_entropy_loss(integers, beta):
    s = np.array(integers) / 8
    found = thermodynamics(s, beta)
    with mpmath.workdps(50):

        def log_z(b):
            return mpmath.log(sum(mpmath.exp(b * float(x)) for x in s))

        def entropy(b):
            return log_z(b) - b * mpmath.diff(log_z, b)

        energy = mpmath.diff(log_z, beta)
        capacity = mpmath.diff(log_z, beta, 2)
        slope = mpmath.diff(entropy, beta)
    assert found.mean_energy == pytest.approx(float(energy), rel=1e-12, abs=1e-12)
    assert found.heat_capacity == pytest.approx(float(capacity), rel=1e-11, abs=1e-12)
    assert -beta * found.heat_capacity == pytest.approx(float(slope), rel=1e-10, abs=1e-10)


@unhurried
@given(rows, betas)
def test_the_partition_function_keeps_its_bounds(s, beta):
    log_z = thermodynamics(s, beta).log_partition
    low, high = scaled_log_partition_bounds(s, beta)
    assert low - 1e-12 <= log_z / beta <= high + 1e-12
    low, high = log_partition_bounds(s, beta)
    assert low - 1e-12 <= log_z <= high + 1e-12


@unhurried
@given(rows, st.integers(0, 2**32 - 1), st.floats(0, 3))
def test_perturbed_weights_stay_within_the_total_variation_bound(s, seed, size):
    delta = size * np.random.default_rng(seed).uniform(-1, 1, s.size)
    distance = np.abs(softmax_weights(s + delta) - softmax_weights(s)).sum() / 2
    assert distance <= total_variation_bound(delta) + 1e-12


def test_the_total_variation_bound_is_attained():
    eps = 0.7
    s = np.array([-eps / 2, eps / 2])  # two halves moved apart, from one side of equality to the other
    distance = np.abs(softmax_weights(s + np.array([eps, -eps])) - softmax_weights(s)).sum() / 2
    assert distance == pytest.approx(float(total_variation_bound([eps, -eps])), rel=1e-12)


@unhurried
@given(rows, st.integers(0, 2**32 - 1))
def test_responses_are_the_derivatives_of_the_output(s, seed):
    v = np.random.default_rng(seed).standard_normal((s.size, 3))
    p = softmax_weights(s)
    response = output_response(p, v)
    with np.errstate(all="ignore"):
        jacobian = np.diag(p) - np.outer(p, p)
    assert response == pytest.approx(jacobian @ v, abs=1e-13)
    # moving β moves every logit by s
    assert temperature_response(p, v, s) == pytest.approx((response * s[:, None]).sum(axis=0), abs=2e-12)
    assert np.abs(response.sum(axis=0)).max() < 1e-13


def test_temperature_limits():
    s = np.array([1.0, 3.0, 3.0, -2.0])
    assert zero_temperature_weights(s).tolist() == [0, 0.5, 0.5, 0]
    assert softmax_weights(s, 1e3) == pytest.approx(zero_temperature_weights(s))
    assert thermodynamics(s, 1e-9).entropy == pytest.approx(math.log(4))
    h = 1e-4
    rise = (thermodynamics(s, 1 / (2 + h)).entropy - thermodynamics(s, 1 / (2 - h)).entropy) / (2 * h)
    assert entropy_slope_in_temperature(s, 2.0) == pytest.approx(rise, rel=1e-6)


def test_masked_keys_do_not_count_and_large_logits_do_not_overflow():
    s = np.array([1e4, 1e4 - 1, -math.inf])
    open_keys = np.array([1.0, 0.0])
    masked, plain = thermodynamics(s), thermodynamics(open_keys)
    assert masked.entropy == pytest.approx(plain.entropy, rel=1e-14)
    assert masked.heat_capacity == pytest.approx(plain.heat_capacity, rel=1e-14)
    assert masked.log_partition == pytest.approx(1e4 - 1 + plain.log_partition, rel=1e-14)
    assert log_partition_bounds(s).lower == pytest.approx(math.log(2) + 1e4 - 0.5)
    assert softmax_weights(s, 0.0).tolist() == [0.5, 0.5, 0.0]


def test_a_saturated_row_keeps_its_small_entropy():
    found = thermodynamics(np.array([0.0, -200.0]))
    assert found.entropy == pytest.approx(201 * math.exp(-200), rel=1e-12)


@pytest.mark.parametrize("bad", [[math.nan, 0], [math.inf, 0], [], [-math.inf, -math.inf], 3.0])
def test_logits_without_a_softmax_are_refused(bad):
    for function in (softmax_weights, thermodynamics, zero_temperature_weights, log_partition_bounds):
        with pytest.raises(ValueError, match="logits must"):
            function(np.array(bad))


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match="beta must be >= 0"):
        thermodynamics([0, 1], -1)
    with pytest.raises(ValueError, match="beta must be > 0"):
        scaled_log_partition_bounds([0, 1], 0)
    with pytest.raises(ValueError, match="temperature must be > 0"):
        entropy_slope_in_temperature([0, 1], 0)
    with pytest.raises(ValueError, match="k must be"):
        power_sum([0, 1], 0)
    with pytest.raises(ValueError, match="perturbation must be finite"):
        total_variation_bound([math.nan])
    with pytest.raises(ValueError, match="3 keys"):
        output_response([0.2, 0.3, 0.5], np.zeros((2, 4)))
    with pytest.raises(ValueError, match="3 keys"):
        temperature_response([0.2, 0.3, 0.5], np.zeros((3, 4)), [1.0, 2.0])


@unhurried
@given(rows, st.floats(0.1, 4))
def test_jacobian_norms_agree_with_the_matrix_itself(s, beta):
    p = softmax_weights(s, beta)
    jacobian = np.diag(p) - np.outer(p, p)
    # the direct matrix is itself wrong by rounding where the row saturates
    assert jacobian_norm_squared(p) == pytest.approx((jacobian**2).sum(), rel=1e-11, abs=1e-15)
    norm = np.linalg.norm(jacobian, 2)
    low, high = jacobian_spectral_bounds(p)
    assert low - 1e-14 <= norm <= high + 1e-14


@pytest.mark.parametrize("gaps", [(40.0,), (40.0, 41.0, 90.0), (300.0, 310.0), (1e-9,), (15.0, 15.0)])
def test_the_stable_norm_is_right_at_saturation_where_the_power_sums_cancel(gaps):
    with mpmath.workdps(400):
        boltzmann = [mpmath.mpf(1)] + [mpmath.exp(-mpmath.mpf(g)) for g in gaps]
        z = sum(boltzmann)
        exact = [b / z for b in boltzmann]
        truth = sum(
            ((x * (1 - x)) if i == j else x * y) ** 2
            for i, x in enumerate(exact)
            for j, y in enumerate(exact)
        )
        p = np.array([float(x) for x in exact])
    assert jacobian_norm_squared(p) == pytest.approx(float(truth), rel=1e-12)
    if gaps[0] >= 40:
        direct = (p**2).sum() - 2 * (p**3).sum() + (p**2).sum() ** 2
        assert direct <= 0  # why the stable form exists


def test_a_one_hot_and_a_uniform_row():
    assert jacobian_norm_squared([1.0, 0, 0]) == 0
    assert jacobian_norm_squared(np.full(8, 1 / 8)) == pytest.approx(7 / 64)
    assert jacobian_norm_squared(np.full((2, 5, 4), 0.25)).shape == (2, 5)
    assert jacobian_spectral_bounds([0.5, 0.5]) == (0.5, 0.5)
    assert jacobian_norm_squared([1.0]) == 0


@pytest.mark.parametrize("bad", [[-0.1, 1.1], [0.5, 0.2], [math.nan, 1], [], 1.0])
def test_what_is_no_distribution_is_refused(bad):
    for function in (jacobian_norm_squared, jacobian_spectral_bounds):
        with pytest.raises(ValueError, match="weights must"):
            function(bad)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_dropout_keeps_the_mean_and_has_the_stated_variance(seed):
    rng = np.random.default_rng(seed)
    p, v, rate, repeats = softmax_weights(rng.standard_normal(9)), rng.standard_normal((9, 4)), 0.3, 40_000
    kept = (rng.random((repeats, 9)) >= rate) / (1 - rate)
    o = (kept * p) @ v
    expected = dropout_variance(p, v, rate)
    assert (np.abs(o.mean(axis=0) - p @ v) < 5 * np.sqrt(expected / repeats)).all()
    excess = ((o - o.mean(axis=0)) ** 4).mean(axis=0) / o.var(axis=0) ** 2
    assert (np.abs(o.var(axis=0) / expected - 1) < 5 * np.sqrt((excess - 1) / repeats)).all()


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_impossible_dropout_is_refused(rate):
    with pytest.raises(ValueError, match="probability must"):
        dropout_variance([0.5, 0.5], np.ones((2, 1)), rate)
