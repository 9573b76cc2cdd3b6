"""Right attentions that differ in how they round: each must pass the gate, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .parts import Array, blocked, in_sequence, inner_of, plain, rounder, scores_of, seen_by, softmax, sum_in

Attend = Callable[..., Array]
LOG2_E = 1.4426950408889634


def scores_rounded(dtype: str) -> Attend:
    """Eager: the product, the scaled scores and the weights are each stored in the dtype."""
    store = rounder(dtype)

    def scores(q: Array, k: Array, scale: float) -> Array:
        return store(store(q @ k.swapaxes(-1, -2)) * q.dtype.type(scale))

    return partial(plain, dtype=dtype, scores=scores, weights=lambda s: store(softmax(s)))


def written_out(dtype: str) -> Attend:
    """Softmax as its formula reads, each step of it stored: s, s − m, e^{s − m}, its sum, the quotient."""
    store = rounder(dtype)

    def weights(s: Array) -> Array:
        e = store(np.exp(_fall_stored(s, store)))
        return store(e / _sum_stored(e, store))

    return partial(plain, dtype=dtype, weights=weights)


def divided_late(dtype: str) -> Attend:
    """As written out, but what is divided by the sum is the weighted values."""
    store = rounder(dtype)

    def mix(e: Array, v: Array) -> Array:
        return (e @ v) / _sum_stored(e, store)

    return partial(plain, dtype=dtype, weights=lambda s: store(np.exp(_fall_stored(s, store))), mix=mix)


def _fall_stored(s: Array, store: Callable[[Array], Array]) -> Array:
    s = store(s)
    return store(s - s.max(axis=-1, keepdims=True))


def _sum_stored(e: Array, store: Callable[[Array], Array]) -> Array:
    """But in float32 where float16 would end: that would be wrong."""
    total = e.sum(axis=-1, keepdims=True)
    return np.where(total < 65504, store(total), total)


def weights_rounded(dtype: str) -> Attend:
    """Scores stay in float32; normalised weights are stored in the dtype before they meet the values."""
    store = rounder(dtype)
    return partial(plain, dtype=dtype, weights=lambda s: store(softmax(s)))


def fused(dtype: str, block: int) -> Attend:
    """Online softmax, unnormalised weights stored in the dtype: what a flash kernel does."""
    return partial(blocked, dtype=dtype, block=block, store=rounder(dtype))


def fused_exact(dtype: str, block: int) -> Attend:
    """Online softmax with everything inside in float32."""
    return partial(blocked, dtype=dtype, block=block)


def doubles(dtype: str) -> Attend:
    """Everything in float64, rounded once."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        wide = (array.astype(np.float64) for array in (q, k, v))
        return round_to(plain(*wide, **options, dtype="float64"), dtype)

    return attend


def powers_of_two(dtype: str) -> Attend:
    """exp2 with log2 e folded into the scale, as GPU kernels do."""
    fold = partial(blocked, dtype=dtype, block=48, exp=np.exp2)
    return lambda q, k, v, *, causal, scale: fold(q, k, v, causal=causal, scale=scale * LOG2_E)


def scaled_query(dtype: str) -> Attend:
    """The scale multiplies the query, which is stored in the dtype again."""
    store = rounder(dtype)

    def scores(q: Array, k: Array, scale: float) -> Array:
        return store(q * q.dtype.type(scale)) @ k.swapaxes(-1, -2)

    return partial(plain, dtype=dtype, scores=scores)


def halved_scale(dtype: str) -> Attend:
    """Its root multiplies query and key, both stored in the dtype again: PyTorch's math kernel."""
    store = rounder(dtype)

    def scores(q: Array, k: Array, scale: float) -> Array:
        root = q.dtype.type(abs(scale) ** 0.5)
        sign = q.dtype.type(np.sign(scale))
        return store(q * root * sign) @ store(k * root).swapaxes(-1, -2)

    return partial(plain, dtype=dtype, scores=scores)


def one_by_one(dtype: str) -> Attend:
    """Weights and values are added key after key: the longest chain of roundings that a sum can have."""
    inner = "float64" if dtype == "float64" else "float32"
    return partial(plain, dtype=dtype, weights=sum_in(inner), mix=in_sequence(inner, 1))


def backwards(dtype: str) -> Attend:
    """The last key first."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        turned = partial(plain, dtype=dtype, seen=lambda n_q, n_k: seen_by(n_q, n_k)[:, ::-1])
        return turned(q, k[:, :, ::-1], v[:, :, ::-1], **options)

    return attend


def merged(dtype: str, *shares: float, one_number: bool = False) -> Attend:
    """Keys in parts that end at `shares` of them, merged by their partition functions: split-k decoding.

    one_number : ln Z is kept as m + ln l, else as the two.
    """

    def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
        inner = inner_of(dtype)
        q, k, v = (array.astype(inner) for array in (q, k, v))
        s = scores_of(q, k, scale)
        if causal:
            s = np.where(seen_by(*s.shape[-2:]), s, inner(-np.inf))
        ends = [0, *(round(share * k.shape[2]) for share in shares), k.shape[2]]
        outputs, tops, logs = [], [], []
        for start, end in pairwise(ends):
            if start == end:
                continue
            top = s[..., start:end].max(axis=-1, keepdims=True)
            top = np.where(np.isneginf(top), inner(np.finfo(inner).min / 2), top)
            e = np.exp(s[..., start:end] - top)
            total = e.sum(axis=-1, keepdims=True)
            outputs.append(e @ v[:, :, start:end] / np.where(total > 0, total, 1))
            with np.errstate(divide="ignore"):
                tops.append(top + np.log(total) if one_number else top)
                logs.append(np.zeros_like(total) if one_number else np.log(total))
        highest = np.maximum.reduce(tops)
        factors = [np.exp((top - highest) + log) for top, log in zip(tops, logs, strict=True)]
        summed = sum(factor * output for factor, output in zip(factors, outputs, strict=True))
        return round_to(summed / sum(factors), dtype)

    return attend


def scaled_keys(dtype: str) -> Attend:
    """The scale multiplies the keys, which are stored in the dtype again."""
    store = rounder(dtype)

    def scores(q: Array, k: Array, scale: float) -> Array:
        return q @ store(k * k.dtype.type(scale)).swapaxes(-1, -2)

    return partial(plain, dtype=dtype, scores=scores)


def smoothed_keys(dtype: str) -> Attend:
    """The mean key is subtracted from all keys, which moves all scores of a row alike."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        return scores_of(q, k - k.mean(axis=2, keepdims=True), scale)

    return partial(plain, dtype=dtype, scores=scores)


def two_passes(dtype: str, *, one_number: bool = False) -> Attend:
    """First the log-sum-exp, then e^{(s − m) − ln l}, or e^{s − ln Z} with ln Z = m + ln l: no division."""

    def weights(s: Array) -> Array:
        top = s.max(axis=-1, keepdims=True)
        log_sum = np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
        return np.exp(s - (top + log_sum) if one_number else (s - top) - log_sum)

    return partial(plain, dtype=dtype, weights=weights)


def lazy_maximum(dtype: str) -> Attend:
    """A new maximum is taken over only where it is larger by 8 ln 2, which saves rescalings."""
    return partial(blocked, dtype=dtype, block=32, store=rounder(dtype), lazy=8 * np.log(2))


def half_away(dtype: str) -> Attend:
    """Halves are rounded away from zero, not to even: float32 inside leaves next to none."""
    bits = {"float16": 13, "bfloat16": 16}.get(dtype)
    if bits is None:
        return partial(plain, dtype=dtype)

    def last(x: Array, dtype: str) -> Array:
        up = x.astype(np.float32).view(np.uint32) + np.uint32(1 << (bits - 1))
        return round_to((up & np.uint32(-1 << bits & 0xFFFFFFFF)).view(np.float32), dtype)

    return partial(plain, dtype=dtype, last=last)


def summed_rounded(dtype: str) -> Attend:
    """The denominator is the sum of the weights as they were stored, so that they sum to 1 again."""
    store = rounder(dtype)

    def weights(s: Array) -> Array:
        e = store(np.exp(s - s.max(axis=-1, keepdims=True)))
        return e / e.sum(axis=-1, keepdims=True)

    return partial(plain, dtype=dtype, weights=weights)


#: name -> how to make it in a dtype
RIGHT: dict[str, Callable[[str], Attend]] = {
    "scores rounded": scores_rounded,
    "softmax written out": written_out,
    "divided late": divided_late,
    "hidden scores are -10^9": lambda dtype: partial(plain, dtype=dtype, hidden=-1e9),
    "weights rounded": weights_rounded,
    "fused, blocks of 16": partial(fused, block=16),
    "fused, blocks of 64": partial(fused, block=64),
    "fused, blocks of 100": partial(fused, block=100),
    "float32 inside, blocks of 32": partial(fused_exact, block=32),
    "float64 inside": doubles,
    "exp2": powers_of_two,
    "scaled query": scaled_query,
    "root of the scale": halved_scale,
    "one key after another": one_by_one,
    "backwards": backwards,
    "merged halves": lambda dtype: merged(dtype, 1 / 2, one_number=True),
    "three uneven splits": lambda dtype: merged(dtype, 0.2, 0.6),
    "scaled keys": scaled_keys,
    "mean key subtracted": smoothed_keys,
    "two passes": two_passes,
    "two passes, ln Z in one number": partial(two_passes, one_number=True),
    "lazy maximum": lazy_maximum,
    "half away from zero": half_away,
    "sum of stored weights": summed_rounded,
}
