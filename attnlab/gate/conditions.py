"""Conditions of the gate before their arrays are drawn, and the line of text that says one.

``normal: b2 h3 n65x67 d16`` are two batch elements, three heads, 65 queries, 67 keys and a head_dim of 16;
``h8/2`` are two heads of key and value, ``d24v8`` a value_dim of 8. What follows is ``field=value``, or a field
alone where that is yes or no. The tables of `attnlab.gate.tables` are written so, a fault is told so, and
`Form.parse` reads it again: a condition that was drawn at random can be repeated from the message that names it.

Conditions that no table names are drawn at random within declared ranges, a new set for every seed and dtype. A fault
of one path and the question that takes it mirror each other: who writes the tables knows which head_dim they have. What
is drawn here is known to nobody before.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.gate.inputs import EXACT
from attnlab.problem.mask_kinds import Given, Part, Shape
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi
from attnlab.problem.vocabulary import DTYPES

#: share of pairs that a drawn boolean array keeps, and of those that a bias with infinities hides
_KEPT, _HIDDEN = 0.6, 0.2
#: fields that are whole numbers
_WHOLE = ("every", "draw", "splits")
#: in an array that is to have rows that see no key, every so many do
_EMPTY_ROWS = 7


@dataclass(frozen=True, kw_only=True)
class Form:
    """One condition. Names of inputs and layouts have _ for spaces.

    mask : as `Mask.parse` reads it. array : axes of a boolean array, of ``bhqk``, 1 where it is broadcast; a ``-`` at
    the end for rows that see no key. bias : "alibi", or axes as for `array`; with ``-`` some of it is -inf. inputs :
    a distribution or a construction of `attnlab.gate.inputs`. values : "normal", "ones" (rows must sum to
    1), "keys" (V = K). layout, gradient_layout : how the arrays lie in memory, see `attnlab.race.probe`.
    upstream : what the output's gradient is, where gradients are asked for. z, gradient_z : standard errors beyond
    which a gain or a wrong scale is told, None where it is not looked for; it needs some hundred rows, or heads for
    gradients, that are not saturated. exact_gradients : nothing is rounded on the way back but the gradients
    themselves. every : judge every so many rows, and the last; all are asked for. draw : another for other numbers of
    the same form. log_sum : ln Z is asked for too. splits : parts that the keys are cut into.
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
    splits: int = 1

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


# -- drawn at random

#: conditions a dtype, for outputs and for gradients
FORWARD_COUNT, BACKWARD_COUNT = 24, 12
#: most scores of one condition, over all batches and heads: fewer for gradients, whose references take longer. And
#: numbers of its query: a few milliseconds
_FORWARD_SCORES, _BACKWARD_SCORES, _NUMBERS = 24_000, 8_000, 48_000
_LARGEST_DIM = 256
#: lengths at which a kernel changes its tile; they are drawn with their neighbours
_EDGES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)
_LONGEST = 1100
_HEADS, _BATCH = 12, 4
_LAYOUTS = ("heads_inside", "transposed", "sliced", "mixed", "mixed_2", "cache")
_INPUTS = ("logit_std_2", "logit_std_4", "shifted_means", "outliers", "duplicated_maxima")
#: axes of boolean arrays and biases; all that broadcast
_AXES = ("qk", "11qk", "1hqk", "b1qk", "bhqk", "b11k", "1h1k", "bh1k")


def drawn_forms(dtype: str, seed: int, *, backward: bool = False) -> tuple[Form, ...]:
    """The conditions of a dtype and a seed, for outputs or for gradients."""
    rng = np.random.default_rng([seed, zlib.crc32(dtype.encode()), int(backward)])
    count = BACKWARD_COUNT if backward else FORWARD_COUNT
    dims = _dims(dtype, seed, backward)
    return tuple(_drawn(rng, f"drawn {at + 1}", dims[at], backward) for at in range(count))


def _dims(dtype: str, seed: int, backward: bool) -> list[int]:
    """Head dimensions: half of them multiples of 8, for which kernels are compiled, half any.

    Dtypes and directions share one order and follow each other in it, so that none is asked twice before all were: a
    fault of one multiple of 8 meets an output in some dtype.
    """
    rng = np.random.default_rng([seed, zlib.crc32(b"dims")])
    eights = 8 * (1 + rng.permutation(_LARGEST_DIM // 8))
    others = 1 + rng.permutation(_LARGEST_DIM)
    others = others[others % 8 != 0]
    half = (BACKWARD_COUNT if backward else FORWARD_COUNT) // 2
    place = DTYPES.index(dtype) * half + (len(DTYPES) * FORWARD_COUNT // 2 if backward else 0)
    found = [int(order[(place + at) % order.size]) for order in (eights, others) for at in range(half)]
    return [found[at] for at in rng.permutation(len(found))]


def _drawn(rng: np.random.Generator, name: str, dim: int, backward: bool) -> Form:
    queries, keys = _length(rng, short=0.2), _length(rng, short=0.05)
    if rng.random() < 0.3:
        queries = keys = min(queries, keys)
    scores = _BACKWARD_SCORES if backward else _FORWARD_SCORES
    if queries * keys > scores:
        queries = max(1, scores // keys)
    room = max(1, min(scores // (queries * keys), _NUMBERS // (dim * max(queries, keys))))
    batch = int(rng.integers(1, min(_BATCH, room) + 1)) if rng.random() < 0.5 else 1
    heads = int(rng.integers(1, min(_HEADS, room // batch) + 1))
    divisors = [one for one in range(1, heads + 1) if heads % one == 0]
    kv_heads = int(rng.choice(divisors)) if rng.random() < 0.4 else heads
    shape = Shape(batch, heads, queries, keys)
    mask, array = _mask(rng, shape)
    chance = rng.random(6)
    scale = _scale(rng, dim) if chance[4] < 0.25 else None
    return Form(
        name=name,
        batch=batch,
        heads=heads,
        kv_heads=None if kv_heads == heads else kv_heads,
        queries=queries,
        keys=keys,
        dim=dim,
        value_dim=int(rng.integers(1, 160)) if chance[0] < 0.15 else None,
        mask=mask,
        array=array,
        bias=_bias(rng) if chance[1] < 0.2 else "",
        softcap=round(float(np.exp(rng.uniform(np.log(1), np.log(40)))), 2) if chance[2] < 0.12 else None,
        sinks=bool(chance[3] < 0.12),
        scale=scale,
        inputs=str(rng.choice(_INPUTS)) if chance[5] < 0.3 and scale != 0 else "normal",
        layout=str(rng.choice(_LAYOUTS)) if rng.random() < 0.25 else "contiguous",
        upstream="normal" if backward else "",
        gradient_layout=str(rng.choice(_LAYOUTS[:2])) if backward and rng.random() < 0.25 else "contiguous",
    )


def _length(rng: np.random.Generator, short: float) -> int:
    """One now and then; else the edge of a block or its neighbours, or any length, short ones more often."""
    if rng.random() < short:
        return 1
    if rng.random() < 0.5:
        return int(rng.choice(_EDGES)) + int(rng.integers(-1, 2))
    return int(np.exp(rng.uniform(np.log(2), np.log(_LONGEST))))


def _mask(rng: np.random.Generator, shape: Shape) -> tuple[str, str]:
    """Texts of a mask of no, one or two parts, of whichever kinds there are, and the axes of a boolean array."""
    if rng.random() < 0.35:
        return "", ""
    kinds = [Part.kinds[name] for name in sorted(Part.kinds)]
    parts = (kinds[int(at)].drawn(rng, shape) for at in rng.permutation(len(kinds))[: rng.integers(1, 3)])
    texts = [part.text.replace(" ", "") for part in parts if part is not None]
    array = str(rng.choice(_AXES)) if rng.random() < 0.2 else ""
    return "&".join(texts), array


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


def is_drawn(name: str) -> bool:
    """Whether a question of that name was drawn here."""
    return name.startswith("drawn ")
