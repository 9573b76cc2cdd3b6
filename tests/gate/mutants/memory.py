"""Faults of memory: stale results, keys of a cache that leave something out, arrays that change, strides, chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.problem.problem import Problem

from .fault import BACKWARD, Fault, excused, unit
from .parts import (
    DK,
    DQ,
    DV,
    NAMES,
    OUTPUT,
    Answers,
    Array,
    Attention,
    Memory,
    Remembering,
    remembering,
    whole,
)

Names = tuple[str, ...]

ARRAYS = ("query", "key", "value", "output_gradient")
#: what an answer depends on, as the key of a cache; faults leave one of them out
_KEY: dict[str, Callable[[Problem], Any]] = {
    "arrays": lambda p: tuple(np.asarray(x).tobytes() for x in arrays_of(p)),
    "shapes": lambda p: tuple(x.shape for x in arrays_of(p)),
    "dtype": lambda p: p.dtype,
    "strides": lambda p: tuple(x.strides for x in arrays_of(p)),
    "mask": lambda p: (m := p.mask.array(p.shape)) is not None and np.broadcast_to(m, p.shape).tobytes(),
    "bias": lambda p: None if p.bias is None else np.asarray(p.bias_array).tobytes(),
    "scale": lambda p: p.scale,
    "softcap": lambda p: p.softcap,
    "sinks": lambda p: None if p.sinks is None else p.sinks.tobytes(),
}


def arrays_of(problem: Problem) -> list[Array]:
    return [x for name in ARRAYS if (x := getattr(problem, name)) is not None]


def fits(stale: Array | None, right: Array) -> bool:
    return stale is not None and (stale.shape, stale.dtype) == (right.shape, right.dtype)


def without(*left_out: str) -> tuple[str, ...]:
    return tuple(name for name in _KEY if name not in left_out)


@remembering
def kept_by(memory: Memory, key: Names, kept: Names, problem: Problem) -> Answers:
    """Answers `kept` are those of the first call that had the same key; right otherwise."""
    right = whole(problem)
    stale = memory.setdefault(tuple(_KEY[name](problem) for name in key), right)
    return {
        name: stale[name].copy() if name in kept and fits(stale.get(name), one) else one
        for name, one in right.items()
    }


@remembering
def kernel_kept(memory: Memory, key: Names, problem: Problem) -> Answers:
    """What the kernel was made for, all but the arrays, is that of the first call that had the same key."""
    first = memory.setdefault(tuple(_KEY[name](problem) for name in key), problem)
    own = {name: getattr(first, name) for name in ("mask", "bias", "softcap", "sinks", "scale")}
    return whole(problem.with_(**own) if first.shape == problem.shape else problem)


@remembering
def dtype_kept(memory: Memory, problem: Problem) -> Answers:
    """The dtype that a kernel was compiled for is that of the first call with these shapes."""
    first = memory.setdefault(_KEY["shapes"](problem), problem.dtype)
    found = whole(problem, first if "float64" not in (first, problem.dtype) else None)
    return {name: one.astype(problem.query.dtype) for name, one in found.items()}


@remembering
def strides_kept(memory: Memory, problem: Problem) -> Answers:
    """The strides of the keys are those of the first call with these shapes."""
    return whole(
        problem.with_(key=reread(problem.key, memory.setdefault(problem.key.shape, problem.key.strides)))
    )


def key_strides_for_values(problem: Problem) -> Answers:
    alike = problem.key.shape == problem.value.shape
    return whole(problem.with_(value=reread(problem.value, problem.key.strides)) if alike else problem)


def reread(array: Array, strides: tuple[int, ...]) -> Array:
    """What lies in its memory under other strides."""
    if strides == array.strides:
        return array
    memory = np.ravel(owner(array), order="K")
    steps = zip(array.shape, strides, strict=True)
    at = sum(np.ix_(*(np.arange(n) * (step // array.itemsize) for n, step in steps)))
    return memory[np.minimum(at, memory.size - 1)].astype(array.dtype)


def owner(array: Array) -> Array:
    """The array that holds its memory."""
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array


@remembering
def identical(memory: Memory, which: str, copy_only: bool, problem: Problem) -> Answers:
    """An answer, or a copy of one input, is kept as long as the caller's array is the same object or place."""
    given = getattr(problem, which)
    place = given.__array_interface__["data"][0], given.shape, given.strides, problem.dtype
    if memory.get("place") != place:
        memory.update(place=place, kept=given.copy() if copy_only else whole(problem))
    return whole(problem.with_(**{which: memory["kept"]})) if copy_only else memory["kept"]


@remembering
def one_behind(memory: Memory, name: str, problem: Problem) -> Answers:
    """Returns what belongs to the call before, where the shapes agree: a missing synchronisation."""
    found = whole(problem)
    before = memory.get(name)
    if name in found:
        memory[name] = found[name].copy()
    return (
        {**found, name: before}
        if before is not None and name in found and fits(before, found[name])
        else found
    )


@remembering
def buffers(memory: Memory, count: int, name: str, problem: Problem) -> Answers:
    """Answers of one shape are written into one of `count` arrays in turn."""
    found = whole(problem)
    if name in found:
        answer = found[name]
        turn = memory[answer.shape] = (memory.get(answer.shape, -1) + 1) % count
        found[name] = memory.setdefault((answer.shape, answer.dtype, turn), answer)
        found[name][...] = answer
    return found


@remembering
def not_cleared(memory: Memory, names: Names, problem: Problem) -> Answers:
    """An accumulator that is not cleared between two calls on the same arrays."""
    found = whole(problem)
    key = tuple(part(problem) for part in _KEY.values())
    for name in set(names) & set(found):
        memory[name, key] = found[name] = memory.get((name, key), 0) + found[name]
    return {name: one.copy() for name, one in found.items()}


def around(change: Callable[[Answers, Problem], Answers]) -> Attention:
    """The right answers, and something done with the caller's arrays."""
    return lambda problem: change(whole(problem), problem)


def written_over(name: str, which: str) -> Attention:
    """An answer is written over an input where the shapes allow it."""

    def change(found: Answers, problem: Problem) -> Answers:
        array = getattr(problem, which)
        if name not in found or array.shape != found[name].shape or not array.flags.writeable:
            return found
        array[...] = found[name]
        return found | {name: array}

    return around(change)


def scaled_in_place(which: str) -> Attention:
    def change(found: Answers, problem: Problem) -> Answers:
        array = getattr(problem, which)
        if array is not None and array.flags.writeable:
            array *= array.dtype.type(0.25)
        return found

    return around(change)


def value_itself(found: Answers, problem: Problem) -> Answers:
    """With one key and one query the answer is the value: returned as it is, not copied."""
    one = problem.shape[2:] == (1, 1) and problem.plain and problem.group == 1 and not problem.mask
    return found | {OUTPUT: problem.value} if one else found


def longer_than(problem: Problem) -> Array | None:
    """The array in whose same heads the values are followed by others."""
    longer, shape = owner(problem.value), problem.value.shape
    return longer if longer.ndim == 4 and longer.shape[2] > shape[2] + 3 else None


def cleared_behind(found: Answers, problem: Problem) -> Answers:
    """The last tile of values is cleared beyond the last key, where there is more of a longer array."""
    longer = longer_than(problem)
    if longer is not None and longer.shape[:2] == problem.value.shape[:2]:
        longer[:, :, -1] = 0
    return found


def flat(array: Array) -> Array:
    """Memory read in order, as if the array were contiguous."""
    if array.flags.c_contiguous or array.base is None:
        return array
    return np.resize(np.ravel(owner(array), order="K"), array.size).reshape(array.shape).astype(array.dtype)


def blind_to_strides(*which: str) -> Attention:
    return lambda p: whole(
        p.with_(**{name: flat(x) for name in which if (x := getattr(p, name)) is not None})
    )


@remembering
def breaks_after(memory: Memory, calls: int, name: str, problem: Problem) -> Answers:
    """Right at first; later 10 % too large."""
    memory["calls"] = memory.get("calls", 0) + 1
    found = whole(problem)
    if name in found and memory["calls"] > calls:
        found[name] = (found[name] * found[name].dtype.type(1.1)).astype(found[name].dtype)
    return found


@remembering
def one_call_in(memory: Memory, calls: int, problem: Problem) -> Answers:
    """A row of zeros in one of so many calls, at random, where there are several blocks."""
    found, rng = whole(problem), memory.setdefault("rng", np.random.default_rng(0))
    if problem.shape.keys > 256 and rng.random() < 1 / calls:
        found[OUTPUT][:, :, -1] = 0
    return found


def raises(found: Answers, problem: Problem) -> Answers:
    if problem.shape.queries != problem.shape.keys:
        raise ValueError("queries and keys must be as many")
    return found


_CACHES: dict[str, Remembering] = {
    "kept by shape": kept_by(("shapes", "dtype"), NAMES),
    **{
        f"kept without the {name}": kept_by(without(field), NAMES)
        for name, field in (
            ("mask", "mask"),
            ("bias", "bias"),
            ("scale", "scale"),
            ("cap", "softcap"),
            ("sinks", "sinks"),
        )
    },
    "kernel kept by shape and dtype": kernel_kept(("shapes", "dtype")),
    "kernel kept by shape, dtype and scale": kernel_kept(("shapes", "dtype", "scale")),
    **{
        f"kernel kept without the {name}": kernel_kept(without("arrays", field))
        for name, field in (("cap", "softcap"), ("mask", "mask"), ("bias", "bias"))
    },
    "strides kept by shape": strides_kept(),
    "answer kept by the place of the query": identical("query", False),
    "copy of the query kept by its place": identical("query", True),
    "copy of the keys kept by their place": identical("key", True),
}

_FIRST_IN_FLOAT32 = excused(
    "float32", unit("float32"), unit("float16"), "what is asked in float16 later is computed in float32"
)

FAULTS = (
    *(Fault(name, make) for name, make in _CACHES.items()),
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
    Fault("returns the value array itself", around(value_itself)),
    Fault("scales the query in place", scaled_in_place("query")),
    Fault("changes the output gradient", scaled_in_place("output_gradient"), BACKWARD),
    Fault("clears behind the values", around(cleared_behind)),
    Fault("strides not obeyed", blind_to_strides("query", "key", "value")),
    Fault("output gradient: strides not obeyed", blind_to_strides("output_gradient"), BACKWARD),
    Fault("keys' strides for the values", key_strides_for_values),
    Fault("breaks after 20 calls", breaks_after(20, OUTPUT)),
    Fault("dk: breaks after 20 calls", breaks_after(20, DK), BACKWARD),
    Fault("one call in ten, several blocks", one_call_in(10)),
    Fault("raises where lengths differ", around(raises)),
    Fault("raises where lengths differ, backwards", around(raises), BACKWARD),
)
