"""Moments and law of the dot product against sampling with the right standard error."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad

from attnlab.theory import dot_product_moments, score_cdf, score_characteristic_function

#: how components of variance 1 are drawn, and their kurtosis
LAWS: dict[str, tuple[Any, float]] = {
    "normal": (np.random.Generator.standard_normal, 3.0),
    "uniform": (lambda rng, shape: rng.uniform(-math.sqrt(3), math.sqrt(3), shape), 1.8),
    "rademacher": (lambda rng, shape: rng.choice([-1.0, 1.0], shape), 1.0),
    "laplace": (lambda rng, shape: rng.laplace(0, math.sqrt(0.5), shape), 6.0),
}


def test_tabled_variances_and_kurtoses():
    assert dot_product_moments(16, query_mean=0.5, key_mean=0.5).variance == pytest.approx(24)
    assert dot_product_moments(64, query_std=3, key_std=2).variance == pytest.approx(2304)
    for d, kurtosis in ((1, 9), (16, 3.375), (64, 3.094)):
        assert dot_product_moments(d).kurtosis == pytest.approx(kurtosis, abs=5e-4)
    d = 10
    assert dot_product_moments(d, query_kurtosis=1.8, key_kurtosis=1.8).kurtosis == pytest.approx(
        3 + 0.24 / d
    )
    assert dot_product_moments(d, query_kurtosis=1, key_kurtosis=1).kurtosis == pytest.approx(3 - 2 / d)
    assert dot_product_moments(d, query_kurtosis=1).kurtosis == pytest.approx(3)
    assert dot_product_moments(64).variance_standard_error(128, 128) / 64 == pytest.approx(0.0247, abs=5e-5)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("left", LAWS)
@pytest.mark.parametrize(("mq", "mk"), [(0.0, 0.0), (0.5, -1.0)])
def test_sampled_moments_of_independent_components(left, mq, mk, seed):
    rng = np.random.default_rng(seed)
    draw, kurtosis = LAWS[left]
    d, pairs = 5, 200_000
    s = ((1.5 * draw(rng, (pairs, d)) + mq) * (LAWS["laplace"][0](rng, (pairs, d)) + mk)).sum(axis=1) * 0.7
    found = dot_product_moments(
        d, query_std=1.5, query_mean=mq, key_mean=mk, query_kurtosis=kurtosis, key_kurtosis=6.0, scale=0.7
    )
    check_moments(s, found)


def check_moments(s, found):
    centred = s - found.mean
    assert abs(centred.mean()) < 5 * math.sqrt(found.variance / s.size)
    assert abs((centred**2).mean() - found.variance) < 5 * (centred**2).std() / math.sqrt(s.size)
    fourth = centred**4
    assert abs(fourth.mean() - found.kurtosis * found.variance**2) < 5 * fourth.std() / math.sqrt(s.size)


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_sampled_moments_under_correlation_and_means(seed):
    rng = np.random.default_rng(seed)
    d, pairs, rho = 4, 300_000, 0.6
    q = rng.standard_normal((pairs, d))
    k = rho * q + math.sqrt(1 - rho**2) * rng.standard_normal((pairs, d))
    check_moments(((q + 0.3) * (2 * k - 1)).sum(axis=1), dot_product_moments(
        d, correlation=rho, query_mean=0.3, key_mean=-1, key_std=2
    ))  # fmt: skip
    plain = dot_product_moments(d, correlation=rho)
    assert plain.mean == pytest.approx(d * rho)
    assert plain.variance == pytest.approx(d * (1 + rho**2))


@pytest.mark.parametrize("seed", [6, 7, 8])
def test_sampled_moments_under_covariances_and_means(seed):
    rng = np.random.default_rng(seed)
    d, pairs = 4, 300_000
    a, b = rng.standard_normal((2, d, d))
    q = rng.standard_normal((pairs, d)) @ a.T + 0.5
    k = rng.standard_normal((pairs, d)) @ b.T - 0.7
    found = dot_product_moments(
        d, query_covariance=a @ a.T, key_covariance=b @ b.T, query_mean=0.5, key_mean=-0.7
    )
    check_moments((q * k).sum(axis=1), found)


def test_routes_agree_where_they_overlap():
    plain = dot_product_moments(6, query_std=2, query_mean=0.4, key_mean=1.1)
    matrix = dot_product_moments(6, query_covariance=4 * np.eye(6), query_mean=0.4, key_mean=1.1)
    correlated = dot_product_moments(6, query_std=2, query_mean=0.4, key_mean=1.1, correlation=1e-300)
    for field in ("mean", "variance", "kurtosis", "query_share", "key_share"):
        assert getattr(plain, field) == pytest.approx(getattr(matrix, field), rel=1e-12), field
    assert correlated.kurtosis == pytest.approx(plain.kurtosis, rel=1e-12)


def test_the_kurtosis_of_covariances_is_that_of_as_many_equal_components_as_they_amount_to():
    spectrum = np.array([4.0, 1.0, 0.25])
    found = dot_product_moments(3, query_covariance=np.diag(spectrum))
    assert found.kurtosis == pytest.approx(3 + 6 * (spectrum**2).sum() / spectrum.sum() ** 2)


@pytest.mark.parametrize("case", ["normal", "rademacher", "laplace", "means", "covariance"])
def test_the_standard_error_is_the_spread_of_pooled_variances(case):
    rng = np.random.default_rng(21)
    n, m, d, repeats = 24, 12, 6, 3000
    draw, kurtosis = LAWS.get(case, LAWS["normal"])
    mq, mk = (0.8, -0.5) if case == "means" else (0.0, 0.0)
    mix = np.diag([2.0, 1, 1, 0.5, 0.2, 0.1]) if case == "covariance" else np.eye(d)
    q = draw(rng, (repeats, n, d)) @ mix + mq
    k = draw(rng, (repeats, m, d)) + mk
    covariance = mix @ mix if case == "covariance" else None
    found = dot_product_moments(
        d,
        query_mean=mq,
        key_mean=mk,
        query_kurtosis=kurtosis,
        key_kurtosis=kurtosis,
        query_covariance=covariance,
    )
    pooled = ((q @ k.transpose(0, 2, 1) - found.mean) ** 2).mean(axis=(1, 2))
    assert abs(pooled.mean() - found.variance) < 5 * pooled.std() / math.sqrt(repeats)
    excess = ((pooled - pooled.mean()) ** 4).mean() / pooled.var() ** 2
    relative_error = math.sqrt((excess - 1) / repeats)
    assert abs(pooled.var() / found.variance_standard_error(n, m) ** 2 - 1) < 5 * relative_error


def test_a_constant_score_has_no_kurtosis_and_no_error():
    found = dot_product_moments(3, query_std=0, key_std=0, query_mean=2, key_mean=2)
    assert (found.mean, found.variance, found.variance_standard_error(5, 5)) == (12, 0, 0)
    assert math.isnan(found.kurtosis)


@pytest.mark.parametrize(
    "options",
    [
        {"head_dim": 0},
        {"head_dim": 2.0},
        {"query_std": -1},
        {"key_mean": math.nan},
        {"query_kurtosis": 0.9},
        {"correlation": 1.1},
        {"correlation": 0.5, "query_kurtosis": 1.8},
        {"correlation": 0.5, "key_covariance": np.eye(4)},
        {"query_covariance": np.eye(4), "query_kurtosis": 1.8},
        {"query_covariance": np.eye(4), "query_std": 2.0},
        {"query_covariance": np.eye(3)},
        {"query_covariance": np.triu(np.ones((4, 4)))},
        {"query_covariance": -np.eye(4)},
        {"query_covariance": np.full((4, 4), math.nan)},
        {"scale": math.inf},
    ],
)
def test_meaningless_combinations_are_refused_in_one_line(options):
    with pytest.raises(ValueError, match="must") as caught:
        dot_product_moments(**{"head_dim": 4, **options})
    assert "\n" not in str(caught.value)


def test_the_standard_error_of_correlated_pairs_takes_pairs():
    found = dot_product_moments(4, correlation=0.5)
    assert found.variance_standard_error(100, 1) == pytest.approx(
        found.variance * math.sqrt((found.kurtosis - 1) / 100)
    )
    with pytest.raises(ValueError, match="n_keys must be 1"):
        found.variance_standard_error(100, 2)
    with pytest.raises(ValueError, match="n_queries must be"):
        found.variance_standard_error(0, 1)


@pytest.mark.parametrize("d", [3, 5, 31, 33, 64])
def test_the_distribution_is_that_of_its_characteristic_function(d):
    """By inversion, P(S <= s) = ½ + (1/π) ∫₀^∞ sin(ts) φ(t)/t dt (Gil-Pelaez 1951)."""
    width = math.sqrt(d)
    for s in (0.3 * width, 2.5 * width):
        wave = quad(
            lambda t, s=s: math.sin(t * s) / t * float(score_characteristic_function(t, d)), 0, 60, limit=800
        )[0]
        assert float(score_cdf(s, d)) == pytest.approx(0.5 + wave / math.pi, abs=1e-6)
    assert float(score_cdf(0.0, d)) == pytest.approx(0.5, abs=1e-12)
    assert float(score_cdf(-width, d) + score_cdf(width, d)) == pytest.approx(1, abs=1e-12)


def test_two_components_follow_the_laplace_law():
    s = np.linspace(-8, 8, 33)
    assert score_cdf(s, 2) == pytest.approx(np.where(s < 0, np.exp(s) / 2, 1 - np.exp(-s) / 2), rel=1e-12)


@pytest.mark.parametrize("function", [score_cdf, score_characteristic_function])
@pytest.mark.parametrize("arguments", [(0.0, 0), (math.nan, 4), (0.0, 4, 0.0), (0.0, 4, math.inf)])
def test_a_law_without_meaning_is_refused(function, arguments):
    with pytest.raises(ValueError, match="must be"):
        function(*arguments)
