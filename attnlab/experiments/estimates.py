"""Estimates with their standard errors: means over independent clusters of rows, statistics of them, and exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.finding import Row


def mean_over_clusters(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean of `values`, (clusters, members), and its standard error: the spread of cluster means, over √clusters.

    A cluster is for instance the rows of one head, which share its keys. The error is right however they depend on
    each other, as long as clusters are independent. Raises ValueError for fewer than two clusters.
    """
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1:
        raise ValueError(
            f"values must be (clusters, members) with at least two clusters, got shape {values.shape}"
        )
    means = values.mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means))


def mean_row(
    quantity: str,
    where: Mapping[str, str | float],
    values: NDArray[np.floating],
    *,
    predicted: float,
    slack: float = 0.0,
) -> Row:
    """The mean of `values`, (clusters, members), held against `predicted`, with the error of `mean_over_clusters`."""
    mean, error = mean_over_clusters(values.astype(np.float64))
    return Row.compare(quantity, where, predicted, mean, standard_error=error, slack=slack)


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


def log_log_slope(x: Sequence[float], y: Sequence[float], y_error: Sequence[float]) -> tuple[float, float]:
    """Slope of ln y on ln x and its standard error, each point weighted by 1/(relative error)².

    Points are independent, the errors known and small beside y (weighted least squares; Press et al., Numerical
    Recipes, section 15.2). Raises ValueError for fewer than two different x, or an x, y or error not above 0.
    """
    log_x, values, errors = np.log(np.asarray(x, float)), np.asarray(y, float), np.asarray(y_error, float)
    if not (np.isfinite(log_x).all() and values.min() > 0 and errors.min() > 0):
        raise ValueError("a slope needs x, y and errors above 0")
    weights = (values / errors) ** 2
    centred = log_x - np.average(log_x, weights=weights)
    spread = float(weights @ centred**2)
    if spread <= 0:
        raise ValueError("a slope needs at least two different x")
    return float(weights @ (centred * np.log(values))) / spread, spread**-0.5
