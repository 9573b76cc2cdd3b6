"""Forward and backward pass of attention in NumPy, in parts that can be exchanged one by one.

It covers the whole contract: any mask, bias, groups of heads, a cap, sinks, rows that see no key. Arithmetic is in
float32 (float64 for float64), as in fused kernels, and every result is rounded once. P are the weights, g is the
output's gradient, A = g vᵀ, and D is the mean of A, weighted with P. Then T = scale · cap' ∘ P∘(A − D), dq = T k,
dk = Tᵀ q, dv = Pᵀ g. The gradients of key and value are summed over the query heads that share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import carrier, round_to
from attnlab.workload.workload import GRADIENTS, OUTPUT

Array = NDArray[Any]
Answers = dict[str, Array]
#: from a problem to its answers by name: all of NAMES if it has an output gradient, else only the output
Attention = Callable[[Inputs], Answers]
#: what an attention keeps from earlier calls
Memory = dict[Any, Any]
NAMES = (OUTPUT, *GRADIENTS)
DQ, DK, DV = GRADIENTS


def inner_of(dtype: str) -> Any:
    """The type of the internal arithmetic for a dtype."""
    return np.float64 if dtype == "float64" else np.float32


def same(x: Array) -> Array:
    """Return x unchanged."""
    return x


def scores_of(q: Array, k: Array, scale: float) -> Array:
    """scale · q kᵀ."""
    return (q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)


def capped(s: Array, cap: float | None) -> Array:
    """c tanh(s/c)."""
    return s if cap is None else np.asarray(s.dtype.type(cap) * np.tanh(s / s.dtype.type(cap)))


def full(array: Array | None, problem: Inputs) -> Array | None:
    """The array, broadcast to the whole score matrix."""
    return None if array is None else np.broadcast_to(array, problem.shape)


def composed(s: Array, problem: Inputs) -> Array:
    """The scores with the cap, then with the bias."""
    s = capped(s, problem.softcap)
    added = problem.bias_array
    return s if added is None else (s + added.astype(s.dtype)).astype(s.dtype)


def hide(s: Array, seen: Array | None, hidden: float = -np.inf) -> Array:
    """The scores, with -inf (or `hidden`) for keys that are not seen."""
    return s if seen is None else np.where(seen, s, s.dtype.type(hidden))


def visible(problem: Inputs) -> Array | None:
    """True where a key is seen, for the whole score matrix; None if all keys are seen."""
    return full(problem.mask.array(problem.shape), problem)


def with_sink(s: Array, problem: Inputs) -> Array:
    """The scores, with one more column for the sinks if there are any."""
    if problem.sinks is None:
        return s
    sink = problem.sinks.astype(s.dtype)[None, :, None, None]
    return np.concatenate([s, np.broadcast_to(sink, (*s.shape[:3], 1))], axis=-1)


def repeated(x: Array, group: int) -> Array:
    """Repeat each head for `group` successive query heads."""
    return np.repeat(x, group, axis=1)


def summed(x: Array, group: int) -> Array:
    """The sum over the query heads of a group."""
    return np.asarray(x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(axis=2))


def highest(s: Array) -> Array:
    """The largest score of each row."""
    return np.asarray(s.max(axis=-1, keepdims=True))


def exponentials(s: Array) -> Array:
    """e^{s − max} along the keys."""
    with np.errstate(invalid="ignore", over="ignore"):
        return np.exp(s - highest(s))


def divided(e: Array) -> Array:
    """The exponentials divided by their sum along the keys."""
    return e / e.sum(axis=-1, keepdims=True)


def softmax(s: Array) -> Array:
    """The weights along the keys."""
    return divided(exponentials(s))


def zeros_where_empty(p: Array, seen: Array | None) -> Array:
    """Weights of 0 in a row that sees no key, for which softmax gives NaN."""
    return p if seen is None else np.where(seen.any(axis=-1, keepdims=True), p, p.dtype.type(0))


def products_of(g: Array, v: Array) -> Array:
    """A = g vᵀ."""
    return g @ v.swapaxes(-1, -2)


def from_weights(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D as the mean of A over the weights."""
    return (p * a).sum(axis=-1, keepdims=True)


def from_output(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D as g·o, which is the same number."""
    return (g * o).sum(axis=-1, keepdims=True)


def slopes_of(p: Array, a: Array, d: Array) -> Array:
    """The gradient of the scores as they entered the softmax."""
    return p * (a - d)


def cap_slope(s: Array, cap: float | None) -> Array | float:
    """The derivative of the cap at the scores before it."""
    return 1.0 if cap is None else 1 - np.tanh(s / s.dtype.type(cap)) ** 2


def scaled(t: Array, scale: float) -> Array:
    """The gradient of the scores before they were scaled."""
    return t * t.dtype.type(scale)


def whole(
    problem: Inputs,
    dtype: str | None = None,
    *,
    scores: Callable[[Array, Array, float], Array] = scores_of,
    again: Callable[[Array, Array, float], Array] | None = None,
    compose: Callable[[Array, Inputs], Array] = composed,
    seen_by: Callable[[Inputs], Array | None] = visible,
    hidden: float = -np.inf,
    change: Callable[[Array], Array] = same,
    sink: Callable[[Array, Inputs], Array] = with_sink,
    weights: Callable[[Array], Array] = softmax,
    weights_again: Callable[[Array], Array] | None = None,
    weights_kept: Callable[[Array], Array] = same,
    empty: Callable[[Array, Array | None], Array] = zeros_where_empty,
    spread: Callable[[Array, int], Array] = repeated,
    gather: Callable[[Array, int], Array] = summed,
    save: Callable[[Array], Array] = same,
    products: Callable[[Array, Array], Array] = products_of,
    offset: Callable[[Array, Array, Array, Array], Array] = from_weights,
    slopes: Callable[[Array, Array, Array], Array] = slopes_of,
    cap_slope: Callable[[Array, float | None], Array | float] = cap_slope,
    times: Callable[[Array, float], Array] = scaled,
    for_query: Callable[[Array], Array] = same,
    for_key: Callable[[Array], Array] = same,
    for_value: Callable[[Array], Array] = same,
    mix: Callable[[Array, Array], Array] = np.matmul,
    mix_back: Callable[[Array, Array], Array] = np.matmul,
    last: Callable[[Array, str], Array] = round_to,
    last_back: Callable[[Array, str], Array] = round_to,
) -> Answers:
    """The formulas on whole arrays.

    change : applied to masked scores. again, weights_again : replace `scores` and `weights` in the backward pass.
    weights_kept : applied to the weights of the backward pass. save : how the output is stored for D. for_query,
    for_key, for_value : applied to T, T and P before the last sums. mix, last : how the output is summed and rounded.
    dtype : of the answers, by default the problem's.
    """
    dtype = dtype or problem.dtype
    inner = inner_of(dtype)
    q, k, v = (np.asarray(one, dtype=inner) for one in (problem.query, problem.key, problem.value))
    k, v = spread(k, problem.group), spread(v, problem.group)
    seen = seen_by(problem)

    def weighted(score: Callable[..., Array], normalise: Callable[[Array], Array]) -> tuple[Array, Array]:
        raw = score(q, k, problem.scale)
        s = sink(change(hide(compose(raw, problem), seen, hidden)), problem)
        return raw, empty(normalise(s)[..., : k.shape[2]].astype(inner), seen)

    with np.errstate(all="ignore"):
        raw, p = weighted(scores, weights)
        output = mix(p, v)
        found = {OUTPUT: last(output, dtype)}
        if problem.output_gradient is None:
            return found
        g = np.asarray(problem.output_gradient, dtype=inner)
        if again is not None or weights_again is not None:
            raw, p = weighted(again or scores, weights_again or weights)
        p = weights_kept(p)
        a = products(g, v)
        t = slopes(p, a, offset(p, a, g, save(output))) * cap_slope(raw, problem.softcap)
        t = times(t.astype(inner), problem.scale)
        query, key = mix_back(for_query(t), k), mix_back(for_key(t).swapaxes(-1, -2), q)
        value = mix_back(for_value(p).swapaxes(-1, -2), g)
        key, value = gather(key, problem.group), gather(value, problem.group)
        return found | {DQ: last_back(query, dtype), DK: last_back(key, dtype), DV: last_back(value, dtype)}


#: from (total, more, name of the gradient, block of queries and of keys) to the new total
Add = Callable[[Array, Array, str, tuple[int, int]], Array]


def add(total: Array, more: Array, name: str, at: tuple[int, int]) -> Array:
    """The new total of an accumulator."""
    return total + more


def in_order(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """All blocks (queries, keys): for each block of keys, all blocks of queries."""
    return ((i, j) for j in range(n_k) for i in range(n_q))


def blocked(
    problem: Inputs,
    dtype: str | None = None,
    *,
    block: int = 64,
    first_max: float = -np.inf,
    rescale_sum: bool = True,
    rescale_output: bool = True,
    lazy: float = 0.0,
    forget_rise: float = 0.0,
    drop_partial: bool = False,
    store: Callable[[Array], Array] = same,
    store_sum: Callable[[Array], Array] = same,
    store_output: Callable[[Array], Array] = same,
    exp: Callable[[Array], Array] = np.exp,
    scores: Callable[[Array, Array, float], Array] = scores_of,
    **back: Any,
) -> Answers:
    """Online softmax over blocks of keys, as in fused kernels. `store` is how weights are stored before p·v.

    lazy : the running maximum is updated only if it rises by more than this. forget_rise : sums are not rescaled if it
    rises by less than this. back : parts of the backward pass, see `blocked_back`.
    """
    dtype = dtype or problem.dtype
    inner = inner_of(dtype)
    q, k, v = (np.asarray(one, dtype=inner) for one in (problem.query, problem.key, problem.value))
    k, v = repeated(k, problem.group), repeated(v, problem.group)
    seen, n_k = visible(problem), k.shape[2]
    end = n_k - n_k % block if drop_partial and n_k > block else n_k
    sinks = None if problem.sinks is None else problem.sinks.astype(inner)[None, :, None, None]
    top = np.full((*q.shape[:3], 1), first_max, dtype=inner)
    total = np.zeros_like(top)
    if sinks is not None:
        top, total = np.broadcast_to(sinks, top.shape), np.ones_like(top)
    output = np.zeros((*q.shape[:3], v.shape[3]), dtype=inner)
    added = full(problem.bias_array, problem)
    with np.errstate(all="ignore"):
        for start in range(0, end, block):
            part = slice(start, min(start + block, end))
            s = capped(scores(q, k[:, :, part], problem.scale), problem.softcap)
            s = s if added is None else (s + added[..., part]).astype(inner)
            s = hide(s, None if seen is None else seen[..., part])
            highest = s.max(axis=-1, keepdims=True)
            now = np.where(highest > top + inner(lazy), highest, top)
            shift = np.where(np.isneginf(now), 0, now).astype(inner)
            p, factor = exp(s - shift), exp(top - shift)
            factor = np.where(now - top < inner(forget_rise), 1, factor).astype(inner)
            total = store_sum(total * (factor if rescale_sum else 1) + p.sum(axis=-1, keepdims=True))
            output = store_output(output * (factor if rescale_output else 1) + store(p) @ v[:, :, part])
            top = now
        output = zeros_where_empty(output / total, seen)
        found = {OUTPUT: round_to(output, dtype)}
        if problem.output_gradient is None:
            return found
        return blocked_back(problem, dtype, block=block, scores=scores, store=store, exp=exp, **back)


def blocked_back(
    problem: Inputs,
    dtype: str | None = None,
    *,
    block: int = 64,
    scores: Callable[[Array, Array, float], Array] = scores_of,
    again: Callable[[Array, Array, float], Array] | None = None,
    exp: Callable[[Array], Array] = np.exp,
    log: Callable[[Array], Array] = np.log,
    seen_again: Callable[[Inputs], Array | None] = visible,
    save: Callable[[Array], Array] | None = None,
    save_logs: Callable[[Array, Array], Array] = np.add,
    offset: Callable[[Array, Array, Array, Array], Array] = from_output,
    store: Callable[[Array], Array] | None = None,
    add: Add = add,
    order: Callable[[int, int], Iterator[tuple[int, int]]] = in_order,
) -> Answers:
    """The backward pass of flash kernels: from the output and ln Z that the forward pass saved.

    save : how the output is stored for D. save_logs : ln Z from a row's maximum and the log of its sum. store : how P
    and T are stored before their products. By default save and store round to `dtype`. order : of the (query, key)
    blocks.
    """
    dtype, shape = dtype or problem.dtype, problem.shape
    inner = inner_of(dtype)
    given = (problem.query, problem.key, problem.value, problem.output_gradient)
    q, k, v, g = (np.asarray(one, dtype=inner) for one in given)
    k, v = repeated(k, problem.group), repeated(v, problem.group)
    store = store or rounder(dtype)
    seen, added = visible(problem), full(problem.bias_array, problem)
    s = with_sink(hide(composed(scores(q, k, problem.scale), problem), seen), problem)
    top = s.max(axis=-1, keepdims=True)
    top = np.where(np.isneginf(top), 0, top).astype(inner)
    e = exp(s - top)
    total = e.sum(axis=-1, keepdims=True)
    e = e[..., : shape.keys]
    o = np.where(total > 0, (e @ v) / total, 0).astype(inner)
    logs = np.where(total > 0, save_logs(top, log(total)), 0).astype(inner)
    # D needs no blocks: g and o of a row have all value components
    d = offset(e / total, products_of(g, v), g, (save or rounder(dtype))(o))
    sums = {name: np.zeros(x.shape, dtype=inner) for name, x in ((DQ, q), (DK, k), (DV, v))}
    sees = seen_again(problem)
    for at in order(-(-shape.queries // block), -(-shape.keys // block)):
        rows, keys = (slice(x * block, (x + 1) * block) for x in at)
        shown = None if sees is None else sees[..., rows, keys]
        if shown is not None and not shown.any():
            continue
        raw = (again or scores)(q[:, :, rows], k[:, :, keys], problem.scale)
        s = capped(raw, problem.softcap)
        s = s if added is None else (s + added[..., rows, keys]).astype(inner)
        p = exp(hide(s, shown) - logs[:, :, rows])
        t = slopes_of(p, products_of(g[:, :, rows], v[:, :, keys]), d[:, :, rows])
        kept, turned = store((t * cap_slope(raw, problem.softcap)).astype(inner)), store(p).swapaxes(-1, -2)
        for name, place, more in (
            (DQ, rows, scaled(kept @ k[:, :, keys], problem.scale)),
            (DK, keys, scaled(kept.swapaxes(-1, -2) @ q[:, :, rows], problem.scale)),
            (DV, keys, turned @ g[:, :, rows]),
        ):
            sums[name][:, :, place] = add(sums[name][:, :, place], more, name, at)
    found = {OUTPUT: o, DQ: sums[DQ]} | {name: summed(sums[name], problem.group) for name in (DK, DV)}
    return {name: round_to(one, dtype) for name, one in found.items()}


def after(part: Callable[..., Array], change: Callable[[Array], Array]) -> Callable[..., Array]:
    """`part` with `change` applied to its result."""
    return lambda *given: change(part(*given))


def parted(**exchanged: Any) -> Attention:
    """`whole` with parts exchanged."""
    return partial(whole, **exchanged)


def in_blocks(**exchanged: Any) -> Attention:
    """`blocked` with parts exchanged."""
    return partial(blocked, **exchanged)


@dataclass(frozen=True)
class Remembering:
    """An attention with memory: `fresh` makes one whose memory is empty."""

    fresh: Callable[[], Attention]


def remembering(answer: Callable[..., Answers]) -> Callable[..., Remembering]:
    """From answer(memory, *settings, problem) to a function of the settings that makes a `Remembering`."""
    return lambda *settings: Remembering(lambda: partial(answer, {}, *settings))


def quiet_back(**exchanged: Any) -> Attention:
    """`blocked_back` with parts exchanged, without NumPy's warnings. The output is computed on whole arrays."""

    def attend(problem: Inputs) -> Answers:
        if problem.output_gradient is None:
            return whole(problem)
        with np.errstate(all="ignore"):
            return blocked_back(problem, **exchanged)

    return attend


def cut(x: Array, bits: int) -> Array:
    """x with `bits` bits of significand, truncated towards zero (not rounded)."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.trunc(np.ldexp(mantissa, bits)), exponent - bits).astype(x.dtype)


def cut_to(x: Array, dtype: str) -> Array:
    """x truncated towards zero to `dtype`."""
    if dtype == "float64":
        return x
    return cut(x, {"float32": 24, "float16": 11, "bfloat16": 8}[dtype]).astype(carrier(dtype))


def rounder(dtype: str) -> Callable[[Array], Array]:
    """A function that rounds to `dtype` and keeps the type of the array."""
    return lambda x: round_to(x, dtype).astype(x.dtype)


def stored_sums(dtype: str) -> Add:
    """An accumulator that is stored in memory in `dtype`."""
    store = rounder(dtype)
    return lambda total, more, name, at: store(total + more)


def added_up(terms: Iterable[Array], dtype: str) -> Array:
    """The sum of the terms in their order, each partial sum rounded to `dtype`."""
    return reduce(
        lambda total, term: round_to(total + term, dtype).astype(term.dtype), terms, np.zeros(1, "f4")
    )


def in_sequence(dtype: str, step: int = 1) -> Callable[[Array, Array], Array]:
    """weights @ values, added up `step` keys at a time in a sum that is stored in `dtype`."""

    def mix(p: Array, v: Array) -> Array:
        steps = (slice(start, start + step) for start in range(0, v.shape[2], step))
        return added_up((p[..., part] @ v[:, :, part] for part in steps), dtype)

    return mix


def sum_in(dtype: str) -> Callable[[Array], Array]:
    """Softmax whose denominator is added up key by key in `dtype`."""
    return lambda s: (e := exponentials(s)) / added_up(np.moveaxis(e[..., None], -2, 0), dtype)
