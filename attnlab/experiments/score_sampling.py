"""The dot product's moments and law, drawn by the hundred million and held against theory: what needs no backend.

Queries and keys come in blocks, every query of a block meets every key of it, and only three sums of each block are
kept: the speed of a matrix product, in little memory. Blocks are independent, so their spread is the error of any
statistic, however its block's rows share queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.finding import Array, Row
from attnlab.experiments.survey import generator, log_log_slope
from attnlab.theory import DotProductMoments, dot_product_moments, score_cdf, score_characteristic_function

Single = NDArray[np.float32]
Draw = Callable[[np.random.Generator, tuple[int, int]], Single]
#: queries, and keys, of a block: large enough for a fast matrix product, small enough to stay in cache
BLOCK = 512
#: independent blocks of BLOCK² dot products a point, and of the wide family
BLOCKS, WIDE_BLOCKS = 36, 10
HEAD_DIMS = tuple(2**power for power in range(11))
FAMILY_HEAD_DIMS, LAW_HEAD_DIMS, WIDE_HEAD_DIMS = (4, 32, 256), (1, 4, 16, 64), (16, 256)
#: independent dot products for the law, at each head dimension
PAIRS = 2**16
_CORRELATION = 0.5
#: float32 products and sums are good to this, relatively
_ROUNDING = 2e-5
#: mean and standard deviation of √N·D, D the Kolmogorov distance of N independent draws: √(π/2) ln 2 and
#: √(π²/12 − π (ln 2)²/2), from the limit law (Kolmogorov 1933)
_DISTANCE = math.sqrt(math.pi / 2) * math.log(2), math.sqrt(math.pi**2 / 12 - math.pi / 2 * math.log(2) ** 2)


@dataclass(frozen=True)
class Family:
    """How the components of q and k are drawn, and what theory needs to know of them.

    `draw(rng, count, head_dim)` gives the queries and the keys, each (count, head_dim) in float32; `moments(d)`
    the exact moments of the unscaled q·k.
    """

    label: str
    draw: Callable[[np.random.Generator, int, int], tuple[Single, Single]]
    moments: Callable[[int], DotProductMoments]


def _family(label: str, query: Draw, key: Draw | None = None, **known: Any) -> Family:
    """Independent components, `known` of them for `dot_product_moments`; keys are drawn as queries are, or by `key`."""
    return Family(
        label,
        lambda rng, count, dim: (query(rng, (count, dim)), (key or query)(rng, (count, dim))),
        lambda head_dim: dot_product_moments(head_dim, **known),
    )


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.standard_normal(shape, dtype=np.float32)


def _uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return (rng.random(shape, dtype=np.float32) - np.float32(0.5)) * np.float32(math.sqrt(12))


def _rademacher(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return rng.integers(0, 2, shape, dtype=np.int8).astype(np.float32) * 2 - 1


def _laplace(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    # an exponential with a random sign; variance 2b² = 1
    size = rng.standard_exponential(shape, dtype=np.float32) * np.float32(math.sqrt(0.5))
    return size * _rademacher(rng, shape)


def decaying_variances(head_dim: int) -> Array:
    """Variances 1/c of component c, scaled to mean 1: few directions carry most, as in trained heads."""
    raw: Array = np.arange(1, head_dim + 1, dtype=np.float64) ** -1.0
    return raw * (head_dim / float(raw.sum()))


def _anisotropic(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return _normal(rng, shape) * np.sqrt(decaying_variances(shape[1])).astype(np.float32)


def _anisotropic_moments(head_dim: int) -> DotProductMoments:
    covariance = np.diag(decaying_variances(head_dim))
    return dot_product_moments(head_dim, query_covariance=covariance, key_covariance=covariance)


def _correlated(rng: np.random.Generator, count: int, dim: int) -> tuple[Single, Single]:
    q, own = _normal(rng, (count, dim)), _normal(rng, (count, dim))
    return q, np.float32(_CORRELATION) * q + np.float32(math.sqrt(1 - _CORRELATION**2)) * own


NORMAL = _family("normal", _normal)
WIDE = _family("normal, σ = 2", lambda rng, shape: 2 * _normal(rng, shape), query_std=2.0, key_std=2.0)
#: component c of q and of k jointly normal; each query has one key that it is correlated with: for `sample_pairs` only
CORRELATED = Family(
    f"correlated, ρ = {_CORRELATION:g}",
    _correlated,
    lambda head_dim: dot_product_moments(head_dim, correlation=_CORRELATION),
)
#: zero mean and unit variance a component, but for the shifted ones, whose mean is ½
FAMILIES: Mapping[str, Family] = {
    one.label: one
    for one in (
        NORMAL,
        _family("uniform", _uniform, query_kurtosis=1.8, key_kurtosis=1.8),
        _family("Rademacher", _rademacher, query_kurtosis=1.0, key_kurtosis=1.0),
        _family("Laplace", _laplace, query_kurtosis=6.0, key_kurtosis=6.0),
        # a sum of normal numbers with random signs: exactly normal at every dimension
        _family("normal × Rademacher", _normal, _rademacher, query_kurtosis=3.0, key_kurtosis=1.0),
        _family(
            "shifted means",
            lambda rng, shape: _normal(rng, shape) + np.float32(0.5),
            query_mean=0.5,
            key_mean=0.5,
        ),
        Family("anisotropic", _family("", _anisotropic).draw, _anisotropic_moments),
    )
}
#: dot products drawn in blocks in one run
DOT_PRODUCTS = BLOCK**2 * (
    (len(HEAD_DIMS) + len(FAMILY_HEAD_DIMS) * (len(FAMILIES) - 1)) * BLOCKS
    + len(WIDE_HEAD_DIMS) * WIDE_BLOCKS
)


def sample_moments(family: Family, head_dim: int, blocks: int, rng: np.random.Generator) -> Array:
    """Means of s − m, its square and its fourth power over each block of BLOCK² dot products s: (3, blocks).

    m is the exact mean of s. Memory: two blocks of vectors and two of scores, whatever the number.
    """
    mean, sums = np.float32(family.moments(head_dim).mean), np.empty((3, blocks))
    products, squares = np.empty((BLOCK, BLOCK), np.float32), np.empty((BLOCK, BLOCK), np.float32)
    for block in range(blocks):
        q, k = family.draw(rng, BLOCK, head_dim)
        np.matmul(q, k.T, out=products)
        if mean:
            np.subtract(products, mean, out=products)
        np.multiply(products, products, out=squares)
        # BLAS's dot keeps several partial sums: its rounding, some 1e-6, is far below the sampling error
        sums[:, block] = products.sum(), squares.sum(), np.dot(squares.ravel(), squares.ravel())
    return sums / BLOCK**2


def sample_pairs(family: Family, head_dim: int, count: int, rng: np.random.Generator) -> Array:
    """`count` fully independent dot products, (count,): one key a query, for statistics of the whole law."""
    chunk = max(1, 2**21 // head_dim)
    parts = []
    for start in range(0, count, chunk):
        q, k = family.draw(rng, min(chunk, count - start), head_dim)
        parts.append(np.einsum("nc,nc->n", q, k, dtype=np.float64))
    return np.concatenate(parts)


def kurtosis(second: Array, fourth: Array) -> tuple[float, float]:
    """E(s − m)⁴/Var² and its standard error by the jackknife over blocks (Efron and Tibshirani 1993, ch. 11)."""
    count = len(second)
    # the means without each block in turn
    rest_2, rest_4 = ((one.sum() - one) / (count - 1) for one in (second, fourth))
    error = math.sqrt((count - 1) * float(np.var(rest_4 / rest_2**2)))
    return float(fourth.mean() / second.mean() ** 2), error


def sampled_rows(seed: int, scalings: Mapping[str, float]) -> Iterator[Row]:
    """All rows that need no backend; `scalings` are the powers of d_k that the dot product is multiplied by."""
    for number, family in enumerate(FAMILIES.values()):
        dims = HEAD_DIMS if family is NORMAL else FAMILY_HEAD_DIMS
        drawn = {d: sample_moments(family, d, BLOCKS, generator(seed, 100 + number, d)) for d in dims}
        for head_dim, moments in drawn.items():
            yield from _moments(family, head_dim, moments)
        if family is NORMAL:
            found = [float(one[1].mean()) for one in drawn.values()]
            errors = [
                NORMAL.moments(d).variance_standard_error(BLOCK, BLOCK) / math.sqrt(BLOCKS) for d in dims
            ]
            for scaling, power in scalings.items():
                factors = [d ** (2 * power) for d in dims]
                scaled = [[f * one for f, one in zip(factors, of, strict=True)] for of in (found, errors)]
                slope, error = log_log_slope(dims, *scaled)
                where = {"family": NORMAL.label, "scaling": scaling}
                quantity, predicted = "slope of ln variance on ln d_k", 1 + 2 * power
                yield Row.compare(quantity, where, predicted, slope, standard_error=error)
    for head_dim in WIDE_HEAD_DIMS:
        wide = sample_moments(WIDE, head_dim, WIDE_BLOCKS, generator(seed, 150, head_dim))
        yield _variance(WIDE, head_dim, wide, sigma=2.0)
    for head_dim in FAMILY_HEAD_DIMS:
        exact = CORRELATED.moments(head_dim)
        scores = sample_pairs(CORRELATED, head_dim, PAIRS, generator(seed, 200, head_dim))
        error = math.sqrt(exact.variance / PAIRS)
        yield _row("mean of q·k", CORRELATED, head_dim, exact.mean, scores.mean(), error)
        found, error = ((scores - exact.mean) ** 2).mean(), exact.variance_standard_error(PAIRS, 1)
        yield _row("variance of q·k", CORRELATED, head_dim, exact.variance, found, error)
    for head_dim in LAW_HEAD_DIMS:
        yield from _law(head_dim, seed)


def _row(
    quantity: str,
    family: Family,
    head_dim: int,
    predicted: float,
    found: float,
    error: float,
    slack: float = 0.0,
    **where: float,
) -> Row:
    at = {"family": family.label, "head_dim": head_dim, **where}
    return Row.compare(quantity, at, predicted, found, standard_error=float(error), slack=slack)


def _moments(family: Family, head_dim: int, drawn: Array) -> Iterator[Row]:
    """Mean, variance and kurtosis of one family at one d_k."""
    exact, (first, second, fourth) = family.moments(head_dim), drawn
    if exact.mean:
        found, error = exact.mean + first.mean(), first.std(ddof=1) / math.sqrt(len(first))
        yield _row("mean of q·k", family, head_dim, exact.mean, found, error)
    yield _variance(family, head_dim, drawn)
    found, error = kurtosis(second, fourth)
    yield _row("kurtosis of q·k", family, head_dim, exact.kurtosis, found, error, _ROUNDING * exact.kurtosis)


def _variance(family: Family, head_dim: int, drawn: Array, **where: float) -> Row:
    exact, found = family.moments(head_dim), float(drawn[1].mean())
    error = exact.variance_standard_error(BLOCK, BLOCK) / math.sqrt(drawn.shape[1])
    slack = _ROUNDING * exact.variance
    return _row("variance of q·k", family, head_dim, exact.variance, found, error, slack, **where)


def _law(head_dim: int, seed: int) -> Iterator[Row]:
    """The law of q·k/√d_k from independent pairs: characteristic function, distribution, largest distance."""
    unit = head_dim**-0.5
    scores = np.sort(sample_pairs(NORMAL, head_dim, PAIRS, generator(seed, 300, head_dim))) * unit
    for t in (0.5, 1.0, 1.5, 2.0, 3.0):
        # cos² = (1 + cos 2t)/2, so that the variance of the mean is known exactly
        value, double = score_characteristic_function([t, 2 * t], head_dim, unit)
        error, found = math.sqrt(((1 + double) / 2 - value**2) / PAIRS), float(np.cos(t * scores).mean())
        yield _row("characteristic function", NORMAL, head_dim, value, found, error, t=t)
    upper = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    points = np.array([*(-x for x in reversed(upper)), 0.0, *upper])
    below = np.searchsorted(scores, points, side="right") / PAIRS
    for x, expected, share in zip(points, score_cdf(points, head_dim, unit), below, strict=True):
        error = math.sqrt(expected * (1 - expected) / PAIRS)
        yield _row("distribution function", NORMAL, head_dim, expected, share, error, x=float(x))
    law, rank = score_cdf(scores, head_dim, unit), np.arange(PAIRS + 1) / PAIRS
    distance = max(float((rank[1:] - law).max()), float((law - rank[:-1]).max())) * math.sqrt(PAIRS)
    yield _row("Kolmogorov distance × √N", NORMAL, head_dim, _DISTANCE[0], distance, _DISTANCE[1])
