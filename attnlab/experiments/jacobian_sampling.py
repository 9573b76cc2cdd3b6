"""Laws of a row's gradient over standard normal inputs that have no integral: sampled, each figure with its error.

‖J‖_F, J = diag p − ppᵀ: its mean square has an exact integral; its quantiles have not. So rows of the random energy
model are drawn, and the two things that decide most of ‖J‖ are not left to chance: β is drawn a stratum of its law a
row, and the largest logit, which given all others is a normal number above the second largest, a stratum of its law a
copy of the row. That makes the error some ten times smaller than that of as many independent rows.

The whole gradient of a query is dL/dq = scale · Σ_j (Jg)_j k_j, in which the scale is a factor. With the weights'
gradient g of independent unit components three draws make its length: |dL/dq|² = scale² (‖Jg‖² χ²_{d_k − 1} +
(Σ_j (Jg)_j x_j)²), with x_j the key's component along the query, of which the weights are made, and the others
independent of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from attnlab.experiments.finding import Array
from attnlab.experiments.survey import generator, mean_over_clusters, statistic_over_clusters

#: rows, at most, and copies of each; logits drawn in all, about; rows computed at once
_ROWS, _COPIES, _LOGITS, _AT_ONCE = 20_000, 32, 2**25, 2**20
#: rows drawn of the whole gradient, how many at once, and the parts of the sample that tell the error of a median
_WHOLE_ROWS, _WHOLE_AT_ONCE, _PARTS = 12_288, 512, 24
#: of lengths of the whole gradient
STATISTICS: Mapping[str, Callable[[Array], float]] = {
    "rms": lambda norms: float(np.mean(norms**2)) ** 0.5,
    "median": lambda norms: float(np.median(norms)),
}


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


@lru_cache(maxsize=256)
def share_below(threshold: float, keys: int, head_dim: int, scale: float) -> Estimate:
    """P(‖J‖_F < threshold) of a row of softmax(scale · q·k) over `keys`, q and k ~ N(0, I) in `head_dim` dimensions."""
    return Estimate(*mean_over_clusters((_norms(keys, head_dim, scale) < threshold).astype(np.float64)))


@lru_cache(maxsize=256)
def quantile(level: float, keys: int, head_dim: int, scale: float) -> Estimate:
    """The `level` quantile of ‖J‖_F, 0 < level < 1; arguments as `share_below`.

    Standard error: half the distance of the quantiles one standard error of the level away to both sides (Woodruff
    1952).
    """
    norms = _norms(keys, head_dim, scale)
    value = float(np.quantile(norms, level))
    _, error = mean_over_clusters((norms < value).astype(np.float64))
    low, high = np.quantile(norms, np.clip([level - error, level + error], 0, 1))
    return Estimate(value, float(high - low) / 2)


@lru_cache(maxsize=4)
def _norms(keys: int, head_dim: int, scale: float) -> Array:
    """‖J‖_F of rows, (rows, copies), the same in every run; rows are independent of each other."""
    from scipy.stats import chi2

    rng = generator(0, 610, keys, head_dim)
    rows = min(_ROWS, max(256, _LOGITS // keys))
    levels = (rng.permutation(rows) + rng.random(rows)) / rows
    beta = scale * np.sqrt(chi2.ppf(levels, head_dim))
    at_once = max(1, _AT_ONCE // keys)
    return np.concatenate([_part(keys, beta[i : i + at_once], rng) for i in range(0, rows, at_once)])


def _part(keys: int, beta: Array, rng: np.random.Generator) -> Array:
    """‖J‖_F of a row for each β, in copies that differ by the largest logit: (rows, copies).

    With w_j = e^{s_j − s_max} of the keys but the largest, R = Σw and p = 1/(1 + R), the squared norm is
    p⁴R² + p²Σw² − 2p³Σw³ + 2p⁴Σw² + p⁴(Σw²)², in which nothing cancels.
    """
    from scipy.special import ndtr, ndtri

    x = rng.standard_normal((beta.size, keys))
    x[np.arange(beta.size), x.argmax(axis=1)] = -np.inf
    second = x.max(axis=1, keepdims=True)
    w = np.exp(beta[:, None] * (x - second))
    squares = w * w
    first, square, cube = (one.sum(axis=1, keepdims=True) for one in (w, squares, squares * w))
    above = (np.arange(_COPIES) + rng.random((beta.size, _COPIES))) / _COPIES * ndtr(-second)
    down = np.exp(-beta[:, None] * (-ndtri(above) - second))  # e^{s_second − s_max}
    first, square, cube = first * down, square * down**2, cube * down**3
    p = 1 / (1 + first)
    return np.asarray(
        np.sqrt(p**4 * first**2 + p**2 * square - 2 * p**3 * cube + 2 * p**4 * square + p**4 * square**2)
    )


def ratio_of_lengths(name: str, pairs: Array) -> Estimate:
    """The statistic called `name` of |dL/dq| unscaled over scaled; pairs : (clusters, unscaled and then scaled)."""

    def ratio(both: Array) -> float:
        unscaled, scaled = np.split(both, 2, axis=1)
        return STATISTICS[name](unscaled) / STATISTICS[name](scaled)

    return Estimate(*statistic_over_clusters(pairs, ratio))


@lru_cache(maxsize=64)
def predicted_ratio(name: str, keys: int, head_dim: int) -> Estimate:
    """`ratio_of_lengths` for rows of `keys` keys, from rows of the law, the same in every run."""
    pairs = [_lengths(keys, head_dim, scale).reshape(_PARTS, -1) for scale in (1.0, head_dim**-0.5)]
    return ratio_of_lengths(name, np.concatenate(pairs, axis=1))


@lru_cache(maxsize=8)
def _lengths(keys: int, head_dim: int, scale: float) -> Array:
    """|dL/dq| of rows, the same in every run and, but for what the scale does, with every scale."""
    rng = generator(0, 860, head_dim)
    found = []
    for _ in range(_WHOLE_ROWS // _WHOLE_AT_ONCE):
        length = np.sqrt(rng.chisquare(head_dim, (_WHOLE_AT_ONCE, 1)))
        x, g = rng.standard_normal((2, _WHOLE_AT_ONCE, keys))
        logits = scale * length * x
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        passed = weights * (g - (weights * g).sum(axis=1, keepdims=True))
        across = (passed**2).sum(axis=1) * rng.chisquare(head_dim - 1, _WHOLE_AT_ONCE)
        found.append(scale * np.sqrt(across + (passed * x).sum(axis=1) ** 2))
    return np.concatenate(found)
