"""Inputs that are drawn and then made hard: weights and scores that are rounded, in ranges where faults show.

Those that leave nothing to round are in `attnlab.accuracy.exact_inputs`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.distributions import DISTRIBUTIONS, Distribution

Array = NDArray[np.float64]


def _logit_std_2(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    return q * (2.0 / (abs(scale) * q.shape[-1] ** 0.5)), k, v


def _rising(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    # the largest score so far rises in every block of keys, by 12 in all: what is not rescaled dominates
    q, k = q.copy(), k.copy()
    q[..., 0] = 4.0
    k[..., 0] = np.linspace(0.0, 12 / (4 * scale), k.shape[-2])
    return q, k, v


def _needles(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    # every query looks for one key among thousands: the last ones, and others anywhere. Its logit is 10 against
    # N(0, 100/d): it weighs most and cannot be missing unnoticed, and the others are not so small that a float32
    # sum which has the one already would lose them all
    keys, queries = k.shape[-2], q.shape[-2]
    last = keys - 1 - np.arange(queries // 2) % keys
    sought = np.concatenate([last, rng.integers(0, keys, size=queries - queries // 2)])
    found = k[..., sought, :]
    return 10 / scale * found / (found**2).sum(axis=-1, keepdims=True), k, v


def _shared_heads(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    # keys and values are the same for all heads, as in multi-query attention: they can share memory
    k, v = (np.broadcast_to(array[:, :1], array.shape).copy() for array in (k, v))
    return q, k, v


def _shared_batches(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    # keys and values are the same for all batches, as of one prompt with many continuations
    k, v = (np.broadcast_to(array[:1], array.shape).copy() for array in (k, v))
    return q, k, v


def _creeping(
    q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    # every sixteenth key raises the largest score so far, by 0.04 to 0.06 in all: where a rescaling is skipped for a
    # rise that small in each of many blocks, sum and output drift apart by as much. By unequal steps, since an equal
    # factor would be rounded the same way in every block; and the others lie up to ln 16 below, since weights of one
    # mantissa may round worse than budgets expect. The rows differ by up to a third, lest their sums have one rounding
    q, k = np.zeros_like(q), np.zeros_like(k)
    queries, keys = q.shape[-2], k.shape[-2]
    rise = 0.06 * np.sort(rng.random(keys))
    fall = np.where(np.arange(keys) % 16 == 0, 0.0, rng.uniform(0.0, np.log(16), size=keys))
    q[..., 0] = 4.0 - 4 / 3 * np.arange(queries) / queries
    k[..., 0] = (rise - fall) / (4 * scale)
    return q, k, v


def _sizes_moved(query: int, key: int) -> Distribution:
    """2^query more in the queries and 2^key in the keys: numbers that a format of less range has not."""

    def construct(
        q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        return q * 2.0**query, k * 2.0**key, v

    return construct


def _values_at(power: int) -> Distribution:
    """Values of some 2^power, none above 3.9 of it: float16 has numbers up to 2^16 and down to 2^-24."""

    def construct(
        q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        return q, k, np.clip(v, -3.9, 3.9) * 2.0**power

    return construct


def _values_times(size: float) -> Distribution:
    def construct(
        q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator
    ) -> tuple[Array, Array, Array]:
        return q, k, v * size

    return construct


CONSTRUCTIONS: dict[str, Distribution] = {
    **DISTRIBUTIONS,
    "logit_std_2": _logit_std_2,
    "rising": _rising,
    "needles": _needles,
    "shared_heads": _shared_heads,
    "small_values": _values_times(2.0**-8),
    "large_values": _values_times(2.0**8),
    "shared_batches": _shared_batches,
    "creeping": _creeping,
    "beyond_float16": _sizes_moved(20, -20),
    "small_queries": _sizes_moved(-16, 10),
    **{f"values_2^{power}": _values_at(power) for power in (14, 40, -100)},
}
