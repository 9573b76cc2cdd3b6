"""The questions of a check: each a workload, how its arrays are drawn and lie in memory, and how answers are judged.

Fixed questions are a table, `questions.toml`. Others are drawn at random within declared ranges, a new set for every
seed and dtype. A fault of one path and the question that takes it mirror each other: the author of the table knows
which head_dim they have. Nobody knows what is drawn here. A question whose inputs have an output gradient asks for the
gradients of query, key and value as well.
"""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.correctness.draws import EXACT, Draw
from attnlab.correctness.expected import Expected, expect
from attnlab.workload.inputs import Alibi, Inputs
from attnlab.workload.mask_kinds import Part, Shape
from attnlab.workload.number_formats import DTYPES, round_to
from attnlab.workload.workload import GRADIENTS, LOG_SUM, OUTPUT, Workload

#: what is asked about: the output, ln Z, and the gradients of query, key and value
FORWARD, BACKWARD = "forward", "backward"
KINDS = (FORWARD, LOG_SUM, BACKWARD)
_DIRECTIONS = {FORWARD: "forward", LOG_SUM: "forward_with_log_sum", BACKWARD: "training"}
#: two products of this size, unscaled, still fit float16: an eager backend may be asked
_LARGEST_PRODUCT = 60000.0
#: random streams beside that of query, key and value, so that a change of one array leaves the others as they were
_MASK, _BIAS, _SINKS, _UPSTREAM = 1, 2, 3, 4
#: those that decide the class that is printed
CLASSES = ("precision class", "precision class of gradients", "ln Z, precision class")
#: what a field has that the table does not name
_USUAL = {"heads": 2, "queries": 33, "head_dim": 16, "mask": ""}
_DRAW = {one.name for one in fields(Draw)}

#: the fields of a question by name, as in the table: of its workload, of its `Draw`, and of `Question`
Fields = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Question:
    """Inputs, with arrays as cast to their dtype, and what is asked of the answers.

    kind : one of `KINDS`. layout, gradient_layout : how query, key and value, and the output's gradient, lie in memory.
    z, gradient_z : standard errors beyond which a gain or a wrong scale is told, None where it is not looked for; that
    needs some hundred rows, or heads for gradients, that are not saturated. exact_gradients : nothing is rounded on
    the way back but the gradients themselves. every : so many rows, and the last, are judged; all are asked for.
    forward : the same without gradients.
    """

    name: str
    kind: str
    inputs: Inputs
    draw: Draw
    layout: str = "contiguous"
    gradient_layout: str = "contiguous"
    z: float | None = None
    gradient_z: float | None = None
    exact_gradients: bool = False
    every: int = 1
    forward: Question | None = None

    @property
    def dtype(self) -> str:
        """The inputs'."""
        return self.inputs.dtype

    @property
    def direction(self) -> str:
        """Of the workload."""
        return _DIRECTIONS[self.kind]

    def workload(self, device: str = "cpu") -> Workload:
        """What a backend is asked for that is to answer it."""
        return Workload.of_inputs(self.inputs, device=device, direction=self.direction)

    @property
    def layouts(self) -> tuple[str, str]:
        """As `attnlab.correctness.answering` takes them."""
        return self.layout, self.gradient_layout

    @property
    def pairs(self) -> int:
        """Query-key pairs over all batches and heads; the way back meets them more than twice as often."""
        return int(np.prod(self.inputs.shape)) * (3 if self.kind == BACKWARD else 1)

    @property
    def rows(self) -> list[int] | None:
        """The query rows whose output is judged, None for all."""
        n_q = self.inputs.shape.queries
        return None if self.every == 1 else sorted({*range(0, n_q, self.every), n_q - 1})

    @cached_property
    def references(self) -> dict[str, Expected]:
        """The right answers and their bounds, by name; the output's is shared with the question without gradients."""
        known = None if self.forward is None else self.forward.references[OUTPUT]
        return expect(self.inputs, self.rows, output=known, log_sum=self.kind == LOG_SUM)

    def weighing(self, name: str) -> dict[str, Any]:
        """How the answer `name` is weighed."""
        if name == OUTPUT:
            plain = self.inputs.softcap is None and self.inputs.sinks is None
            return {"exact": self.draw.inputs in EXACT and plain, "directions": self.z}
        if name == LOG_SUM:
            return {"directions": None}
        return {"exact": self.exact_gradients, "directions": self.gradient_z}

    @property
    def text(self) -> str:
        """Dtype, name and the whole condition, for a message."""
        own = {**vars(self.draw), "layout": self.layout, "gradient_layout": self.gradient_layout}
        usual = {**vars(Draw()), "layout": "contiguous", "gradient_layout": "contiguous"}
        words = [self.workload().label, *(f"{name}={one}" for name, one in own.items() if one != usual[name])]
        of = {BACKWARD: "gradients in ", LOG_SUM: "ln Z in "}.get(self.kind, "")
        return f"{of}{self.dtype}, {self.name} ({' '.join(words)})"


def pose(name: str, asked: Fields, dtype: str, seed: int, kind: str = FORWARD) -> Question | None:
    """The question of these fields, kept with its references; None where the dtype cannot hold its numbers or scores.

    The fields may name another `dtype`. Its arrays follow from its name, the seed and its draw. Raises ValueError for
    what no workload can be.
    """
    fields = {one: value for one, value in asked.items() if one != "dtype"}
    return _posed(name, tuple(sorted(fields.items())), asked.get("dtype", dtype), seed, kind)


# more than there are in all dtypes: asked in a circle, a smaller cache would hold none of them
@lru_cache(maxsize=4096)
def _posed(
    name: str, asked: tuple[tuple[str, Any], ...], dtype: str, seed: int, kind: str
) -> Question | None:
    given = dict(asked)
    draw = Draw(**{one: given[one] for one in _DRAW & given.keys()})
    own = {one: given[one] for one in ("layout", "z", "every") if one in given}

    def stream(*which: int) -> np.random.Generator:
        return np.random.default_rng([seed, zlib.crc32(name.encode()), draw.draw, *which])

    if kind == BACKWARD:
        plain = {one: value for one, value in asked if one != "upstream" and "gradient" not in one}
        forward = pose(name, plain, dtype, seed)
        if forward is None:
            return None
        exact = forward.references[OUTPUT].output if draw.upstream == "output" else None
        output = np.empty(forward.inputs.output_shape) if exact is None else exact
        upstream = round_to(draw.gradient(output, stream(_UPSTREAM)), dtype)
        further = {
            one: given[one] for one in ("gradient_layout", "gradient_z", "exact_gradients") if one in given
        }
        inputs = forward.inputs.with_(output_gradient=upstream)
        return Question(name, kind, inputs, draw, forward=forward, **own, **further)
    sizes = {
        one: value for one, value in given.items() if one not in _DRAW and one in Workload.__annotations__
    }
    sizes = {**_USUAL, **sizes, "layout": "bhsd"}
    ask = Workload(**{"keys": sizes["queries"], **sizes}, dtype=dtype)
    drawn = draw.qkv([ask.shape_of(one) for one in GRADIENTS], ask.scale, stream())
    q, k, v = (round_to(array, dtype) for array in drawn)
    for one, cast in zip(drawn, (q, k, v), strict=True):
        if not np.isfinite(cast).all() or (one.any() and not cast.any()):
            return None
    if dtype == "float16":
        wide = np.repeat(k, ask.heads // ask.kv_heads, axis=1).astype(float)
        if np.abs(q.astype(float) @ wide.swapaxes(2, 3)).max() > _LARGEST_PRODUCT:
            return None
    bias = draw.biased(ask.shape, stream(_BIAS))
    inputs = Inputs.of(
        *(q, k, v),
        mask=ask.masked & draw.masked(ask.shape, stream(_MASK)),
        bias=bias if bias is None or isinstance(bias, Alibi) else round_to(bias, dtype),
        scale=ask.scale,
        softcap=ask.softcap,
        sinks=round_to(stream(_SINKS).standard_normal(ask.heads), dtype) if ask.sinks else None,
        dtype=dtype,
    )
    return Question(name, kind, inputs, draw, **own)


def forget() -> None:
    """Free the questions asked so far, which serve all backends of a process: those of one dtype take some 300 MB."""
    _posed.cache_clear()


@cache
def table() -> dict[str, dict[str, Any]]:
    """`questions.toml`: the fixed questions by section and name."""
    found: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return found


def questions(dtype: str, seed: int, kind: str = FORWARD, most: float = np.inf) -> Iterator[Question]:
    """Every question of a kind that `dtype` can hold, those that tell most first.

    most : query-key pairs of one, but for those that are asked every day. In float64 the fixed ones
    without the long ones: what has blocks and paths of its own has them for the formats that it is fast in.
    """
    fixed = table()
    first, last = {FORWARD: ("forward", "long"), BACKWARD: ("backward", "backward_long")}.get(
        kind, (kind, "")
    )
    asked = dict(fixed[first.replace(" ", "_")])
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
    """A question, and what is asked before it is asked again: like it but for one thing."""
    found = list(table()["sequences"].items())
    for name, one in found if kind == FORWARD else found[:1]:
        first = pose(name, one["base"], dtype, seed, kind)
        changed = (pose(name, one["base"] | change, dtype, seed, kind) for change in one["changes"])
        if first is not None:
            yield first, [other for other in changed if other is not None]


# -- drawn at random

#: questions a dtype, and most scores of one, over all batches and heads: fewer for gradients, whose references take
#: longer. And numbers of its query: a few milliseconds
COUNTS, _SCORES, _NUMBERS = {FORWARD: 24, BACKWARD: 12}, {FORWARD: 24_000, BACKWARD: 8_000}, 48_000
_LARGEST_DIM = 256
#: lengths at which a kernel changes its tile; they are drawn with their neighbours
_EDGES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_LONGEST = 1100
_HEADS, _BATCH = 12, 4
_LAYOUTS = ("heads_inside", "transposed", "sliced", "mixed", "mixed_2", "cache")
_INPUTS = ("logit_std_2", "logit_std_4", "shifted_means", "outliers", "duplicated_maxima")
#: axes of boolean arrays and biases; all that broadcast
_AXES = ("qk", "11qk", "1hqk", "b1qk", "bhqk", "b11k", "1h1k", "bh1k")


def drawn(dtype: str, seed: int, kind: str = FORWARD) -> dict[str, dict[str, Any]]:
    """The fields of the random questions of a dtype and a seed, by name."""
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode()), int(kind == BACKWARD)])
    dims = _dims(dtype, seed, kind)
    return {f"drawn {at + 1}": _drawn(rng, dims[at], kind) for at in range(COUNTS[kind])}


def _dims(dtype: str, seed: int, kind: str) -> list[int]:
    """Head dimensions: half of them multiples of 8, for which kernels are compiled, half any.

    Dtypes and kinds share one order and follow each other in it, so that none is asked twice before all were: a fault
    of one multiple of 8 meets an output in some dtype.
    """
    rng = np.random.default_rng([seed, zlib.crc32(b"dims")])
    eights = 8 * (1 + rng.permutation(_LARGEST_DIM // 8))
    others = 1 + rng.permutation(_LARGEST_DIM)
    others = others[others % 8 != 0]
    half = COUNTS[kind] // 2
    place = DTYPES.index(dtype) * half + (len(DTYPES) * COUNTS[FORWARD] // 2 if kind == BACKWARD else 0)
    found = [int(order[(place + at) % order.size]) for order in (eights, others) for at in range(half)]
    return [found[at] for at in rng.permutation(len(found))]


def _drawn(rng: np.random.Generator, dim: int, kind: str) -> dict[str, Any]:
    queries, keys = _length(rng, short=0.2), _length(rng, short=0.05)
    if rng.random() < 0.3:
        queries = keys = min(queries, keys)
    scores = _SCORES[kind]
    queries = max(1, min(queries, scores // keys))
    room = max(1, min(scores // (queries * keys), _NUMBERS // (dim * max(queries, keys))))
    batch = int(rng.integers(1, min(_BATCH, room) + 1)) if rng.random() < 0.5 else 1
    heads = int(rng.integers(1, min(_HEADS, room // batch) + 1))
    divisors = [one for one in range(1, heads + 1) if heads % one == 0]
    found: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "queries": queries,
        "keys": keys,
        "head_dim": dim,
    }
    found["kv_heads"] = int(rng.choice(divisors)) if rng.random() < 0.4 else heads
    found["mask"], found["array"] = _mask(rng, Shape(batch, heads, queries, keys))
    further: dict[str, tuple[float, Callable[[], Any]]] = {  # each with its chance
        "value_dim": (0.15, lambda: int(rng.integers(1, 160))),
        "bias": (0.2, lambda: _bias(rng)),
        "softcap": (0.12, lambda: round(float(np.exp(rng.uniform(np.log(1), np.log(40)))), 2)),
        "sinks": (0.12, lambda: True),
        "scale": (0.25, lambda: _scale(rng, dim)),
        "inputs": (0.3, lambda: str(rng.choice(_INPUTS)) if found.get("scale") != 0 else "normal"),
        "layout": (0.25, lambda: str(rng.choice(_LAYOUTS))),
    }
    if kind == BACKWARD:
        further["gradient_layout"] = (0.25, lambda: str(rng.choice(_LAYOUTS[:2])))
    for name, (chance, one) in further.items():
        if rng.random() < chance:
            found[name] = one()
    return found


def _length(rng: np.random.Generator, short: float) -> int:
    """One now and then; else the edge of a block or its neighbours, or any length, short ones more often."""
    if rng.random() < short:
        return 1
    if rng.random() < 0.5:
        return int(rng.choice(_EDGES)) + int(rng.integers(-1, 2))
    return int(np.exp(rng.uniform(np.log(2), np.log(_LONGEST))))


def _mask(rng: np.random.Generator, shape: Shape) -> tuple[str, str]:
    """Text of a mask of no, one or two parts, of whichever kinds there are, and the axes of a boolean array."""
    if rng.random() < 0.35:
        return "", ""
    kinds = [Part.kinds[name] for name in sorted(Part.kinds)]
    parts = (kinds[int(at)].drawn(rng, shape) for at in rng.permutation(len(kinds))[: rng.integers(1, 3)])
    texts = [part.text for part in parts if part is not None]
    return " & ".join(texts), str(rng.choice(_AXES)) if rng.random() < 0.2 else ""


def _bias(rng: np.random.Generator) -> str:
    if rng.random() < 0.3:
        return "alibi"
    return str(rng.choice(_AXES)) + ("-" if rng.random() < 0.2 else "")


def _scale(rng: np.random.Generator, dim: int) -> float:
    """Within a factor of 4 of the usual one, of either sign, 0 now and then."""
    if rng.random() < 0.05:
        return 0.0
    size = float(np.exp(rng.uniform(-1.4, 1.0))) / dim**0.5
    return float(round(size if rng.random() < 0.75 else -size, 4))
