"""Faults of the formula: another softmax, another mixture, blocks that are merged wrongly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlab.problem.problem import Problem

from .fault import Fault, excused, scattered_by, shifted_by
from .parts import (
    Answers,
    Array,
    Memory,
    composed,
    divided,
    exponentials,
    in_blocks,
    parted,
    remembering,
    scores_of,
    softmax,
    visible,
)


def with_more(extra: Callable[[Array], Array | float]) -> Callable[[Array], Array]:
    """Softmax with something added to its denominator: extra(scores)."""
    return lambda s: ((e := exponentials(s)) / (e.sum(axis=-1, keepdims=True) + extra(s))).astype(s.dtype)


def shifted(shift: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Softmax that subtracts something else than the maximum: shift(scores)."""
    return lambda s: divided(np.exp(s - shift(s).astype(s.dtype)))


def mean_of_seen(s: Array) -> Array:
    seen = ~np.isneginf(s)
    return np.where(seen, s, 0).sum(axis=-1, keepdims=True) / seen.sum(axis=-1, keepdims=True)


def argmax(s: Array) -> Array:
    return (np.arange(s.shape[-1]) == s.argmax(axis=-1)[..., None]).astype(s.dtype)


def uniform(s: Array) -> Array:
    seen = ~np.isneginf(s)
    return seen / seen.sum(axis=-1, keepdims=True, dtype=s.dtype)


@remembering
def dropped_out(memory: Memory, rate: float, hook: str, problem: Problem) -> Answers:
    """Dropout of the weights, or, as `hook` says, of those that enter one sum."""
    rng = memory.setdefault("rng", np.random.default_rng(0))

    def dropped(p: Array) -> Array:
        return (p * (rng.random(p.shape) >= rate) / (1 - rate)).astype(p.dtype)

    return parted(**{hook: (lambda s: dropped(softmax(s))) if hook == "weights" else dropped})(problem)


def exponent_clipped(least: float) -> Callable[[Array], Array]:
    def weights(s: Array) -> Array:
        fall = np.maximum(s - s.max(axis=-1, keepdims=True), s.dtype.type(least))
        return divided(np.where(np.isneginf(s), 0, np.exp(fall)).astype(s.dtype))

    return weights


def largest_only(count: int) -> Callable[[Array], Array]:
    """Only the `count` largest scores of a row."""

    def change(s: Array) -> Array:
        if s.shape[-1] <= count:
            return s
        return np.where(s >= np.sort(s, axis=-1)[..., -count, None], s, -np.inf).astype(s.dtype)

    return change


def thresholded(least: float) -> Callable[[Array], Array]:
    """Weights below `least` of the row's largest are taken for zero."""
    return lambda s: divided(np.where((e := exponentials(s)) < least, 0, e).astype(s.dtype))


def sloped(s: Array) -> Array:
    """A bias that falls with the distance in positions."""
    n_q, n_k = s.shape[-2:]
    return (s - 1e-3 * np.abs(np.arange(n_q)[:, None] - np.arange(n_k))).astype(s.dtype)


def mask_added(size: float) -> Callable[[Array, Problem], Array]:
    """Hidden keys keep their score, less `size`."""

    def compose(s: Array, problem: Problem) -> Array:
        seen, s = visible(problem), composed(s, problem)
        return s if seen is None else np.where(seen, s, s - s.dtype.type(size))

    return compose


def unit_keys(q: Array, k: Array, scale: float) -> Array:
    """Cosine similarity: keys normalised to the length that they have on average."""
    length = np.sqrt((k * k).sum(axis=-1, keepdims=True))
    return scores_of(q, (k / np.where(length > 0, length, 1) * k.shape[-1] ** 0.5).astype(k.dtype), scale)


def cubic(s: Array) -> Array:
    """2^f on [0, 1) by a polynomial of degree 3, off by 1e-4."""
    x = s - s.max(axis=-1, keepdims=True)
    y = np.maximum(np.asarray(x, dtype=np.float64) * 1.4426950408889634, -140.0)
    low = np.floor(y)
    f = y - low
    found = np.ldexp(0.9999252 + f * (0.6958335 + f * (0.2260671 + f * 0.0780245)), low.astype(int))
    return divided(np.where(np.isneginf(x), 0, found).astype(x.dtype))


def sum_limited(most: float, beyond: float) -> Callable[[Array], Array]:
    """A denominator that ends at `most`."""

    def weights(s: Array) -> Array:
        e = exponentials(s)
        total = e.sum(axis=-1, keepdims=True)
        return e / np.where(total > most, s.dtype.type(beyond), total)

    return weights


def at_least(least: float) -> Callable[[Array], Array]:
    return lambda s: np.maximum(s.max(axis=-1, keepdims=True), s.dtype.type(least))


_EPS = "with l >= 1 it takes that part of an output at most, and of all outputs of a row alike"
_EXPONENT = "e^-20 for each of 1000 keys, as a part of the weights that are left"
_CUBIC = "the largest error of the polynomial, another for every weight"

FAULTS = (
    Fault("mean of the values", parted(weights=uniform)),
    Fault("value of the largest score", parted(weights=argmax)),
    Fault(
        "2^x instead of e^x", parted(weights=lambda s: divided(np.exp2(s - s.max(axis=-1, keepdims=True))))
    ),
    Fault("largest score not subtracted", parted(weights=shifted(lambda s: np.zeros_like(s[..., :1])))),
    Fault("maximum begins at 0", parted(weights=shifted(at_least(0.0)))),
    Fault("maximum begins at -10000", parted(weights=shifted(at_least(-1e4)))),
    Fault("one maximum for all rows", parted(weights=shifted(lambda s: s.max(axis=(-1, -2), keepdims=True)))),
    Fault("mean subtracted, not the maximum", parted(weights=shifted(mean_of_seen))),
    Fault("scores clipped at 80", parted(change=lambda s: np.where(np.isneginf(s), s, np.clip(s, -80, 80)))),
    Fault(
        "exponent clipped at -20",
        parted(weights=exponent_clipped(-20.0)),
        excuses=shifted_by(1000 * float(np.exp(-20)), _EXPONENT),
    ),
    Fault(
        "softmax over the queries",
        parted(weights=lambda s: np.nan_to_num(softmax(s.swapaxes(-1, -2)).swapaxes(-1, -2))),
    ),
    Fault(
        "scores capped at 1000",
        parted(change=lambda s: np.where(np.isneginf(s), s, 1000 * np.tanh(s / 1000)).astype(s.dtype)),
    ),
    Fault("dropout of 0.1 left on", dropped_out(0.1, "weights")),
    Fault("dropout of 0.001 left on", dropped_out(0.001, "weights")),
    Fault("1e-3 in the denominator", parted(weights=with_more(lambda s: 1e-3))),
    Fault(
        "1e-6 in the denominator", parted(weights=with_more(lambda s: 1e-6)), excuses=shifted_by(1e-6, _EPS)
    ),
    Fault(
        "e^-m in the denominator", parted(weights=with_more(lambda s: np.exp(-s.max(axis=-1, keepdims=True))))
    ),
    Fault(
        "denominator lacks a term",
        parted(weights=lambda s: (e := exponentials(s)) / e[..., :-1].sum(axis=-1, keepdims=True)),
    ),
    Fault("gain of 0.1 %", parted(weights=lambda s: softmax(s) * 1.001)),
    Fault("only the 32 largest scores", parted(change=largest_only(32))),
    Fault("weights below 1 % dropped", parted(weights=thresholded(1e-2))),
    Fault("bias with distance, 0.001", parted(change=sloped)),
    Fault(
        "first key favoured",
        parted(change=lambda s: (s + 0.1 * (np.arange(s.shape[-1]) == 0)).astype(s.dtype)),
    ),
    Fault("keys normalised", parted(scores=unit_keys)),
    Fault("mask of -10 added", parted(compose=mask_added(10.0), seen_by=lambda p: None)),
    Fault("mask of -10000 added", parted(compose=mask_added(1e4), seen_by=lambda p: None)),
    Fault(
        "hidden scores are -65504",
        parted(hidden=-65504.0),
        excuses=excused("float16", 0.0, 1.0, "no float16 score lies below -65504: no hidden key weighs more"),
    ),
    Fault("2^x by a cubic", parted(weights=cubic), excuses=scattered_by(1e-4, _CUBIC)),
    Fault("denominator ends at 2048", parted(weights=sum_limited(2048.0, 2048.0))),
    Fault("denominator infinite from 65504", parted(weights=sum_limited(65504.0, np.inf))),
    Fault("output not rescaled between blocks", in_blocks(rescale_output=False)),
    Fault("denominator not rescaled between blocks", in_blocks(rescale_sum=False)),
    Fault("rises by 0.01 not rescaled", in_blocks(block=16, forget_rise=0.01)),
    Fault("last partial block dropped", in_blocks(drop_partial=True)),
    Fault("last partial block of 256 dropped", in_blocks(drop_partial=True, block=256)),
    Fault("blocked: maximum begins at 0", in_blocks(first_max=0.0)),
)
