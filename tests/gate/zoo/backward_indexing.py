"""Faults of indexing on the way back: keys, rows, heads, blocks, masks and dimensions that are off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .backward_parts import (
    RESULTS,
    Add,
    Backward,
    Four,
    add,
    in_blocks,
    on,
    products_of,
    then,
    whole,
    with_parts,
)
from .fault import Fault
from .indexing import block_edge, bottom_right
from .parts import Array

Found = dict[str, Array]
Change = Callable[[Found, Four, dict[str, Any]], None]


def tri(offset: int) -> Callable[[int, int], Array]:
    return lambda n_q, n_k: np.tri(n_q, n_k, offset, dtype=bool)


def all_seen(n_q: int, n_k: int) -> Array:
    return np.ones((n_q, n_k), dtype=bool)


def without(j: int) -> Callable[[Array], Array]:
    """No weight for key j, where there are several."""

    def change(w: Array) -> Array:
        w = w.copy()
        if w.shape[-1] > 1:
            w[..., j] = 0
        return w

    return change


def without_rows(least: int, rows: slice) -> Callable[[Array], Array]:
    """No weights in `rows`, where there are at least so many."""

    def change(w: Array) -> Array:
        w = w.copy()
        if w.shape[-2] >= least:
            w[..., rows, :] = 0
        return w

    return change


def without_columns(most: int) -> Callable[[Array], Array]:
    """No weights for keys after the first `most`."""
    return lambda w: np.concatenate([w[..., :most], np.zeros_like(w[..., most:])], axis=-1)


def last_block_of_queries(size: int) -> Callable[[Array], Array]:
    """The last, partial block of so many queries is left out, where there is another."""

    def change(w: Array) -> Array:
        end = w.shape[-2] // size * size
        w = w.copy()
        if end:
            w[..., end:, :] = 0
        return w

    return change


def last_block_of_keys(size: int) -> Callable[[Array], Array]:
    """The same for keys."""
    return lambda w: np.ascontiguousarray(last_block_of_queries(size)(w.swapaxes(-1, -2)).swapaxes(-1, -2))


def transposed(w: Array) -> Array:
    """Its transpose, where it is square."""
    return w.swapaxes(-1, -2) if w.shape[-1] == w.shape[-2] else w


def rolled(w: Array) -> Array:
    return np.roll(w, 1, axis=-1)


def swapped(one: str, other: str) -> Change:
    """Two results in each other's place, where their shapes agree."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        if found[one].shape == found[other].shape:
            found[one], found[other] = found[other], found[one]

    return change


def in_place_of(taken: str, result: str) -> Callable[[str], Backward]:
    """`result` is made of `taken` ("query", "key", "output"), where the lengths agree, instead of what it needs."""

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            found = dict(zip(RESULTS, whole(q, k, v, g, **options, dtype=dtype), strict=True))
            other = {"query": q, "key": k, "output": found["output"]}[taken]
            weights: list[Array] = []

            def keep(w: Array) -> Array:
                weights.append(w if result == "query" else w.swapaxes(-1, -2))
                return w

            whole(q, k, v, g, **options, dtype=dtype, **{f"for_{result}": keep})
            if weights[0].shape[-1] == other.shape[2]:
                bad = weights[0] @ other.astype(weights[0].dtype)
                if bad.shape == found[result].shape:
                    found[result] = bad.astype(found[result].dtype)
            return tuple(found.values())  # type: ignore[return-value]

        return gradients

    return make


def leaking(axis: int, share: float, *results: str) -> Change:
    """A part of the neighbour's on `axis`."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        for name in results:
            x = found[name].astype(np.float64)
            found[name] = (x + share * (np.roll(x, 1, axis) - x)).astype(found[name].dtype)

    return change


def neighbour(index: int, axis: int) -> Callable[..., Four]:
    """One input of the neighbour on `axis`."""

    def change(*inputs: Array) -> Four:
        return tuple(  # type: ignore[return-value]
            np.roll(x, 1, axis) if at == index else x for at, x in enumerate(inputs)
        )

    return change


def mixed_gradient(axis: int, share: float) -> Callable[..., Four]:
    """The output's gradient with a part of the neighbour's on `axis`."""
    return lambda q, k, v, g: (q, k, v, (g + share * (np.roll(g, 1, axis) - g)).astype(g.dtype))


def zeroed(result: str, place: Callable[[Array], tuple[Any, ...]]) -> Change:
    """Zero where place(gradient) says."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        found[result][place(found[result])] = 0

    return change


def tail_of(size: int) -> Callable[[Array], tuple[Any, ...]]:
    """Components after the last whole group of `size`, where there is a group."""
    return lambda x: (..., slice(x.shape[-1] // size * size or None, None))


def after(most: int) -> Callable[[Array], tuple[Any, ...]]:
    return lambda x: (..., slice(most, None))


def rows_from(row: int) -> Callable[[Array], tuple[Any, ...]]:
    return lambda x: (slice(None), slice(None), slice(row, None))


def unseen(value: float) -> Change:
    """Gradients of keys that no query sees hold what was in memory."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        if options["causal"]:
            for name in RESULTS[2:]:
                found[name][:, :, inputs[0].shape[2] :] = value

    return change


def unpermuted(result: str) -> Change:
    """Heads lay beside positions and were only reshaped, not moved back."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        x = found[result]
        found[result] = np.ascontiguousarray(x.swapaxes(1, 2)).reshape(x.shape)

    return change


def narrow_products(g: Array, v: Array) -> Array:
    """A summed over sixteen value components only."""
    return products_of(g[..., :16], v[..., :16])


def head_dim_products(q: Array, k: Array, v: Array, g: Array) -> Four:
    """A loop over head_dim where value_dim is meant."""
    v, g = v.copy(), g.copy()
    v[..., q.shape[-1] :] = 0
    return q, k, v, g


def narrow_value(found: Found, inputs: Four, options: dict[str, Any]) -> None:
    found["value"][..., inputs[0].shape[-1] :] = 0


def only_where(condition: Callable[[Array, Array], bool], name: str) -> Change:
    """One gradient 5 % too large where the sizes are unusual."""

    def change(found: Found, inputs: Four, options: dict[str, Any]) -> None:
        if condition(inputs[0], inputs[1]):
            x = found[name]
            found[name] = (x.astype(np.float64) * 1.05).astype(x.dtype)

    return change


def other_blocks(name: str, wrong: Callable[[int, int], bool], factor: float) -> Add:
    """What some blocks give to one gradient enters `factor` times."""

    def change(total: Array, more: Array, which: str, at: tuple[int, int]) -> Array:
        bad = which == name and wrong(*at)
        return add(total, (more * factor).astype(more.dtype) if bad else more, which, at)

    return change


def last_wins(name: str) -> Add:
    """One gradient is overwritten by every block instead of added to."""
    return lambda total, more, which, at: more if which == name else total + more


def skipping(skip: Callable[[int, int, int, int], bool]) -> Callable[[int, int], Iterator[tuple[int, int]]]:
    """Blocks in order but for those of skip(i, j, blocks of queries, blocks of keys)."""
    return lambda n_q, n_k: ((i, j) for j in range(n_k) for i in range(n_q) if not skip(i, j, n_q, n_k))


def nan_in_first(found: Found, inputs: Four, options: dict[str, Any]) -> None:
    """The only key that a row sees has T = 0/0."""
    if options["causal"]:
        found["query"][:, :, 0] = np.nan


def first_batch_only(found: Found, inputs: Four, options: dict[str, Any]) -> None:
    found["key"][1:] = found["key"][:1]


def last_head_off(found: Found, inputs: Four, options: dict[str, Any]) -> None:
    if found["key"].shape[1] > 1:
        found["key"][:, -1] *= found["key"].dtype.type(1.05)


def first_query_twice(w: Array) -> Array:
    w = w.copy()
    w[..., 0, :] *= 2
    return w


FAULTS = (
    Fault("causal: no mask on the way back", in_blocks(seen_again=all_seen)),
    Fault("causal: no mask on the way back, normalised", with_parts(seen_again=all_seen)),
    Fault("causal: one key too many on the way back", in_blocks(seen_again=tri(1))),
    Fault("causal: one key too few on the way back", in_blocks(seen_again=tri(-1))),
    Fault("causal: from the bottom right on the way back", in_blocks(seen_again=bottom_right)),
    Fault("causal: a leak at block edges on the way back", in_blocks(seen_again=block_edge)),
    Fault(
        "causal: the diagonal blocks skipped",
        in_blocks(block=32, order=skipping(lambda i, j, n, m: i == j and n > 1 and m > 1)),
    ),
    Fault("causal: keys that no query sees hold 1e-3", then(unseen(1e-3))),
    Fault("causal: keys that no query sees hold NaN", then(unseen(np.nan))),
    Fault("causal: NaN for the first query", then(nan_in_first)),
    Fault("dq: first key dropped", with_parts(for_query=without(0))),
    Fault("dq: last key dropped", with_parts(for_query=without(-1))),
    Fault("dk: first key dropped", with_parts(for_key=without(0))),
    Fault("dk: last key dropped", with_parts(for_key=without(-1))),
    Fault("dv: first key dropped", with_parts(for_value=without(0))),
    Fault("dv: last key dropped", with_parts(for_value=without(-1))),
    Fault("dk: last query dropped", with_parts(for_key=without_rows(2, slice(-1, None)))),
    Fault("dv: last query dropped", with_parts(for_value=without_rows(2, slice(-1, None)))),
    Fault("dv: first query counted twice", with_parts(for_value=first_query_twice)),
    Fault("dk: last partial block of queries dropped", with_parts(for_key=last_block_of_queries(64))),
    Fault("dv: last partial block of queries dropped", with_parts(for_value=last_block_of_queries(64))),
    Fault("dv: last partial block of 256 queries dropped", with_parts(for_value=last_block_of_queries(256))),
    Fault("dq: last partial block of keys dropped", with_parts(for_query=last_block_of_keys(64))),
    Fault("dk: last partial block of keys not written", with_parts(for_key=last_block_of_keys(64))),
    Fault("dk: no query after 1024", with_parts(for_key=without_rows(1025, slice(1024, None)))),
    Fault("dq: zero from row 1024", then(zeroed("query", rows_from(1024)))),
    Fault("dv: zero from key 1024", then(zeroed("value", rows_from(1024)))),
    Fault("P transposed in dv", with_parts(for_value=transposed)),
    Fault("T transposed in dq", with_parts(for_query=transposed)),
    Fault("T one key off in dk", with_parts(for_key=rolled)),
    Fault("dk and dv swapped", then(swapped("key", "value"))),
    Fault("dq and dk swapped", then(swapped("query", "key"))),
    Fault("dk: made of k instead of q", in_place_of("key", "key")),
    Fault("dq: made of q instead of k", in_place_of("query", "query")),
    Fault("dv: made of o instead of g", in_place_of("output", "value")),
    Fault("values of another head in A", on(neighbour(2, 1), "query", "key")),
    Fault("values of another batch in A", on(neighbour(2, 0), "query", "key")),
    Fault("keys of another head in dq", on(neighbour(1, 1), "query")),
    Fault("output gradient of another head in dv", on(neighbour(3, 1), "value")),
    Fault("output gradient of another batch", on(neighbour(3, 0))),
    Fault("1 % of another head in the output gradient", on(mixed_gradient(1, 0.01))),
    Fault("1 % of another batch in dk", then(leaking(0, 0.01, "key"))),
    Fault("1 % of another head in dq", then(leaking(1, 0.01, "query"))),
    Fault("1 % of another key in dv", then(leaking(2, 0.01, "value"))),
    Fault("dq: heads not permuted back", then(unpermuted("query"))),
    Fault("dv: heads not permuted back", then(unpermuted("value"))),
    Fault("dk: that of the first batch", then(first_batch_only)),
    Fault("dk: last head 5 % off", then(last_head_off)),
    Fault("value_dim cut to head_dim in A", on(head_dim_products, "query", "key")),
    Fault("value_dim above 16 not in A", with_parts(products=narrow_products)),
    Fault("dv: zero beyond head_dim", then(narrow_value)),
    Fault("dq: components after the last eight not written", then(zeroed("query", tail_of(8)))),
    Fault("dv: components after the last eight not written", then(zeroed("value", tail_of(8)))),
    Fault("dk: components above 128 not written", then(zeroed("key", after(128)))),
    Fault("dk: wrong where lengths differ", then(only_where(lambda q, k: q.shape[2] != k.shape[2], "key"))),
    Fault("dq: wrong where lengths agree", then(only_where(lambda q, k: q.shape[2] == k.shape[2], "query"))),
    Fault("dq: wrong for one query", then(only_where(lambda q, k: q.shape[2] == 1, "query"))),
    Fault("dv: wrong for one head", then(only_where(lambda q, k: q.shape[1] == 1, "value"))),
    Fault("dk: wrong for more than 512 queries", then(only_where(lambda q, k: q.shape[2] > 512, "key"))),
    Fault("dq: no key after 2048", with_parts(for_query=without_columns(2048))),
    Fault("dk: wrong for head_dim above 64", then(only_where(lambda q, k: q.shape[3] > 64, "key"))),
    Fault(
        "dq: 1 % off from the second block of keys",
        in_blocks(add=other_blocks("query", lambda i, j: j > 0, 1.01)),
    ),
    Fault(
        "dv: one block lost (a race)",
        in_blocks(block=32, add=other_blocks("value", lambda i, j: (i, j) == (1, 0), 0.0)),
    ),
    Fault(
        "dq: one block lost (a race)",
        in_blocks(block=32, add=other_blocks("query", lambda i, j: (i, j) == (1, 1), 0.0)),
    ),
    Fault(
        "dk: one block added twice",
        in_blocks(block=32, add=other_blocks("key", lambda i, j: (i, j) == (1, 0), 2.0)),
    ),
    Fault("dq: overwritten by the last block", in_blocks(add=last_wins("query"))),
    Fault("dk: overwritten by the last block", in_blocks(add=last_wins("key"))),
    Fault(
        "last block of queries skipped", in_blocks(order=skipping(lambda i, j, n, m: i == n - 1 and n > 1))
    ),
    Fault("last block of keys skipped", in_blocks(order=skipping(lambda i, j, n, m: j == m - 1 and m > 1))),
)
