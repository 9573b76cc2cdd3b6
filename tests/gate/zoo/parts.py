"""Attention in NumPy, in parts that can be exchanged one by one: what both the right and the faulty are made of.

Arrays are (batch, heads, length, dim) and hold values of `dtype`; arithmetic is in float32 (float64 for float64),
as fused kernels compute, and the output is rounded once. A part that is exchanged is the whole of the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.contract.dtypes import carrier, round_to

Array = NDArray[Any]


def inner_of(dtype: str) -> Any:
    """The type of the arithmetic inside."""
    return np.float64 if dtype == "float64" else np.float32


def scores_of(q: Array, k: Array, scale: float) -> Array:
    """scale · q kᵀ."""
    return (q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)


def seen_by(n_q: int, n_k: int) -> Array:
    """True where a causal query sees a key, counted from the first key."""
    return np.tri(n_q, n_k, dtype=bool)


def exponentials(s: Array) -> Array:
    """e^{s − max} along the keys."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.exp(s - s.max(axis=-1, keepdims=True))


def softmax(s: Array) -> Array:
    """Weights along the keys."""
    e = exponentials(s)
    return e / e.sum(axis=-1, keepdims=True)


def plain(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool,
    scale: float,
    dtype: str,
    scores: Callable[..., Array] = scores_of,
    seen: Callable[[int, int], Array] = seen_by,
    hidden: float = -np.inf,
    change: Callable[[Array], Array] = lambda s: s,
    weights: Callable[[Array], Array] = softmax,
    mix: Callable[[Array, Array], Array] = np.matmul,
    last: Callable[[Array, str], Array] = round_to,
) -> Array:
    """The formula on whole arrays. `change` acts on masked scores, `last` turns the result into `dtype`."""
    inner = inner_of(dtype)
    q, k, v = (np.asarray(array, dtype=inner) for array in (q, k, v))
    s = scores(q, k, scale)
    if causal:
        s = np.where(seen(*s.shape[-2:]), s, inner(hidden))
    with np.errstate(all="ignore"):
        return last(mix(weights(change(s)), v), dtype)


def blocked(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool,
    scale: float,
    dtype: str,
    block: int = 64,
    first_max: float = -np.inf,
    rescale_sum: bool = True,
    rescale_output: bool = True,
    lazy: float = 0.0,
    forget_rise: float = 0.0,
    drop_partial: bool = False,
    pad: bool = False,
    exp: Callable[[Array], Array] = np.exp,
    store: Callable[[Array], Array] = lambda p: p,
    store_sum: Callable[[Array], Array] = lambda x: x,
    store_output: Callable[[Array], Array] = lambda x: x,
) -> Array:
    """Online softmax over blocks of keys, what fused kernels do. `store` is how weights are kept before p·v.

    lazy : a maximum is taken over only where it is so much larger than the one before. forget_rise : nothing is
    rescaled for a rise that small.
    """
    inner = inner_of(dtype)
    q, k, v = (np.asarray(array, dtype=inner) for array in (q, k, v))
    n_q, n_k = q.shape[2], k.shape[2]
    if pad and n_k % block:
        wide = ((0, 0), (0, 0), (0, block - n_k % block), (0, 0))
        k, v = np.pad(k, wide), np.pad(v, wide)
    end = n_k - n_k % block if drop_partial and n_k > block else k.shape[2]
    top = np.full((*q.shape[:3], 1), first_max, dtype=inner)
    total = np.zeros_like(top)
    output = np.zeros((*q.shape[:3], v.shape[3]), dtype=inner)
    with np.errstate(all="ignore"):
        for start in range(0, end, block):
            part = slice(start, min(start + block, end))
            s = scores_of(q, k[:, :, part], scale)
            if causal:
                s = np.where(seen_by(n_q, end)[:, part], s, inner(-np.inf))
            highest = s.max(axis=-1, keepdims=True)
            now = np.where(highest > top + inner(lazy), highest, top)
            shift = np.where(np.isneginf(now), 0, now).astype(inner)
            p, factor = exp(s - shift), exp(top - shift)
            factor = np.where(now - top < inner(forget_rise), 1, factor).astype(inner)
            total = store_sum(total * (factor if rescale_sum else 1) + p.sum(axis=-1, keepdims=True))
            output = store_output(output * (factor if rescale_output else 1) + store(p) @ v[:, :, part])
            top = now
        return round_to(output / total, dtype)


def cut(x: Array, bits: int) -> Array:
    """x with `bits` of significand, cut off towards zero (not rounded)."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits).astype(x.dtype)


def cut_to(x: Array, dtype: str) -> Array:
    """x cut off towards zero to `dtype`."""
    if dtype == "float64":
        return x
    return cut(x, {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]).astype(carrier(dtype))


def rounder(dtype: str) -> Callable[[Array], Array]:
    """Rounding to `dtype` that keeps the arithmetic's own type."""
    return lambda x: round_to(x, dtype).astype(x.dtype)


def in_sequence(dtype: str, step: int = 1) -> Callable[[Array, Array], Array]:
    """weights @ values, added up `step` keys at a time in a sum that is kept in `dtype`."""

    def mix(p: Array, v: Array) -> Array:
        total = np.zeros((*p.shape[:-1], v.shape[-1]), dtype=p.dtype)
        for start in range(0, v.shape[2], step):
            part = slice(start, start + step)
            total = round_to(total + p[..., part] @ v[:, :, part], dtype).astype(p.dtype)
        return total

    return mix


def sum_in(dtype: str) -> Callable[[Array], Array]:
    """Softmax whose denominator is added up key by key in `dtype`."""

    def weights(s: Array) -> Array:
        e = exponentials(s)
        total = np.zeros_like(e[..., :1])
        for j in range(e.shape[-1]):
            total = round_to(total + e[..., j : j + 1], dtype).astype(e.dtype)
        return e / total

    return weights
