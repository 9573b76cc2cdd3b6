"""Bounds, responses and Jacobian norms, for any row of logits."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax

from attnlab.theory import (
    jacobian_norm_squared,
    log_partition_bounds,
    output_response,
    scaled_log_partition_bounds,
)

rows = st.lists(st.floats(-30, 30), min_size=2, max_size=12).map(np.array)
betas = st.floats(0.05, 3)
unhurried = settings(deadline=None)  # machines under load are no fault of the formula


@unhurried
@given(rows, betas)
def test_the_partition_function_keeps_its_bounds(s, beta):
    log_z = logsumexp(beta * s)
    low, high = scaled_log_partition_bounds(s, beta)
    assert low - 1e-12 <= log_z / beta <= high + 1e-12
    low, high = log_partition_bounds(beta * s)
    assert low - 1e-12 <= log_z <= high + 1e-12


@unhurried
@given(rows, st.integers(0, 2**32 - 1))
def test_responses_are_the_derivatives_of_the_output(s, seed):
    v = np.random.default_rng(seed).standard_normal((s.size, 3))
    p = softmax(s)
    response = output_response(p, v)
    with np.errstate(all="ignore"):
        jacobian = np.diag(p) - np.outer(p, p)
    assert response == pytest.approx(jacobian @ v, abs=1e-13)
    assert np.abs(response.sum(axis=0)).max() < 1e-13


@unhurried
@given(rows, st.floats(0.1, 4))
def test_jacobian_norms_agree_with_the_matrix_itself(s, beta):
    p = softmax(beta * s)
    jacobian = np.diag(p) - np.outer(p, p)
    # the direct matrix is itself wrong by rounding where the row saturates
    assert jacobian_norm_squared(p) == pytest.approx((jacobian**2).sum(), rel=1e-11, abs=1e-15)


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
    assert jacobian_norm_squared([1.0]) == 0


def test_masked_keys_do_not_count():
    assert log_partition_bounds([1e4, 1e4 - 1, -math.inf]).lower == pytest.approx(math.log(2) + 1e4 - 0.5)


@pytest.mark.parametrize("bad", [[math.nan, 0], [math.inf, 0], [], [-math.inf, -math.inf], 3.0])
def test_logits_without_a_softmax_are_refused(bad):
    with pytest.raises(ValueError, match="logits must"):
        log_partition_bounds(np.array(bad))


@pytest.mark.parametrize("bad", [[-0.1, 1.1], [0.5, 0.2], [math.nan, 1], [], 1.0])
def test_what_is_no_distribution_is_refused(bad):
    with pytest.raises(ValueError, match="weights must"):
        jacobian_norm_squared(bad)


def test_other_bad_input_is_refused():
    with pytest.raises(ValueError, match="beta must be > 0"):
        scaled_log_partition_bounds([0, 1], 0)
    with pytest.raises(ValueError, match="3 keys"):
        output_response([0.2, 0.3, 0.5], np.zeros((2, 4)))
