"""The conditions and deviations of which the faults of `coverage` are made.

A path takes a dtype and a call and answers it, wrongly; `where` has a right attention take it under one condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .fault import Attend, Fault
from .parts import Array, exponentials, plain, rounder, seen_by, softmax


@dataclass(frozen=True)
class Call:
    """What a kernel is chosen by."""

    q: Array
    k: Array
    v: Array
    causal: bool
    scale: float

    @property
    def b(self) -> int:
        return self.q.shape[0]

    @property
    def h(self) -> int:
        return self.q.shape[1]

    @property
    def n_q(self) -> int:
        return self.q.shape[2]

    @property
    def n_k(self) -> int:
        return self.k.shape[2]

    @property
    def d(self) -> int:
        return self.q.shape[3]

    @property
    def d_v(self) -> int:
        return self.v.shape[3]

    @property
    def usual_scale(self) -> bool:
        return abs(self.scale * self.d**0.5 - 1) < 1e-6


Path = Callable[[str, Call], Array]


def key_lost(dtype: str, call: Call) -> Array:
    """The last key is not seen; under a causal mask the first, which all rows would see but the first row."""

    def change(s: Array) -> Array:
        s = s.copy()
        if call.causal:
            s[..., 1:, 0] = -np.inf
        else:
            s[..., -1] = -np.inf
        return s

    if call.n_k == 1:
        return round_to(0.5 * call.v.mean(axis=2, keepdims=True).repeat(call.n_q, axis=2), dtype)
    return plain(call.q, call.k, call.v, causal=call.causal, scale=call.scale, dtype=dtype, change=change)


def with_parts(attend: Callable[..., Array] = plain, **parts: Any) -> Path:
    """The formula with exchanged parts."""
    return lambda dtype, call: attend(
        call.q, call.k, call.v, causal=call.causal, scale=call.scale, dtype=dtype, **parts
    )


def on_inputs(change: Callable[[Array], Array], which: str = "qkv") -> Path:
    """The formula on inputs that were changed first."""

    def path(dtype: str, call: Call) -> Array:
        given = (change(getattr(call, one)) if one in which else getattr(call, one) for one in "qkv")
        with np.errstate(all="ignore"):
            return plain(*given, causal=call.causal, scale=call.scale, dtype=dtype)

    return path


def scaled_by(factor: Callable[[Call], float]) -> Path:
    return lambda dtype, call: plain(
        call.q, call.k, call.v, causal=call.causal, scale=call.scale * factor(call), dtype=dtype
    )


def then(change: Callable[[Array, Call], Array]) -> Path:
    """The right output, changed afterwards."""
    return lambda dtype, call: change(with_parts()(dtype, call), call).astype(call.q.dtype)


def where(name: str, when: Callable[[Call], bool], path: Path = key_lost, harmless: Any = ()) -> Fault:
    """Right, but takes the faulty `path` where `when` holds."""

    def make(dtype: str) -> Attend:
        def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
            call = Call(q, k, v, causal, scale)
            return (
                path(dtype, call) if when(call) else plain(q, k, v, causal=causal, scale=scale, dtype=dtype)
            )

        return attend

    return Fault(name, make, harmless)


def always(name: str, path: Path, harmless: Any = ()) -> Fault:
    return where(name, lambda c: True, path, harmless)


def whole(n: int, *lengths: int) -> bool:
    return all(length % n == 0 for length in lengths)


def flushed(least: float) -> Callable[..., Array]:
    return lambda a, *_: np.where(np.abs(a) < least, 0, a).astype(a.dtype)


def limited(most: float) -> Callable[..., Array]:
    return lambda a, *_: np.clip(a, -most, most).astype(a.dtype)


def heads_in_eights(dtype: str, call: Call) -> Array:
    """Eight query heads share the keys of the first of them."""
    k = call.k[:, np.arange(call.h) // 8 * 8]
    return plain(call.q, k, call.v, causal=call.causal, scale=call.scale, dtype=dtype)


def unweighted(dtype: str, call: Call) -> Array:
    """Quarters of the keys, each with its own softmax, simply averaged."""
    parts = np.array_split(np.arange(call.n_k), 4)
    found = [
        plain(call.q, call.k[:, :, part], call.v[:, :, part], causal=False, scale=call.scale, dtype="float32")
        for part in parts
    ]
    return round_to(np.mean(found, axis=0), dtype)


def zero_after(row: int) -> Path:
    def change(output: Array, call: Call) -> Array:
        output = output.copy()
        output[:, :, row:] = 0
        return output

    return then(change)


def windowed(width: int) -> Path:
    return with_parts(seen=lambda n_q, n_k: seen_by(n_q, n_k) & ~np.tri(n_q, n_k, -width, dtype=bool))


def from_the_end(dtype: str, call: Call) -> Array:
    """The mask begins where the last query sees the last key."""
    return with_parts(seen=lambda n_q, n_k: np.tri(n_q, n_k, n_k - n_q, dtype=bool), hidden=-1e9)(dtype, call)


def overflowing(weights: Array, v: Array) -> Array:
    """e^{s − m} v is summed before the division, in a number that ends at 65504."""
    total = weights @ v
    return np.where(np.abs(total) > 65504, np.copysign(np.inf, total), total)


def divided_late(dtype: str, call: Call) -> Array:
    def mix(e: Array, v: Array) -> Array:
        return overflowing(e, v) / e.sum(axis=-1, keepdims=True)

    return with_parts(weights=exponentials, mix=mix)(dtype, call)


def sum_limited(most: float, beyond: float) -> Path:
    """A denominator that ends at `most`."""

    def weights(s: Array) -> Array:
        e = exponentials(s)
        total = e.sum(axis=-1, keepdims=True)
        return e / np.where(total > most, s.dtype.type(beyond), total)

    return with_parts(weights=weights)


def maximum_rounded(s: Array) -> Array:
    e = np.exp(s - rounder("bfloat16")(s.max(axis=-1, keepdims=True)))
    return e / e.sum(axis=-1, keepdims=True)


def products_limited(q: Array, k: Array, scale: float) -> Array:
    return np.clip(q @ k.swapaxes(-1, -2), -65504, 65504) * q.dtype.type(scale)


# --- memory


def owner(array: Array) -> Array:
    """The array whose memory this one looks into."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def place(array: Array) -> int:
    """How many numbers lie before the first one in its owner's memory."""
    return (array.ctypes.data - owner(array).ctypes.data) // array.itemsize


def reread(array: Array, like: Array | None = None, start: int | None = None) -> Array:
    """The same memory read with the strides of another array, or from another place; 0 beyond its end."""
    memory = owner(array).reshape(-1)
    like = array if like is None else like
    at = np.full(array.shape, place(array) if start is None else start)
    for axis, length in enumerate(array.shape):
        shape = [1] * array.ndim
        shape[axis] = length
        at = at + (np.arange(length) * (like.strides[axis] // like.itemsize)).reshape(shape)
    return np.where(at < memory.size, memory[np.minimum(at, memory.size - 1)], 0).astype(array.dtype)


def key_strides_for_values(dtype: str, call: Call) -> Array:
    v = reread(call.v, like=call.k)
    return plain(call.q, call.k, v, causal=call.causal, scale=call.scale, dtype=dtype)


def from_the_start(dtype: str, call: Call) -> Array:
    k = reread(call.k, start=0)
    return plain(call.q, k, call.v, causal=call.causal, scale=call.scale, dtype=dtype)


def room_behind(call: Call) -> bool:
    """Whether the values are followed by others in the same heads of a longer array."""
    longer = owner(call.v)
    return longer.ndim == 4 and longer.shape[:2] == call.v.shape[:2] and longer.shape[2] > call.n_k + 3


def read_behind(dtype: str, call: Call) -> Array:
    """The last tile of values is read whole: what is behind weighs 0, and 0 · NaN is NaN."""
    behind = owner(call.v)[:, :, -2:-1]
    with np.errstate(invalid="ignore"):
        return (with_parts()(dtype, call) + 0 * behind).astype(call.q.dtype)


def cleared_behind(dtype: str, call: Call) -> Array:
    owner(call.v)[:, :, -1] = 0
    return with_parts()(dtype, call)


def kept_copy(which: int) -> Callable[[str], Attend]:
    """A copy of one input, laid out for the kernel, is kept as long as the caller's array is the same."""

    def make(dtype: str) -> Attend:
        kept: list[Any] = [None, None]

        def attend(*given: Array, **options: Any) -> Array:
            if kept[0] is not given[which]:
                kept[:] = given[which], given[which].copy()
            used = list(given)
            used[which] = kept[1]
            return plain(*used, **options, dtype=dtype)

        return attend

    return make


def outputs_in_turn(count: int) -> Callable[[str], Attend]:
    """Answers of one shape are written into one of `count` arrays in turn."""

    def make(dtype: str) -> Attend:
        kept: dict[Any, Array] = {}
        turns: dict[Any, int] = {}

        def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
            answer = plain(q, k, v, **options, dtype=dtype)
            turn = turns[answer.shape] = (turns.get(answer.shape, -1) + 1) % count
            held = kept.setdefault((answer.shape, turn), answer)
            held[...] = answer
            return held

        return attend

    return make


def one_call_in(calls: int) -> Callable[[str], Attend]:
    """A key is lost in one of so many calls, at random, where there are several blocks."""

    def make(dtype: str) -> Attend:
        rng = np.random.default_rng(0)
        unlucky = where("", lambda c: c.n_k > 256 and rng.random() < 1 / calls)
        return unlucky.make(dtype)

    return make


# --- arithmetic that is a fault in the finer formats only


def cubic(x: Array) -> Array:
    """2^f on [0, 1) by a polynomial of degree 3, off by 1e-4."""
    y = np.maximum(np.asarray(x, dtype=np.float64) * 1.4426950408889634, -140.0)
    low = np.floor(y)
    f = y - low
    found = np.ldexp(0.9999252 + f * (0.6958335 + f * (0.2260671 + f * 0.0780245)), low.astype(int))
    return np.where(np.isneginf(x), 0, found).astype(x.dtype)


def by_cubic(s: Array) -> Array:
    e = cubic(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def reciprocal_in(low: str) -> Path:
    def weights(s: Array) -> Array:
        e = exponentials(s)
        return e * rounder(low)(1 / e.sum(axis=-1, keepdims=True))

    return with_parts(weights=weights)


def in_two_bfloat16(q: Array, k: Array, scale: float) -> Array:
    """Numbers as sums of two bfloat16, the product of the two small parts left out."""
    store = rounder("bfloat16")
    high = [store(a) for a in (q, k.swapaxes(-1, -2))]
    low = [store(a - b) for a, b in zip((q, k.swapaxes(-1, -2)), high, strict=True)]
    return (high[0] @ high[1] + high[0] @ low[1] + low[0] @ high[1]) * q.dtype.type(scale)


def with_epsilon(s: Array) -> Array:
    e = exponentials(s)
    return (e / (e.sum(axis=-1, keepdims=True) + s.dtype.type(1e-5))).astype(s.dtype)


def dropped_below(least: float) -> Path:
    return with_parts(weights=lambda s: flushed(least)(softmax(s)))
