"""Faults of memory: stale results, inputs that change, strides that are not obeyed, noise."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .fault import Attend, Fault
from .parts import Array, plain


def stale_by_shape(dtype: str) -> Attend:
    """Answers what it answered when it was first asked with these shapes."""
    kept: dict[Any, Array] = {}

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        key = (q.shape, k.shape, v.shape, tuple(options.items()))
        if key not in kept:
            kept[key] = plain(q, k, v, **options, dtype=dtype)
        return kept[key].copy()

    return attend


def stale_by_identity(dtype: str) -> Attend:
    """Answers what it answered when it was last asked with these very arrays."""
    kept: list[Any] = [None, None]

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        if kept[0] is None or any(a is not b for a, b in zip(kept[0], (q, k, v), strict=True)):
            kept[:] = (q, k, v), plain(q, k, v, **options, dtype=dtype)
        return kept[1].copy()

    return attend


def one_behind(dtype: str) -> Attend:
    """Returns the answer to the call before where the shapes agree: a missing synchronisation."""
    kept: list[Array] = []

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        kept.append(plain(q, k, v, **options, dtype=dtype))
        before = kept.pop(0) if len(kept) > 1 else kept[0]
        return before.copy() if before.shape == kept[-1].shape else kept[-1].copy()

    return attend


def reused_output(dtype: str) -> Attend:
    """Writes every answer of one shape into the same array."""
    kept: dict[Any, Array] = {}

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        answer = plain(q, k, v, **options, dtype=dtype)
        held = kept.setdefault(answer.shape, answer)
        held[...] = answer
        return held

    return attend


def added_to_earlier(dtype: str) -> Attend:
    """An accumulator that is not cleared between two calls on the same arrays."""
    kept: dict[Any, Array] = {}

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        key = (q.tobytes(), k.tobytes(), v.tobytes(), tuple(options.items()))
        kept[key] = kept.get(key, 0) + plain(q, k, v, **options, dtype=dtype)
        return kept[key].copy()

    return attend


def output_in_values(dtype: str) -> Attend:
    """Writes its answer over the values where the shapes allow it."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        answer = plain(q, k, v, **options, dtype=dtype)
        if answer.shape != v.shape:
            return answer
        v[...] = answer
        return v

    return attend


def returns_values(dtype: str) -> Attend:
    """With one key and one query the answer is the value: returned as it is, not copied."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        if q.shape[2] == k.shape[2] == 1:
            return v
        return plain(q, k, v, **options, dtype=dtype)

    return attend


def scales_in_place(dtype: str) -> Attend:
    """Right, but multiplies the caller's query by the scale."""

    def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
        answer = plain(q, k, v, causal=causal, scale=scale, dtype=dtype)
        q *= q.dtype.type(scale)
        return answer

    return attend


def unwritten_rows(dtype: str) -> Attend:
    """Rows after the last whole group of eight hold what was in memory."""

    def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
        answer = plain(q, k, v, **options, dtype=dtype)
        left = q.shape[2] % 8
        if left and q.shape[2] > 8:
            answer[:, :, -left:] = round_to(np.float32(1e-3), dtype)
        return answer

    return attend


def blind_to_strides(*axes: int) -> Any:
    """Reads memory in order, as if an input whose strides on `axes` are unusual were contiguous."""

    def flat(array: Array) -> Array:
        if array.flags.c_contiguous or array.base is None or array.base.size < array.size:
            return array
        return array.base.reshape(-1)[: array.size].reshape(array.shape)

    def make(dtype: str) -> Attend:
        return lambda q, k, v, **options: plain(flat(q), flat(k), flat(v), **options, dtype=dtype)

    return make


def noisy(units: float) -> Any:
    """Every output is off by a random relative error with a standard deviation of so many unit roundoffs."""

    def make(dtype: str) -> Attend:
        rng = np.random.default_rng(0)
        size = units * {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]

        def last(x: Array, dtype: str) -> Array:
            return round_to(x * (1 + size * rng.standard_normal(x.shape)), dtype)

        return partial(plain, dtype=dtype, last=last)

    return make


def breaks_after(calls: int) -> Any:
    """Right at first; later its scale is 10 % off."""

    def make(dtype: str) -> Attend:
        count = [0]

        def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
            count[0] += 1
            return plain(q, k, v, causal=causal, scale=scale * (1 if count[0] <= calls else 1.1), dtype=dtype)

        return attend

    return make


_NOISE = (
    "in float32 exp, product, sum and division round at the dtype's own u: 4 roundings of 0.42 u make 0.85 u, "
    "with the slack of 1.25 1.06 u, and each further key adds to it"
)

FAULTS = (
    Fault("stale: by shape", stale_by_shape),
    Fault("stale: by identity of the arrays", stale_by_identity),
    Fault("stale: one call behind", one_behind),
    Fault("output array used again", reused_output),
    Fault("accumulator not cleared", added_to_earlier),
    Fault("output written over the values", output_in_values),
    Fault("returns the value array itself", returns_values),
    Fault("scales the query in place", scales_in_place),
    Fault("rows never written", unwritten_rows),
    Fault("strides not obeyed", blind_to_strides()),
    Fault("noise of 3 u", noisy(3.0)),
    Fault("noise of 1 u", noisy(1.0), (("float32", _NOISE),)),
    Fault("breaks after 20 calls", breaks_after(20)),
)
