"""Faults of indexing: keys, rows, heads, blocks and masks that are off."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .fault import Attend, Fault
from .parts import Array, blocked, plain, scores_of, seen_by

Arrays = tuple[Array, Array, Array]


def on(change: Callable[[Array, Array, Array], Arrays]) -> Callable[[str], Attend]:
    """The formula on inputs that were changed first."""

    def make(dtype: str) -> Attend:
        def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
            return plain(*change(q, k, v), **options, dtype=dtype)

        return attend

    return make


def then(change: Callable[[Array, Arrays], Array]) -> Callable[[str], Attend]:
    """The right output, changed afterwards in place: change(output, inputs)."""

    def make(dtype: str) -> Attend:
        def attend(q: Array, k: Array, v: Array, **options: Any) -> Array:
            return change(plain(q, k, v, **options, dtype=dtype).copy(), (q, k, v))

        return attend

    return make


def masked(**exchanged: Any) -> Callable[[str], Attend]:
    return lambda dtype: partial(plain, dtype=dtype, **exchanged)


def in_blocks(**exchanged: Any) -> Callable[[str], Attend]:
    return lambda dtype: partial(blocked, dtype=dtype, **exchanged)


def without(j: int) -> Callable[[Array, Array, Array], Arrays]:
    def change(q: Array, k: Array, v: Array) -> Arrays:
        if k.shape[2] == 1:
            return q, k, v
        kept = np.delete(np.arange(k.shape[2]), j)
        return q, k[:, :, kept], v[:, :, kept]

    return change


def random_key(*, doubled: bool) -> Callable[[str], Attend]:
    """One key, drawn anew in every call, is left out or counted twice."""

    def make(dtype: str) -> Attend:
        rng = np.random.default_rng(0)

        def scores(q: Array, k: Array, scale: float) -> Array:
            s = scores_of(q, k, scale)
            if k.shape[2] > 1:
                s[..., rng.integers(k.shape[2])] += np.log(2) if doubled else -np.inf
            return s

        return partial(plain, dtype=dtype, scores=scores)

    return make


def doubled_last(q: Array, k: Array, v: Array) -> Arrays:
    return q, np.concatenate([k, k[:, :, -1:]], axis=2), np.concatenate([v, v[:, :, -1:]], axis=2)


def zero_key(q: Array, k: Array, v: Array) -> Arrays:
    wide = ((0, 0), (0, 0), (0, 1), (0, 0))
    return q, np.pad(k, wide), np.pad(v, wide)


def tiled(q: Array, k: Array, v: Array) -> Arrays:
    """Groups of two query heads, each with the wrong one of the heads that are there (tile, not repeat)."""
    heads = np.arange(k.shape[1])
    if len(heads) % 2:
        return q, k, v
    return q, k[:, np.tile(heads[: len(heads) // 2], 2)], v[:, np.tile(heads[: len(heads) // 2], 2)]


def shared_group(q: Array, k: Array, v: Array) -> Arrays:
    """Every second head takes the keys of the head before it."""
    heads = np.arange(k.shape[1]) // 2 * 2
    return q, k[:, heads], v[:, heads]


def unpermuted(output: Array, inputs: Arrays) -> Array:
    """Heads were beside the positions in memory and were only reshaped, not moved back."""
    return np.ascontiguousarray(output.swapaxes(1, 2)).reshape(output.shape)


def first_batch(q: Array, k: Array, v: Array) -> Arrays:
    return q, np.broadcast_to(k[:1], k.shape).copy(), v


def leak(axis: int, share: float) -> Callable[[Array, Array, Array], Arrays]:
    """Values are mixed a little with those of the neighbour on `axis`."""
    return lambda q, k, v: (q, k, (v + share * (np.roll(v, 1, axis) - v)).astype(v.dtype))


def values_one_off(q: Array, k: Array, v: Array) -> Arrays:
    return q, k, np.roll(v, 1, axis=2)


def narrow_values(output: Array, inputs: Arrays) -> Array:
    output[..., inputs[0].shape[-1] :] = 0
    return output


def bad_last_row(output: Array, inputs: Arrays) -> Array:
    output[:, :, -1] = np.nan
    return output


def zero_from(row: int) -> Callable[[Array, Arrays], Array]:
    def change(output: Array, inputs: Arrays) -> Array:
        output[:, :, row:] = 0
        return output

    return change


def limited_keys(most: int) -> Callable[[Array, Array, Array], Arrays]:
    return lambda q, k, v: (q, k[:, :, :most], v[:, :, :most])


def last_of_many(q: Array, k: Array, v: Array) -> Arrays:
    return (q, k[:, :, :-1], v[:, :, :-1]) if k.shape[2] > 4096 else (q, k, v)


def last_head_off(q: Array, k: Array, v: Array) -> Arrays:
    q = q.copy()
    q[:, -1] = (q[:, -1] * 1.05).astype(q.dtype)
    return q, k, v


def for_whole_blocks(q: Array, k: Array, v: Array) -> Arrays:
    if k.shape[2] % 64 == 0:
        return q, k, v
    return zero_key(q, k, v)


def first_batch_only(output: Array, inputs: Arrays) -> Array:
    output[1:] = output[:1]
    return output


def wide_heads_cut(q: Array, k: Array, v: Array) -> Arrays:
    return q[..., :128], k[..., :128], v


def odd_heads_cut(q: Array, k: Array, v: Array) -> Arrays:
    even = max(2, q.shape[-1] // 2 * 2)
    return q[..., :even], k[..., :even], v


def decoding_blind(q: Array, k: Array, v: Array) -> Arrays:
    """With a single query the newest key is left out: the cache is read before it is written."""
    return (q, k[:, :, :-1], v[:, :, :-1]) if q.shape[2] == 1 and k.shape[2] > 1 else (q, k, v)


def bottom_right(n_q: int, n_k: int) -> Array:
    return np.tri(n_q, n_k, n_k - n_q, dtype=bool)


def block_edge(n_q: int, n_k: int) -> Array:
    """At every 32nd row the next key is seen."""
    seen = seen_by(n_q, n_k)
    rows = np.arange(31, min(n_q, n_k - 1), 32)
    seen[rows, rows + 1] = True
    return seen


def mask_added(size: float) -> Callable[[str], Attend]:
    """Hidden keys keep their score, less `size`."""

    def make(dtype: str) -> Attend:
        def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
            def change(s: Array) -> Array:
                hidden = 0 if not causal else np.where(seen_by(*s.shape[-2:]), 0, -size)
                return (s + hidden).astype(s.dtype)

            return plain(q, k, v, causal=False, scale=scale, dtype=dtype, change=change)

        return attend

    return make


def mask_before_scale(dtype: str) -> Attend:
    """Hidden scores become -10000 and are scaled afterwards."""

    def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
        return plain(q, k, v, causal=causal, scale=scale, dtype=dtype, hidden=-1e4 * scale)

    return attend


FAULTS = (
    Fault("first key dropped", on(without(0))),
    Fault("last key dropped", on(without(-1))),
    Fault("a random key dropped", random_key(doubled=False)),
    Fault("last key counted twice", on(doubled_last)),
    Fault("a random key counted twice", random_key(doubled=True)),
    Fault("a zero key attended", on(zero_key)),
    Fault("padding to a block attended", in_blocks(block=16, pad=True)),
    Fault("causal: one key too many", masked(seen=lambda n_q, n_k: np.tri(n_q, n_k, 1, dtype=bool))),
    Fault(
        "causal: one key too few", masked(seen=lambda n_q, n_k: np.tri(n_q, n_k, -1, dtype=bool), hidden=-1e9)
    ),
    Fault("causal: from the bottom right", masked(seen=bottom_right, hidden=-1e9)),
    Fault("causal: ignored", masked(seen=lambda n_q, n_k: np.ones((n_q, n_k), dtype=bool))),
    Fault("causal: a leak at block edges", masked(seen=block_edge)),
    Fault("causal: mask of -10 added", mask_added(10.0)),
    Fault("causal: mask of -10000 added", mask_added(1e4)),
    Fault("causal: hidden scores are -10000", masked(hidden=-1e4)),
    Fault("causal: mask of -50 added", mask_added(50.0)),
    Fault(
        "causal: hidden scores are -65504",
        masked(hidden=-65504.0),
        (("float16", "no float16 score lies below -65504, so that a hidden key never outweighs a seen one"),),
    ),
    Fault("causal: mask before the scale", mask_before_scale),
    Fault("output not rescaled between blocks", in_blocks(rescale_output=False)),
    Fault("denominator not rescaled between blocks", in_blocks(rescale_sum=False)),
    Fault("last partial block dropped", in_blocks(drop_partial=True)),
    Fault("last partial block of 256 dropped", in_blocks(drop_partial=True, block=256)),
    Fault("blocked: maximum begins at 0", in_blocks(first_max=0.0)),
    Fault("heads tiled instead of repeated", on(tiled)),
    Fault("heads share keys in pairs", on(shared_group)),
    Fault("heads not permuted back", then(unpermuted)),
    Fault("keys of the first batch for all", on(first_batch)),
    Fault("1 % of another batch", on(leak(0, 0.01))),
    Fault("1 % of another head", on(leak(1, 0.01))),
    Fault("values one row off", on(values_one_off)),
    Fault("wide values cut to head_dim", then(narrow_values)),
    Fault("NaN in the last row", then(bad_last_row)),
    Fault("zero from row 1024", then(zero_from(1024))),
    Fault("zero from row 4096", then(zero_from(4096))),
    Fault("keys after 4096 not seen", on(limited_keys(4096))),
    Fault("last of more than 4096 keys dropped", on(last_of_many)),
    Fault("last head 5 % off in scale", on(last_head_off)),
    Fault("right for multiples of 64 only", on(for_whole_blocks)),
    Fault("right for batch 1 only", then(first_batch_only)),
    Fault("head_dim above 128 cut", on(wide_heads_cut)),
    Fault("odd head_dim cut", on(odd_heads_cut)),
    Fault("decoding leaves the newest key out", on(decoding_blind)),
)
