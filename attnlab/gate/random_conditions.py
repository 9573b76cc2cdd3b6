"""Conditions that no table names, drawn at random within declared ranges: a new set for every seed and dtype.

A fault of one path and the question that takes it mirror each other: who writes the tables knows which head_dim
they have. What is drawn here is known to nobody before. A fault is told with the whole condition, which
`attnlab.gate.form` reads, so that it can be put again.
"""

from __future__ import annotations

import zlib

import numpy as np

from attnlab.gate.form import Form
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.mask_parts import Part, Shape

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
