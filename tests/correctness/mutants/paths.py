"""Faults of one path, which occur only under one condition; and faults of memory: stale results, strides, chance.

The error on such a path is large, in most cases one lost key. What is tested is whether any question meets the
condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import Causal

from . import parts
from .contract import hiding, key, scaled
from .fault import BACKWARD, FORWARD, Fault, back, excused, given, inputs, then, unit
from .formula import shifted
from .parts import DK, DQ, DV, NAMES, OUTPUT, Answers, Array, Attention, Memory, rounder, whole

When = Callable[[Inputs], bool]


def key_lost(problem: Inputs) -> Answers:
    """Hide the last key, or the first one if there is a mask. With a single key, halve the values."""
    if problem.shape.keys == 1:
        return whole(problem.with_(value=problem.value / 2))
    return whole(hiding(key(0 if problem.mask else -1))(problem))


def where(name: str, when: When, path: Attention = key_lost, direction: str = FORWARD) -> Fault:
    """Right, but takes the faulty `path` if `when` holds; with direction BACKWARD for the gradients only."""
    wrong = back(path) if direction == BACKWARD else path
    return Fault(name, lambda problem: (wrong if when(problem) else whole)(problem), direction)


def d(problem: Inputs) -> int:
    return int(problem.query.shape[-1])


def causal(problem: Inputs) -> bool:
    return any(isinstance(part, Causal) for part in problem.mask.parts)


def limited(name: str, most: float) -> Attention:
    return given(inputs(lambda x: np.clip(x, -most, most).astype(x.dtype), name))


def flushed(name: str, least: float) -> Attention:
    return given(inputs(lambda x: np.where(np.abs(x) < least, 0, x).astype(x.dtype), name))


def averaged(problem: Inputs) -> Answers:
    """The unweighted mean over four quarters of the keys, each with its own softmax."""
    quarters = np.array_split(np.arange(problem.shape.keys), 4)
    cut = (problem.with_(key=problem.key[:, :, at], value=problem.value[:, :, at]) for at in quarters)
    found = [whole(one)[OUTPUT] for one in cut]
    return {OUTPUT: np.mean(found, axis=0).astype(found[0].dtype)}


def read_behind(problem: Inputs) -> bool:
    """Whether the values are a part of a longer array that contains NaN."""
    longer = longer_than(problem)
    return longer is not None and bool(np.isnan(longer).any())


def nan_everywhere(problem: Inputs) -> Answers:
    return {name: one * np.nan for name, one in whole(problem).items()}


def scale_of_coarse_root(problem: Inputs) -> float:
    """The scale, as if √head_dim had been rounded to bfloat16."""
    root = d(problem) ** 0.5
    return problem.scale * (root / float(rounder("bfloat16")(np.asarray(np.float32(root)))))


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
_HALF_RANGE = excused("float16", 65504.0, 65504.0, "float16 itself ends there, and no input is beyond it")

PATHS = (
    *(where(name, when) for name, when in _WHEN.items()),
    *(where(name, when, direction=BACKWARD) for name, when in _BACK.items()),
    where(
        "one query, keys split, averaged", lambda p: p.shape.queries == 1 and p.shape.keys >= 512, averaged
    ),
    where("reads behind the values", read_behind, nan_everywhere),
    Fault("root of head_dim in bfloat16", given(scaled(scale_of_coarse_root))),
    where(
        "0.5 % in the scale, causal",
        lambda p: causal(p) and d(p) >= 64,
        given(scaled(lambda p: p.scale * 1.005)),
    ),
    Fault("values below 2^-14 flushed", flushed("value", 2.0**-14)),
    Fault("queries below 2^-14 flushed", flushed("query", 2.0**-14)),
    Fault("values end at 448", limited("value", 448.0)),
    Fault("values end at 65504", limited("value", 65504.0), excuses=_HALF_RANGE),
    Fault("queries end at 65504", limited("query", 65504.0), excuses=_HALF_RANGE),
    Fault(
        "maximum in bfloat16", parts.parted(weights=shifted(parts.after(parts.highest, rounder("bfloat16"))))
    ),
)


# -- memory: stale results, incomplete cache keys, arrays that change


Names = tuple[str, ...]

ARRAYS = ("query", "key", "value", "output_gradient")
#: the parts of a complete cache key, on all of which an answer depends; faults leave one of them out
_KEY: dict[str, Callable[[Inputs], Any]] = {
    "arrays": lambda p: tuple(np.asarray(x).tobytes() for x in arrays_of(p)),
    "shapes": lambda p: tuple(x.shape for x in arrays_of(p)),
    "dtype": lambda p: p.dtype,
    "strides": lambda p: tuple(x.strides for x in arrays_of(p)),
    "mask": lambda p: (m := p.mask.array(p.shape)) is not None and np.broadcast_to(m, p.shape).tobytes(),
    "bias": lambda p: None if p.bias is None else np.asarray(p.bias_array).tobytes(),
    "scale": lambda p: p.scale,
    "cap": lambda p: p.softcap,
    "sinks": lambda p: None if p.sinks is None else p.sinks.tobytes(),
}


def arrays_of(problem: Inputs) -> list[Array]:
    return [x for name in ARRAYS if (x := getattr(problem, name)) is not None]


def fits(stale: Array | None, right: Array) -> bool:
    return stale is not None and (stale.shape, stale.dtype) == (right.shape, right.dtype)


def without(*left_out: str) -> tuple[str, ...]:
    return tuple(name for name in _KEY if name not in left_out)


@parts.remembering
def kept_by(memory: Memory, key: Names, kept: Names, problem: Inputs) -> Answers:
    """The answers named in `kept` are those of the first call with the same key; the others are right."""
    right = whole(problem)
    stale = memory.setdefault(tuple(_KEY[name](problem) for name in key), right)
    return {
        name: stale[name].copy() if name in kept and fits(stale.get(name), one) else one
        for name, one in right.items()
    }


@parts.remembering
def kernel_kept(memory: Memory, key: Names, problem: Inputs) -> Answers:
    """All that the kernel was made for, except the arrays, is that of the first call with the same key."""
    first = memory.setdefault(tuple(_KEY[name](problem) for name in key), problem)
    own = {name: getattr(first, name) for name in ("mask", "bias", "softcap", "sinks", "scale")}
    return whole(problem.with_(**own) if first.shape == problem.shape else problem)


@parts.remembering
def dtype_kept(memory: Memory, problem: Inputs) -> Answers:
    """The kernel computes in the dtype of the first call with these shapes."""
    first = memory.setdefault(_KEY["shapes"](problem), problem.dtype)
    found = whole(problem, first if "float64" not in (first, problem.dtype) else None)
    return {name: one.astype(problem.query.dtype) for name, one in found.items()}


@parts.remembering
def strides_kept(memory: Memory, problem: Inputs) -> Answers:
    """The keys are read with the strides of the first call with this shape."""
    first = memory.setdefault(problem.key.shape, problem.key.strides)
    return whole(problem.with_(key=reread(problem.key, first)))


def key_strides_for_values(problem: Inputs) -> Answers:
    alike = problem.key.shape == problem.value.shape
    return whole(problem.with_(value=reread(problem.value, problem.key.strides)) if alike else problem)


def reread(array: Array, strides: tuple[int, ...]) -> Array:
    """The array as read from its memory with other strides."""
    if strides == array.strides:
        return array
    memory = np.ravel(owner(array), order="K")
    steps = zip(array.shape, strides, strict=True)
    at = sum(np.ix_(*(np.arange(n) * (step // array.itemsize) for n, step in steps)))
    return memory[np.minimum(at, memory.size - 1)].astype(array.dtype)


def owner(array: Array) -> Array:
    """The array that owns the memory of `array`."""
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array


@parts.remembering
def identical(memory: Memory, which: str, copy_only: bool, problem: Inputs) -> Answers:
    """Reuse an answer, or a copy of one input, while that input has the same address, shape, strides and dtype."""
    given = getattr(problem, which)
    place = given.__array_interface__["data"][0], given.shape, given.strides, problem.dtype
    if memory.get("place") != place:
        memory.update(place=place, kept=given.copy() if copy_only else whole(problem))
    return whole(problem.with_(**{which: memory["kept"]})) if copy_only else memory["kept"]


@parts.remembering
def one_behind(memory: Memory, name: str, problem: Inputs) -> Answers:
    """Return the answer of the call before, if the shapes agree: a missing synchronisation."""
    found, before = whole(problem), memory.get(name)
    if name in found:
        memory[name] = found[name].copy()
        if fits(before, found[name]):
            found[name] = before
    return found


@parts.remembering
def buffers(memory: Memory, count: int, name: str, problem: Inputs) -> Answers:
    """Answers of one shape are written into one of `count` arrays in turn."""
    found = whole(problem)
    if name in found:
        answer = found[name]
        turn = memory[answer.shape] = (memory.get(answer.shape, -1) + 1) % count
        found[name] = memory.setdefault((answer.shape, answer.dtype, turn), answer)
        found[name][...] = answer
    return found


@parts.remembering
def not_cleared(memory: Memory, names: Names, problem: Inputs) -> Answers:
    """An accumulator that is not cleared between two calls on the same arrays."""
    found = whole(problem)
    key = tuple(part(problem) for part in _KEY.values())
    for name in set(names) & set(found):
        memory[name, key] = found[name] = memory.get((name, key), 0) + found[name]
    return {name: one.copy() for name, one in found.items()}


def written_over(name: str, which: str) -> Attention:
    """Write an answer over an input, if their shapes are equal and the input is writable."""

    def change(found: Answers, problem: Inputs) -> None:
        array = getattr(problem, which)
        if name in found and array.shape == found[name].shape and array.flags.writeable:
            array[...] = found[name]
            found[name] = array

    return then(change)


def scaled_in_place(which: str) -> Attention:
    def change(found: Answers, problem: Inputs) -> None:
        array = getattr(problem, which)
        if array is not None and array.flags.writeable:
            array *= array.dtype.type(0.25)

    return then(change)


def value_itself(found: Answers, problem: Inputs) -> None:
    """With one key and one query the answer is the value: return the value array itself, not a copy."""
    further = (problem.bias, problem.softcap, problem.sinks)
    plain = all(one is None for one in further) and problem.group == 1 and not problem.mask
    if problem.shape[2:] == (1, 1) and plain:
        found[OUTPUT] = problem.value


def longer_than(problem: Inputs) -> Array | None:
    """The array that contains the values, if it has more than three further positions; else None."""
    longer, shape = owner(problem.value), problem.value.shape
    return longer if longer.ndim == 4 and longer.shape[2] > shape[2] + 3 else None


def cleared_behind(found: Answers, problem: Inputs) -> None:
    """Write zeros at the end of a longer array that contains the values, as if its last tile were cleared."""
    longer = longer_than(problem)
    if longer is not None and longer.shape[:2] == problem.value.shape[:2]:
        longer[:, :, -1] = 0


def flat(array: Array) -> Array:
    """The array as read from its memory in order, as if it were contiguous."""
    if array.flags.c_contiguous or array.base is None:
        return array
    return np.resize(np.ravel(owner(array), order="K"), array.size).reshape(array.shape).astype(array.dtype)


def blind_to_strides(*which: str) -> Attention:
    return given(inputs(flat, *which))


@parts.remembering
def breaks_after(memory: Memory, calls: int, name: str, problem: Inputs) -> Answers:
    """Right in the first `calls` calls; later 10 % too large."""
    memory["calls"] = memory.get("calls", 0) + 1
    found = whole(problem)
    if name in found and memory["calls"] > calls:
        found[name] = (found[name] * found[name].dtype.type(1.1)).astype(found[name].dtype)
    return found


@parts.remembering
def one_call_in(memory: Memory, calls: int, problem: Inputs) -> Answers:
    """A row of zeros, at random in one of `calls` calls, if there are several blocks (over 256 keys)."""
    found, rng = whole(problem), memory.setdefault("rng", np.random.default_rng(0))
    if problem.shape.keys > 256 and rng.random() < 1 / calls:
        found[OUTPUT][:, :, -1] = 0
    return found


def raises(found: Answers, problem: Inputs) -> None:
    if problem.shape.queries != problem.shape.keys:
        raise ValueError("queries and keys must be as many")


_FIRST_IN_FLOAT32 = excused(
    "float32", unit("float32"), unit("float16"), "what is asked in float16 later is computed in float32"
)

MEMORY = (
    Fault("kept by shape", kept_by(("shapes", "dtype"), NAMES)),
    *(
        Fault(f"kept without the {name}", kept_by(without(name), NAMES))
        for name in ("mask", "bias", "scale", "cap", "sinks")
    ),
    Fault("kernel kept by shape and dtype", kernel_kept(("shapes", "dtype"))),
    Fault("kernel kept by shape, dtype and scale", kernel_kept(("shapes", "dtype", "scale"))),
    *(
        Fault(f"kernel kept without the {name}", kernel_kept(without("arrays", name)))
        for name in ("cap", "mask", "bias")
    ),
    Fault("strides kept by shape", strides_kept()),
    Fault("answer kept by the place of the query", identical("query", False)),
    Fault("copy of the query kept by its place", identical("query", True)),
    Fault("copy of the keys kept by their place", identical("key", True)),
    Fault("dtype kept by shape", dtype_kept(), excuses=_FIRST_IN_FLOAT32),
    Fault("gradients kept without the mask", kept_by(without("mask"), NAMES[1:]), BACKWARD),
    Fault("gradients kept by shape", kept_by(("shapes", "dtype"), NAMES[1:]), BACKWARD),
    Fault("gradient kernel kept by shape", kernel_kept(("shapes", "dtype")), BACKWARD),
    Fault("one call behind", one_behind(OUTPUT)),
    Fault("dk: one call behind", one_behind(DK), BACKWARD),
    Fault("output array used again", buffers(1, OUTPUT)),
    Fault("three outputs in turn", buffers(3, OUTPUT)),
    Fault("dv: one array used again", buffers(1, DV), BACKWARD),
    Fault("accumulator not cleared", not_cleared((OUTPUT,))),
    Fault("dk, dv: accumulators not cleared", not_cleared((DK, DV)), BACKWARD),
    Fault("output written over the values", written_over(OUTPUT, "value")),
    Fault("dq written over the query", written_over(DQ, "query"), BACKWARD),
    Fault("returns the value array itself", then(value_itself)),
    Fault("scales the query in place", scaled_in_place("query")),
    Fault("changes the output gradient", scaled_in_place("output_gradient"), BACKWARD),
    Fault("clears behind the values", then(cleared_behind)),
    Fault("strides not obeyed", blind_to_strides("query", "key", "value")),
    Fault("output gradient: strides not obeyed", blind_to_strides("output_gradient"), BACKWARD),
    Fault("keys' strides for the values", key_strides_for_values),
    Fault("breaks after 20 calls", breaks_after(20, OUTPUT)),
    Fault("dk: breaks after 20 calls", breaks_after(20, DK), BACKWARD),
    Fault("one call in ten, several blocks", one_call_in(10)),
    Fault("raises where lengths differ", then(raises)),
    Fault("raises where lengths differ, backwards", then(raises), BACKWARD),
)
