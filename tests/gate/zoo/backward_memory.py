"""Faults of memory on the way back: stale results, arrays that change or are shared, strides, noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .backward_parts import RESULTS, Backward, Four, then, whole, with_parts
from .fault import Fault
from .parts import Array

_PLACES = {name: at for at, name in enumerate(RESULTS)}


def right(dtype: str) -> Backward:
    """What is right."""
    return with_parts()(dtype)


def around(change: Callable[[Backward, Four, dict[str, Any]], Four]) -> Callable[[str], Backward]:
    """change(right gradients, (q, k, v, g), options) in the place of the right ones."""

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            return change(right(dtype), (q, k, v, g), options)

        return gradients

    return make


def replaced(found: Four, **by_name: Array) -> Four:
    """Some of the four exchanged."""
    return tuple(by_name.get(name, one) for name, one in zip(RESULTS, found, strict=True))  # type: ignore[return-value]


def stale(*results: str) -> Callable[[str], Backward]:
    """`results` are what they were when first asked with these shapes."""

    def make(dtype: str) -> Backward:
        kept: dict[Any, Four] = {}

        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            found = right(dtype)(q, k, v, g, **options)
            first = kept.setdefault((q.shape, k.shape, v.shape, tuple(options.items())), found)
            return replaced(found, **{name: first[_PLACES[name]].copy() for name in results})

        return gradients

    return make


def one_behind(dtype: str) -> Backward:
    """dk of the call before, where the shapes agree: a missing synchronisation."""
    kept: list[Array] = []

    def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
        found = right(dtype)(q, k, v, g, **options)
        kept.append(found[2])
        before = kept.pop(0) if len(kept) > 1 else found[2]
        return replaced(found, key=before.copy()) if before.shape == found[2].shape else found

    return gradients


def stale_offset(dtype: str) -> Backward:
    """D of the output that the last call of this shape saved."""
    kept: dict[Any, Array] = {}

    def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
        def save(o: Array) -> Array:
            before = kept.get(o.shape, o)
            kept[o.shape] = o
            return before

        return whole(
            q,
            k,
            v,
            g,
            **options,
            dtype=dtype,
            save=save,
            offset=lambda p, a, g, o: (g * o).sum(-1, keepdims=True),
        )

    return gradients


def not_cleared(*results: str) -> Callable[[str], Backward]:
    """Gradients of two calls on the same arrays add up."""

    def make(dtype: str) -> Backward:
        kept: dict[Any, Array] = {}

        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            found = right(dtype)(q, k, v, g, **options)
            for name in results:
                key = (name, q.tobytes(), k.tobytes(), v.tobytes(), g.tobytes(), tuple(options.items()))
                kept[key] = kept.get(key, 0) + found[_PLACES[name]]
                found = replaced(found, **{name: kept[key].copy()})
            return found

        return gradients

    return make


def one_buffer(name: str) -> Callable[[str], Backward]:
    """One gradient of one shape is always written into the same array."""

    def make(dtype: str) -> Backward:
        kept: dict[Any, Array] = {}

        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            found = right(dtype)(q, k, v, g, **options)
            held = kept.setdefault(found[_PLACES[name]].shape, found[_PLACES[name]].copy())
            held[...] = found[_PLACES[name]]
            return replaced(found, **{name: held})

        return gradients

    return make


def cleared_for_first_shape(dtype: str) -> Backward:
    """dq is added to a workspace that is cleared only when it grows."""
    space = np.zeros(0, dtype=np.float64)

    def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
        nonlocal space
        found = right(dtype)(q, k, v, g, **options)
        if space.size < found[1].size:
            space = np.zeros(found[1].size)
        space[: found[1].size] += found[1].reshape(-1)
        return replaced(found, query=round_to(space[: found[1].size].reshape(found[1].shape), dtype))

    return gradients


def changes(index: int, factor: float) -> Callable[[str], Backward]:
    """Right, but multiplies one of its inputs in place."""

    def change(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
        found = gradients(*inputs, **options)
        if inputs[index].flags.writeable:
            inputs[index][...] *= inputs[index].dtype.type(factor)
        return found

    return around(change)


def written_over(name: str, index: int) -> Callable[[str], Backward]:
    """A gradient is written over an input."""

    def change(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
        found = gradients(*inputs, **options)
        if not inputs[index].flags.writeable:
            return found
        inputs[index][...] = found[_PLACES[name]]
        return replaced(found, **{name: inputs[index]})

    return around(change)


def returns_query(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
    """An array of the query's shape was asked for, and the query itself came."""
    return replaced(gradients(*inputs, **options), query=inputs[0])


def flat(array: Array) -> Array:
    """Memory read in order, as if the array were contiguous."""
    base = array.base
    if array.flags.c_contiguous or base is None:
        return array
    numbers = base.reshape(-1)
    return np.resize(numbers, array.size).reshape(array.shape)


def blind_to_strides(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
    return gradients(*inputs[:3], flat(inputs[3]), **options)


def blind_to_stride_zero(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
    """A gradient whose stride is 0 is read from the memory behind its one number."""
    g = inputs[3]
    if g.strides[-1] == 0 and g.size > 1:
        behind = np.zeros(g.shape, dtype=g.dtype)
        behind.flat[0] = g.flat[0]
        g = behind
    return gradients(*inputs[:3], g, **options)


def layout_swapped(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
    """dk is written in the strides of its key as if the key were contiguous."""
    found = gradients(*inputs, **options)
    k = inputs[1]
    if k.flags.c_contiguous or 0 in k.strides:
        return found
    order = np.argsort([-one for one in k.strides], kind="stable")
    written = np.ascontiguousarray(found[2].transpose(order)).reshape(found[2].shape)
    return replaced(found, key=written)


def assumed_ones(gradients: Backward, inputs: Four, options: dict[str, Any]) -> Four:
    return gradients(*inputs[:3], np.ones_like(inputs[3]), **options)


def noisy(units: float, name: str) -> Callable[[str], Backward]:
    """One gradient is off by random relative errors of so many unit roundoffs."""

    def make(dtype: str) -> Backward:
        rng = np.random.default_rng(0)
        size = units * {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]

        def change(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
            x = found[name].astype(np.float64)
            found[name] = round_to(x * (1 + size * rng.standard_normal(x.shape)), dtype)

        return then(change)(dtype)

    return make


def breaks_after(calls: int) -> Callable[[str], Backward]:
    """Right at first; later dk is 10 % too large."""

    def make(dtype: str) -> Backward:
        count = [0]

        def change(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
            count[0] += 1
            if count[0] > calls:
                found["key"] *= found["key"].dtype.type(1.1)

        return then(change)(dtype)

    return make


def output_off(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    """The kernel that also saves ln Z is another than the one for inference, and wrong in its last row."""
    found["output"][:, :, -1] = found["output"][:, :, 0]
    if found["output"].shape[2] == 1:
        found["output"] *= found["output"].dtype.type(1.05)


def output_unscaled(dtype: str) -> Backward:
    """The output of another scale, with gradients that are right."""

    def gradients(q: Array, k: Array, v: Array, g: Array, *, causal: bool, scale: float) -> Four:
        found = right(dtype)(q, k, v, g, causal=causal, scale=scale)
        other = right(dtype)(q, k, v, g, causal=causal, scale=1.01 * scale)
        return replaced(found, output=other[0])

    return gradients


def unwritten_rows(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    """Rows of dq after the last whole group of eight hold what was in memory."""
    left = found["query"].shape[2] % 8
    if left and found["query"].shape[2] > 8:
        found["query"][:, :, -left:] = 2.0**-10


def unasked_shape(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    """dk without the batch, where that is one."""
    if found["key"].shape[0] == 1:
        found["key"] = found["key"][0]


def wider(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    found["value"] = found["value"].astype(np.float64)


def raises(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    if inputs[0].shape[2] != inputs[1].shape[2]:
        raise ValueError("queries and keys must be as many")


_NOISE = (
    "in float32 the scores, P made again, A, D and T round at the dtype's own u, so that at least {0} u of {1} are "
    "allowed in every question; a float32 pass of this zoo has 2.5 u, and √(2.5² + {2}²) = {3}"
)

FAULTS = (
    Fault("stale: dq by shape", stale("query")),
    Fault("stale: all gradients by shape", stale(*RESULTS[1:])),
    Fault("stale: the output by shape", stale("output")),
    Fault("stale: dk one call behind", one_behind),
    Fault("stale: D of the call before", stale_offset),
    Fault("dq: accumulator not cleared", not_cleared("query")),
    Fault("dk, dv: accumulators not cleared", not_cleared("key", "value")),
    Fault("dq: workspace cleared when it grows", cleared_for_first_shape),
    Fault("dv: one array used again", one_buffer("value")),
    Fault("changes the output gradient", changes(3, 0.5)),
    Fault("scales the query in place", changes(0, 0.25)),
    Fault("dq written over the query", written_over("query", 0)),
    Fault("dv written over the value", written_over("value", 2)),
    Fault("returns the query as its gradient", around(returns_query)),
    Fault("output gradient: strides not obeyed", around(blind_to_strides)),
    Fault("output gradient: stride 0 not obeyed", around(blind_to_stride_zero)),
    Fault("output gradient: assumed ones", around(assumed_ones)),
    Fault("dk: written in the strides of the key", around(layout_swapped)),
    Fault("dq: noise of 3 u", noisy(3.0, "query"), (("float32", _NOISE.format("6.3", "dq", 3, 3.9)),)),
    Fault("dv: noise of 3 u", noisy(3.0, "value")),
    Fault("dk: noise of 1 u", noisy(1.0, "key"), (("float32", _NOISE.format("4.7", "dk", 1, 2.7)),)),
    Fault("breaks after 20 calls", breaks_after(20)),
    Fault("output of the last row wrong, gradients right", then(output_off)),
    Fault("output of a scale 1 % large, gradients right", output_unscaled),
    Fault("dq: rows never written", then(unwritten_rows)),
    Fault("dk: another shape", then(unasked_shape)),
    Fault("dv: in float64", then(wider)),
    Fault("raises where lengths differ", then(raises)),
)
