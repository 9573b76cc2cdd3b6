"""How query, key and value are distributed: standard normal, and in the shapes that break implementations.

A distribution turns three standard normal arrays into query, key and value. Value keeps zero mean: with a value mean
of 1 a wrong scale hardly moves the output. A distribution that is one more row of the table is known to options, plan
files and reports.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Three = tuple[Array, Array, Array]
#: (query, key, value, scale, generator) -> (query, key, value)
Distribution = Callable[[Array, Array, Array, float, Generator], Three]


def _normal(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    return q, k, v


def _logit_std(std: float) -> Distribution:
    def distribution(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
        # Var(scale q.k) = scale^2 d for standard normal components
        now = abs(scale) * np.sqrt(q.shape[-1])
        return q * (std / now if now else 1.0), k, v

    return distribution


def _shifted_means(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    return q + 0.5, k + 0.5, v


def _outliers(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    def spiked(x: Array) -> Array:
        return x + 10 * rng.standard_normal(x.shape) * (rng.random(x.shape) < 1e-3)

    return spiked(q), spiked(k), spiked(v)


def _duplicated_maxima(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every second key repeats its neighbour: each row's largest logit stands there at least twice
    pairs = k.shape[-2] // 2
    k = k.copy()
    k[..., 1 : 2 * pairs : 2, :] = k[..., 0 : 2 * pairs : 2, :]
    return q * 4, k, v


def _offset_logits(offset: float) -> Distribution:
    """Every logit of every row lies near `offset`: component 0 carries it, the others carry the spread."""

    def distribution(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
        size = np.sqrt(abs(offset) / abs(scale)) if scale else 0.0
        sign = np.sign(offset) * (np.sign(scale) or 1.0)
        q, k = q.copy(), k.copy()
        q[..., 0], k[..., 0] = size, sign * size
        return q, k, v

    return distribution


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal": _normal,
    "logit_std_4": _logit_std(4.0),
    "logit_std_8": _logit_std(8.0),
    "shifted_means": _shifted_means,
    "outliers": _outliers,
    "duplicated_maxima": _duplicated_maxima,
    "above_1000": _offset_logits(1200.0),
    "below_minus_50000": _offset_logits(-52000.0),
}
