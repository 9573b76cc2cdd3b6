"""Faults of one path: right everywhere but under one condition, as a kernel is that was compiled for one case.

Each is a condition and a deviation. What deviates is plain enough, for the most part one key that is lost: the
question is whether the condition is ever met. `attnlab.judging.coverage` has a form for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnlab.ground.dtypes import round_to

from .fault import Attend, Fault, only_in
from .parts import Array, blocked, exponentials, plain, rounder, seen_by, softmax


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


_HALF_RANGE = only_in(
    "float32", "bfloat16", because="float16 itself ends at 65504, and no input is beyond it"
)
_IN_FLOAT16 = "a relative error of {} is {} u of float16 and {} u of bfloat16: below what roundings hide"

FAULTS = (
    # one head_dim
    where("head_dim 2", lambda c: c.d == 2),
    where("head_dim 32, causal", lambda c: c.d == 32 and c.causal),
    where("head_dim 40", lambda c: c.d == 40),
    where("head_dim 48", lambda c: c.d == 48),
    where("head_dim 64, causal", lambda c: c.d == 64 and c.causal),
    where("head_dim 64, one query", lambda c: c.d == 64 and c.n_q == 1),
    where("head_dim 80, causal", lambda c: c.d == 80 and c.causal),
    where("head_dim 96", lambda c: c.d == 96),
    where("head_dim 112", lambda c: c.d == 112),
    where("head_dim 128, no mask", lambda c: c.d == 128 and not c.causal),
    where("head_dim 160", lambda c: c.d == 160),
    where("head_dim 256", lambda c: c.d == 256),
    where("head_dim above 128, causal", lambda c: c.d > 128 and c.d_v == c.d and c.causal),
    where("head_dim 512", lambda c: c.d >= 512),
    where("head_dim 192, value_dim 128", lambda c: c.d == 192 and c.d_v == 128),
    where("value_dim above head_dim, causal", lambda c: c.d_v > c.d and c.causal),
    # whole tiles, and few queries
    where("whole tiles of 128", lambda c: whole(128, c.n_q, c.n_k) and not c.causal),
    where("whole tiles of 128, causal", lambda c: whole(128, c.n_q, c.n_k) and c.causal),
    where("few queries, many keys, causal", lambda c: c.causal and 1 < c.n_q <= 16 and c.n_k > 64),
    where("one query, keys split, unweighted", lambda c: c.n_q == 1 and c.n_k >= 512, unweighted),
    where("one query, over 1024 keys of 128", lambda c: c.n_q == 1 and c.d == 128 and c.n_k > 1024),
    # scales
    where(
        "scale of a padded head_dim",
        lambda c: c.usual_scale and c.d > 64,
        scaled_by(lambda c: (c.d / (-(-c.d // 32) * 32)) ** 0.5),
    ),
    where(
        "0.2 % in scales of one's own",
        lambda c: not c.usual_scale and not np.log2(abs(c.scale)).is_integer(),
        scaled_by(lambda c: 1.002),
    ),
    where(
        "root of head_dim in bfloat16",
        lambda c: c.usual_scale,
        scaled_by(lambda c: c.d**0.5 / float(rounder("bfloat16")(np.float32(c.d**0.5)))),
    ),
    where("0.5 % in the scale, causal", lambda c: c.causal and c.d >= 64, scaled_by(lambda c: 1.005)),
    where(
        "gain of 1/256 from head_dim 128, no mask",
        lambda c: c.d >= 128 and not c.causal,
        with_parts(weights=lambda s: (softmax(s) * (1 + 2.0**-8)).astype(s.dtype)),
    ),
    where("scale above 1", lambda c: c.scale > 1),
    # how many
    where("12 heads", lambda c: c.h == 12),
    where("heads share keys by eight", lambda c: c.h % 16 == 0 and c.n_k > 2, heads_in_eights),
    where("24 heads, causal", lambda c: c.causal and c.h >= 16),
    where("over 64 heads", lambda c: c.h > 64),
    where("over 32 batches", lambda c: c.b > 32),
    where("over 512 heads and batches", lambda c: c.b * c.h > 512),
    where("over 65535 heads", lambda c: c.h > 65535),
    where(
        "an odd number of heads and batches, causal", lambda c: c.causal and c.b > 1 and c.b * c.h % 2 == 1
    ),
    where("three heads, over 128 queries", lambda c: c.b * c.h >= 3 and c.n_q > 128 and not c.causal),
    where("two heads, over 512 keys", lambda c: c.h >= 2 and c.n_k > 512 and c.n_q > 1),
    where("causal, over 128 more keys", lambda c: c.causal and c.n_k - c.n_q > 128 < c.n_q, from_the_end),
    where("causal, fewer keys, over 128", lambda c: c.causal and c.n_q > c.n_k > 150),
    where("causal, over 2048", lambda c: c.causal and min(c.n_q, c.n_k) > 2048),
    where("causal, window of 2048", lambda c: c.causal and c.n_k > 2048, windowed(2048)),
    where("keys counted in 16 bits", lambda c: c.n_k > 65535),
    where("rows counted in 15 bits", lambda c: c.n_q > 32767, zero_after(32768)),
    where("queries of over 2^20 numbers", lambda c: c.q.size > 2**20),
    # ranges
    always("values end at 65504", on_inputs(limited(65504.0), "v"), _HALF_RANGE),
    always("values below 2^-14 flushed", on_inputs(flushed(2.0**-14), "v")),
    always(
        "outputs below 2^-60 flushed",
        then(flushed(2.0**-60)),
        only_in("float32", "bfloat16", because="float16 has no number but 0 below 2^-24"),
    ),
    always("outputs end at 448", then(limited(448.0))),
    always("unnormalised outputs end at 65504", divided_late),
    always("queries end at 65504", on_inputs(limited(65504.0), "q"), _HALF_RANGE),
    always("queries below 2^-14 flushed", on_inputs(flushed(2.0**-14), "q")),
    where(
        "products without a mask end at 65504",
        lambda c: not c.causal,
        with_parts(scores=products_limited),
        only_in(
            "float32", "bfloat16", because="float16 eager backends end there too, so none is asked for more"
        ),
    ),
    always("maximum in bfloat16", with_parts(weights=maximum_rounded)),
    always("denominator ends at 2048", sum_limited(2048.0, 2048.0)),
    always("denominator infinite from 65504", sum_limited(65504.0, np.inf)),
    always("rises by 0.01 not rescaled", with_parts(blocked, block=16, forget_rise=0.01)),
    # memory
    where("keys transposed alone", lambda c: c.k.strides[3] > c.k.itemsize == c.q.strides[3]),
    where("keys' strides for the values", lambda c: c.v.shape == c.k.shape, key_strides_for_values),
    where("values heads inside alone", lambda c: c.k.flags.c_contiguous and not c.v.flags.c_contiguous),
    where("keys read from the start of memory", lambda c: place(c.k) > 0, from_the_start),
    where("packed taken for one array", lambda c: owner(c.q) is owner(c.k) and c.n_k > 1),
    where("reads behind the values", room_behind, read_behind),
    where("clears behind the values", room_behind, cleared_behind),
    where("one batch for all", lambda c: c.b > 1 and c.k.strides[0] == 0),
    where("one head for all, one key over 32", lambda c: c.k.strides[1] == 0 and c.n_k % 32 == 1),
    where("one query, heads inside", lambda c: c.n_q == 1 and c.h > 1 and c.q.strides[2] > c.q.strides[1]),
    Fault("copy of the query kept", kept_copy(0)),
    Fault("copy of the keys kept", kept_copy(1)),
    Fault("two outputs in turn", outputs_in_turn(2)),
    Fault("three outputs in turn", outputs_in_turn(3)),
    Fault("one call in ten, several blocks", one_call_in(10)),
    # below sight in the coarser formats
    always(
        "log2 e as 1.4427",
        scaled_by(lambda c: 1.4427 / 1.4426950408889634),
        only_in("float32", because=_IN_FLOAT16.format("3.4e-6", "0.007", "0.0009")),
    ),
    always(
        "log2 e in float16",
        scaled_by(lambda c: 1.4423828125 / 1.4426950408889634),
        only_in("float32", "float16", because="2.2e-4 is 0.06 u of bfloat16, and an eighth is immaterial"),
    ),
    always(
        "2^x by a cubic",
        with_parts(weights=by_cubic),
        only_in("float32", because=_IN_FLOAT16.format("1e-4", "0.2", "0.03")),
    ),
    always(
        "1/l in float16",
        reciprocal_in("float16"),
        only_in("float32", because="it is rounded once a row, as the output is for each of its numbers"),
    ),
    always(
        "1/l in bfloat16",
        reciprocal_in("bfloat16"),
        only_in("float32", "float16", because="it is rounded once a row, as the output is for each number"),
    ),
    always(
        "1e-5 in the denominator",
        with_parts(weights=with_epsilon),
        only_in("float32", because="with l >= 1 it takes 1e-5 of an output at most: 0.02 u of float16"),
    ),
    always(
        "weights below 1e-6 dropped",
        dropped_below(1e-6),
        only_in(
            "float32",
            because="in 65539 keys 18 000 are dropped, of 4e-7 each, and their random values add up to 6e-5: 0.1 % of "
            "an output of 0.07, where scores that are rounded to either format cost as much",
        ),
    ),
    always(
        "inputs in two bfloat16",
        with_parts(scores=in_two_bfloat16),
        only_in("float32", because="float16 has 11 bits and bfloat16 8: two bfloat16 hold them to the last"),
    ),
)
