"""Thresholds, scalings and initialisations: figures in closed form."""

import math

import numpy as np
import pytest
from scipy.special import softmax

from attnlab.theory import (
    ROUNDING_RMS,
    critical_beta,
    float_format,
    initial_logit_variance,
    largest_possible_weight,
    overflow_threshold,
    required_gap,
    scalable_softmax_beta,
    scalable_softmax_freezing_length,
    soft_cap_largest_weight,
    underflow_threshold,
    unit_roundoff,
)


@pytest.mark.parametrize(
    ("dtype", "u", "under", "over"),
    [
        ("float16", 2**-11, 17.33, 11.09),
        ("bfloat16", 2**-8, 92.9, 88.72),
        ("float32", 2**-24, 104.0, 88.72),
        ("float64", 2**-53, 745.1, 709.78),
    ],
)
def test_tabled_thresholds(dtype, u, under, over):
    assert unit_roundoff(dtype) == u
    assert underflow_threshold(dtype) == pytest.approx(under, abs=0.05)
    assert overflow_threshold(dtype) == pytest.approx(over, abs=0.005)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_formats_are_those_of_the_machine(dtype):
    info, found = np.finfo(dtype), float_format(dtype)
    assert found.unit_roundoff == info.eps / 2
    assert found.largest == info.max
    assert found.smallest_normal == info.tiny
    assert found.smallest_subnormal == info.smallest_subnormal
    gap = underflow_threshold(dtype)
    # the weight itself, rounded once, vanishes exactly past the threshold
    assert np.dtype(dtype).type(math.exp(-gap * (1 - 1e-4))) > 0
    assert np.dtype(dtype).type(math.exp(-min(gap * (1 + 1e-4), 745.14))) == 0


def test_the_rms_of_one_rounding_is_that_of_a_log_uniform_mantissa():
    assert pytest.approx(0.42466, abs=5e-6) == ROUNDING_RMS
    x = np.exp(np.random.default_rng(0).uniform(0, 3 * math.log(2), 400_000))
    error = (x.astype(np.float32) / x - 1) / unit_roundoff("float32")
    assert math.sqrt((error**2).mean()) == pytest.approx(ROUNDING_RMS, rel=5e-3)


@pytest.mark.parametrize("function", [unit_roundoff, overflow_threshold, underflow_threshold])
def test_unknown_formats_are_refused(function):
    for dtype in ("float8", "FLOAT16", None, np.float32):
        with pytest.raises(ValueError, match="dtype must be one of"):
            function(dtype)


def test_tabled_initialisations():
    assert initial_logit_variance(512, "fused_xavier") == 0.25
    assert initial_logit_variance(512, "xavier") == 1
    assert initial_logit_variance(100, "linear_default") == pytest.approx((1 / 3 + 1 / 300) ** 2)
    for width, variance in ((384, 0.0236), (768, 0.0944), (4096, 2.684)):
        assert initial_logit_variance(width, "normal", 0.02) == pytest.approx(variance, rel=2e-3)


@pytest.mark.parametrize(
    "arguments", [(0, "xavier"), (8, "he"), (8, "normal"), (8, "xavier", 0.1), (8, "normal", -1.0)]
)
def test_initialisations_without_meaning_are_refused(arguments):
    with pytest.raises(ValueError, match=r"must be|needs|takes no"):
        initial_logit_variance(*arguments)


def test_scalable_softmax_crosses_the_critical_line_where_stated():
    n = 1000
    slope = math.sqrt(2 / math.log(n))
    assert scalable_softmax_freezing_length(slope) == pytest.approx(n)
    assert scalable_softmax_beta(n, slope) == pytest.approx(critical_beta(n))
    assert scalable_softmax_freezing_length(0.01) == math.inf


def test_largest_weights_and_the_gap_they_need():
    assert required_gap(131072, 0.9) == pytest.approx(14.0, abs=0.05)
    assert largest_possible_weight(131072, required_gap(131072, 0.9)) == pytest.approx(0.9)
    assert required_gap(4, 0.25) == 0
    assert soft_cap_largest_weight(100, 3.0) == largest_possible_weight(100, 6.0)
    attained = softmax([5.0, 0.0, 0.0, 0.0])
    assert attained.max() == pytest.approx(largest_possible_weight(4, 5.0))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (scalable_softmax_beta, (0, 1.0)),
        (scalable_softmax_freezing_length, (0.0,)),
        (largest_possible_weight, (4, -1.0)),
        (soft_cap_largest_weight, (4, 0.0)),
        (required_gap, (4, 1.0)),
        (required_gap, (4, 0.1)),
    ],
)
def test_scalings_without_meaning_are_refused(function, arguments):
    with pytest.raises(ValueError, match="must be"):
        function(*arguments)
