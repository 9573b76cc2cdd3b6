"""The small instruments of the laboratory: logits, slopes, cluster means, threads, and what loads when."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from every import every

from attnlab.errors import Declined, Unavailable
from attnlab.experiments.observables import black_box
from attnlab.experiments.estimates import log_log_slope, mean_over_clusters
from attnlab.experiments.responses import read_logits
from attnlab.experiments.survey import one_thread


@pytest.mark.parametrize("scale", [0.1, 1.0])
@pytest.mark.parametrize("name", every())
def test_a_backends_own_logits_are_read_from_its_weights(name: str, scale: float) -> None:
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 2, 7, 100)), rng.standard_normal((2, 2, 9, 100))
    try:
        read = read_logits(black_box(name), q, k, scale=scale)
    except (Declined, Unavailable) as reason:
        pytest.skip(str(reason))
    assert np.allclose(read, scale * (q @ k.swapaxes(-1, -2)), rtol=0, atol=1e-12)


def test_a_wrong_scale_shows_in_the_logits_read() -> None:
    right = black_box("numpy_vectorized")
    q, k = np.ones((1, 1, 2, 3)), np.ones((1, 1, 2, 3))

    def doubled(q: Any, k: Any, v: Any, **rest: Any) -> Any:
        return right(q, k, v, **{**rest, "scale": 2 * rest["scale"]})

    assert np.allclose(read_logits(doubled, q, k, scale=1.0), 6.0)


def test_logits_too_far_apart_are_refused() -> None:
    q = np.full((1, 1, 1, 1), 30.0, np.float32)
    k = np.array([[[[30.0], [-30.0]]]], np.float32)
    with pytest.raises(ValueError, match="too far apart"):
        read_logits(black_box("numpy_vectorized"), q, k, scale=1.0)


def test_a_slope_and_its_standard_error_cover_the_truth() -> None:
    x = np.array([1.0, 2, 4, 8, 16])
    z = []
    for seed in range(200):
        error = 0.01 * x**1.5
        y = x**1.5 + error * np.random.default_rng(seed).standard_normal(5)
        slope, slope_error = log_log_slope(x.tolist(), y.tolist(), error.tolist())
        z.append((slope - 1.5) / slope_error)
    assert abs(np.mean(z)) < 0.3
    assert 0.85 < np.std(z) < 1.15


@pytest.mark.parametrize("bad", [([1.0], [1.0], [0.1]), ([1.0, 2.0], [1.0, -1.0], [0.1, 0.1])])
def test_a_slope_that_is_not_determined_is_refused(bad: tuple[list[float], ...]) -> None:
    with pytest.raises(ValueError, match="slope needs"):
        log_log_slope(*bad)


def test_the_error_of_a_mean_is_that_of_the_clusters() -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((400, 1)) + 0.1 * rng.standard_normal((400, 50))
    mean, error = mean_over_clusters(values)
    assert abs(mean) < 5 * error
    assert error == pytest.approx(1 / 20, rel=0.2)  # not 1/√20000, as if rows were independent
    with pytest.raises(ValueError, match="two clusters"):
        mean_over_clusters(values[:1])


def test_one_thread_is_given_back() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


HEAVY = (
    "import sys; heavy = {'torch', 'matplotlib', 'scipy', 'pandas'} & set(sys.modules); "
    "sys.exit(str(heavy) if heavy else 0)"
)


@pytest.mark.parametrize(
    ("modules", "loads_heavy"),
    [
        ("attnlab.experiments.observables, attnlab.experiments.catalogue, attnlab.figures.drawing", False),
        ("attnlab.theory, attnlab.experiments.variance_scaling, attnlab.experiments.saturation", False),
        ("torch", True),  # the test can fail
    ],
)
def test_heavy_libraries_load_when_they_are_needed(modules: str, loads_heavy: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {modules}; {HEAVY}"], capture_output=True, text=True
    )
    assert (done.returncode != 0) is loads_heavy, done.stderr
