"""Sampled dot products: the right law, in little memory, at a cost that does not grow with how many."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnlab.experiments.score_sampling import (
    BLOCK,
    FAMILIES,
    NORMAL,
    correlated,
    decaying_variances,
    sample_moments,
    sample_pairs,
)


@pytest.mark.parametrize("name", FAMILIES)
def test_components_have_the_mean_and_variance_that_theory_is_told(name: str) -> None:
    q, k = FAMILIES[name].draw(np.random.default_rng(0), 40_000, 8)
    mean = 0.5 if name == "shifted means" else 0.0
    variance = decaying_variances(8) if name == "anisotropic" else np.ones(8)
    for one in (q, k):
        assert np.abs(one.mean(axis=0) - mean).max() < 0.04
        assert np.abs(one.var(axis=0) / variance - 1).max() < 0.08


def test_the_standard_error_is_that_of_the_spread_over_seeds() -> None:
    exact = NORMAL.moments(4)
    drawn = [
        sample_moments(NORMAL, 4, 4 * BLOCK**2, np.random.default_rng(seed)).variance for seed in range(60)
    ]
    promised = exact.variance_standard_error(BLOCK, BLOCK) / 2
    assert 0.75 < np.std(drawn) / promised < 1.3
    naive = exact.variance * np.sqrt((exact.kurtosis - 1) / (4 * BLOCK**2))
    assert promised > 5 * naive  # as if all scores were independent: five times too sure


def test_memory_and_cost_per_dot_product_do_not_grow_with_how_many() -> None:
    """Told by the vectors that are drawn: each block of dot products takes as many as the first."""

    def measure(blocks: int) -> tuple[list[int], int]:
        vectors: list[int] = []

        def draw(rng: np.random.Generator, count: int, head_dim: int) -> Any:
            vectors.append(count)
            return NORMAL.draw(rng, count, head_dim)

        tracemalloc.start()
        sample_moments(replace(NORMAL, draw=draw), 16, blocks * BLOCK**2, np.random.default_rng(0))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return vectors, peak

    measure(2)
    few, few_peak = measure(10)
    many, many_peak = measure(100)
    assert len(many) == 10 * len(few) and set(many) == set(few)
    assert many_peak < 1.1 * few_peak < 20e6


def test_correlated_pairs_have_the_mean_that_theory_gives() -> None:
    scores = sample_pairs(correlated(0.5), 16, 20_000, np.random.default_rng(1))
    assert scores.shape == (20_000,)
    assert abs(scores.mean() - 8) < 5 * np.sqrt(16 * 1.25 / 20_000)


def test_no_scores_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        sample_moments(NORMAL, 4, 0, np.random.default_rng(0))
