"""The dot product's moments and law, drawn by the hundred million and held against theory.

What no backend is needed for: components that are not normal, shifted, correlated or anisotropic, the kurtosis,
the characteristic function and the distribution function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attnlab.experiments.estimates import log_log_slope
from attnlab.experiments.finding import Row, Where
from attnlab.experiments.score_sampling import (
    BLOCK,
    FAMILIES,
    NORMAL,
    WIDE,
    WIDTH,
    Family,
    ScoreMoments,
    correlated,
    sample_moments,
    sample_pairs,
)
from attnlab.experiments.survey import generator
from attnlab.theory import score_cdf, score_characteristic_function

HEAD_DIMS = tuple(2**power for power in range(11))
FAMILY_HEAD_DIMS = (4, 32, 256)
LAW_HEAD_DIMS = (1, 4, 16, 64)
WIDE_HEAD_DIMS, WIDE_BLOCKS = (16, 256), 10
#: independent blocks of BLOCK² dot products a point
BLOCKS = 36
#: dot products drawn in blocks in one run
DOT_PRODUCTS = BLOCK**2 * (
    (len(HEAD_DIMS) + len(FAMILY_HEAD_DIMS) * (len(FAMILIES) - 1)) * BLOCKS
    + len(WIDE_HEAD_DIMS) * WIDE_BLOCKS
)
#: independent dot products for the law, at each head dimension
PAIRS = 2**16
_CORRELATION = 0.5
#: float32 products and sums are good to this, relatively
_ROUNDING = 2e-5
#: mean and standard deviation of √N·D, D the Kolmogorov distance of N independent draws: √(π/2) ln 2 and
#: √(π²/12 − π (ln 2)²/2), from the limit law (Kolmogorov 1933)
_DISTANCE = math.sqrt(math.pi / 2) * math.log(2), math.sqrt(math.pi**2 / 12 - math.pi / 2 * math.log(2) ** 2)


def sampled_rows(seed: int, scalings: Mapping[str, float]) -> Iterator[Row]:
    """All rows that need no backend; `scalings` are the powers of d_k that the dot product is multiplied by."""
    for number, family in enumerate(FAMILIES.values()):
        drawn = {
            head_dim: sample_moments(
                family, head_dim, BLOCKS * BLOCK**2, generator(seed, 100 + number, head_dim)
            )
            for head_dim in (HEAD_DIMS if family is NORMAL else FAMILY_HEAD_DIMS)
        }
        for head_dim, moments in drawn.items():
            yield from _moments(family, head_dim, moments)
        if family is NORMAL:
            for scaling, power in scalings.items():
                yield _slope(drawn, scaling, power)
    for head_dim in WIDE_HEAD_DIMS:
        wide = sample_moments(WIDE, head_dim, WIDE_BLOCKS * BLOCK**2, generator(seed, 150, head_dim))
        yield _variance(WIDE, head_dim, wide, sigma=WIDTH)
    for head_dim in FAMILY_HEAD_DIMS:
        yield from _correlated(head_dim, seed)
    for head_dim in LAW_HEAD_DIMS:
        yield from _law(head_dim, seed)


def _row(
    quantity: str,
    family: Family,
    head_dim: int,
    predicted: float,
    measured: float,
    error: float,
    slack: float = 0.0,
    **where: float,
) -> Row:
    at: Where = {"family": family.label, "head_dim": head_dim, **where}
    return Row.compare(quantity, at, predicted, measured, standard_error=float(error), slack=slack)


def _moments(family: Family, head_dim: int, drawn: ScoreMoments) -> Iterator[Row]:
    """Mean, variance and kurtosis of one family at one d_k."""
    exact = family.moments(head_dim)
    if exact.mean:
        found, error = exact.mean + drawn.first.mean(), drawn.first.std(ddof=1) / math.sqrt(len(drawn.first))
        yield _row("mean of q·k", family, head_dim, exact.mean, found, error)
    yield _variance(family, head_dim, drawn)
    slack = _ROUNDING * exact.kurtosis
    yield _row("kurtosis of q·k", family, head_dim, exact.kurtosis, *drawn.kurtosis, slack)


def _variance(family: Family, head_dim: int, drawn: ScoreMoments, **where: float) -> Row:
    exact = family.moments(head_dim)
    error = exact.variance_standard_error(BLOCK, BLOCK) / math.sqrt(len(drawn.second))
    slack = _ROUNDING * exact.variance
    return _row("variance of q·k", family, head_dim, exact.variance, drawn.variance, error, slack, **where)


def _slope(drawn: Mapping[int, ScoreMoments], scaling: str, power: float) -> Row:
    """Slope of ln Var(d^power q·k) on ln d over all head dimensions."""
    errors = [NORMAL.moments(d).variance_standard_error(BLOCK, BLOCK) / math.sqrt(BLOCKS) for d in drawn]
    factors = [d ** (2 * power) for d in drawn]
    slope, error = log_log_slope(
        list(drawn),
        [factor * one.variance for factor, one in zip(factors, drawn.values(), strict=True)],
        [factor * one for factor, one in zip(factors, errors, strict=True)],
    )
    where = {"family": NORMAL.label, "scaling": scaling}
    return Row.compare("slope of ln variance on ln d_k", where, 1 + 2 * power, slope, standard_error=error)


def _correlated(head_dim: int, seed: int) -> Iterator[Row]:
    family = correlated(_CORRELATION)
    exact = family.moments(head_dim)
    scores = sample_pairs(family, head_dim, PAIRS, generator(seed, 200, head_dim))
    found, error = scores.mean(), math.sqrt(exact.variance / PAIRS)
    yield _row("mean of q·k", family, head_dim, exact.mean, found, error)
    found, error = ((scores - exact.mean) ** 2).mean(), exact.variance_standard_error(PAIRS, 1)
    yield _row("variance of q·k", family, head_dim, exact.variance, found, error)


def _law(head_dim: int, seed: int) -> Iterator[Row]:
    """The law of q·k/√d_k from independent pairs: characteristic function, distribution, largest distance."""
    unit = head_dim**-0.5
    scores = np.sort(sample_pairs(NORMAL, head_dim, PAIRS, generator(seed, 300, head_dim))) * unit
    for t in (0.5, 1.0, 1.5, 2.0, 3.0):
        # cos² = (1 + cos 2t)/2, so that the variance of the mean is known exactly
        value, double = score_characteristic_function([t, 2 * t], head_dim, unit)
        error = math.sqrt(((1 + double) / 2 - value**2) / PAIRS)
        found = float(np.cos(t * scores).mean())
        yield _row("characteristic function", NORMAL, head_dim, value, found, error, t=t)
    points = np.array([-3.0, -2.0, -1.5, -1.0, -0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0])
    below = np.searchsorted(scores, points, side="right") / PAIRS
    for x, expected, share in zip(points, score_cdf(points, head_dim, unit), below, strict=True):
        error = math.sqrt(expected * (1 - expected) / PAIRS)
        yield _row("distribution function", NORMAL, head_dim, expected, share, error, x=float(x))
    law, rank = score_cdf(scores, head_dim, unit), np.arange(PAIRS + 1) / PAIRS
    distance = max(float((rank[1:] - law).max()), float((law - rank[:-1]).max())) * math.sqrt(PAIRS)
    yield _row("Kolmogorov distance × √N", NORMAL, head_dim, _DISTANCE[0], distance, _DISTANCE[1])
