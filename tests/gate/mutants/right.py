"""Right implementations that differ in how they round, outputs and gradients: each must pass, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Problem

from .parts import (
    OUTPUT,
    Answers,
    Array,
    Attention,
    blocked,
    blocked_back,
    composed,
    divided,
    exponentials,
    from_output,
    hide,
    in_sequence,
    inner_of,
    parted,
    repeated,
    rounder,
    same,
    scaled,
    scores_of,
    slopes_of,
    softmax,
    stored_sums,
    sum_in,
    summed,
    visible,
    whole,
    zeros_where_empty,
)
from .rounding import in_doubles

Store = Callable[[Array], Array]


def eager(problem: Problem) -> Answers:
    """Every step stored in the dtype, as automatic differentiation of a few plain lines does it."""
    store = rounder(problem.dtype)

    def compose(s: Array, problem: Problem) -> Array:
        cap, added = problem.softcap, problem.bias_array
        if cap is not None:
            s = store(store(np.tanh(store(s / s.dtype.type(cap)))) * s.dtype.type(cap))
        return s if added is None else store(s + store(added.astype(s.dtype)))

    return whole(
        problem,
        scores=lambda q, k, scale: store(store(q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)),
        compose=compose,
        weights=lambda s: store(softmax(s)),
        products=lambda g, v: store(g @ v.swapaxes(-1, -2)),
        slopes=lambda p, a, d: store(slopes_of(p, a, d)),
        times=lambda t, scale: store(scaled(store(t), scale)),
    )


def weighted(weights: Callable[[Array, Store], Array]) -> Attention:
    """The weights are weights(scores, rounding to the dtype)."""
    return lambda problem: whole(problem, weights=lambda s: weights(s, rounder(problem.dtype)))


def top_of(s: Array) -> Array:
    """The largest score of a row, 0 where it sees no key."""
    top = s.max(axis=-1, keepdims=True)
    return np.where(np.isneginf(top), 0, top)


def written_out(s: Array, store: Store) -> Array:
    """Softmax as its formula reads, each step of it stored: s, s − m, e^{s − m}, its sum, the quotient."""
    s = store(s)
    e = store(np.exp(store(s - top_of(s))))
    total = e.sum(axis=-1, keepdims=True)
    return store(e / np.where(total < 65504, store(total), total))  # float16 ends there: that would be wrong


def powers_of_two(s: Array, store: Store) -> Array:
    """2^(s log2 e), as GPU kernels do."""
    x = s * s.dtype.type(np.log2(np.e))
    return divided(np.exp2(x - top_of(x)))


def two_passes(one_number: bool) -> Callable[[Array], Array]:
    """First the log-sum-exp, then e^{(s − m) − ln l}, or e^{s − ln Z} with ln Z = m + ln l: no division."""

    def weights(s: Array) -> Array:
        top = top_of(s)
        log_sum = np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
        return np.exp(s - (top + log_sum) if one_number else (s - top) - log_sum)

    return weights


def fused(
    block: int, *, exact: bool = False, sums: bool = False, lazy: float = 0.0, **back: Any
) -> Attention:
    """Online softmax, unnormalised weights, P and T stored in the dtype: what a flash kernel does.

    exact : nothing inside is stored. sums : the gradients lie in memory in the dtype while they are added up.
    """

    def attend(problem: Problem) -> Answers:
        store = same if exact else rounder(problem.dtype)
        parts = (
            back | ({"save": same} if exact else {}) | ({"add": stored_sums(problem.dtype)} if sums else {})
        )
        forward = blocked(problem.with_(output_gradient=None), block=block, store=store, lazy=lazy)
        if problem.output_gradient is None:
            return forward
        with np.errstate(all="ignore"):
            return blocked_back(problem, block=block, store=store, **parts) | forward

    return attend


def folded(split: Callable[[float], tuple[float, float]]) -> Attention:
    """The scale multiplies query and key, which are stored in the dtype again; split(scale) are the two factors."""

    def attend(problem: Problem) -> Answers:
        inner, store = inner_of(problem.dtype), rounder(problem.dtype)
        of_query, of_key = (inner(one) for one in split(problem.scale))
        query, key = store(problem.query.astype(inner) * of_query), store(problem.key.astype(inner) * of_key)
        found = whole(problem.with_(query=query, key=key, scale=1.0), last_back=lambda x, _: x)
        factors = {"query gradient": of_query, "key gradient": of_key}
        back = {name: round_to(one * factors.get(name, 1), problem.dtype) for name, one in found.items()}
        return back | {OUTPUT: found[OUTPUT]}

    return attend


def halves(scale: float) -> tuple[float, float]:
    """Its root in both: PyTorch's math kernel."""
    return float(np.sign(scale)) * abs(scale) ** 0.5, abs(scale) ** 0.5


def one_by_one(problem: Problem) -> Answers:
    """Weights and values are added key after key: the longest chain of roundings that a sum can have."""
    inner = "float64" if problem.dtype == "float64" else "float32"
    mix = in_sequence(inner, 1)
    return whole(problem, weights=sum_in(inner), mix=mix, mix_back=mix)


def merged(*shares: float, one_number: bool = False) -> Attention:
    """Keys in parts that end at `shares` of them, merged by their partition functions: split-k decoding.

    one_number : ln Z is kept as m + ln l, else as the two.
    """

    @np.errstate(all="ignore")
    def attend(problem: Problem) -> Answers:
        inner, n = inner_of(problem.dtype), problem.shape.keys
        q, k, v = (x.astype(inner) for x in (problem.query, problem.key, problem.value))
        k, v, seen = repeated(k, problem.group), repeated(v, problem.group), visible(problem)
        s = hide(composed(scores_of(q, k, problem.scale), problem), seen)
        ends = [0, *(round(share * n) for share in shares), n]
        outputs, tops, logs = [], [], []
        for start, end in (pair for pair in pairwise(ends) if pair[0] < pair[1]):
            top = s[..., start:end].max(axis=-1, keepdims=True)
            top = np.where(np.isneginf(top), inner(np.finfo(inner).min / 2), top)
            e = np.exp(s[..., start:end] - top)
            total = e.sum(axis=-1, keepdims=True)
            outputs.append(e @ v[:, :, start:end] / np.where(total > 0, total, 1))
            tops.append(top + np.log(total) if one_number else top)
            logs.append(np.zeros_like(total) if one_number else np.log(total))
        if problem.sinks is not None:
            sink = problem.sinks.astype(inner)[None, :, None, None] + np.zeros_like(q[..., :1])
            outputs, tops, logs = [*outputs, np.zeros_like(outputs[0])], [*tops, sink], [*logs, 0 * sink]
        highest = np.maximum.reduce(tops)
        factors = [np.exp((top - highest) + log) for top, log in zip(tops, logs, strict=True)]
        total = sum(factor * output for factor, output in zip(factors, outputs, strict=True))
        output = zeros_where_empty(total / sum(factors), seen)
        return whole(problem) | {OUTPUT: round_to(output, problem.dtype)}

    return attend


def smoothed_keys(problem: Problem) -> Answers:
    """The mean key is subtracted from all keys, which moves all scores of a row alike; a cap or a sink it would not."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        return scores_of(q, k - k.mean(axis=2, keepdims=True), scale)

    alike = problem.softcap is None and problem.sinks is None
    return whole(problem, scores=scores if alike else scores_of)


def half_away(x: Array, dtype: str) -> Array:
    """Halves are rounded away from zero, not to even: float32 inside leaves next to none."""
    bits = {"float16": 13, "bfloat16": 16}.get(dtype)
    if bits is None:
        return round_to(x, dtype)
    up = x.astype(np.float32).view(np.uint32) + np.uint32(1 << (bits - 1))
    return round_to((up & np.uint32(-1 << bits & 0xFFFFFFFF)).view(np.float32), dtype)


def sink_as_key(problem: Problem) -> Answers:
    """A sink is one more key 0 with the value 0 and the sink for bias; bias and mask are one array."""
    found = whole(problem.without_sinks())
    cut = {
        name: found[name][:, :, : problem.shape.keys] for name in found if name.startswith(("key", "value"))
    }
    return found | cut


def heads_written_out(problem: Problem) -> Answers:
    """Heads of key and value are repeated in memory, and their gradients are stored before they are summed."""
    store = rounder(problem.dtype)
    return whole(problem, gather=lambda x, group: summed(store(x), group))


def cap_by_exponentials(s: Array, problem: Problem) -> Array:
    """tanh as (1 − e^{−2x})/(1 + e^{−2x}) with its sign put back."""
    cap = problem.softcap
    if cap is not None:
        e = np.exp(-2 * np.abs(s / s.dtype.type(cap)))
        s = np.asarray(s.dtype.type(cap) * np.sign(s) * -np.expm1(np.log(e)) / (1 + e))
    return composed(s, problem.with_(softcap=None))


RIGHT: dict[str, Attention] = {
    "scores rounded": eager,
    "softmax written out": weighted(written_out),
    "hidden scores are -10^9": parted(hidden=-1e9),
    "weights rounded": weighted(lambda s, store: store(softmax(s))),
    "fused, blocks of 16": fused(16),
    "fused, blocks of 64": fused(64),
    "fused, blocks of 100": fused(100),
    "float32 inside, blocks of 32": fused(32, exact=True),
    "partial sums of 32 stored": fused(32, sums=True),
    # atomic additions come in any order
    "last block first": fused(
        32, order=lambda n_q, n_k: ((i, j) for i in reversed(range(n_q)) for j in reversed(range(n_k)))
    ),
    "queries outside": fused(32, order=lambda n_q, n_k: ((i, j) for i in range(n_q) for j in range(n_k))),
    "lazy maximum": fused(32, lazy=8 * float(np.log(2))),
    "float64 inside": in_doubles(),
    "exp2": weighted(powers_of_two),
    "scaled query": folded(lambda scale: (scale, 1.0)),
    "scaled keys": folded(lambda scale: (1.0, scale)),
    "root of the scale": folded(halves),
    "one key after another": one_by_one,
    "merged halves": merged(1 / 2, one_number=True),
    "three uneven splits": merged(0.2, 0.6),
    "mean key subtracted": smoothed_keys,
    "two passes": parted(weights=two_passes(one_number=False)),
    "two passes, ln Z in one number": parted(weights=two_passes(one_number=True)),
    "D from the output": parted(offset=from_output),
    "D from the output, rounded": lambda p: whole(p, offset=from_output, save=rounder(p.dtype)),
    "half away from zero": parted(last=half_away),
    # so that they sum to 1 again
    "sum of stored weights": weighted(lambda s, store: divided(store(exponentials(s)))),
    "sink as a key": sink_as_key,
    "heads written out": heads_written_out,
    "tanh by exponentials": parted(compose=cap_by_exponentials),
}
