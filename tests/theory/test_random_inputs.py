"""Attention on normal queries and keys: the average over the query's norm."""

import math

import numpy as np
import pytest

from attnlab.theory import attention_under_random_inputs, random_energy
from attnlab.theory.random_inputs import FIELDS, chi_rule


@pytest.mark.parametrize("head_dim", [1, 2, 7, 64, 343, 344, 1024])
def test_the_gauss_rule_integrates_the_moments_of_chi_squared(head_dim):
    nodes, weights = chi_rule(head_dim, 12)
    assert weights.sum() == pytest.approx(1, rel=1e-12)
    assert weights @ nodes**2 == pytest.approx(head_dim, rel=1e-11)
    assert weights @ nodes**4 == pytest.approx(head_dim * (head_dim + 2), rel=1e-11)


@pytest.mark.parametrize(
    ("keys", "head_dim", "scale"), [(2, 1, 1.0), (1024, 1, 1.0), (64, 3, 1.0), (512, 64, 1.0)]
)
def test_the_average_agrees_with_a_dense_rule(keys, head_dim, scale):
    # an equidistant rule on the χ density, which shares only `random_energy`
    centre = math.sqrt(head_dim - 1)
    nodes, measure = np.polynomial.legendre.leggauss(60)
    low, high = max(0.0, centre - 7), centre + 7
    r = (low + high) / 2 + (high - low) / 2 * nodes
    log = (head_dim - 1) * np.log(r) - r**2 / 2
    density = measure * np.exp(log - log.max())
    density /= density.sum()
    found = attention_under_random_inputs(keys, head_dim, scale)
    for field in FIELDS:
        dense = sum(
            w * getattr(random_energy(keys, scale * x), field) for w, x in zip(density, r, strict=True)
        )
        assert getattr(found, field) == pytest.approx(dense, rel=1e-6), field


def test_tabled_figures():
    scaled, raw = attention_under_random_inputs(1024, 64, 0.125), attention_under_random_inputs(1024, 64, 1.0)
    assert scaled.entropy == pytest.approx(6.434, abs=1e-3)
    assert scaled.largest_weight == pytest.approx(0.0164, abs=5e-5)
    assert math.sqrt(scaled.jacobian_norm_squared) == pytest.approx(0.051, abs=5e-4)
    assert raw.entropy == pytest.approx(0.915, abs=6e-4)
    assert raw.largest_weight == pytest.approx(0.706, abs=6e-4)
    assert math.sqrt(raw.jacobian_norm_squared) == pytest.approx(0.292, abs=5e-4)
    assert attention_under_random_inputs(128, 16, 0.0).entropy == pytest.approx(math.log(128))


@pytest.mark.parametrize("arguments", [(1, 64, 1.0), (8, 0, 1.0), (8, 64, math.nan), (8, 1.5, 1.0)])
def test_numbers_outside_the_domain_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        attention_under_random_inputs(*arguments)


def test_an_average_that_does_not_converge_says_so(monkeypatch):
    monkeypatch.setattr("attnlab.theory.random_inputs._TOLERANCE", 0.0)
    with pytest.raises(ValueError, match="did not converge"):
        attention_under_random_inputs.__wrapped__(4, 4, 1.0)
