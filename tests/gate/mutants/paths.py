"""Faults of one path: right everywhere but under one condition, as a kernel is that was compiled for one case.

What deviates is plain enough, for the most part one key that is lost: the question is whether the condition is ever
met. Those of the table have a form in `attnlab.gate.tables`; `held_out` draws conditions that no table knows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attnlab.problem.mask_parts import Causal
from attnlab.problem.problem import Problem

from .contract import hiding, key
from .fault import BACKWARD, FORWARD, Fault, back, excused, given
from .formula import shifted
from .memory import longer_than, owner
from .parts import OUTPUT, Answers, Attention, parted, rounder, whole
from .rounding import narrowed

When = Callable[[Problem], bool]


def key_lost(problem: Problem) -> Answers:
    """The last key is not seen; under a mask the first. With one key, half of it."""
    if problem.shape.keys == 1:
        return whole(problem.with_(value=problem.value / 2))
    return whole(hiding(key(0 if problem.mask else -1))(problem))


def where(name: str, when: When, path: Attention = key_lost, direction: str = FORWARD) -> Fault:
    """Right, but takes the faulty `path` where `when` holds; backwards for the gradients alone."""
    wrong = back(path) if direction == BACKWARD else path
    return Fault(name, lambda problem: (wrong if when(problem) else whole)(problem), direction)


def d(problem: Problem) -> int:
    return int(problem.query.shape[-1])


def causal(problem: Problem) -> bool:
    return any(isinstance(part, Causal) for part in problem.mask.parts)


def scaled_by(factor: Callable[[Problem], float]) -> Attention:
    return given(lambda p: p.with_(scale=p.scale * factor(p)))


def limited(name: str, most: float) -> Attention:
    return given(narrowed(lambda x: np.clip(x, -most, most).astype(x.dtype), name))


def flushed(name: str, least: float) -> Attention:
    return given(narrowed(lambda x: np.where(np.abs(x) < least, 0, x).astype(x.dtype), name))


def averaged(problem: Problem) -> Answers:
    """Quarters of the keys, each with its own softmax, simply averaged."""
    parts = np.array_split(np.arange(problem.shape.keys), 4)
    quarters = (problem.with_(key=problem.key[:, :, at], value=problem.value[:, :, at]) for at in parts)
    found = [whole(one)[OUTPUT] for one in quarters]
    return {OUTPUT: np.mean(found, axis=0).astype(found[0].dtype)}


def read_behind(problem: Problem) -> bool:
    """Whether the values are followed by others in the same heads of a longer array, of NaN."""
    longer = longer_than(problem)
    return longer is not None and bool(np.isnan(longer).any())


def nan_everywhere(problem: Problem) -> Answers:
    return {name: one * np.nan for name, one in whole(problem).items()}


def root_in_bfloat16(problem: Problem) -> float:
    root = d(problem) ** 0.5
    return root / float(rounder("bfloat16")(np.asarray(np.float32(root))))


_WHEN: dict[str, When] = {
    "head_dim 2": lambda p: d(p) == 2,
    "head_dim 48": lambda p: d(p) == 48,
    "head_dim 64, one query": lambda p: d(p) == 64 and p.shape.queries == 1,
    "head_dim 96": lambda p: d(p) == 96,
    "head_dim 128, no mask": lambda p: d(p) == 128 and not p.mask,
    "head_dim 160": lambda p: d(p) == 160,
    "head_dim above 256": lambda p: d(p) > 256,
    "head_dim 192, value_dim 128": lambda p: d(p) == 192 and p.value.shape[-1] == 128,
    "value_dim above head_dim, causal": lambda p: p.value.shape[-1] > d(p) and causal(p),
    "whole tiles of 128": lambda p: p.shape.queries % 128 == p.shape.keys % 128 == 0,
    "few queries, many keys, causal": lambda p: causal(p) and 1 < p.shape.queries <= 16 < p.shape.keys // 4,
    "one query, over 1024 keys": lambda p: p.shape.queries == 1 and p.shape.keys > 1024,
    "scale above 1": lambda p: p.scale > 1,
    "12 heads": lambda p: p.shape.heads == 12,
    "over 64 heads": lambda p: p.shape.heads > 64,
    "over 32 batches": lambda p: p.shape.batch > 32,
    "over 65535 heads": lambda p: p.shape.heads > 65535,
    "two heads, over 512 keys": lambda p: p.shape.heads >= 2 and p.shape.keys > 512 and p.shape.queries > 1,
    "causal, over 2048": lambda p: causal(p) and min(p.shape[2:]) > 2048,
    "keys counted in 16 bits": lambda p: p.shape.keys > 65535,
    "queries counted in 15 bits": lambda p: p.shape.queries > 32767,
    "one batch for all": lambda p: p.shape.batch > 1 and p.key.strides[0] == 0,
    "values heads inside alone": lambda p: p.key.flags.c_contiguous and not p.value.flags.c_contiguous,
    "packed": lambda p: owner(p.query) is owner(p.key) and p.shape.keys > 1,
    "groups, one query": lambda p: p.group > 1 and p.shape.queries == 1,
    "groups of three": lambda p: p.group == 3,
    "groups, heads inside": lambda p: p.group > 1 and not p.query.flags.c_contiguous,
    "window over blocks": lambda p: p.shape.keys > 256 and any(one.kind == "window" for one in p.mask.parts),
    "sinks and groups": lambda p: p.sinks is not None and p.group > 1,
    "cap and bias": lambda p: p.softcap is not None and p.bias is not None,
    "a bias of 16 and more queries": lambda p: p.bias is not None and p.shape.queries > 128,
}
_BACK: dict[str, When] = {
    "dk: lengths differ": lambda p: p.shape.queries != p.shape.keys,
    "one query, backwards": lambda p: p.shape.queries == 1,
    "one head, backwards": lambda p: p.shape.heads == 1,
    "over 512 queries, backwards": lambda p: p.shape.queries > 512,
    "over 2048 keys, backwards": lambda p: p.shape.keys > 2048,
    "head_dim above 64, backwards": lambda p: d(p) > 64,
    "groups, backwards": lambda p: p.group > 1,
    "sinks, backwards": lambda p: p.sinks is not None,
    "window, backwards": lambda p: any(one.kind == "window" for one in p.mask.parts),
}
_RANGES: dict[str, Attention] = {
    "values below 2^-14 flushed": flushed("value", 2.0**-14),
    "queries below 2^-14 flushed": flushed("query", 2.0**-14),
    "values end at 448": limited("value", 448.0),
}
_HALF_RANGE = excused("float16", 65504.0, 65504.0, "float16 itself ends there, and no input is beyond it")

FAULTS = (
    *(where(name, when) for name, when in _WHEN.items()),
    *(where(name, when, direction=BACKWARD) for name, when in _BACK.items()),
    where(
        "one query, keys split, averaged", lambda p: p.shape.queries == 1 and p.shape.keys >= 512, averaged
    ),
    where("reads behind the values", read_behind, nan_everywhere),
    where("root of head_dim in bfloat16", lambda p: True, scaled_by(root_in_bfloat16)),
    where("0.5 % in the scale, causal", lambda p: causal(p) and d(p) >= 64, scaled_by(lambda p: 1.005)),
    *(Fault(name, make) for name, make in _RANGES.items()),
    Fault("values end at 65504", limited("value", 65504.0), excuses=_HALF_RANGE),
    Fault("queries end at 65504", limited("query", 65504.0), excuses=_HALF_RANGE),
    Fault(
        "maximum in bfloat16",
        parted(weights=shifted(lambda s: rounder("bfloat16")(s.max(axis=-1, keepdims=True)))),
    ),
)


def held_out(rng: np.random.Generator, direction: str = FORWARD) -> dict[str, Fault]:
    """Faults by the kind of their condition, drawn at random: what a table's author did not think of."""
    dim, eight = int(rng.integers(1, 257)), 8 * int(rng.integers(1, 33))
    heads, length = int(rng.integers(2, 13)), int(rng.integers(2, 1025))
    tile, rest = int(rng.choice([16, 32, 64, 128])), int(rng.integers(0, 16))
    longer, group = int(rng.choice([64, 128, 256, 512])), int(rng.integers(2, 9))
    conditions: dict[str, tuple[str, When]] = {
        "one head_dim": (f"head_dim {dim}", lambda p: d(p) == dim),
        "one head_dim of whole eights": (f"head_dim {eight}", lambda p: d(p) == eight),
        "head_dims above one": (f"head_dim above {dim}", lambda p: d(p) > dim),
        "one number of heads": (f"{heads} heads", lambda p: p.shape.heads == heads),
        "one size of groups": (f"groups of {group}", lambda p: p.group == group),
        "one length of keys": (f"{length} keys", lambda p: p.shape.keys == length),
        "a rest of keys after whole tiles": (
            f"{rest} keys after tiles of {tile}",
            lambda p: p.shape.keys > tile and p.shape.keys % tile == rest,
        ),
        "a rest of queries after whole tiles": (
            f"{rest} queries after tiles of {tile}",
            lambda p: p.shape.queries > tile and p.shape.queries % tile == rest,
        ),
        "more keys than one length, under a mask": (
            f"over {longer} keys under a mask",
            lambda p: p.shape.keys > longer and bool(p.mask),
        ),
        "a bias and a mask": ("a bias and a mask", lambda p: p.bias is not None and bool(p.mask)),
        "a cap and groups": ("a cap and groups", lambda p: p.softcap is not None and p.group > 1),
        "odd head_dim and a bias": (
            "odd head_dim and a bias",
            lambda p: d(p) % 2 == 1 and p.bias is not None,
        ),
        "decoding with a bias": (
            "one query and a bias",
            lambda p: p.shape.queries == 1 and p.bias is not None,
        ),
    }
    return {kind: where(name, when, direction=direction) for kind, (name, when) in conditions.items()}
