"""Dot products of random vectors by the hundred million, at the speed of a matrix product and in little memory.

Queries and keys come in blocks, every query of a block meets every key of it, and only three sums of each block are
kept. Blocks are independent, so their spread is the error of any statistic, however its block's rows share
queries and keys. The cost of a dot product is the same for the first block and the last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.theory import DotProductMoments, dot_product_moments

Single = NDArray[np.float32]
#: queries, and keys, of a block: large enough for a fast matrix product, small enough to stay in cache
BLOCK = 512
_MEAN, _DECAY = 0.5, 1.0


@dataclass(frozen=True)
class Family:
    """How the components of q and k are drawn, and what theory needs to know of them.

    `draw(rng, count, head_dim)` gives the queries and the keys, each (count, head_dim) in float32; `moments(d)`
    the exact moments of the unscaled q·k.
    """

    label: str
    draw: Callable[[np.random.Generator, int, int], tuple[Single, Single]]
    moments: Callable[[int], DotProductMoments]


@dataclass(frozen=True)
class ScoreMoments:
    """Means of s − m, its square and its fourth power, one of each a block; m the exact mean of s."""

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    fourth: NDArray[np.float64]

    @property
    def variance(self) -> float:
        """Mean of (s − m)²."""
        return float(self.second.mean())

    @property
    def kurtosis(self) -> tuple[float, float]:
        """E(s − m)⁴/Var² and its standard error by the jackknife over blocks (Efron and Tibshirani 1993, ch. 11)."""
        count = len(self.second)
        # the means without each block in turn
        rest_2, rest_4 = ((one.sum() - one) / (count - 1) for one in (self.second, self.fourth))
        without = rest_4 / rest_2**2
        error = math.sqrt((count - 1) * float(np.var(without)))
        return float(self.fourth.mean() / self.second.mean() ** 2), error


def sample_moments(family: Family, head_dim: int, scores: int, rng: np.random.Generator) -> ScoreMoments:
    """Moments of at least `scores` dot products of `head_dim` components, in blocks of BLOCK × BLOCK.

    Memory: two blocks of vectors and two of scores, whatever the number. Raises ValueError for fewer than
    one score.
    """
    if scores < 1:
        raise ValueError(f"scores must be at least 1, got {scores}")
    blocks = max(2, math.ceil(scores / BLOCK**2))
    mean = np.float32(family.moments(head_dim).mean)
    sums = np.empty((3, blocks))
    products, squares = np.empty((BLOCK, BLOCK), np.float32), np.empty((BLOCK, BLOCK), np.float32)
    for block in range(blocks):
        q, k = family.draw(rng, BLOCK, head_dim)
        np.matmul(q, k.T, out=products)
        if mean:
            np.subtract(products, mean, out=products)
        np.multiply(products, products, out=squares)
        # BLAS's dot keeps several partial sums: its rounding, some 1e-6, is far below the sampling error
        sums[:, block] = products.sum(), squares.sum(), np.dot(squares.ravel(), squares.ravel())
    first, second, fourth = sums / BLOCK**2
    return ScoreMoments(first, second, fourth)


def sample_pairs(family: Family, head_dim: int, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`count` fully independent dot products, (count,): one key a query, for statistics of the whole law."""
    chunk = max(1, 2**21 // head_dim)
    parts = []
    for start in range(0, count, chunk):
        q, k = family.draw(rng, min(chunk, count - start), head_dim)
        parts.append(np.einsum("nc,nc->n", q, k, dtype=np.float64))
    return np.concatenate(parts)


def _independent(
    draw: Callable[..., Any],
) -> Callable[[np.random.Generator, int, int], tuple[Single, Single]]:
    return lambda rng, count, dim: (
        np.asarray(draw(rng, (count, dim)), np.float32),
        np.asarray(draw(rng, (count, dim)), np.float32),
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


def decaying_variances(head_dim: int) -> NDArray[np.float64]:
    """Variances 1/c of component c, scaled to mean 1: few directions carry most, as in trained heads."""
    raw: NDArray[np.float64] = np.arange(1, head_dim + 1, dtype=np.float64) ** -_DECAY
    return raw * (head_dim / float(raw.sum()))


def _anisotropic(rng: np.random.Generator, shape: tuple[int, int]) -> Single:
    return _normal(rng, shape) * np.sqrt(decaying_variances(shape[1])).astype(np.float32)


def _anisotropic_moments(head_dim: int) -> DotProductMoments:
    covariance = np.diag(decaying_variances(head_dim))
    return dot_product_moments(head_dim, query_covariance=covariance, key_covariance=covariance)


def correlated(rho: float) -> Family:
    """Pairs in which component c of q and of k are jointly normal with correlation `rho`: for `sample_pairs` only.

    Every query has one key that it is correlated with, so that a block of all with all would mean little.
    """

    def draw(rng: np.random.Generator, count: int, dim: int) -> tuple[Single, Single]:
        q, own = _normal(rng, (count, dim)), _normal(rng, (count, dim))
        return q, np.float32(rho) * q + np.float32(math.sqrt(1 - rho**2)) * own

    return Family(f"correlated, ρ = {rho:g}", draw, lambda d: dot_product_moments(d, correlation=rho))


def _normal_by_sign(rng: np.random.Generator, count: int, dim: int) -> tuple[Single, Single]:
    return _normal(rng, (count, dim)), _rademacher(rng, (count, dim))


def _of_kurtosis(label: str, draw: Callable[..., Any], kurtosis: float) -> Family:
    both = {"query_kurtosis": kurtosis, "key_kurtosis": kurtosis}
    return Family(label, _independent(draw), lambda d: dot_product_moments(d, **both))


NORMAL = Family("normal", _independent(_normal), dot_product_moments)
#: the standard deviation of the components of `WIDE`
WIDTH = 2.0
WIDE = Family(
    f"normal, σ = {WIDTH:g}",
    _independent(lambda rng, shape: np.float32(WIDTH) * _normal(rng, shape)),
    lambda d: dot_product_moments(d, query_std=WIDTH, key_std=WIDTH),
)

#: zero mean and unit variance a component, but for the shifted ones, whose mean is ½
FAMILIES: Mapping[str, Family] = {
    "normal": NORMAL,
    "uniform": _of_kurtosis("uniform", _uniform, 1.8),
    "Rademacher": _of_kurtosis("Rademacher", _rademacher, 1.0),
    "Laplace": _of_kurtosis("Laplace", _laplace, 6.0),
    # a sum of normal numbers with random signs: exactly normal at every dimension
    "normal × Rademacher": Family(
        "normal × Rademacher",
        _normal_by_sign,
        lambda d: dot_product_moments(d, query_kurtosis=3.0, key_kurtosis=1.0),
    ),
    "shifted means": Family(
        "shifted means",
        _independent(lambda rng, shape: _normal(rng, shape) + np.float32(_MEAN)),
        lambda d: dot_product_moments(d, query_mean=_MEAN, key_mean=_MEAN),
    ),
    "anisotropic": Family("anisotropic", _independent(_anisotropic), _anisotropic_moments),
}
