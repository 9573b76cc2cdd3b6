"""Attention forwards and backwards in NumPy, in parts that can be exchanged one by one.

As in `parts`: arithmetic in float32 (float64 for float64), every result rounded once. Each function takes query, key,
value and the gradient g of the output, and returns the output and the gradients of query, key and value. With
P = softmax(scale · q kᵀ), A = g vᵀ and D its mean over P: T = scale · P∘(A − D), dq = T k, dk = Tᵀ q, dv = Pᵀ g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .parts import Array, inner_of, rounder, scores_of, seen_by, softmax

Four = tuple[Array, Array, Array, Array]
Backward = Callable[..., Four]
Scores = Callable[[Array, Array, float], Array]
Seen = Callable[[int, int], Array]


def same(x: Array) -> Array:
    """x."""
    return x


def masked(s: Array, seen: Seen, causal: bool) -> Array:
    """Scores with -inf where a causal query does not see."""
    return np.where(seen(*s.shape[-2:]), s, s.dtype.type(-np.inf)) if causal else s


def products_of(g: Array, v: Array) -> Array:
    """A."""
    return g @ v.swapaxes(-1, -2)


def from_weights(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D as the mean of A over the weights."""
    return (p * a).sum(axis=-1, keepdims=True)


def from_output(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D as g·o, which is the same number."""
    return (g * o).sum(axis=-1, keepdims=True)


def slopes_of(p: Array, a: Array, d: Array) -> Array:
    """The gradient of the scaled scores."""
    return p * (a - d)


def scaled(t: Array, scale: float) -> Array:
    """The gradient of the scores before they were scaled."""
    return t * t.dtype.type(scale)


def whole(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    *,
    causal: bool,
    scale: float,
    dtype: str,
    scores: Scores = scores_of,
    again: Scores | None = None,
    seen: Seen = seen_by,
    seen_again: Seen | None = None,
    weights: Callable[[Array], Array] = softmax,
    weights_again: Callable[[Array], Array] = same,
    save: Callable[[Array], Array] = same,
    products: Callable[[Array, Array], Array] = products_of,
    offset: Callable[[Array, Array, Array, Array], Array] = from_weights,
    slopes: Callable[[Array, Array, Array], Array] = slopes_of,
    times: Callable[[Array, float], Array] = scaled,
    for_query: Callable[[Array], Array] = same,
    for_key: Callable[[Array], Array] = same,
    for_value: Callable[[Array], Array] = same,
    mix: Callable[[Array, Array], Array] = np.matmul,
    last: Callable[[Array, str], Array] = round_to,
) -> Four:
    """The formulas on whole arrays.

    again, seen_again : what the way back takes for `scores` and `seen`, and then for its softmax. weights_again
    acts on the weights that it takes. save : how the output is kept for D. for_query, for_key, for_value : T, T and P
    as they enter the last sums, which `mix` adds up and `last` turns into `dtype`.
    """
    inner = inner_of(dtype)
    q, k, v, g = (np.asarray(array, dtype=inner) for array in (q, k, v, g))
    with np.errstate(all="ignore"):
        p = weights(masked(scores(q, k, scale), seen, causal))
        o = p @ v
        if again is not None or seen_again is not None:
            p = weights(masked((again or scores)(q, k, scale), seen_again or seen, causal))
        p = weights_again(p)
        a = products(g, v)
        t = times(slopes(p, a, offset(p, a, g, save(o))), scale)
        query, key = mix(for_query(t), k), mix(for_key(t).swapaxes(-1, -2), q)
        value = mix(for_value(p).swapaxes(-1, -2), g)
        return last(o, dtype), last(query, dtype), last(key, dtype), last(value, dtype)


#: adds `more` to `total`: which of the three gradients, and of which block of queries and keys
Add = Callable[[Array, Array, str, tuple[int, int]], Array]


def add(total: Array, more: Array, name: str, at: tuple[int, int]) -> Array:
    """What an accumulator does."""
    return total + more


def in_order(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """Blocks of keys, and for each the blocks of queries."""
    return ((i, j) for j in range(n_k) for i in range(n_q))


def blocked(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    *,
    causal: bool,
    scale: float,
    dtype: str,
    block: int = 64,
    scores: Scores = scores_of,
    again: Scores | None = None,
    seen_again: Seen = seen_by,
    exp: Callable[[Array], Array] = np.exp,
    log: Callable[[Array], Array] = np.log,
    save: Callable[[Array], Array] | None = None,
    save_logs: Callable[[Array, Array], Array] = np.add,
    products: Callable[[Array, Array], Array] = products_of,
    offset: Callable[[Array, Array, Array, Array], Array] = from_output,
    slopes: Callable[[Array, Array, Array], Array] = slopes_of,
    store: Callable[[Array], Array] | None = None,
    add: Add = add,
    order: Callable[[int, int], Iterator[tuple[int, int]]] = in_order,
) -> Four:
    """The way back as flash kernels do it: from the output and ln Z that the forward pass saved.

    save : how the output is kept for D. save_logs : ln Z of a row's maximum and the log of its sum. store : how P
    and T are kept before their products. None for either: in `dtype`. order : of the (query, key) blocks.
    """
    inner = inner_of(dtype)
    q, k, v, g = (np.asarray(array, dtype=inner) for array in (q, k, v, g))
    n_q, n_k = q.shape[2], k.shape[2]
    store = store or rounder(dtype)
    with np.errstate(all="ignore"):
        s = masked(scores(q, k, scale), seen_by, causal)
        top = s.max(axis=-1, keepdims=True)
        e = exp(s - top)
        total = e.sum(axis=-1, keepdims=True)
        o = (e @ v) / total
        logs = save_logs(top, log(total)).astype(inner)
        # a row's own D needs no block: g and o are whole in the value dimension
        d = offset(e / total, products(g, v), g, (save or rounder(dtype))(o))
        sums = {name: np.zeros(x.shape, dtype=inner) for name, x in (("query", q), ("key", k), ("value", v))}
        sees = seen_again(n_q, n_k)
        for at in order(-(-n_q // block), -(-n_k // block)):
            rows, keys = (slice(x * block, (x + 1) * block) for x in at)
            shown = sees[rows, keys]
            if causal and not shown.any():
                continue
            s = (again or scores)(q[:, :, rows], k[:, :, keys], scale)
            s = np.where(shown, s, inner(-np.inf)) if causal else s
            p = exp(s - logs[:, :, rows])
            t = slopes(p, products(g[:, :, rows], v[:, :, keys]), d[:, :, rows])
            kept, turned = store(t), store(p).swapaxes(-1, -2)
            for name, place, more in (
                ("query", rows, scaled(kept @ k[:, :, keys], scale)),
                ("key", keys, scaled(kept.swapaxes(-1, -2) @ q[:, :, rows], scale)),
                ("value", keys, turned @ g[:, :, rows]),
            ):
                sums[name][:, :, place] = add(sums[name][:, :, place], more, name, at)
        return tuple(round_to(x, dtype) for x in (o, *sums.values()))  # type: ignore[return-value]


def stored_sums(dtype: str) -> Add:
    """An accumulator that lies in memory in `dtype`."""
    store = rounder(dtype)
    return lambda total, more, name, at: store(total + more)


def with_parts(**exchanged: Any) -> Callable[[str], Backward]:
    """`whole` with parts exchanged, for a dtype."""
    return lambda dtype: partial(whole, dtype=dtype, **exchanged)


def in_blocks(**exchanged: Any) -> Callable[[str], Backward]:
    """`blocked` with parts exchanged, for a dtype."""
    return lambda dtype: partial(blocked, dtype=dtype, **exchanged)


RESULTS = ("output", "query", "key", "value")


def on(change: Callable[..., Four], *results: str) -> Callable[[str], Backward]:
    """`results` as they would be for change(q, k, v, g); the others right. All but the output where none is named."""
    named = results or RESULTS[1:]

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            right = whole(q, k, v, g, **options, dtype=dtype)
            wrong = whole(*change(q, k, v, g), **options, dtype=dtype)
            return tuple(  # type: ignore[return-value]
                bad if name in named else good for name, good, bad in zip(RESULTS, right, wrong, strict=True)
            )

        return gradients

    return make


def then(change: Callable[[dict[str, Array], Four, dict[str, Any]], None]) -> Callable[[str], Backward]:
    """The right results, changed afterwards in place: change(results by name, (q, k, v, g), options)."""

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            found = whole(q, k, v, g, **options, dtype=dtype)
            named = {name: one.copy() for name, one in zip(RESULTS, found, strict=True)}
            change(named, (q, k, v, g), options)
            return tuple(named.values())  # type: ignore[return-value]

        return gradients

    return make
