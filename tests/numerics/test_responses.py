"""Responses, gradients and ranges read from a backend agree with arithmetic, and see what is wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from every import every

from attnlab.backends.discovery import load
from attnlab.errors import Declined, Unavailable
from attnlab.experiments.observables import black_box
from attnlab.experiments.identities import violations
from attnlab.experiments.overflow import last_before, spacing, unshifted_softmax
from attnlab.experiments.responses import derivative, energy_variance, logit_gradients, weights_of
from attnlab.experiments.saturation import frozen_fraction
from attnlab.experiments.thermodynamics import exact_heat_capacity

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal((1, 2, n, 6)) for n in (5, 9, 9))
SCALE = 0.7


def direct_weights() -> np.ndarray:
    s = SCALE * (Q @ K.swapaxes(-1, -2))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def test_weights_and_energy_variance_are_read_from_outputs() -> None:
    attend, p = black_box("torch_sdpa"), direct_weights()
    s = SCALE * (Q @ K.swapaxes(-1, -2))
    assert np.allclose(weights_of(attend, Q, K, scale=SCALE), p, atol=1e-14)
    mean = (p * s).sum(axis=-1, keepdims=True)
    assert np.allclose(
        energy_variance(attend, Q, K, scale=SCALE), (p * (s - mean) ** 2).sum(axis=-1), atol=1e-13
    )


def test_a_derivative_is_of_fourth_order() -> None:
    errors = [
        abs(float(derivative(lambda x: np.asarray(np.sin(x)), 1.0, h)) - math.cos(1)) for h in (0.2, 0.1)
    ]
    assert 12 < errors[0] / errors[1] < 20


@pytest.mark.parametrize("name", every())
def test_the_gradient_of_each_logit_is_read_through_autograd(name: str) -> None:
    upstream = RNG.standard_normal((1, 2, 5, 6))
    try:
        found = logit_gradients(load(name), Q, K, V, upstream, scale=SCALE)
    except (Declined, Unavailable) as reason:
        pytest.skip(str(reason))
    p = direct_weights()
    inner = upstream @ V.swapaxes(-1, -2)
    exact = p * (inner - (p * inner).sum(axis=-1, keepdims=True))
    assert np.allclose(found, exact, atol=1e-13)


def test_a_gradient_without_autograd_or_scale_is_refused() -> None:
    with pytest.raises(Declined, match="no automatic differentiation"):
        logit_gradients(load("numpy_vectorized"), Q, K, V, Q, scale=1.0)
    with pytest.raises(ValueError, match="scale must not be 0"):
        logit_gradients(load("torch_eager"), Q, K, V, Q, scale=0.0)


def test_identities_hold_for_a_softmax_and_fail_for_its_square_root() -> None:
    right = black_box("numpy_vectorized")
    assert all(one.largest <= one.tolerance for one in violations(right, Q, K, V, SCALE))

    def smoothed(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        """A mixture with the mean of V: rows sum to 1 and lie in the hull, but are no Boltzmann distribution."""
        return 0.99 * right(q, k, v, **rest) + 0.01 * v.mean(axis=-2, keepdims=True)

    broken = [one.identity for one in violations(smoothed, Q, K, V, SCALE) if one.largest > one.tolerance]
    assert len(broken) >= 8
    assert "Σp = 1" not in broken


def test_the_textbook_softmax_is_right_until_it_overflows() -> None:
    assert np.allclose(unshifted_softmax(np.array([1.0, 2.0])), [1 / (1 + math.e), math.e / (1 + math.e)])
    assert np.isnan(unshifted_softmax(np.array([710.0, 0.0]))).any()
    assert np.isnan(unshifted_softmax(np.array([-750.0, -750.0]))).all()


def test_bisection_finds_the_last_point_and_says_where_there_is_none() -> None:
    assert last_before(lambda x: x <= math.pi, 0.0, 10.0) == pytest.approx(math.pi, abs=1e-12)
    assert last_before(lambda x: True, 0.0, 10.0) == math.inf
    with pytest.raises(ValueError, match="fails already"):
        last_before(lambda x: False, 0.0, 10.0)
    assert spacing("float32", 1.0) == 2.0**-23
    assert spacing("bfloat16", 90.0) == 0.5


def test_the_frozen_fraction_is_that_of_random_weights() -> None:
    keys, beta = 4096, 10.0
    s = beta * np.random.default_rng(0).standard_normal((2000, keys))
    largest = 1 / np.exp(s - s.max(axis=1, keepdims=True)).sum(axis=1)
    assert abs(np.mean(largest > 0.5) - frozen_fraction(keys, beta)) < 0.04
    with pytest.raises(ValueError, match="not frozen"):
        frozen_fraction(keys, 1.0)


def test_the_heat_capacity_is_the_mean_variance_of_the_logits() -> None:
    keys, beta = 64, 2.0
    s = beta * np.random.default_rng(1).standard_normal((20000, keys))
    p = np.exp(s - s.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    variance = (p * s**2).sum(axis=1) - (p * s).sum(axis=1) ** 2
    assert abs(variance.mean() - exact_heat_capacity(keys, beta)) < 5 * variance.std() / math.sqrt(20000)
