"""Faults of memory: stale results, keys of a cache that leave something out, arrays that change, strides, chance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.contract.problem import Problem

from .fault import BACKWARD, Fault, excused, unit
from .parts import DK, DQ, DV, NAMES, OUTPUT, Answers, Array, Attention, Make, whole

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


def remembering(make: Make) -> Make:
    """One instance for all dtypes, which it takes from the problem."""
    make.remembers = True  # type: ignore[attr-defined]
    return make


def arrays_of(problem: Problem) -> list[Array]:
    return [x for name in ARRAYS if (x := getattr(problem, name)) is not None]


def kept_by(names: tuple[str, ...], *kept: str) -> Make:
    """Answers `kept`, or all, are those of the first call that had the same key; right otherwise."""

    def make(dtype: str) -> Attention:
        cache: dict[Any, Answers] = {}

        def attend(problem: Problem) -> Answers:
            key = tuple(_KEY[name](problem) for name in names)
            right = whole(problem, problem.dtype)
            stale = cache.setdefault(key, right)
            chosen = kept or tuple(right)
            return {
                name: stale[name].copy() if name in chosen and fits(stale.get(name), one) else one
                for name, one in right.items()
            }

        return attend

    return remembering(make)


def fits(stale: Array | None, right: Array) -> bool:
    return stale is not None and (stale.shape, stale.dtype) == (right.shape, right.dtype)


def without(*left_out: str) -> tuple[str, ...]:
    return tuple(name for name in _KEY if name not in left_out)


def kernel_kept(*names: str) -> Make:
    """What the kernel was made for, all but the arrays, is that of the first call that had the same key."""

    def make(dtype: str) -> Attention:
        cache: dict[Any, Problem] = {}

        def attend(problem: Problem) -> Answers:
            first = cache.setdefault(tuple(_KEY[name](problem) for name in names), problem)
            made = problem.with_(
                mask=first.mask, bias=first.bias, softcap=first.softcap, sinks=first.sinks, scale=first.scale
            )
            return whole(made if first.shape == problem.shape else problem, problem.dtype)

        return attend

    return remembering(make)


@remembering
def dtype_kept(dtype: str) -> Attention:
    """The dtype that a kernel was compiled for is that of the first call with these shapes."""
    cache: dict[Any, str] = {}

    def attend(problem: Problem) -> Answers:
        first = cache.setdefault(_KEY["shapes"](problem), problem.dtype)
        found = whole(problem, first if "float64" not in (first, problem.dtype) else problem.dtype)
        return {name: one.astype(problem.query.dtype) for name, one in found.items()}

    return attend


@remembering
def strides_kept(dtype: str) -> Attention:
    """The strides of the keys are those of the first call with these shapes."""
    cache: dict[Any, tuple[int, ...]] = {}

    def attend(problem: Problem) -> Answers:
        strides = cache.setdefault(problem.key.shape, problem.key.strides)
        memory = owner(problem.key)
        flat = np.ravel(memory, order="K")
        at = sum(
            np.ix_(
                *(
                    np.arange(n) * (s // flat.itemsize)
                    for n, s in zip(problem.key.shape, strides, strict=True)
                )
            )
        )
        read = problem.key if strides == problem.key.strides else flat[np.minimum(at, flat.size - 1)]
        return whole(problem.with_(key=read.astype(problem.key.dtype)), problem.dtype)

    return attend


def owner(array: Array) -> Array:
    """The array that holds its memory."""
    while array.base is not None and isinstance(array.base, np.ndarray):
        array = array.base
    return array


def identical(which: str, copy_only: bool) -> Make:
    """An answer, or a copy of one input, is kept as long as the caller's array is the same object or place."""

    def make(dtype: str) -> Attention:
        kept: list[Any] = [None, None]

        def attend(problem: Problem) -> Answers:
            given = getattr(problem, which)
            place = given.__array_interface__["data"][0], given.shape, given.strides, problem.dtype
            if kept[0] != place:
                kept[:] = place, given.copy() if copy_only else whole(problem, problem.dtype)
            return whole(problem.with_(**{which: kept[1]}), problem.dtype) if copy_only else kept[1]

        return attend

    return remembering(make)


def one_behind(*names: str) -> Make:
    """Returns what belongs to the call before, where the shapes agree: a missing synchronisation."""

    def make(dtype: str) -> Attention:
        before: Answers = {}

        def attend(problem: Problem) -> Answers:
            found = whole(problem, problem.dtype)
            given = {
                name: before[name].copy() if name in names and fits(before.get(name), one) else one
                for name, one in found.items()
            }
            before.update({name: one.copy() for name, one in found.items()})
            return given

        return attend

    return remembering(make)


def buffers(count: int, *names: str) -> Make:
    """Answers of one shape are written into one of `count` arrays in turn."""

    def make(dtype: str) -> Attention:
        kept: dict[Any, Array] = {}
        turns: dict[Any, int] = {}

        def attend(problem: Problem) -> Answers:
            found = whole(problem, problem.dtype)
            for name in set(names) & set(found):
                answer = found[name]
                turn = turns[name, answer.shape] = (turns.get((name, answer.shape), -1) + 1) % count
                held = kept.setdefault((name, answer.shape, answer.dtype, turn), answer)
                held[...] = answer
                found[name] = held
            return found

        return attend

    return remembering(make)


def not_cleared(*names: str) -> Make:
    """An accumulator that is not cleared between two calls on the same arrays."""

    def make(dtype: str) -> Attention:
        kept: dict[Any, Array] = {}

        def attend(problem: Problem) -> Answers:
            found = whole(problem, problem.dtype)
            key = tuple(part(problem) for part in _KEY.values())
            for name in set(names) & set(found):
                kept[name, key] = found[name] = kept.get((name, key), 0) + found[name]
            return {name: one.copy() for name, one in found.items()}

        return attend

    return remembering(make)


def around(change: Callable[[Answers, Problem], Answers]) -> Make:
    """The right answers, and something done with the caller's arrays."""
    return lambda dtype: lambda problem: change(whole(problem, dtype), problem)


def written_over(name: str, which: str) -> Callable[[Answers, Problem], Answers]:
    """An answer is written over an input where the shapes allow it."""

    def change(found: Answers, problem: Problem) -> Answers:
        array = getattr(problem, which)
        if name not in found or array.shape != found[name].shape or not array.flags.writeable:
            return found
        array[...] = found[name]
        return found | {name: array}

    return change


def scaled_in_place(which: str) -> Callable[[Answers, Problem], Answers]:
    def change(found: Answers, problem: Problem) -> Answers:
        array = getattr(problem, which)
        if array is not None and array.flags.writeable:
            array *= array.dtype.type(0.25)
        return found

    return change


def value_itself(found: Answers, problem: Problem) -> Answers:
    """With one key and one query the answer is the value: returned as it is, not copied."""
    one = problem.shape[2:] == (1, 1) and problem.plain and problem.group == 1 and not problem.mask
    return found | {OUTPUT: problem.value} if one else found


def cleared_behind(found: Answers, problem: Problem) -> Answers:
    """The last tile of values is cleared beyond the last key, where there is more of a longer array."""
    longer = owner(problem.value)
    if (
        longer.ndim == 4
        and longer.shape[:2] == problem.value.shape[:2]
        and longer.shape[2] > problem.shape.keys + 3
    ):
        longer[:, :, -1] = 0
    return found


def flat(array: Array) -> Array:
    """Memory read in order, as if the array were contiguous."""
    if array.flags.c_contiguous or array.base is None:
        return array
    return np.resize(np.ravel(owner(array), order="K"), array.size).reshape(array.shape).astype(array.dtype)


def blind_to_strides(*which: str) -> Make:
    def make(dtype: str) -> Attention:
        def attend(problem: Problem) -> Answers:
            read = {name: flat(x) for name in which if (x := getattr(problem, name)) is not None}
            return whole(problem.with_(**read), dtype)

        return attend

    return make


def key_strides_for_values(dtype: str) -> Attention:
    def attend(problem: Problem) -> Answers:
        k, v = problem.key, problem.value
        if k.shape != v.shape or k.strides == v.strides:
            return whole(problem, dtype)
        memory = np.ravel(owner(v), order="K")
        at = sum(np.ix_(*(np.arange(n) * (s // k.itemsize) for n, s in zip(k.shape, k.strides, strict=True))))
        return whole(problem.with_(value=memory[np.minimum(at, memory.size - 1)].astype(v.dtype)), dtype)

    return attend


def breaks_after(calls: int, *names: str) -> Make:
    """Right at first; later 10 % too large."""

    def make(dtype: str) -> Attention:
        count = [0]

        def attend(problem: Problem) -> Answers:
            count[0] += 1
            found = whole(problem, dtype)
            for name in set(names) & set(found) if count[0] > calls else ():
                found[name] = (found[name] * found[name].dtype.type(1.1)).astype(found[name].dtype)
            return found

        return attend

    return make


def one_call_in(calls: int) -> Make:
    """A row of zeros in one of so many calls, at random, where there are several blocks."""

    def make(dtype: str) -> Attention:
        rng = np.random.default_rng(0)

        def attend(problem: Problem) -> Answers:
            found = whole(problem, dtype)
            if problem.shape.keys > 256 and rng.random() < 1 / calls:
                found[OUTPUT][:, :, -1] = 0
            return found

        return attend

    return make


def raises(found: Answers, problem: Problem) -> Answers:
    if problem.shape.queries != problem.shape.keys:
        raise ValueError("queries and keys must be as many")
    return found


_CACHES = {
    "kept by shape": kept_by(("shapes", "dtype")),
    "kept without the mask": kept_by(without("mask")),
    "kept without the bias": kept_by(without("bias")),
    "kept without the scale": kept_by(without("scale")),
    "kept without the cap": kept_by(without("softcap")),
    "kept without the sinks": kept_by(without("sinks")),
    "kernel kept by shape and dtype": kernel_kept("shapes", "dtype"),
    "kernel kept by shape, dtype and scale": kernel_kept("shapes", "dtype", "scale"),
    "kernel kept without the cap": kernel_kept(*without("arrays", "softcap")),
    "kernel kept without the mask": kernel_kept(*without("arrays", "mask")),
    "kernel kept without the bias": kernel_kept(*without("arrays", "bias")),
    "strides kept by shape": strides_kept,
    "answer kept by the place of the query": identical("query", copy_only=False),
    "copy of the query kept by its place": identical("query", copy_only=True),
    "copy of the keys kept by their place": identical("key", copy_only=True),
}

_FIRST_IN_FLOAT32 = excused(
    "float32", unit("float32"), unit("float16"), "what is asked in float16 later is computed in float32"
)

FAULTS = (
    *(Fault(name, make) for name, make in _CACHES.items()),
    Fault("dtype kept by shape", dtype_kept, excuses=_FIRST_IN_FLOAT32),
    Fault("gradients kept without the mask", kept_by(without("mask"), *NAMES[1:]), BACKWARD),
    Fault("gradients kept by shape", kept_by(("shapes", "dtype"), *NAMES[1:]), BACKWARD),
    Fault("gradient kernel kept by shape", kernel_kept("shapes", "dtype"), BACKWARD),
    Fault("one call behind", one_behind(OUTPUT)),
    Fault("dk: one call behind", one_behind(DK), BACKWARD),
    Fault("output array used again", buffers(1, OUTPUT)),
    Fault("three outputs in turn", buffers(3, OUTPUT)),
    Fault("dv: one array used again", buffers(1, DV), BACKWARD),
    Fault("accumulator not cleared", not_cleared(OUTPUT)),
    Fault("dk, dv: accumulators not cleared", not_cleared(DK, DV), BACKWARD),
    Fault("output written over the values", around(written_over(OUTPUT, "value"))),
    Fault("dq written over the query", around(written_over(DQ, "query")), BACKWARD),
    Fault("returns the value array itself", around(value_itself)),
    Fault("scales the query in place", around(scaled_in_place("query"))),
    Fault("changes the output gradient", around(scaled_in_place("output_gradient")), BACKWARD),
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
