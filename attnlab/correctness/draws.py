"""How the arrays of a question are made: query, key and value, an array that masks, a bias, the output's gradient.

Some inputs leave nothing to round but the output. The products of q and k are whole numbers of few bits (no sum of them
rounds), and the weights are 1/2^m or 0 and 1. On hard inputs an honest backend may round its scores and its weights,
and much hides in that allowance; here it may not, in every class of implementation and every dtype. The others are
drawn and then made hard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnlab.workload.distributions import DISTRIBUTIONS, Array, Distribution, Three
from attnlab.workload.inputs import Alibi
from attnlab.workload.mask_kinds import Given, Shape
from attnlab.workload.masks import Mask

#: share of pairs that a drawn boolean array keeps, and of those that a bias with infinities hides
_KEPT, _HIDDEN = 0.6, 0.2
#: in an array that is to have rows that see no key, every so many do
_EMPTY_ROWS = 7


@dataclass(frozen=True)
class Draw:
    """How the arrays of a question are made. Names have _ for spaces.

    inputs : one of `CONSTRUCTIONS`. values : "normal", "ones" (rows must sum to 1), "keys" (V = K). array : axes of a
    boolean array, of ``bhqk``, 1 where it is broadcast; a ``-`` at the end for rows that see no key. bias : "alibi", or
    axes as for `array`; with ``-`` some of it is -inf. upstream : what the output's gradient is. draw : another number
    gives other arrays of the same kind.
    """

    inputs: str = "normal"
    values: str = "normal"
    array: str = ""
    bias: str = ""
    upstream: str = "normal"
    draw: int = 0

    def qkv(self, shapes: Sequence[tuple[int, ...]], scale: float, rng: np.random.Generator) -> Three:
        """Query, key and value of these shapes before they are cast: the same for all dtypes."""
        q, k, v = (rng.standard_normal(shape) for shape in shapes)
        q, k, v = CONSTRUCTIONS[self.inputs](q, k, v, scale, rng)
        return q, k, np.ones_like(v) if self.values == "ones" else k if self.values == "keys" else v

    def masked(self, shape: Shape, rng: np.random.Generator) -> Mask:
        """The boolean array as a mask; one that hides nothing where there is none."""
        if not self.array:
            return Mask()
        seen = rng.random(_sizes(self.array.rstrip("-"), shape)) < _KEPT
        if self.array.endswith("-"):
            seen[..., ::_EMPTY_ROWS, :] = False
        return Mask((Given(seen),))

    def biased(self, shape: Shape, rng: np.random.Generator) -> Alibi | NDArray[np.float64] | None:
        """ALiBi, or a standard normal array."""
        if not self.bias:
            return None
        if self.bias == "alibi":
            return Alibi.of_heads(shape.heads)
        added = rng.standard_normal(_sizes(self.bias.rstrip("-"), shape))
        if self.bias.endswith("-"):
            added[rng.random(added.shape) < _HIDDEN] = -np.inf
        return added

    def gradient(self, output: Array, rng: np.random.Generator) -> Array:
        """The output's gradient, of the output's shape."""
        normal = rng.standard_normal(output.shape)
        if (
            self.upstream == "one_row"
        ):  # the loss looks at the last query alone: what reaches it from others shows
            normal[:, :, :-1] = 0
        made: dict[str, Callable[[], Array]] = {
            "ones": lambda: np.ones(output.shape),  # the loss is the sum of the output
            "output": lambda: output,  # it is half the squared norm of the output
            "signs": lambda: np.sign(np.rint(normal)),  # no product of them with whole numbers rounds
            "small": lambda: normal * 2.0**-8,
            "large": lambda: normal * 2.0**8,
        }
        return made.get(self.upstream, lambda: normal)()


def _sizes(axes: str, shape: Shape) -> tuple[int, ...]:
    sizes = dict(zip("bhqk", shape, strict=True)) | {"1": 1}
    return tuple(sizes[axis] for axis in axes)


# -- that leave nothing to round but the output


def _equal_logits(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """Keys all alike, whole numbers: softmax is 1/n whatever the scale; exact where n is a power of two."""
    q = np.clip(np.rint(q), -3, 3)
    k = np.broadcast_to(np.clip(np.rint(k[..., :1, :]), -3, 3), k.shape).copy()
    return q, k, v


def _hidden_keys(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """Keys that differ only where the queries are 0: all scores of a row are one whole number, all weights 1/n.

    Values are -1, 0 or 1. With n = 4 keys, and gradients of that kind, every product and sum on the way back is
    a multiple of 1/64 of few bits, so that only the gradients themselves are ever rounded.
    """
    half = q.shape[-1] // 2
    q, k, v = (np.clip(np.rint(one), -1, 1) for one in (q, k, v))
    q[..., half:] = 0
    k[..., :half] = k[..., :1, :half]
    return q, k, v


def _zero_keys(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """Keys of 0: every logit is exactly 0, so that not even its rounding in the sum over d is left.

    Every second value is 2^8 times smaller, because the sum of two numbers alike in size often lies half-way
    between two numbers of the dtype: there an honest 2^-24 would decide where all of them are rounded to.
    """
    v = v.copy()
    v[..., 1::2, :] /= 256
    return q, np.zeros_like(k), v


def _all(logit: float) -> Distribution:
    """Every logit is `logit`, to the bit: one component carries it; sizes are powers of two where they can be."""

    def construct(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
        q, k = np.zeros_like(q), np.zeros_like(k)
        product = logit / scale
        size = 2.0 ** math.floor(math.log2(abs(product)) / 2)
        q[..., 0], k[..., 0] = size, product / size
        return q, k, v

    return construct


def _between_two(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """All logits −49280, half-way between two bfloat16 numbers: a maximum rounded there leaves e^−128 = 0 or more.

    A backend that rounds the scores as well is right: they are all alike still.
    """
    q, k = np.zeros_like(q), np.zeros_like(k)
    q[..., 0], q[..., 1] = 128, 1
    k[..., 0], k[..., 1] = -384 / scale, -128 / scale
    return q, k, v


def _levels(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """All logits of a row alike, of neighbouring rows 512 apart: a maximum that rows share leaves e^−512 = 0."""
    q, k = np.zeros_like(q), np.zeros_like(k)
    levels = np.arange(q.shape[-2]) % 5 - 2
    q[..., 0], k[..., 0] = 16 * levels, 512 / (16 * scale)
    return q, k, v


def _lookup(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    """Keys are orthogonal codes of ±1, a query is a large multiple of one of them: o is that key's value.

    Another key's logit is 0 against at least 128, and e^−128 is nothing in any format.
    """
    dim = k.shape[-1]
    codes = np.ones((1, 1))
    while len(codes) < dim:
        codes = np.block([[codes, codes], [codes, -codes]])
    size = 2.0 ** math.ceil(math.log2(128 / (abs(scale) * dim)))
    chosen = rng.integers(0, k.shape[-2], size=q.shape[:-1])
    k = np.broadcast_to(codes[: k.shape[-2]], k.shape).copy()
    return size * math.copysign(1, scale) * codes[chosen], k, v


def _staircase(step: float) -> Distribution:
    """Logit j·step in every row: the row's answer is the value at the highest step it sees."""

    def construct(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
        q, k = np.zeros_like(q), np.zeros_like(k)
        q[..., 0], k[..., 0] = step / scale, np.arange(k.shape[-2])
        return q, k, v

    return construct


EXACT: dict[str, Distribution] = {
    "equal_logits": _equal_logits,
    "hidden_keys": _hidden_keys,
    "zero_keys": _zero_keys,
    "all_1024": _all(1024.0),
    "all_-49152": _all(-49152.0),
    "all_-48": _all(-48.0),
    "all_-2^20": _all(-(2.0**20)),
    "all_-49280": _between_two,
    "look-up": _lookup,
    "levels": _levels,
    "long_staircase": _staircase(64.0),
    "staircase": _staircase(256.0),
    "falling_staircase": _staircase(-256.0),
}


# -- that are drawn and made hard


def _rising(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    # the largest score so far rises in every block of keys, by 12 in all: what is not rescaled dominates
    q, k = q.copy(), k.copy()
    q[..., 0] = 4.0
    k[..., 0] = np.linspace(0.0, 12 / (4 * scale), k.shape[-2])
    return q, k, v


def _needles(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
    # every query looks for one key among thousands: the last ones, and others anywhere. Its logit is 10 against
    # N(0, 100/d): it weighs most and cannot be missing unnoticed, and the others are not so small that a float32
    # sum which has the one already would lose them all
    keys, queries = k.shape[-2], q.shape[-2]
    last = keys - 1 - np.arange(queries // 2) % keys
    sought = np.concatenate([last, rng.integers(0, keys, size=queries - queries // 2)])
    found = k[..., sought, :]
    return 10 / scale * found / (found**2).sum(axis=-1, keepdims=True), k, v


def _creeping(q: Array, k: Array, v: Array, scale: float, rng: np.random.Generator) -> Three:
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
    **EXACT,
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
