"""Faults in parts of the contract (mask, bias, groups of heads, cap, sinks) and in places (rows, heads, components).

Most answer another problem than the one that was asked. Each of these is two faults: one of the forward pass, and one
of the backward pass only, in which the output is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnlab.workload.inputs import Inputs
from attnlab.workload.mask_kinds import ALIGNMENTS, Causal, Given, KeyLengths, Part, Prefix, Window
from attnlab.workload.masks import EVERYTHING, Mask

from . import parts
from .fault import BACKWARD, FORWARD, Change, Fault, back, both, each, given, inputs, then
from .parts import DK, DQ, DV, OUTPUT, Answers, Array, capped, composed, full, hide, parted, summed, visible


def mask_of(change: Callable[[Part, Inputs], Part | None]) -> Change:
    """Replace each part of the mask by change(part, problem); None removes the part."""

    def changed(problem: Inputs) -> Inputs:
        changed_ = (change(part, problem) for part in problem.mask.parts)
        return problem.with_(mask=Mask(tuple(part for part in changed_ if part is not None)))

    return changed


def without(*kinds: type[Part]) -> Change:
    """Remove all parts of these kinds from the mask."""
    return mask_of(lambda part, problem: None if isinstance(part, kinds) else part)


def only(kind: type[Part], change: Callable[..., Part]) -> Change:
    """Replace the mask parts of one kind by change(part, problem)."""
    return mask_of(lambda part, problem: change(part, problem) if isinstance(part, kind) else part)


def other_corner(part: Causal | Window, problem: Inputs) -> Part:
    return replace(part, alignment=ALIGNMENTS[1 - ALIGNMENTS.index(part.alignment)])


def wider(left: int, right: int) -> Callable[[Window, Inputs], Part]:
    def change(part: Window, problem: Inputs) -> Part:
        pairs = ((part.left, left), (part.right, right))
        sides = (None if side is None else max(0, side + more) for side, more in pairs)
        return Window(*sides, part.alignment)

    return change


def lengths(change: Callable[[Array], Array]) -> Change:
    """Replace the key lengths by change(lengths), clipped to the number of keys."""

    def changed(part: KeyLengths, problem: Inputs) -> Part:
        found = np.clip(change(np.array(part.lengths)), 0, problem.shape.keys)
        return KeyLengths(tuple(found.tolist()))

    return only(KeyLengths, changed)


def diagonal(offset: int) -> Callable[[Causal, Inputs], Part]:
    """A causal mask that is shifted by `offset` keys."""

    def change(part: Causal, problem: Inputs) -> Part:
        shape = problem.shape
        own = shape.keys - shape.queries if part.alignment == "bottom_right" else 0
        return Given(np.tri(shape.queries, shape.keys, own + offset, dtype=bool))

    return change


def hiding(hidden: Callable[[Inputs], Array | None]) -> Change:
    """Hide further keys, those where hidden(problem) is True; it is broadcastable to the scores, None hides none."""

    def change(problem: Inputs) -> Inputs:
        more = hidden(problem)
        return problem if more is None else problem.with_(mask=problem.mask & Mask((Given(~more),)))

    return change


def key(j: int) -> Callable[[Inputs], Array | None]:
    """Key j, or None if there is only one key."""
    return lambda p: None if p.shape.keys == 1 else np.arange(p.shape.keys) == j % p.shape.keys


def block_edges(problem: Inputs) -> Inputs:
    """With a causal mask, every 32nd row also sees the next key."""
    seen = problem.mask.array(problem.shape)
    if seen is None or not any(isinstance(part, Causal) for part in problem.mask.parts):
        return problem
    seen = np.broadcast_to(seen, np.broadcast_shapes(seen.shape, problem.shape[2:])).copy()
    rows = np.arange(31, min(problem.shape.queries, problem.shape.keys - 1), 32)
    seen[..., rows, rows + 1] = True
    return problem.with_(mask=Mask((Given(seen),)))


def array_of(axis: int) -> Callable[[Given, Inputs], Part]:
    """Use the first part of a boolean mask array along `axis` (counted from the end) for all."""

    def change(part: Given, problem: Inputs) -> Part:
        return part if part.array.ndim < -axis else Given(np.take(part.array, [0], axis=axis))

    return change


def bias(change: Callable[[Array, Inputs], Array]) -> Change:
    """Replace the bias by change(bias, problem), with the bias broadcast to the whole score matrix."""

    def changed(problem: Inputs) -> Inputs:
        added = full(problem.bias_array, problem)
        return problem if added is None else problem.with_(bias=change(np.array(added), problem))

    return changed


def heads_as_batches(added: Array, problem: Inputs) -> Array:
    """Use the bias of head h for batch element h: an axis of length 1 is added on the wrong side."""
    batch, heads = problem.shape[:2]
    return np.stack([np.stack([added[0, b % heads]] * heads) for b in range(batch)])


def along_queries(added: Array, problem: Inputs) -> Array:
    """Apply a bias that is equal for all queries as if it were equal for all keys."""
    same = (added == added[:, :, :1]).all()
    short = min(problem.shape.queries, problem.shape.keys)
    column = np.zeros((*added.shape[:3], 1), added.dtype)
    column[:, :, :short, 0] = added[:, :, 0, :short]
    return np.broadcast_to(column, added.shape) if same and problem.shape.queries > 1 else added


def distances(sign: float, slope: float, corner: bool) -> Change:
    """ALiBi with another sign, other slopes, or distances counted from the other corner."""

    def change(problem: Inputs) -> Inputs:
        if problem.bias is None or isinstance(problem.bias, np.ndarray):
            return problem
        shape, slopes = problem.shape, np.asarray(problem.bias.slopes) * slope
        own = np.arange(shape.queries)[:, None] + (0 if corner else shape.keys - shape.queries)
        apart = np.abs(own - np.arange(shape.keys))
        return problem.with_(bias=-sign * slopes[None, :, None, None] * apart)

    return change


def heads_of(change: Callable[[Array, Inputs], Array]) -> Change:
    """Use other heads of key and value: change(query heads, problem) are their numbers, one for each query head."""

    def changed(problem: Inputs) -> Inputs:
        if problem.group == 1:
            return problem
        # one head of key and value for each group: the arrays, and so the gradients, keep their shapes
        taken = change(np.arange(problem.shape.heads), problem)
        first = taken[:: problem.group]
        return problem.with_(key=problem.key[:, first], value=problem.value[:, first])

    return changed


def tiled(x: Array, group: int) -> Array:
    """Repeat the heads of key and value in turn (0, 1, 0, 1), not for successive query heads (0, 0, 1, 1)."""
    return np.tile(x, (1, group, 1, 1))


def summed_as_tiled(x: Array, group: int) -> Array:
    return np.asarray(x.reshape(x.shape[0], group, -1, *x.shape[2:]).sum(axis=1))


def cap_after_bias(s: Array, problem: Inputs) -> Array:
    added = problem.bias_array
    return capped(s if added is None else (s + added).astype(s.dtype), problem.softcap)


def cap_after_mask(s: Array, problem: Inputs) -> Array:
    """Hidden keys get a score of −cap."""
    s, cap = composed(s, problem), problem.softcap
    return s if cap is None else hide(s, visible(problem), -cap)


def clipped(s: Array, problem: Inputs) -> Array:
    cap = problem.softcap
    return composed(s if cap is None else np.clip(s, -cap, cap), problem.with_(softcap=None))


def sink_times(count: Callable[[Inputs], float]) -> Callable[[Array, Inputs], Array]:
    """The sink enters the sum count(problem) times."""

    def sink(s: Array, problem: Inputs) -> Array:
        found = parts.with_sink(s, problem)
        if problem.sinks is not None:
            found[..., -1] += s.dtype.type(np.log(count(problem)))
        return found

    return sink


def mean_of_values(found: Answers, problem: Inputs) -> None:
    """Empty rows get the mean of the values: the softmax of scores that are all the same large negative number."""
    rows = problem.mask.empty_rows(problem.shape)
    if rows is not None:
        mean = np.repeat(problem.value.mean(axis=2, keepdims=True), problem.group, axis=1)
        empty = np.broadcast_to(rows, problem.shape[:3])[..., None]
        found["output"][...] = np.where(empty, mean, found["output"])


def nan_in_empty(name: str) -> Callable[[Answers, Inputs], None]:
    def spoil(found: Answers, problem: Inputs) -> None:
        rows = problem.mask.empty_rows(problem.shape)
        if rows is not None and name in found:
            found[name][np.broadcast_to(rows, problem.shape[:3])] = np.nan

    return spoil


def unseen_keys(value: float) -> Callable[[Answers, Inputs], None]:
    """The gradients of keys that no query sees are not written: they hold `value`."""

    def spoil(found: Answers, problem: Inputs) -> None:
        seen = visible(problem)
        if seen is not None and DK in found:
            unseen = ~summed(seen.any(axis=2).astype(int)[..., None], problem.group)[..., 0].astype(bool)
            found[DK][unseen] = value

    return spoil


def scaled(scale: Callable[[Inputs], float]) -> Change:
    return lambda problem: problem.with_(scale=scale(problem))


_CHANGES: dict[str, Change] = {
    "scale 1 % large": scaled(lambda p: 1.01 * p.scale),
    "scale 0.3 % small": scaled(lambda p: p.scale / 1.003),
    "scale left out": scaled(lambda p: 1.0),
    "always the default scale": scaled(lambda p: p.query.shape[-1] ** -0.5),
    "sign of the scale lost": scaled(lambda p: abs(p.scale)),
    "scale of a padded head_dim": scaled(
        lambda p: p.scale * (p.query.shape[-1] / (-(-p.query.shape[-1] // 32) * 32)) ** 0.5
    ),
    "causal: ignored": without(Causal),
    "causal: one key too many": only(Causal, diagonal(1)),
    "causal: one key too few": only(Causal, diagonal(-1)),
    "causal: from the other corner": only(Causal, other_corner),
    "causal: a leak at block edges": block_edges,
    "window: ignored": without(Window),
    "window: one more on the left": only(Window, wider(1, 0)),
    "window: one less on the left": only(Window, wider(-1, 0)),
    "window: one more on the right": only(Window, wider(0, 1)),
    "window: sides swapped": only(Window, lambda part, p: Window(part.right, part.left, part.alignment)),
    "window: from the other corner": only(Window, other_corner),
    "window: ignored under a causal mask": lambda p: (
        without(Window)(p) if any(isinstance(one, Causal) for one in p.mask.parts) else p
    ),
    "key lengths: ignored": without(KeyLengths),
    "key lengths: one short": lengths(lambda each: each - 1),
    "key lengths: of the neighbour": lengths(lambda each: np.roll(each, -1)),
    "key lengths: up to a multiple of 8": lengths(lambda each: -(-each // 8) * 8),
    "prefix: ignored": only(Prefix, lambda part, p: Prefix(0)),
    "prefix: one short": only(Prefix, lambda part, p: Prefix(max(0, part.length - 1))),
    "array: ignored": without(Given),
    "array: that of the first batch": only(Given, array_of(-4)),
    "array: that of the first head": only(Given, array_of(-3)),
    "array: that of the first query": only(Given, array_of(-2)),
    "first key dropped": hiding(key(0)),
    "last key dropped": hiding(key(-1)),
    "bias: ignored": bias(lambda added, p: np.zeros_like(added)),
    "bias: scaled with the scores": bias(lambda added, p: added * p.scale),
    "bias: subtracted": bias(lambda added, p: -added),
    "bias: that of the first head": bias(lambda added, p: added[:, :1] + 0 * added),
    "bias: that of the first batch": bias(lambda added, p: added[:1] + 0 * added),
    "bias: that of the first query": bias(lambda added, p: added[:, :, :1] + 0 * added),
    "bias: heads taken for batches": bias(heads_as_batches),
    "bias: keys taken for queries": bias(along_queries),
    "ALiBi: from the first key": distances(1.0, 1.0, corner=True),
    "ALiBi: of the wrong sign": distances(-1.0, 1.0, corner=False),
    "ALiBi: slopes of one more head": distances(1.0, 2.0**-0.5, corner=False),
    "cap: ignored": lambda p: p.with_(softcap=None),
    "cap: 5 % large": lambda p: p if p.softcap is None else p.with_(softcap=1.05 * p.softcap),
    "sinks: ignored": lambda p: p.with_(sinks=None),
    "sinks: of another head": lambda p: p if p.sinks is None else p.with_(sinks=np.roll(p.sinks, 1)),
    "sinks: scaled": lambda p: p if p.sinks is None else p.with_(sinks=p.sinks * p.scale),
    "groups: first head of keys for all": heads_of(lambda h, p: 0 * h),
    "groups: neighbouring head of keys": heads_of(lambda h, p: (h // p.group + 1) % p.kv_heads),
    "mask ignored where there is a bias": lambda p: p if p.bias is None else p.with_(mask=EVERYTHING),
    "bias ignored where there are groups": lambda p: p if p.group == 1 else p.with_(bias=None),
    "window ignored where there are groups": lambda p: p if p.group == 1 else without(Window)(p),
}

CONTRACT = (
    *(fault for name, change in _CHANGES.items() for fault in both(name, change)),
    Fault("groups: heads tiled", parted(spread=tiled)),
    Fault("groups: heads tiled, gradients", parted(spread=tiled, gather=summed_as_tiled), BACKWARD),
    Fault("groups: gradients summed as if tiled", parted(gather=summed_as_tiled), BACKWARD),
    Fault("groups: gradients of the last head only", parted(gather=lambda x, g: x[:, g - 1 :: g]), BACKWARD),
    Fault("groups: gradients averaged", parted(gather=lambda x, g: summed(x, g) / g), BACKWARD),
    Fault("cap: after the bias", parted(compose=cap_after_bias)),
    Fault("cap: after the mask", parted(compose=cap_after_mask, hidden=-1e30, seen_by=lambda p: None)),
    Fault("cap: clipped", parted(compose=clipped)),
    Fault("cap: no derivative", parted(cap_slope=lambda s, cap: 1.0), BACKWARD),
    Fault(
        "cap: derivative without the square",
        parted(cap_slope=lambda s, cap: 1 - np.abs(np.tanh(s / cap)) if cap else 1.0),
        BACKWARD,
    ),
    Fault("sinks: one for each key", parted(sink=sink_times(lambda p: p.shape.keys))),
    Fault("sinks: one for each block of 16", parted(sink=sink_times(lambda p: -(-p.shape.keys // 16)))),
    Fault("sinks: one for each block of 16, gradients", parted(sink=sink_times(lambda p: 2)), BACKWARD),
    Fault("empty rows: NaN", parted(empty=lambda p, seen: p)),
    Fault("empty rows: NaN in the gradients", parted(empty=lambda p, seen: p), BACKWARD),
    Fault("empty rows: NaN in dq alone", then(nan_in_empty(DQ)), BACKWARD),
    Fault("empty rows: mean of the values", then(mean_of_values)),
    Fault("unseen keys: dk holds 1e-3", then(unseen_keys(1e-3)), BACKWARD),
    Fault("unseen keys: dk holds NaN", then(unseen_keys(np.nan)), BACKWARD),
    Fault("hidden scores are -10000", parted(hidden=-1e4)),
    Fault("dk: wrong sign", each(lambda x: -x, DK), BACKWARD),
)


# -- places: wrong rows, heads, batches and components, of the output and of each gradient


Shift = Callable[[Array], Array]


def everywhere(name: str, spoil: Shift, *names: str) -> tuple[Fault, ...]:
    """The same fault for each of `names`, by default the output and all three gradients."""
    return tuple(
        Fault(f"{one}: {name}", each(spoil, one), FORWARD if one == OUTPUT else BACKWARD)
        for one in (names or (OUTPUT, DQ, DK, DV))
    )


def leaking(axis: int) -> Shift:
    """Mix in 1 % of the neighbour along `axis`."""

    def spoil(x: Array) -> Array:
        wide = x.astype(np.float64)
        return wide * 0.99 + 0.01 * np.roll(wide, 1, axis)

    return spoil


def unpermuted(x: Array) -> Array:
    """Heads and positions were exchanged, and then only reshaped, not exchanged back."""
    return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)


def filled(where: Callable[[Array], Any], number: float) -> Shift:
    """Write `number` at the index where(answer), which may select nothing."""

    def spoil(x: Array) -> Array:
        x = x.copy()
        x[where(x)] = number
        return x

    return spoil


def past_eights(axis: int, number: float) -> Shift:
    """Write `number` after the last multiple of 8 along `axis` (counted from the end); below 8 everywhere."""
    behind = (slice(None),) * (-1 - axis)
    return filled(lambda x: (..., slice(x.shape[axis] // 8 * 8 or None, None), *behind), number)


def last_head_off(x: Array) -> Array:
    x = x.copy()
    x[:, -1] = (x[:, -1] * x.dtype.type(1.05)).astype(x.dtype)
    return x


def first_batch_only(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape).copy()


def neighbour(name: str, axis: int) -> Change:
    """Take one input from the neighbour along `axis`."""
    return inputs(lambda x: np.roll(x, 1, axis), name)


def narrowed(most: Callable[[int], int]) -> Change:
    """Cut query and key to their first most(head_dim) components."""

    def change(problem: Inputs) -> Inputs:
        end = max(1, most(problem.query.shape[-1]))
        return problem.with_(query=problem.query[..., :end], key=problem.key[..., :end])

    return change


def first_keys(most: int) -> Change:
    def change(problem: Inputs) -> Inputs:
        if problem.mask or problem.bias is not None:
            return problem
        return problem.with_(key=problem.key[:, :, :most], value=problem.value[:, :, :most])

    return change


def swapped(found: Answers, problem: Inputs) -> None:
    """Exchange dk and dv if their shapes are equal."""
    if found[DK].shape == found[DV].shape:
        found[DK], found[DV] = found[DV], found[DK]


def output_off(found: Answers, problem: Inputs) -> None:
    """With gradients another kernel runs, which also saves ln Z; the last row of its output is wrong."""
    if problem.output_gradient is not None:
        one_row = found[OUTPUT].shape[2] == 1
        found[OUTPUT][:, :, -1] = found[OUTPUT][:, :, 0] * (1.05 if one_row else 1)


def unasked_shape(found: Answers, problem: Inputs) -> None:
    """Drop the batch axis of dk if its length is 1."""
    if found[DK].shape[0] == 1:
        found[DK] = found[DK][0]


PLACES = (
    *everywhere("heads not permuted back", unpermuted, OUTPUT, DQ, DV),
    *everywhere("1 % of another batch", leaking(0), OUTPUT, DK),
    *everywhere("1 % of another head", leaking(1), OUTPUT, DQ),
    *everywhere("1 % of another row", leaking(2), OUTPUT, DV),
    *everywhere("NaN in the last row", filled(lambda x: np.s_[:, :, -1], np.nan), OUTPUT, DQ),
    *everywhere("zero from row 1024", filled(lambda x: np.s_[:, :, 1024:], 0.0), OUTPUT, DQ, DV),
    *everywhere("zero from row 4096", filled(lambda x: np.s_[:, :, 4096:], 0.0), OUTPUT),
    *everywhere("last head 5 % off", last_head_off, OUTPUT, DK),
    *everywhere("that of the first batch", first_batch_only, OUTPUT, DK),
    *everywhere("rows after the last eight never written", past_eights(-2, 1e-3), OUTPUT, DQ),
    *everywhere("components after the last eight never written", past_eights(-1, 0.0), OUTPUT, DQ, DV),
    *everywhere("components above 128 never written", filled(lambda x: np.s_[..., 128:], 0.0), DK),
    Fault("keys of the first batch for all", given(inputs(first_batch_only, "key"))),
    Fault("values one row off", given(neighbour("value", 2))),
    Fault("values of another head in A", back(given(neighbour("value", 1)), DQ, DK), BACKWARD),
    Fault("keys of another head in dq", back(given(neighbour("key", 1)), DQ), BACKWARD),
    Fault("output gradient of another head", back(given(neighbour("output_gradient", 1))), BACKWARD),
    Fault("output gradient of another batch", back(given(neighbour("output_gradient", 0))), BACKWARD),
    Fault("output gradient assumed ones", back(given(inputs(np.ones_like, "output_gradient"))), BACKWARD),
    Fault("keys after 4096 not seen", given(first_keys(4096))),
    Fault("head_dim above 128 cut", given(narrowed(lambda d: min(d, 128)))),
    Fault("odd head_dim cut", given(narrowed(lambda d: d // 2 * 2))),
    Fault("last component of q and k left out", given(narrowed(lambda d: d - 1))),
    Fault("dk and dv swapped", then(swapped), BACKWARD),
    Fault("output of the last row wrong, gradients right", then(output_off), BACKWARD),
    Fault("dk: another shape", then(unasked_shape), BACKWARD),
    Fault(
        "dv: in float64", then(lambda found, p: found.update({DV: found[DV].astype(np.float64)})), BACKWARD
    ),
)
