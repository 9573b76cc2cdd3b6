"""Conditions of the gate before their arrays are drawn, and the line of text that says one.

``normal: b2 h3 n65x67 d16`` are two batch elements, three heads, 65 queries, 67 keys and a head_dim of 16;
``h8/2`` are two heads of key and value, ``d24v8`` a value_dim of 8. What follows is ``field=value``, or a field
alone where that is yes or no. The tables of `attnlab.correctness.tables` are written so, a fault is told so, and
`Form.parse` reads it again: a condition that was drawn at random can be repeated from the message that names it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.workload.distributions import DISTRIBUTIONS, Array, Distribution, Three
from attnlab.workload.inputs import Alibi
from attnlab.workload.mask_kinds import Given, Shape
from attnlab.workload.masks import Mask

#: share of pairs that a drawn boolean array keeps, and of those that a bias with infinities hides
_KEPT, _HIDDEN = 0.6, 0.2
#: fields that are whole numbers
_WHOLE = ("every", "draw")
#: in an array that is to have rows that see no key, every so many do
_EMPTY_ROWS = 7


@dataclass(frozen=True, kw_only=True)
class Form:
    """One condition. Names of inputs and layouts have _ for spaces.

    mask : as `Mask.parse` reads it. array : axes of a boolean array, of ``bhqk``, 1 where it is broadcast; a ``-`` at
    the end for rows that see no key. bias : "alibi", or axes as for `array`; with ``-`` some of it is -inf. inputs :
    one of `CONSTRUCTIONS`. values : "normal", "ones" (rows must sum to
    1), "keys" (V = K). layout, gradient_layout : how the arrays lie in memory, see `attnlab.race.probe`.
    upstream : what the output's gradient is, where gradients are asked for. z, gradient_z : standard errors beyond
    which a gain or a wrong scale is told, None where it is not looked for; it needs some hundred rows, or heads for
    gradients, that are not saturated. exact_gradients : nothing is rounded on the way back but the gradients
    themselves. every : judge every so many rows, and the last; all are asked for. draw : another for other numbers of
    the same form. log_sum : ln Z is asked for too.
    """

    name: str
    batch: int = 1
    heads: int = 2
    kv_heads: int | None = None
    queries: int = 33
    keys: int = 33
    dim: int = 16
    value_dim: int | None = None
    mask: str = ""
    array: str = ""
    bias: str = ""
    softcap: float | None = None
    sinks: bool = False
    scale: float | None = None
    inputs: str = "normal"
    values: str = "normal"
    layout: str = "contiguous"
    upstream: str = ""
    gradient_layout: str = "contiguous"
    z: float | None = None
    gradient_z: float | None = None
    exact_gradients: bool = False
    every: int = 1
    draw: int = 0
    log_sum: bool = False

    def __post_init__(self) -> None:
        for name, usual in (("kv_heads", self.heads), ("value_dim", self.dim)):
            if getattr(self, name) == usual:
                object.__setattr__(self, name, None)

    @classmethod
    def parse(cls, line: str) -> Form:
        """From its text. Raises ValueError for what is none."""
        name, _, rest = line.strip().rpartition(": ")
        given: dict[str, Any] = {"name": name}
        known = {field.name for field in fields(cls)}
        for word in rest.split():
            key, equals, value = word.partition("=")
            sizes = re.fullmatch(r"b(\d+)|h(\d+)(?:/(\d+))?|n(\d+)(?:x(\d+))?|d(\d+)(?:v(\d+))?", word)
            if sizes:
                b, h, kv, n, m, d, v = (None if one is None else int(one) for one in sizes.groups())
                found = {"batch": b, "heads": h, "kv_heads": kv, "queries": n, "dim": d, "value_dim": v}
                given |= {field: size for field, size in found.items() if size is not None}
                if n is not None:
                    given["keys"] = n if m is None else m
            elif word == "causal":
                given["mask"] = "causal(top_left)"
            elif key in known and not equals:
                given[key] = True
            elif key in known:
                number = re.fullmatch(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?", value)
                given[key] = (int(value) if key in _WHOLE else float(value)) if number else value
            else:
                raise ValueError(f"a condition has no {word!r}: {line.strip()}")
        return cls(**given)

    @property
    def text(self) -> str:
        """What `parse` reads, but for the name."""
        heads = f"h{self.heads}" + (f"/{self.kv_heads}" if self.kv_heads not in (None, self.heads) else "")
        length = f"n{self.queries}" + (f"x{self.keys}" if self.keys != self.queries else "")
        dim = f"d{self.dim}" + (f"v{self.value_dim}" if self.value_dim not in (None, self.dim) else "")
        words = [f"b{self.batch}", heads, length, dim]
        for field in fields(self)[8:]:
            value = getattr(self, field.name)
            if field.name == "mask" and value == "causal(top_left)":
                words.append("causal")
            elif value != field.default:
                written = repr(value) if isinstance(value, float) else str(value).replace(" ", "")
                words.append(field.name if value is True else f"{field.name}={written}")
        return " ".join(words)

    @property
    def scaled_by(self) -> float:
        """The scale, 1/√dim where none is given."""
        return float(self.dim**-0.5 if self.scale is None else self.scale)

    @property
    def shape(self) -> Shape:
        """Of the score matrix."""
        return Shape(self.batch, self.heads, self.queries, self.keys)

    @property
    def exact(self) -> bool:
        """Whether nothing but the output is rounded."""
        return self.inputs in EXACT and self.softcap is None and not self.sinks

    def masked(self, rng: np.random.Generator) -> Mask:
        """Its mask, with the boolean array that it has drawn anew."""
        found = Mask.parse(self.mask.replace("&", " & "))
        if not self.array:
            return found
        axes = self.array.rstrip("-")
        seen = rng.random(self._sizes(axes)) < _KEPT
        if self.array.endswith("-"):
            seen[..., ::_EMPTY_ROWS, :] = False
        return found & Mask((Given(seen),))

    def biased(self, rng: np.random.Generator) -> Alibi | NDArray[np.float64] | None:
        """Its bias: ALiBi, or a standard normal array."""
        if not self.bias:
            return None
        if self.bias == "alibi":
            return Alibi.of_heads(self.heads)
        added = rng.standard_normal(self._sizes(self.bias.rstrip("-")))
        if self.bias.endswith("-"):
            added[rng.random(added.shape) < _HIDDEN] = -np.inf
        return added

    def _sizes(self, axes: str) -> tuple[int, ...]:
        sizes = dict(zip("bhqk", self.shape, strict=True)) | {"1": 1}
        return tuple(sizes[axis] for axis in axes)


def read(table: str) -> tuple[Form, ...]:
    """A table of forms, one a line."""
    return tuple(Form.parse(line) for line in table.splitlines() if line.strip())


# -- what query, key and value are made of: some leave nothing to round but the output. The products of q and k are
# -- whole numbers of few bits (no sum of them rounds), and the weights are 1/2^m or 0 and 1. On hard inputs an honest
# -- backend may round its scores and its weights, and much hides in that allowance; here it may not, in every class of
# -- implementation and every dtype. The others are drawn and then made hard


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

    Who rounds the scores as well is right: they are all alike still.
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
