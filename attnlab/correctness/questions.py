"""The questions of a check: a workload, how its arrays are drawn and lie in memory, and how the answers are judged.

Fixed questions are in the table `questions.toml`. Others are drawn at random within declared ranges, a new set for
every seed and dtype: a fixed table finds only the faults that its author thought of. If the inputs have an output
gradient, the question also asks for the gradients of query, key and value.

On some inputs (`EXACT`) nothing rounds but the output: the products of q and k are whole numbers of few bits (no sum of
them rounds), and the weights are 1/2^m or 0 and 1. On other inputs a correct backend may round its scores and weights,
and a fault can hide in the error that is allowed for this. On these inputs it cannot, in any class of implementation
and any dtype.
"""

from __future__ import annotations

import math
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator, default_rng

from attnlab.correctness.expected import Expected, expect
from attnlab.workload.distributions import DISTRIBUTIONS, Distribution, Three
from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Given, Part, Shape
from attnlab.workload.masks import Mask
from attnlab.workload.number_formats import DTYPES, Array, round_to
from attnlab.workload.workload import GRADIENTS, LOG_SUM, OUTPUT, Workload

#: the kinds of questions: about the output, ln Z, and the gradients of query, key and value
FORWARD, BACKWARD = "forward", "backward"
KINDS = (FORWARD, LOG_SUM, BACKWARD)
_DIRECTIONS = {FORWARD: "forward", LOG_SUM: "forward_with_log_sum", BACKWARD: "training"}
#: the sections of the table for each kind; the second one has large questions, which are not asked in float64
_SECTIONS = {FORWARD: ("forward", "long"), LOG_SUM: ("log_sum", ""), BACKWARD: ("backward", "backward_long")}
#: the questions that decide the printed class of precision
CLASSES = ("precision class", "precision class of gradients", "ln Z, precision class")
#: the largest unscaled product of query and key in float16: an eager backend stores it, and it must not overflow
_LARGEST_PRODUCT = 60000.0
#: random streams, beside that of query, key and value: a change of one array does not change the others
_MASK, _BIAS, _SINKS, _UPSTREAM = 1, 2, 3, 4
#: the share of pairs that a drawn boolean array keeps; the share that a bias with infinities hides; the distance
#: between rows that see no key, in an array that has such rows
_KEPT, _HIDDEN, _EMPTY_ROWS = 0.6, 0.2, 7
#: defaults for how the arrays are made and lie in memory; names have _ in place of spaces
#: inputs : one of `CONSTRUCTIONS`. values : "ones" (rows must sum to 1), "keys" (V = K). array : the axes of a boolean
#: array, some of ``bhqk``, with 1 for a broadcast axis; a ``-`` at the end for rows that see no key. bias : "alibi", or
#: axes as for `array`; with ``-``, a part of it is -inf. upstream : the kind of the output's gradient. draw : another
#: number gives other arrays of the same kind. layout : of query, key and value. gradient_layout : of the output's
#: gradient
_DRAWN = {
    "inputs": "normal", "values": "normal", "array": "", "bias": "", "upstream": "normal", "draw": 0,
    "layout": "contiguous", "gradient_layout": "contiguous",
}  # fmt: skip
#: defaults for sizes, and for how answers are judged
#: z, gradient_z : the number of standard errors beyond which a gain or a wrong scale is reported; None: not tested,
#: because that needs about a hundred rows (heads for gradients) that are not saturated. exact_gradients : whether the
#: backward pass rounds nothing but the gradients. every : the step between the rows that are judged (also the last
#: one); all rows are asked for
_USUAL = {
    "heads": 2, "queries": 33, "head_dim": 16, "mask": "",
    "z": None, "gradient_z": None, "exact_gradients": False, "every": 1,
}  # fmt: skip

#: the fields of a question by name, as in the table
Fields = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Question:
    """Inputs, with arrays as cast to their dtype, and how the answers are judged.

    kind : one of `KINDS`. fields : all fields, with the defaults. forward : the same question without gradients.
    """

    name: str
    kind: str
    inputs: Inputs
    fields: Fields
    forward: Question | None = None

    @cached_property
    def workload(self) -> Workload:
        """The workload that the backend must compute."""
        return Workload.of_inputs(self.inputs, direction=_DIRECTIONS[self.kind])

    @property
    def layouts(self) -> tuple[str, str]:
        """The layouts of the inputs and of the output's gradient, for `attnlab.correctness.answering`."""
        return self.fields["layout"], self.fields["gradient_layout"]

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads; three times as many for gradients."""
        return int(np.prod(self.inputs.shape)) * (3 if self.kind == BACKWARD else 1)

    @property
    def rows(self) -> list[int] | None:
        """The query rows whose output is judged, None for all."""
        n_q, every = self.inputs.shape.queries, self.fields["every"]
        return None if every == 1 else sorted({*range(0, n_q, every), n_q - 1})

    @cached_property
    def expected(self) -> dict[str, Expected]:
        """The right answers and their bounds, by name. The output's is shared with the question without gradients."""
        known = None if self.forward is None else self.forward.expected[OUTPUT]
        return expect(self.inputs, self.rows, output=known, log_sum=self.kind == LOG_SUM)

    def weighing(self, name: str) -> dict[str, Any]:
        """The keyword arguments of `attnlab.correctness.weighing.weigh` for the answer `name`."""
        if name == LOG_SUM:
            return {"directions": None}
        if name != OUTPUT:
            return {"exact": self.fields["exact_gradients"], "directions": self.fields["gradient_z"]}
        plain = self.inputs.softcap is None and self.inputs.sinks is None
        return {"exact": self.fields["inputs"] in EXACT and plain, "directions": self.fields["z"]}

    @property
    def text(self) -> str:
        """Dtype, name, workload, and the array fields that differ from their defaults, for a message."""
        own = (f"{name}={self.fields[name]}" for name, usual in _DRAWN.items() if self.fields[name] != usual)
        of = {BACKWARD: "gradients in ", LOG_SUM: "ln Z in "}.get(self.kind, "")
        return f"{of}{self.inputs.dtype}, {self.name} ({' '.join([self.workload.named('device'), *own])})"


def pose(name: str, asked: Fields, dtype: str, seed: int, kind: str = FORWARD) -> Question | None:
    """The question with these fields, cached with its right answers. None if the dtype cannot hold its numbers.

    The fields may name another `dtype`. The arrays are drawn from the name, the seed and the field `draw`. Raises
    ValueError for an impossible workload.
    """
    fields = {one: value for one, value in asked.items() if one != "dtype"}
    return _posed(name, tuple(sorted(fields.items())), asked.get("dtype", dtype), seed, kind)


# larger than the number of questions: they are asked in order, and a smaller cache would never hit
@lru_cache(maxsize=4096)
def _posed(
    name: str, asked: tuple[tuple[str, Any], ...], dtype: str, seed: int, kind: str
) -> Question | None:
    fields = {**_DRAWN, **_USUAL, **dict(asked)}

    def stream(*which: int) -> Generator:
        return default_rng([seed, zlib.crc32(name.encode()), fields["draw"], *which])

    if kind == BACKWARD:
        plain = {one: value for one, value in asked if one != "upstream" and "gradient" not in one}
        forward = pose(name, plain, dtype, seed)
        if forward is None:
            return None
        upstream = round_to(_gradient(fields["upstream"], forward, stream(_UPSTREAM)), dtype)
        return Question(name, kind, forward.inputs.with_(output_gradient=upstream), fields, forward)
    names = fields.keys() & (Workload.__annotations__.keys() - {"bias", "layout"})
    sizes = {one: fields[one] for one in names}
    ask = Workload(**{"keys": sizes["queries"], **sizes}, dtype=dtype)
    rng = stream()
    q, k, v = (rng.standard_normal(ask.shape_of(one)) for one in GRADIENTS)
    q, k, v = CONSTRUCTIONS[fields["inputs"]](q, k, v, ask.scale, rng)
    v = {"ones": np.ones_like(v), "keys": k}.get(fields["values"], v)
    arrays = [round_to(array, dtype) for array in (q, k, v)]
    for one, cast in zip((q, k, v), arrays, strict=True):
        if not np.isfinite(cast).all() or (one.any() and not cast.any()):
            return None
    if dtype == "float16":
        wide = np.repeat(arrays[1], ask.heads // ask.kv_heads, axis=1).astype(float)
        if np.abs(arrays[0].astype(float) @ wide.swapaxes(2, 3)).max() > _LARGEST_PRODUCT:
            return None
    mask, added = ask.masked, fields["bias"]
    if fields["array"]:
        seen = stream(_MASK).random(_sizes(fields["array"], ask.shape)) < _KEPT
        if fields["array"].endswith("-"):
            seen[..., ::_EMPTY_ROWS, :] = False
        mask = mask & Mask((Given(seen),))
    bias: Any = Alibi.of_heads(ask.heads) if added == "alibi" else None
    if added not in ("", "alibi"):
        rng = stream(_BIAS)
        bias = rng.standard_normal(_sizes(added, ask.shape))
        if added.endswith("-"):
            bias[rng.random(bias.shape) < _HIDDEN] = -np.inf
        bias = round_to(bias, dtype)
    sinks = round_to(stream(_SINKS).standard_normal(ask.heads), dtype) if ask.sinks else None
    more: dict[str, Any] = {"scale": ask.scale, "softcap": ask.softcap, "sinks": sinks, "dtype": dtype}
    return Question(name, kind, Inputs.of(*arrays, mask=mask, bias=bias, **more), fields)


def _sizes(axes: str, shape: Shape) -> tuple[int, ...]:
    sizes = dict(zip("bhqk1", (*shape, 1), strict=True))
    return tuple(sizes[axis] for axis in axes.rstrip("-"))


def _gradient(upstream: str, forward: Question, rng: Generator) -> Array:
    """The output's gradient, of the kind `upstream`."""
    normal = rng.standard_normal(forward.workload.shape_of(OUTPUT))
    if upstream == "output":  # the loss is half the squared norm of the output
        return forward.expected[OUTPUT].output
    if upstream == "one_row":  # the loss depends on the last query only: a contribution of others is a fault
        normal[:, :, :-1] = 0
    if upstream == "ones":  # the loss is the sum of the output
        normal[...] = 1
    if upstream == "signs":  # products of these with whole numbers do not round
        return np.sign(np.rint(normal))
    return normal * {"small": 2.0**-8, "large": 2.0**8}.get(upstream, 1.0)


#: drops the questions asked so far, which are kept for all backends of a process; those of one dtype take about 300 MB
forget = _posed.cache_clear


@cache
def table() -> dict[str, dict[str, Any]]:
    """`questions.toml`: the fixed questions by section and name."""
    found: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return found


def questions(dtype: str, seed: int, kind: str = FORWARD, most: float = np.inf) -> Iterator[Question]:
    """Every question of a kind that `dtype` can hold; those that find most faults come first.

    most : the most query-key pairs of a question, unless it is marked `daily`. float64 has only the fixed questions
    without the large ones: special code paths are written for the formats in which a kernel is fast.
    """
    fixed, (first, last) = table(), _SECTIONS[kind]
    asked = dict(fixed[first])
    if kind == BACKWARD:
        asked = {name: one for name, one in fixed["forward"].items() if one.get("gradients")} | asked
    if dtype != "float64" and kind != LOG_SUM:
        asked |= {**drawn(dtype, seed, kind), **fixed[last]}
    for name, one in asked.items():
        sizes = {"batch": 1, **_USUAL, **one}
        pairs = sizes["batch"] * sizes["heads"] * sizes["queries"] * sizes.get("keys", sizes["queries"])
        if pairs * (3 if kind == BACKWARD else 1) > most and not one.get("daily"):
            continue
        question = pose(name, one, dtype, seed, kind)
        if question is not None:
            yield question


def sequences(dtype: str, seed: int, kind: str = FORWARD) -> Iterator[tuple[Question, list[Question]]]:
    """A question, and the questions that are asked before it is repeated: each differs from it in one thing."""
    found = list(table()["sequences"].items())
    for name, one in found if kind == FORWARD else found[:1]:
        first = pose(name, one["base"], dtype, seed, kind)
        changed = (pose(name, one["base"] | change, dtype, seed, kind) for change in one["changes"])
        if first is not None:
            yield first, [other for other in changed if other is not None]


# -- drawn at random ------------------------------------------------------------------------------------

#: the number of questions for each dtype; the most scores of a question, over all batches and heads (fewer for
#: gradients, because their exact results take longer); the most numbers of its query or key. Each question then takes a
#: few milliseconds
COUNTS, _SCORES, _NUMBERS = {FORWARD: 24, BACKWARD: 12}, {FORWARD: 24_000, BACKWARD: 8_000}, 48_000
_LARGEST_DIM = 256
#: lengths at which kernels change their tiles; they are drawn with their neighbours
_EDGES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_LONGEST = 1100
_HEADS, _BATCH = 12, 4
_LAYOUTS = ("heads_inside", "transposed", "sliced", "mixed", "mixed_2", "cache")
_INPUTS = ("logit_std_2", "logit_std_4", "shifted_means", "outliers", "duplicated_maxima")
#: axes of boolean arrays and biases: many ways to broadcast
_AXES = ("qk", "11qk", "1hqk", "b1qk", "bhqk", "b11k", "1h1k", "bh1k")
_SIGNS = (1, 1, 1, -1)
_BIASES = (*_AXES, "qk-", "bhqk-", *["alibi"] * 4)


def drawn(dtype: str, seed: int, kind: str = FORWARD) -> dict[str, dict[str, Any]]:
    """The fields of the random questions of a dtype and a seed, by name.

    Half of the head dimensions are multiples of 8, for which kernels are compiled; the others are not. Dtypes and kinds
    take them in turn from one random order, so that none repeats before all were asked: a fault at one multiple of 8 is
    found in some dtype.
    """
    rng = default_rng([seed, zlib.crc32(b"dims")])
    eights = 8 * (1 + rng.permutation(_LARGEST_DIM // 8))
    others = 1 + rng.permutation(_LARGEST_DIM)
    orders, half = (eights, others[others % 8 != 0]), COUNTS[kind] // 2
    place = DTYPES.index(dtype) * half + (len(DTYPES) * COUNTS[FORWARD] // 2 if kind == BACKWARD else 0)
    dims = [int(order[(place + at) % order.size]) for order in orders for at in range(half)]
    mixed = rng.permutation(len(dims))
    rng = default_rng([seed, zlib.crc32(dtype.encode()), int(kind == BACKWARD)])
    return {f"drawn {at + 1}": _drawn(rng, dims[mixed[at]], kind) for at in range(COUNTS[kind])}


def _drawn(rng: Generator, dim: int, kind: str) -> dict[str, Any]:
    queries, keys = _length(rng, short=0.2), _length(rng, short=0.05)
    if rng.random() < 0.3:
        queries = keys = min(queries, keys)
    queries = max(1, min(queries, _SCORES[kind] // keys))
    room = max(1, min(_SCORES[kind] // (queries * keys), _NUMBERS // (dim * max(queries, keys))))
    batch = int(rng.integers(1, min(_BATCH, room) + 1)) if rng.random() < 0.5 else 1
    heads = int(rng.integers(1, min(_HEADS, room // batch) + 1))
    divisors = [one for one in range(1, heads + 1) if heads % one == 0]
    kv_heads = int(rng.choice(divisors)) if rng.random() < 0.4 else heads
    found: dict[str, Any] = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "head_dim": dim}
    found |= {"queries": queries, "keys": keys, "mask": "", "array": ""}
    if rng.random() >= 0.35:  # one or two parts of any kinds, and sometimes a boolean array
        kinds = [Part.kinds[name] for name in sorted(Part.kinds)]
        some = rng.permutation(len(kinds))[: rng.integers(1, 3)]
        parts = (kinds[int(at)].drawn(rng, Shape(batch, heads, queries, keys)) for at in some)
        found["mask"] = " & ".join([part.text for part in parts if part is not None])
        found["array"] = str(rng.choice(_AXES)) if rng.random() < 0.2 else ""

    further: dict[str, tuple[float, Callable[[], Any]]] = {  # each with its probability
        "value_dim": (0.15, lambda: int(rng.integers(1, 160))),
        "bias": (0.2, lambda: str(rng.choice(_BIASES))),
        "softcap": (0.12, lambda: round(float(np.exp(rng.uniform(np.log(1), np.log(40)))), 2)),
        "sinks": (0.12, lambda: True),
        # 0.25 to 2.7 times the usual scale, of either sign
        "scale": (0.25, lambda: round(float(rng.choice(_SIGNS) * rng.uniform(0.25, 2.7)) / dim**0.5, 4)),
        "inputs": (0.3, lambda: str(rng.choice(_INPUTS))),
        "layout": (0.25, lambda: str(rng.choice(_LAYOUTS))),
        "gradient_layout": (0.25, lambda: str(rng.choice(_LAYOUTS[:2]))),
    }
    for name, (chance, one) in further.items():
        if (kind == BACKWARD or name != "gradient_layout") and rng.random() < chance:
            found[name] = one()
    return found


def _length(rng: Generator, short: float) -> int:
    """1 with the probability `short`; else a tile edge or its neighbour, or any length, short ones more often."""
    if rng.random() < short:
        return 1
    if rng.random() < 0.5:
        return int(rng.choice(_EDGES)) + int(rng.integers(-1, 2))
    return int(np.exp(rng.uniform(np.log(2), np.log(_LONGEST))))


# -- how the arrays are made -----------------------------------------------------------------------------


def _equal_logits(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    """All keys are equal, with whole numbers: softmax is 1/n at any scale, exactly if n is a power of two."""
    q, k = (np.clip(np.rint(one), -3, 3) for one in (q, k))
    return q, _repeated(k, np.s_[..., :1, :]), v


def _hidden_keys(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    """Keys differ only in components in which the queries are 0: the scores of a row are equal, its weights are 1/n.

    The products of queries and keys are whole numbers, the values are -1, 0 or 1. With n = 4 keys and such numbers in
    the output's gradient, every product and sum of the backward pass is a multiple of 1/64 of few bits, so that only
    the gradients themselves round.
    """
    half = q.shape[-1] // 2
    q, k, v = (np.clip(np.rint(one), -1, 1) for one in (q, k, v))
    q[..., half:] = 0
    k[..., :half] = k[..., :1, :half]
    return q, k, v


def _zero_keys(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    """Keys of 0: every logit is exactly 0, and the sum over d rounds nothing.

    Every second value is 2^8 times smaller. Otherwise the sum of two numbers of similar size often lies half-way
    between two numbers of the dtype, and a correct backend's inner error of 2^-24 decides how it is rounded.
    """
    v = v.copy()
    v[..., 1::2, :] /= 256
    return q, np.zeros_like(k), v


def _lookup(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    """Keys are orthogonal codes of ±1, and a query is a large multiple of one of them: o is the value of that key.

    The logit of this key is at least 128, and all others are 0: beside 1, e^−128 is lost in every format.
    """
    dim, codes = k.shape[-1], np.ones((1, 1))
    while len(codes) < dim:
        codes = np.block([[codes, codes], [codes, -codes]])
    size = 2.0 ** math.ceil(math.log2(128 / (abs(scale) * dim)))
    chosen = rng.integers(0, k.shape[-2], size=q.shape[:-1])
    k = np.broadcast_to(codes[: k.shape[-2]], k.shape).copy()
    return size * math.copysign(1, scale) * codes[chosen], k, v


def _carried(parts: Callable[[int, int, float], Sequence[tuple[Any, Any]]]) -> Distribution:
    """The logit comes from the first components of query and key; the others are 0.

    parts : gives the first components, as pairs of query and key, for the numbers of queries and keys and the scale.
    """

    def construct(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
        q, k = np.zeros_like(q), np.zeros_like(k)
        for at, (of_query, of_key) in enumerate(parts(q.shape[-2], k.shape[-2], scale)):
            q[..., at], k[..., at] = of_query, of_key
        return q, k, v

    return construct


def _all(logit: float) -> Distribution:
    """Every logit is exactly `logit`, a product of powers of two if possible."""
    return _carried(
        lambda n, m, s: [(at := 2.0 ** math.floor(math.log2(abs(logit / s)) / 2), logit / s / at)]
    )


def _staircase(step: float) -> Distribution:
    """Key j has the logit j·step in every row: the output of a row is the value at the highest step that it sees."""
    return _carried(lambda queries, keys, scale: [(step / scale, np.arange(keys))])


EXACT: dict[str, Distribution] = {
    "equal_logits": _equal_logits,
    "hidden_keys": _hidden_keys,
    "zero_keys": _zero_keys,
    "look-up": _lookup,
    **{f"all_{name}": _all(at) for name, at in (("1024", 1024.0), ("-49152", -49152.0), ("-48", -48.0))},
    "all_-2^20": _all(-(2.0**20)),
    # half-way between two bfloat16 numbers: a backend that rounds only the maximum is left with e^−128, which is 0. A
    # backend that rounds the scores as well is right: they are still equal
    "all_-49280": _carried(lambda queries, keys, scale: [(128, -384 / scale), (1, -128 / scale)]),
    # the logits of a row are equal, those of neighbouring rows 512 apart: if rows share a maximum, e^−512 = 0 is left
    "levels": _carried(lambda n, _, scale: [(16 * (np.arange(n) % 5 - 2), 512 / (16 * scale))]),
    "long_staircase": _staircase(64.0),
    "staircase": _staircase(256.0),
    "falling_staircase": _staircase(-256.0),
}


def _rising(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # the largest score rises in every block of keys, by 12 in all: a block that is not rescaled dominates
    q[..., 0], k[..., 0] = 4.0, np.linspace(0.0, 12 / (4 * scale), k.shape[-2])
    return q, k, v


def _needles(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every query looks for one key among thousands: half of the queries for one of the last keys, half for any key. The
    # logit of this key is 10, the others are N(0, 100/d). So it has most of the weight, and a missing key is noticed;
    # but the other weights are not so small that a float32 sum that already holds this one loses them all
    keys, queries = k.shape[-2], q.shape[-2]
    last = keys - 1 - np.arange(queries // 2) % keys
    sought = np.concatenate([last, rng.integers(0, keys, size=queries - queries // 2)])
    found = k[..., sought, :]
    return 10 / scale * found / (found**2).sum(axis=-1, keepdims=True), k, v


def _creeping(q: Array, k: Array, v: Array, scale: float, rng: Generator) -> Three:
    # every sixteenth key raises the largest score, by 0.04 to 0.06 in all. If a kernel skips the rescaling for each of
    # these small rises, its sum and its output drift apart by as much. The steps are unequal, because an equal factor
    # would round in the same way in every block. The other keys lie up to ln 16 below, because weights of one mantissa
    # may round worse than budgets expect. The rows differ by up to a third, so that their sums round differently
    queries, keys = q.shape[-2], k.shape[-2]
    rise = 0.06 * np.sort(rng.random(keys))
    fall = np.where(np.arange(keys) % 16 == 0, 0.0, rng.uniform(0.0, np.log(16), size=keys))
    of_query, of_key = 4.0 - 4 / 3 * np.arange(queries) / queries, (rise - fall) / (4 * scale)
    return _carried(lambda *sizes: [(of_query, of_key)])(q, k, v, scale, rng)


def _repeated(x: Array, at: Any) -> Array:
    return np.broadcast_to(x[at], x.shape).copy()


CONSTRUCTIONS: dict[str, Distribution] = {
    **DISTRIBUTIONS,
    **EXACT,
    "logit_std_2": lambda q, k, v, scale, rng: (q * (2.0 / (abs(scale) * q.shape[-1] ** 0.5)), k, v),
    "rising": _rising,
    "needles": _needles,
    "creeping": _creeping,
    # keys and values are equal for all heads, as in multi-query attention, or for all batches, as with one prompt
    "shared_heads": lambda q, k, v, *_: (q, _repeated(k, np.s_[:, :1]), _repeated(v, np.s_[:, :1])),
    "shared_batches": lambda q, k, v, *_: (q, _repeated(k, np.s_[:1]), _repeated(v, np.s_[:1])),
    "small_values": lambda q, k, v, *_: (q, k, v * 2.0**-8),
    "large_values": lambda q, k, v, *_: (q, k, v * 2.0**8),
    # numbers beyond the range of float16
    "beyond_float16": lambda q, k, v, *_: (q * 2.0**20, k * 2.0**-20, v),
    "small_queries": lambda q, k, v, *_: (q * 2.0**-16, k * 2.0**10, v),
    # clipped at 3.9: float16 has numbers up to 2^16 and down to 2^-24
    "values_2^14": lambda q, k, v, *_: (q, k, np.clip(v, -3.9, 3.9) * 2.0**14),
    "values_2^40": lambda q, k, v, *_: (q, k, np.clip(v, -3.9, 3.9) * 2.0**40),
    "values_2^-100": lambda q, k, v, *_: (q, k, np.clip(v, -3.9, 3.9) * 2.0**-100),
}
