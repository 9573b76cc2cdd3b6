"""The exact Random Energy Model against independent quadratures, its own identities, limits and sampling."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from attnlab.theory import (
    critical_beta,
    extreme_level,
    freezing_head_dim,
    random_energy,
    random_energy_frozen,
    random_energy_high_temperature,
)
from attnlab.theory import random_energy as energy_function
from attnlab.theory.random_energy import _collect, _integrals

FIELDS = ("log_partition", "entropy", "participation", "largest_weight", "jacobian_norm_squared")
CORNERS = [
    (n, beta)
    for n in (2, 1024, 10**7)
    for beta in (0.0, 0.5, 2.0, 3.999, 4.0, math.sqrt(2 * math.log(n)), 8.0, 64.0)
]


@pytest.mark.parametrize(("n", "beta"), CORNERS)
def test_corners_agree_with_a_tighter_quadrature_to_a_millionth(n, beta):
    found = random_energy(n, beta)
    if beta == 0:
        tight = dict(zip(FIELDS, (math.log(n), math.log(n), 1 / n, 1 / n, (n - 1) / n**2), strict=True))
    else:
        finer = _collect(n, beta, _integrals(n, beta, 0.07))
        tight = {field: getattr(finer, field) for field in FIELDS}
    for field in FIELDS:
        assert getattr(found, field) == pytest.approx(tight[field], rel=3e-7), field


@pytest.mark.parametrize("beta", [0.01, 0.5, 1.2, 2.0, 4.0, 8.0, 64.0])
def test_two_keys_are_a_single_integral_over_the_difference(beta):
    # p = σ(βz), z ~ N(0, 2): a formula that shares nothing with the one under test
    def mean(function):
        edge = min(12.0, 60 / beta)
        # the density of |z|
        inner = quad(
            lambda z: function(beta * z) * math.exp(-z * z / 4) / math.sqrt(math.pi),
            0, edge, epsabs=0, epsrel=1e-11, limit=300,
        )  # fmt: skip
        outer = function(math.inf) * math.erfc(edge / 2)
        return inner[0] + outer

    def small(y):  # the smaller weight
        return math.exp(-y) / (1 + math.exp(-y))

    def entropy(y):
        return 0.0 if y == math.inf else math.log1p(math.exp(-y)) + y * small(y)

    found = random_energy(2, beta)
    assert found.entropy == pytest.approx(mean(entropy), rel=1e-6)
    assert found.largest_weight == pytest.approx(mean(lambda y: 1 - small(y)), rel=1e-6)
    assert 1 - found.participation == pytest.approx(mean(lambda y: 2 * small(y) * (1 - small(y))), rel=1e-6)
    assert found.jacobian_norm_squared == pytest.approx(
        mean(lambda y: 4 * (small(y) * (1 - small(y))) ** 2), rel=1e-6
    )
    log_z = mean(lambda y: 0.0 if y == math.inf else math.log1p(math.exp(-y))) + beta / math.sqrt(math.pi)
    assert found.log_partition == pytest.approx(log_z, rel=1e-6)


@pytest.mark.parametrize(("n", "beta"), [(16, 1.5), (1024, 3.7), (10**7, 5.7), (10**7, 1.0)])
def test_the_partition_function_agrees_with_adaptive_quadrature_of_the_tabled_formula(n, beta):
    def phi(tau):
        # the step of e^{−w} lies at x = −τ/β; adaptive quadrature is told so
        middle = min(max(-tau / beta, -11.9), 11.9)
        value = quad(
            lambda x: -math.expm1(-math.exp(min(tau + beta * x, 700))) * math.exp(-x * x / 2),
            -12, 12, points=[middle], epsabs=1e-16, epsrel=1e-11, limit=200,
        )[0]  # fmt: skip
        return math.log1p(-min(value / math.sqrt(2 * math.pi), 1 - 1e-16))

    def integrand(tau):
        return math.exp(-math.exp(min(tau, 700))) - math.exp(n * phi(tau))

    centre = -random_energy(n, beta).log_partition
    edges = np.linspace(centre - 40, 6, 140)
    nodes, weights = np.polynomial.legendre.leggauss(4)
    total = sum(
        (b - a) / 2 * (weights @ [integrand((a + b) / 2 + (b - a) / 2 * x) for x in nodes])
        for a, b in itertools.pairwise(edges)
    )
    assert random_energy(n, beta).log_partition == pytest.approx(total, rel=1e-6)


def test_the_slope_of_the_partition_function_is_the_mean_energy():
    # ∂_β E ln Z = E⟨s⟩/β = β(1 − E Σp²), by a central difference
    for n, beta in ((50, 1.3), (4096, 4.4)):
        h = 1e-3
        slope = (random_energy(n, beta + h).log_partition - random_energy(n, beta - h).log_partition) / (
            2 * h
        )
        assert slope == pytest.approx(beta * (1 - random_energy(n, beta).participation), rel=1e-6)


@pytest.mark.parametrize(
    ("beta", "entropy", "participation", "jacobian"),
    [(1, 6.4333, 0.0026, 0.0026), (2, 5.027, 0.0285, 0.0211), (8, 0.899, 0.602, 0.0852)],
)
def test_tabled_figures(beta, entropy, participation, jacobian):
    found = random_energy(1024, beta)
    assert found.entropy == pytest.approx(entropy, abs=6e-4)
    assert found.participation == pytest.approx(participation, abs=5e-4)
    assert found.jacobian_norm_squared == pytest.approx(jacobian, abs=6e-5)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("n", "beta"), [(2, 3.0), (64, 1.0), (300, 6.0)])
def test_sampled_rows_meet_every_expectation(n, beta, seed):
    rows = 4000
    s = beta * np.random.default_rng(seed).standard_normal((rows, n))
    shifted = np.exp(s - s.max(axis=1, keepdims=True))
    z = shifted.sum(axis=1, keepdims=True)
    p = shifted / z
    log_z = np.log(z[:, 0]) + s.max(axis=1)
    squares = (p**2).sum(axis=1)
    sampled = {
        "log_partition": log_z,
        "entropy": log_z - (p * s).sum(axis=1),
        "participation": squares,
        "largest_weight": p.max(axis=1),
        "jacobian_norm_squared": squares - 2 * (p**3).sum(axis=1) + squares**2,
    }
    found = random_energy(n, beta)
    for field, values in sampled.items():
        z_score = (values.mean() - getattr(found, field)) / (values.std() / math.sqrt(rows))
        assert abs(z_score) < 5, field


def test_asymptotes_meet_the_exact_curve_in_their_phases():
    hot, cold = random_energy_high_temperature(10**6, 0.8), random_energy_frozen(10**7, 40.0)
    exact = random_energy(10**6, 0.8)
    assert hot.log_partition == pytest.approx(exact.log_partition, abs=1e-10)
    assert hot.entropy == pytest.approx(exact.entropy, abs=1e-8)
    assert hot.participation == pytest.approx(exact.participation, rel=1e-4)
    exact = random_energy(10**7, 40.0)
    for field in FIELDS:
        assert getattr(cold, field) == pytest.approx(getattr(exact, field), rel=0.06), field


def test_asymptotes_are_nan_where_they_say_nothing():
    assert math.isnan(random_energy_high_temperature(1024, 2.0).entropy)
    assert math.isnan(random_energy_high_temperature(1024, 0.5).largest_weight)
    assert math.isnan(random_energy_frozen(1024, 1.0).participation)


def test_freezing_head_dimensions_and_levels():
    assert freezing_head_dim(1024) == pytest.approx(13.9, abs=0.05)
    assert freezing_head_dim(131072) == pytest.approx(23.6, abs=0.05)
    assert critical_beta(1024) ** 2 == pytest.approx(freezing_head_dim(1024))
    for n in (2, 3, 10, 10**7):
        level = extreme_level(n)
        assert n * math.exp(-(level**2) / 2) / math.sqrt(2 * math.pi) == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize("function", [energy_function, random_energy_high_temperature, random_energy_frozen])
@pytest.mark.parametrize(
    ("n", "beta"), [(1, 1.0), (0, 1.0), (2.5, 1.0), (True, 1.0), (8, -0.1), (8, math.nan), (8, math.inf)]
)
def test_numbers_outside_the_domain_are_refused(function, n, beta):
    with pytest.raises(ValueError, match=r"must be"):
        function(n, beta)


def test_a_quadrature_that_does_not_converge_says_so(monkeypatch):
    module = __import__("sys").modules["attnlab.theory.random_energy"]
    monkeypatch.setattr(module, "_TOLERANCE", 0.0)
    with pytest.raises(ValueError, match="did not converge"):
        energy_function.__wrapped__(5, 1.25)
