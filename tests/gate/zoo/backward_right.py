"""Right backward passes that differ in how they round: each must pass the gate, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnlab.contract.dtypes import round_to

from .backward_parts import (
    Backward,
    Four,
    from_output,
    in_blocks,
    masked,
    same,
    scaled,
    slopes_of,
    stored_sums,
    whole,
    with_parts,
)
from .parts import Array, in_sequence, inner_of, rounder, scores_of, seen_by, softmax
from .right import LOG2_E


def eager(dtype: str) -> Backward:
    """Every step stored in the dtype, as automatic differentiation of three plain lines does it."""
    store = rounder(dtype)
    return with_parts(
        scores=lambda q, k, scale: store(store(q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)),
        weights=lambda s: store(softmax(s)),
        products=lambda g, v: store(g @ v.swapaxes(-1, -2)),
        slopes=lambda p, a, d: store(slopes_of(p, a, d)),
        times=lambda t, scale: store(scaled(t, scale)),
    )(dtype)


def written_out(dtype: str) -> Backward:
    """Softmax as its formula reads, each step stored, and m differentiated as well: on its key lie all errors of T."""
    store = rounder(dtype)

    def gradients(q: Array, k: Array, v: Array, g: Array, *, causal: bool, scale: float) -> Four:
        inner = inner_of(dtype)
        q, k, v, g = (array.astype(inner) for array in (q, k, v, g))
        s = masked(store(store(q @ k.swapaxes(-1, -2)) * inner(scale)), seen_by, causal)
        top = s.max(axis=-1, keepdims=True)
        e = store(np.exp(store(s - top)))
        total = e.sum(axis=-1, keepdims=True)
        total = np.where(total < 65504, store(total), total)  # as in `right`
        p = store(e / total)
        a = store(g @ v.swapaxes(-1, -2))
        mean = store(store(a * p).sum(axis=-1, keepdims=True))
        t = store(store(store(a / total) - store(mean / total)) * e)
        first = s == top
        t = store(t - first * store(store(t.sum(axis=-1, keepdims=True)) / first.sum(axis=-1, keepdims=True)))
        t = store(scaled(t, scale))
        found = (p @ v, t @ k, t.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g)
        return tuple(round_to(one, dtype) for one in found)  # type: ignore[return-value]

    return gradients


def fused(block: int) -> Callable[[str], Backward]:
    """P, T and the output stored in the dtype, sums in float32: what a flash kernel does."""
    return in_blocks(block=block)


def partial_sums(block: int) -> Callable[[str], Backward]:
    """As `fused`, and the gradients lie in memory in the dtype while they are added up."""
    return lambda dtype: in_blocks(block=block, add=stored_sums(dtype))(dtype)


def doubles(dtype: str) -> Backward:
    """Everything in float64, rounded once."""

    def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
        wide = (array.astype(np.float64) for array in (q, k, v, g))
        found = whole(*wide, **options, dtype="float64")
        return tuple(round_to(one, dtype) for one in found)  # type: ignore[return-value]

    return gradients


def powers_of_two(dtype: str) -> Backward:
    """2^(s − log₂ Z) with log₂ e folded into the scale, as GPU kernels do."""
    return in_blocks(
        block=48,
        scores=lambda q, k, scale: scores_of(q, k, scale * LOG2_E),
        exp=np.exp2,
        log=np.log2,
    )(dtype)


def scaled_query(dtype: str) -> Backward:
    """The query is scaled and stored in the dtype; the key's gradient is made of it, not of the query."""
    store = rounder(dtype)

    def gradients(q: Array, k: Array, v: Array, g: Array, *, causal: bool, scale: float) -> Four:
        wide = inner_of(dtype)  # the constant itself is not rounded to the dtype
        inner = store(q.astype(wide) * wide(scale))
        output, query, key, value = whole(inner, k, v, g, causal=causal, scale=1.0, dtype=dtype, last=exact)
        rest = (scaled(query, scale), key, value)
        return round_to(output, dtype), *(round_to(x, dtype) for x in rest)  # type: ignore[return-value]

    return gradients


def exact(x: Array, dtype: str) -> Array:
    """Not yet rounded."""
    return x


def halved_scale(dtype: str) -> Backward:
    """Its root multiplies query and key, stored in the dtype, and so do their gradients: PyTorch's math kernel."""
    store = rounder(dtype)

    def gradients(q: Array, k: Array, v: Array, g: Array, *, causal: bool, scale: float) -> Four:
        wide = inner_of(dtype)  # as above
        q, k = q.astype(wide), k.astype(wide)
        root, sign = wide(abs(scale) ** 0.5), wide(np.sign(scale))
        output, query, key, value = whole(
            store(q * (root * sign)), store(k * root), v, g, causal=causal, scale=1.0, dtype=dtype
        )
        slopes = (store(query.astype(wide) * (root * sign)), store(key.astype(wide) * root))
        return output, *(round_to(one, dtype) for one in slopes), value  # type: ignore[return-value]

    return gradients


def backwards(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """The last block first: atomic additions come in any order."""
    return ((i, j) for i in reversed(range(n_q)) for j in reversed(range(n_k)))


def by_queries(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries outside."""
    return ((i, j) for i in range(n_q) for j in range(n_k))


def one_by_one(dtype: str) -> Backward:
    """Gradients added up term after term: the longest chain of roundings that a sum can have."""
    return with_parts(mix=in_sequence("float64" if dtype == "float64" else "float32", 1))(dtype)


def scale_stored(dtype: str) -> Backward:
    """T is stored after it was scaled."""
    store = rounder(dtype)
    return with_parts(
        save=store,
        offset=from_output,
        times=lambda t, scale: store(scaled(t, scale)),
        for_value=store,
    )(dtype)


#: name -> how to make it in a dtype
RIGHT_BACKWARD: dict[str, Callable[[str], Backward]] = {
    "float32 inside, blocks of 32": in_blocks(block=32, save=same, store=same),
    "float64 inside": doubles,
    "scores rounded": eager,
    "softmax written out": written_out,
    "fused, blocks of 16": fused(16),
    "fused, blocks of 64": fused(64),
    "fused, blocks of 100": fused(100),
    "partial sums of 32 stored": partial_sums(32),
    "partial sums of 64 stored": partial_sums(64),
    "D from weights": with_parts(),
    "D from the output, not rounded": with_parts(offset=from_output),
    "D from the output, rounded": lambda dtype: with_parts(offset=from_output, save=rounder(dtype))(dtype),
    "scaled T stored": scale_stored,
    "exp2": powers_of_two,
    "scaled query": scaled_query,
    "root of the scale": halved_scale,
    "last block first": in_blocks(order=backwards, block=32),
    "queries outside": in_blocks(order=by_queries, block=32),
    "last block first, partial sums stored": lambda dtype: in_blocks(
        order=backwards, block=32, add=stored_sums(dtype)
    )(dtype),
    "one term after another": one_by_one,
}
