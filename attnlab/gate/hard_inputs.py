"""Inputs that are drawn and then made hard: weights and scores that are rounded, in ranges where faults show.

Those that leave nothing to round are in `attnlab.gate.exact_inputs`.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from attnlab.problem.distributions import DISTRIBUTIONS, Array, Distribution, Three


def _rising(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # the largest score so far rises in every block of keys, by 12 in all: what is not rescaled dominates
    q, k = q.copy(), k.copy()
    q[..., 0] = 4.0
    k[..., 0] = np.linspace(0.0, 12 / (4 * scale), k.shape[-2])
    return q, k, v


def _needles(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every query looks for one key among thousands: the last ones, and others anywhere. Its logit is 10 against
    # N(0, 100/d): it weighs most and cannot be missing unnoticed, and the others are not so small that a float32
    # sum which has the one already would lose them all
    keys, queries = k.shape[-2], q.shape[-2]
    last = keys - 1 - np.arange(queries // 2) % keys
    sought = np.concatenate([last, rng.integers(0, keys, size=queries - queries // 2)])
    found = k[..., sought, :]
    return 10 / scale * found / (found**2).sum(axis=-1, keepdims=True), k, v


def _creeping(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
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


def _shared(*at: slice) -> Distribution:
    """Keys and values are those at the first head, as in multi-query attention, or batch, as of one prompt, for all."""
    return lambda q, k, v, scale, rng: (q, _first(k, at), _first(v, at))


def _first(x: Array, at: tuple[slice, ...]) -> Array:
    return np.broadcast_to(x[at], x.shape).copy()


def _times(query: float, key: float, value: float) -> Distribution:
    return lambda q, k, v, scale, rng: (q * query, k * key, v * value)


def _values_at(power: int) -> Distribution:
    """Values of some 2^power, none above 3.9 of it: float16 has numbers up to 2^16 and down to 2^-24."""
    return lambda q, k, v, scale, rng: (q, k, np.clip(v, -3.9, 3.9) * 2.0**power)


CONSTRUCTIONS: dict[str, Distribution] = {
    **DISTRIBUTIONS,
    "logit_std_2": lambda q, k, v, scale, rng: (q * (2.0 / (abs(scale) * q.shape[-1] ** 0.5)), k, v),
    "rising": _rising,
    "needles": _needles,
    "creeping": _creeping,
    "shared_heads": _shared(np.s_[:], np.s_[:1]),
    "shared_batches": _shared(np.s_[:1]),
    "small_values": _times(1.0, 1.0, 2.0**-8),
    "large_values": _times(1.0, 1.0, 2.0**8),
    # numbers that a format of less range has not
    "beyond_float16": _times(2.0**20, 2.0**-20, 1.0),
    "small_queries": _times(2.0**-16, 2.0**10, 1.0),
    **{f"values_2^{power}": _values_at(power) for power in (14, 40, -100)},
}
