"""What experiments are made of: what is read from backends, estimates, sampled laws, figures that bound statements."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.backend.discovery import load
from attnlab.errors import Declined
from attnlab.experiments import overflow, thermodynamics
from attnlab.experiments.finding import pick
from attnlab.experiments.observables import (
    black_box,
    energy_variance,
    logit_gradients,
    read_logits,
    weights_of,
)
from attnlab.experiments.survey import (
    Survey,
    mean_over_clusters,
)
from attnlab.experiments.vanishing_gradient import quantile, share_below
from attnlab.theory import float_format, jacobian_norm_squared

RNG = np.random.default_rng(3)
Q, K, V = (RNG.standard_normal((1, 2, n, 6)) for n in (5, 9, 9))
SCALE = 0.7


def direct_weights() -> np.ndarray:
    s = SCALE * (Q @ K.swapaxes(-1, -2))
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("name", ["numpy_vectorized", "torch_sdpa"])
def test_weights_logits_and_energy_variance_are_read_from_outputs(name: str) -> None:
    attend, p, s = black_box(name), direct_weights(), SCALE * (Q @ K.swapaxes(-1, -2))
    assert np.allclose(weights_of(attend, Q, K, scale=SCALE), p, atol=1e-14)
    assert np.allclose(read_logits(attend, Q, K, scale=SCALE), s, rtol=0, atol=1e-12)
    mean = (p * s).sum(axis=-1, keepdims=True)
    exact = (p * (s - mean) ** 2).sum(axis=-1)
    assert np.allclose(energy_variance(attend, Q, K, scale=SCALE), exact, atol=1e-13)
    with pytest.raises(ValueError, match="too far apart"):
        read_logits(attend, np.full((1, 1, 1, 1), 30.0), np.array([[[[30.0], [-30.0]]]]), scale=1.0)


@pytest.mark.parametrize("name", ["torch_eager", "torch_sdpa"])
def test_the_gradient_of_each_logit_is_read_through_autograd(name: str) -> None:
    upstream = RNG.standard_normal((1, 2, 5, 6))
    found = logit_gradients(load(name), Q, K, V, upstream, scale=SCALE)
    p, inner = direct_weights(), upstream @ V.swapaxes(-1, -2)
    assert np.allclose(found, p * (inner - (p * inner).sum(axis=-1, keepdims=True)), atol=1e-13)
    with pytest.raises(Declined, match="no automatic differentiation"):
        logit_gradients(load("numpy_vectorized"), Q, K, V, Q, scale=1.0)


def test_identities_hold_for_a_softmax_and_fail_for_its_mixture_with_the_mean() -> None:
    right = black_box("numpy_vectorized")
    assert all(worst <= room for _, worst, room in thermodynamics.violations(right, Q, K, V, SCALE))

    def smoothed(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        """Rows sum to 1 and lie in the hull, but are no Boltzmann distribution."""
        return 0.99 * right(q, k, v, **rest) + 0.01 * v.mean(axis=-2, keepdims=True)

    broken = [
        name for name, worst, room in thermodynamics.violations(smoothed, Q, K, V, SCALE) if worst > room
    ]
    assert len(broken) >= 8 and "Σp = 1" not in broken


def test_the_error_of_a_mean_is_that_of_the_clusters() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((400, 1)) + 0.1 * rng.standard_normal((400, 50))
    mean, error = mean_over_clusters(values)
    assert abs(mean) < 5 * error
    assert error == pytest.approx(1 / 20, rel=0.2)  # not 1/√20000, as if rows were independent


def test_the_sampled_law_of_the_jacobian_norm_is_that_of_plain_rows() -> None:
    keys, head_dim, count = 64, 16, 40_000
    rng = np.random.default_rng(8)
    logits = np.sqrt(rng.chisquare(head_dim, (count, 1))) * rng.standard_normal((count, keys))
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    norms = np.sqrt(jacobian_norm_squared(weights / weights.sum(axis=1, keepdims=True)))
    for threshold in (1e-2, 1e-1, 0.3):
        share, plain = share_below(threshold, keys, head_dim, 1.0), float(np.mean(norms < threshold))
        error = math.sqrt(plain * (1 - plain) / count)
        assert abs(share.value - plain) < 5 * math.hypot(share.error, error)
        assert share.error < error  # from half as many logits
    assert quantile(0.5, keys, head_dim, 1.0).value == pytest.approx(float(np.median(norms)), rel=0.03)


def test_a_kernel_that_flushes_its_weights_is_told_from_one_that_flushes_exponentials(tmp_path: Path) -> None:
    gaps, least = overflow.vanishing_gaps("float32", 64), float_format("float32").smallest_normal
    assert math.exp(-gaps[overflow.FLUSHED_WEIGHT]) / 63 == pytest.approx(least, rel=1e-9)
    flush = "np.where(np.abs({0}) < np.finfo(np.float32).tiny, 0, {0}).astype(np.float32)"
    for name, exponential, weight in (
        (overflow.FLUSHED_EXPONENTIAL, flush.format("e"), "w"),
        (overflow.FLUSHED_WEIGHT, "e", flush.format("w")),
        ("both too early", "np.where(e < 1e-30, 0, e)", "w"),
    ):
        backend = name.replace(" ", "_")
        (tmp_path / f"{backend}.py").write_text(
            'LIBRARY = "numpy"\nimport numpy as np\ndef attend(query, key, value, *, causal, scale):\n'
            "    s = scale * (query @ key.swapaxes(-1, -2))\n    e = np.exp(s - s.max(axis=-1, keepdims=True))\n"
            f"    e = {exponential}\n    w = e / e.sum(axis=-1, keepdims=True)\n    w = {weight}\n"
            "    return (w @ value).astype(query.dtype)\n"
        )
        survey = Survey((backend,), folders=[tmp_path])
        survey.each(lambda one, seed: overflow.thresholds(one, seed, "float32"), dtype="float32")
        (row,) = pick(survey.rows, overflow.GAP, keys=64)
        assert row.passed is (name != "both too early") and (row.where["subnormals"] == name) is row.passed
