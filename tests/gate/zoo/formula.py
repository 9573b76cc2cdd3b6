"""Faults of the formula: another scale, another softmax, another mixture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .fault import Attend, Fault
from .parts import Array, exponentials, plain, scores_of, softmax


def scaled(change: Callable[[float, int], float]) -> Callable[[str], Attend]:
    """The scale replaced by change(scale, head_dim)."""

    def make(dtype: str) -> Attend:
        def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
            return plain(q, k, v, causal=causal, scale=change(scale, q.shape[-1]), dtype=dtype)

        return attend

    return make


def weighted(weights: Callable[[Array], Array]) -> Callable[[str], Attend]:
    """Softmax replaced by `weights` of the scores."""
    return lambda dtype: partial(plain, dtype=dtype, weights=weights)


def rescored(change: Callable[[Array], Array]) -> Callable[[str], Attend]:
    """Scores replaced by `change` of them before the softmax."""
    return lambda dtype: partial(plain, dtype=dtype, change=change)


def with_more(extra: Callable[[Array], Any]) -> Callable[[Array], Array]:
    """Softmax with something added to its denominator: extra(scores)."""

    def weights(s: Array) -> Array:
        e = exponentials(s)
        return (e / (e.sum(axis=-1, keepdims=True) + extra(s))).astype(s.dtype)

    return weights


def short_sum(s: Array) -> Array:
    e = exponentials(s)
    return e / e[..., :-1].sum(axis=-1, keepdims=True)


def unshifted(s: Array) -> Array:
    e = np.exp(s)
    return e / e.sum(axis=-1, keepdims=True)


def shifted_by_at_least(least: float) -> Callable[[Array], Array]:
    def weights(s: Array) -> Array:
        e = np.exp(s - np.maximum(s.max(axis=-1, keepdims=True), s.dtype.type(least)))
        return e / e.sum(axis=-1, keepdims=True)

    return weights


def argmax(s: Array) -> Array:
    return (np.arange(s.shape[-1]) == s.argmax(axis=-1)[..., None]).astype(s.dtype)


def uniform(s: Array) -> Array:
    seen = ~np.isneginf(s)
    return seen / seen.sum(axis=-1, keepdims=True, dtype=s.dtype)


def base_two(s: Array) -> Array:
    e = np.exp2(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def over_queries(s: Array) -> Array:
    return np.nan_to_num(softmax(s.swapaxes(-1, -2)).swapaxes(-1, -2))


def dropped_out(rate: float) -> Callable[[str], Attend]:
    def make(dtype: str) -> Attend:
        rng = np.random.default_rng(0)

        def weights(s: Array) -> Array:
            kept = rng.random(s.shape) >= rate
            return (softmax(s) * kept / (1 - rate)).astype(s.dtype)

        return partial(plain, dtype=dtype, weights=weights)

    return make


def shift_shared(s: Array) -> Array:
    """One maximum for all rows of a head."""
    e = np.exp(s - s.max(axis=(-1, -2), keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def shifted_by_mean(s: Array) -> Array:
    seen = ~np.isneginf(s)
    mean = np.where(seen, s, 0).sum(axis=-1, keepdims=True) / seen.sum(axis=-1, keepdims=True)
    e = np.exp(s - mean.astype(s.dtype))
    return e / e.sum(axis=-1, keepdims=True)


def exponent_clipped(least: float) -> Callable[[Array], Array]:
    def weights(s: Array) -> Array:
        fall = s - s.max(axis=-1, keepdims=True)
        e = np.where(np.isneginf(s), 0, np.exp(np.maximum(fall, s.dtype.type(least)))).astype(s.dtype)
        return e / e.sum(axis=-1, keepdims=True)

    return weights


def largest_only(count: int) -> Callable[[Array], Array]:
    """Only the `count` largest scores of a row."""

    def change(s: Array) -> Array:
        if s.shape[-1] <= count:
            return s
        least = np.sort(s, axis=-1)[..., -count, None]
        return np.where(s >= least, s, -np.inf).astype(s.dtype)

    return change


def thresholded(least: float) -> Callable[[Array], Array]:
    """Weights below `least` of the row's largest are taken for zero."""

    def weights(s: Array) -> Array:
        e = exponentials(s)
        e = np.where(e < least, 0, e).astype(s.dtype)
        return e / e.sum(axis=-1, keepdims=True)

    return weights


def sloped(slope: float) -> Callable[[Array], Array]:
    """A bias that falls with the distance in positions."""

    def change(s: Array) -> Array:
        n_q, n_k = s.shape[-2:]
        return (s - slope * np.abs(np.arange(n_q)[:, None] - np.arange(n_k))).astype(s.dtype)

    return change


def first_favoured(s: Array) -> Array:
    s = s.copy()
    s[..., 0] += 0.1
    return s


def windowed(width: int) -> Callable[[Array], Array]:
    """Keys further than `width` behind the query are not seen (a query beyond the keys sees all)."""

    def change(s: Array) -> Array:
        n_q, n_k = s.shape[-2:]
        near = np.arange(n_q)[:, None] - np.arange(n_k) < width
        return np.where(near | ~near.any(axis=-1, keepdims=True), s, -np.inf).astype(s.dtype)

    return change


def capped(cap: float) -> Callable[[Array], Array]:
    return lambda s: np.where(np.isneginf(s), s, cap * np.tanh(s / cap)).astype(s.dtype)


def gained(factor: float) -> Callable[[str], Attend]:
    return lambda dtype: partial(plain, dtype=dtype, weights=lambda s: (softmax(s) * factor).astype(s.dtype))


def absolute_scale(scale: float, dim: int) -> float:
    return abs(scale)


def scores_halfway(q: Array, k: Array, scale: float) -> Array:
    """The last component of query and key left out."""
    return scores_of(q[..., : max(1, q.shape[-1] - 1)], k[..., : max(1, k.shape[-1] - 1)], scale)


def unit_keys(q: Array, k: Array, scale: float) -> Array:
    """Cosine similarity: keys normalised to the length that they have on average."""
    length = np.sqrt((k * k).sum(axis=-1, keepdims=True))
    return scores_of(q, (k / np.where(length > 0, length, 1) * k.shape[-1] ** 0.5).astype(k.dtype), scale)


_LOST = "eps/l with l >= 1 moves an output by at most 1e-6 of itself, {} u: below what rounding it hides"
_CLIPPED = "e^-20 is 2e-9, so that even 1000 keys add 2e-6 to a weight: {} u"
_TINY = (
    ("float16", _LOST.format("0.002")),
    ("bfloat16", _LOST.format("0.0003")),
)

FAULTS = (
    Fault("scale 1 % large", scaled(lambda scale, dim: 1.01 * scale)),
    Fault("scale 0.3 % large", scaled(lambda scale, dim: 1.003 * scale)),
    Fault("scale 0.3 % small", scaled(lambda scale, dim: scale / 1.003)),
    Fault("scale left out", scaled(lambda scale, dim: 1.0)),
    Fault("scale applied twice", scaled(lambda scale, dim: scale * scale)),
    Fault("scale 1/d", scaled(lambda scale, dim: 1 / dim)),
    Fault("always the default scale", scaled(lambda scale, dim: dim**-0.5)),
    Fault("sign of the scale lost", scaled(absolute_scale)),
    Fault("mean of the values", weighted(uniform)),
    Fault("value of the largest score", weighted(argmax)),
    Fault("2^x instead of e^x", weighted(base_two)),
    Fault("largest score not subtracted", weighted(unshifted)),
    Fault("maximum begins at 0", weighted(shifted_by_at_least(0.0))),
    Fault("maximum begins at -10000", weighted(shifted_by_at_least(-1e4))),
    Fault("one maximum for all rows", weighted(shift_shared)),
    Fault("mean subtracted, not the maximum", weighted(shifted_by_mean)),
    Fault("scores clipped at 80", rescored(lambda s: np.where(np.isneginf(s), s, np.clip(s, -80, 80)))),
    Fault(
        "exponent clipped at -20",
        weighted(exponent_clipped(-20.0)),
        (("float16", _CLIPPED.format("0.004")), ("bfloat16", _CLIPPED.format("0.0005"))),
    ),
    Fault("softmax over the queries", weighted(over_queries)),
    Fault("scores capped at 50", rescored(capped(50.0))),
    Fault("scores capped at 1000", rescored(capped(1000.0))),
    Fault("dropout of 0.1 left on", dropped_out(0.1)),
    Fault("dropout of 0.001 left on", dropped_out(0.001)),
    Fault("1e-3 in the denominator", weighted(with_more(lambda s: 1e-3))),
    Fault("1e-6 in the denominator", weighted(with_more(lambda s: 1e-6)), _TINY),
    Fault("1 in the denominator", weighted(with_more(lambda s: 1.0))),
    Fault("e^-m in the denominator", weighted(with_more(lambda s: np.exp(-s.max(axis=-1, keepdims=True))))),
    Fault("denominator lacks a term", weighted(short_sum)),
    Fault("gain of 0.1 %", gained(1.001)),
    Fault("only the 32 largest scores", rescored(largest_only(32))),
    Fault("weights below 1 % dropped", weighted(thresholded(1e-2))),
    Fault("bias with distance, 0.001", rescored(sloped(1e-3))),
    Fault("first key favoured", rescored(first_favoured)),
    Fault("window of 256", rescored(windowed(256))),
    Fault(
        "last component of q and k left out", lambda dtype: partial(plain, dtype=dtype, scores=scores_halfway)
    ),
    Fault("keys normalised", lambda dtype: partial(plain, dtype=dtype, scores=unit_keys)),
)
