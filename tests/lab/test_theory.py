"""Theory of scores, random rows, thresholds and scales, compared with sampling, other integrals and known figures."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import binom

from attnlab.lab import theory

rows = st.lists(st.floats(-30, 30), min_size=2, max_size=12).map(np.array)

# -- scores


def test_sampled_moments() -> None:
    """Mean, variance and kurtosis agree within five standard errors, with component means and different laws."""
    rng, d, pairs = np.random.default_rng(3), 4, 200_000
    q, k = 1.5 * rng.choice([-1.0, 1.0], (pairs, d)) + 0.5, rng.laplace(0, math.sqrt(0.5), (pairs, d)) - 1
    known = {"query_std": 1.5, "query_mean": 0.5, "key_mean": -1, "query_kurtosis": 1, "key_kurtosis": 6}
    found = theory.dot_product_moments(d, **known)
    centred = (q * k).sum(axis=1) - found.mean
    for power, expected in ((1, 0.0), (2, found.variance), (4, found.kurtosis * found.variance**2)):
        measured = centred**power
        assert abs(measured.mean() - expected) < 5 * measured.std() / math.sqrt(pairs)


@pytest.mark.parametrize("mq", [0.0, 0.8])
def test_the_standard_error_is_the_spread_of_pooled_variances(mq: float) -> None:
    """For scores that share queries and keys."""
    rng = np.random.default_rng(21)
    n, m, d, repeats = 24, 12, 6, 3000
    q, k = rng.standard_normal((repeats, n, d)) + mq, rng.standard_normal((repeats, m, d)) - 0.5
    found = theory.dot_product_moments(d, query_mean=mq, key_mean=-0.5)
    pooled = ((q @ k.transpose(0, 2, 1) - found.mean) ** 2).mean(axis=(1, 2))
    excess = ((pooled - pooled.mean()) ** 4).mean() / pooled.var() ** 2
    off = pooled.var() / found.variance_standard_error(n, m) ** 2 - 1
    assert abs(off) < 5 * math.sqrt((excess - 1) / repeats)


# -- random rows


def test_sums_of_plus_and_minus_one_freeze_at_3_05_ln_n() -> None:
    """For 10^100 keys the exact E Σp² is near 0 at d = 2.7 ln n, where normal logits are frozen; not so at 3.5 ln n."""
    n, found = 10**100, list[float]()
    assert 1 / (math.tanh(1) - math.log(math.cosh(1))) == pytest.approx(3.05, abs=0.005)
    for d in (int(2.7 * math.log(n)), int(3.5 * math.log(n))):
        tau, up = np.arange(-700.0, -400.0, 0.25)[:, None], np.arange(d + 1)
        chance, w = binom.pmf(up, d, 0.5), np.exp(np.minimum(tau + 2.0 * up - d, 7.0))
        alive = np.exp(n * np.log1p(np.maximum((chance * np.expm1(-w)).sum(axis=1), -0.5)))
        found.append(n * 0.25 * ((chance * w * w * np.exp(-w)).sum(axis=1) * alive).sum())
    assert found[0] < 0.01 and found[1] > 0.05


def test_heavy_tails_freeze_one_row_of_seven_despite_the_root() -> None:
    """Student's t with 3 degrees of freedom and variance 1, d_k = 64, 1024 keys. With normal inputs no row freezes."""
    rng = np.random.default_rng(0)
    for draw, share in ((lambda shape: rng.standard_t(3, shape) / 3**0.5, 1 / 7), (rng.standard_normal, 0.0)):
        weights = [softmax(draw((32, 64)) @ draw((64, 1024)) / 8, axis=1) for _ in range(16)]
        assert (np.array(weights).max(axis=2) > 0.5).mean() == pytest.approx(share, abs=0.05)


@pytest.mark.parametrize("n", [2, 1024, 10**7])
@pytest.mark.parametrize("beta", [0.5, 3.999, 4.0, 8.0, 64.0])
def test_the_partition_function_s_slope_is_the_mean_energy(n: int, beta: float) -> None:
    """∂_β E ln Z = β(1 − E Σp²), by a central difference: two integrals that share no formula."""
    h = 1e-3
    above, below = (theory.random_energy(n, beta + by).log_partition for by in (h, -h))
    slope = beta * (1 - theory.random_energy(n, beta).participation)
    assert (above - below) / (2 * h) == pytest.approx(slope, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize(("n", "beta"), [(2, 3.0), (300, 6.0)])
@pytest.mark.parametrize("dim", [None, 4])
def test_sampled_rows_meet_every_expectation(n: int, beta: float, dim: int | None) -> None:
    """For normal logits, and for logits of normal queries and keys."""
    count, rng = 2000, np.random.default_rng(1)
    norms = 1.0 if dim is None else np.linalg.norm(rng.standard_normal((count, dim)), axis=1)[:, None]
    s = beta * norms * rng.standard_normal((count, n))
    log_z, p = logsumexp(s, axis=1), softmax(s, axis=1)
    squares = (p**2).sum(axis=1)
    norm = squares - 2 * (p**3).sum(axis=1) + squares**2
    sampled = (log_z, log_z - (p * s).sum(axis=1), squares, p.max(axis=1), norm, s.max(axis=1))
    of_queries = dim and theory.attention_under_random_inputs(n, dim, beta)
    found = of_queries or theory.random_energy(n, beta)
    for field, values in zip(list(vars(found))[2:], sampled, strict=True):
        assert abs(values.mean() - getattr(found, field)) < 5 * values.std() / math.sqrt(count), field


# -- identities, thresholds and scales


@settings(max_examples=40)
@given(rows, st.integers(0, 99))
def test_what_holds_for_every_row(s: np.ndarray, seed: int) -> None:
    """The response is the Jacobian times the values, and the norm is that of the whole Jacobian."""
    v, p = np.random.default_rng(seed).standard_normal((s.size, 3)), softmax(s)
    with np.errstate(all="ignore"):
        jacobian = np.diag(p) - np.outer(p, p)
    assert theory.output_response(p, v) == pytest.approx(jacobian @ v, abs=1e-13)
    assert theory.jacobian_norm_squared(p) == pytest.approx((jacobian**2).sum(), rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("gaps", [(40.0, 41.0, 90.0), (300.0, 310.0), (1e-9,)])
def test_the_stable_norm_is_right_at_saturation_where_the_power_sums_cancel(gaps: tuple[float, ...]) -> None:
    with mpmath.workdps(400):
        boltzmann = [mpmath.mpf(1)] + [mpmath.exp(-mpmath.mpf(g)) for g in gaps]
        exact = [b / sum(boltzmann) for b in boltzmann]
        pairs = ((i == j, x, y) for i, x in enumerate(exact) for j, y in enumerate(exact))
        truth = sum((x * (1 - x) if same else x * y) ** 2 for same, x, y in pairs)
    assert theory.jacobian_norm_squared([float(x) for x in exact]) == pytest.approx(float(truth), rel=1e-12)


def test_scales_and_initialisations() -> None:
    assert theory.initial_logit_variance(512, 1024**-0.5) == pytest.approx(0.25)
    assert theory.initial_logit_variance(100, 300**-0.5, 300**-0.5) == pytest.approx((1 / 3 + 1 / 300) ** 2)
    assert theory.initial_logit_variance(768, 0.02) == pytest.approx(0.0944, rel=2e-3)
    gap = theory.required_gap(131072, 0.9)
    assert gap == pytest.approx(14.0, abs=0.05)
    assert theory.largest_possible_weight(131072, gap) == pytest.approx(0.9)
