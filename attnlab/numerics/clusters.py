"""Means of measurements that come in independent clusters, such as the rows of one head, which share its keys."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def mean_over_clusters(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of `values`, (clusters, members), and its standard error: the spread of cluster means, over √clusters.

    Right however the members of a cluster depend on each other, since no more is used than that clusters are
    independent. Raises ValueError for fewer than two clusters.
    """
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1:
        raise ValueError(
            f"values must be (clusters, members) with at least two clusters, got shape {values.shape}"
        )
    means = values.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means))


def statistic_over_clusters(
    values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float], resamples: int = 200
) -> tuple[float, float]:
    """`statistic` of all `values`, (clusters, members), and its standard error by resampling whole clusters.

    The bootstrap (Efron and Tibshirani 1993, chapter 6), with resamples that are the same in every run. For
    quantiles and shares, which no mean over clusters gives. Raises ValueError as `mean_over_clusters`.
    """
    mean_over_clusters(values)  # the same conditions
    rng = np.random.default_rng(0)
    drawn = [statistic(values[rng.integers(0, len(values), len(values))]) for _ in range(resamples)]
    return statistic(values), float(np.std(drawn, ddof=1))
