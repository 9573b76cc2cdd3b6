"""Right implementations that differ in how they round, outputs and gradients: each must pass, whatever the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from attnlab.contract.dtypes import round_to
from attnlab.contract.problem import Problem

from .parts import (
    OUTPUT,
    Answers,
    Array,
    Attention,
    Make,
    blocked,
    blocked_back,
    composed,
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
    visible,
    whole,
    zeros_where_empty,
)
from .rounding import in_doubles

LOG2_E = float(np.log2(np.e))
Store = Callable[[Array], Array]


def eager(dtype: str) -> Attention:
    """Every step stored in the dtype, as automatic differentiation of a few plain lines does it."""
    store = rounder(dtype)

    def compose(s: Array, problem: Problem) -> Array:
        cap, added = problem.softcap, problem.bias_array
        if cap is not None:
            s = store(store(np.tanh(store(s / s.dtype.type(cap)))) * s.dtype.type(cap))
        return s if added is None else store(s + store(added.astype(s.dtype)))

    return partial(
        whole,
        dtype=dtype,
        scores=lambda q, k, scale: store(store(q @ k.swapaxes(-1, -2)) * q.dtype.type(scale)),
        compose=compose,
        weights=lambda s: store(softmax(s)),
        products=lambda g, v: store(g @ v.swapaxes(-1, -2)),
        slopes=lambda p, a, d: store(slopes_of(p, a, d)),
        times=lambda t, scale: store(scaled(store(t), scale)),
    )


def written_out(dtype: str) -> Attention:
    """Softmax as its formula reads, each step of it stored: s, s − m, e^{s − m}, its sum, the quotient."""
    store = rounder(dtype)

    def weights(s: Array) -> Array:
        s = store(s)
        top = s.max(axis=-1, keepdims=True)
        e = store(np.exp(store(s - np.where(np.isneginf(top), 0, top))))
        total = e.sum(axis=-1, keepdims=True)
        return store(
            e / np.where(total < 65504, store(total), total)
        )  # float16 ends there: that would be wrong

    return partial(whole, dtype=dtype, weights=weights)


def fused(block: int, *, exact: bool = False, sums: bool = False, order: str = "", lazy: float = 0.0) -> Make:
    """Online softmax, unnormalised weights, P and T stored in the dtype: what a flash kernel does.

    exact : nothing inside is stored. sums : the gradients lie in memory in the dtype while they are added up.
    """

    def make(dtype: str) -> Attention:
        store = same if exact else rounder(dtype)
        back = {"save": same if exact else None, "add": stored_sums(dtype)} if sums or exact else {}
        if exact:
            back.pop("add")
        if order:
            back["order"] = {"backwards": backwards, "queries": by_queries}[order]

        def attend(problem: Problem) -> Answers:
            forward = blocked(problem.with_(output_gradient=None), dtype, block=block, store=store, lazy=lazy)
            if problem.output_gradient is None:
                return forward
            with np.errstate(all="ignore"):
                return blocked_back(problem, dtype, block=block, store=store, **back) | forward

        return attend

    return make


def backwards(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """The last block first: atomic additions come in any order."""
    return ((i, j) for i in reversed(range(n_q)) for j in reversed(range(n_k)))


def by_queries(n_q: int, n_k: int) -> Iterator[tuple[int, int]]:
    """Blocks of queries outside."""
    return ((i, j) for i in range(n_q) for j in range(n_k))


def powers_of_two(dtype: str) -> Attention:
    """2^(s log2 e), as GPU kernels do."""

    def weights(s: Array) -> Array:
        x = s * s.dtype.type(LOG2_E)
        top = x.max(axis=-1, keepdims=True)
        e = np.exp2(x - np.where(np.isneginf(top), 0, top))
        return e / e.sum(axis=-1, keepdims=True)

    return partial(whole, dtype=dtype, weights=weights)


def folded(split: Callable[[float], tuple[float, float]]) -> Make:
    """The scale multiplies query and key, which are stored in the dtype again; split(scale) are the two factors."""

    def make(dtype: str) -> Attention:
        store = rounder(dtype)

        def attend(problem: Problem) -> Answers:
            inner = inner_of(dtype)
            of_query, of_key = (inner(one) for one in split(problem.scale))
            given = problem.with_(
                query=store(problem.query.astype(inner) * of_query),
                key=store(problem.key.astype(inner) * of_key),
                scale=1.0,
            )
            found = whole(given, dtype, last_back=lambda x, _: x)
            factors = {"query gradient": of_query, "key gradient": of_key}
            return {
                name: one if name == OUTPUT else round_to(one * factors.get(name, 1), dtype)
                for name, one in found.items()
            }

        return attend

    return make


def halves(scale: float) -> tuple[float, float]:
    """Its root in both: PyTorch's math kernel."""
    return float(np.sign(scale)) * abs(scale) ** 0.5, abs(scale) ** 0.5


def one_by_one(dtype: str) -> Attention:
    """Weights and values are added key after key: the longest chain of roundings that a sum can have."""
    inner = "float64" if dtype == "float64" else "float32"
    mix = in_sequence(inner, 1)
    return partial(whole, dtype=dtype, weights=sum_in(inner), mix=mix, mix_back=mix)


def merged(*shares: float, one_number: bool = False) -> Make:
    """Keys in parts that end at `shares` of them, merged by their partition functions: split-k decoding.

    one_number : ln Z is kept as m + ln l, else as the two.
    """

    def make(dtype: str) -> Attention:
        def attend(problem: Problem) -> Answers:
            inner, n = inner_of(dtype), problem.shape.keys
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
            return whole(problem, dtype) | {OUTPUT: round_to(output, dtype)}

        def quiet(problem: Problem) -> Answers:
            with np.errstate(all="ignore"):
                return attend(problem)

        return quiet

    return make


def smoothed_keys(dtype: str) -> Attention:
    """The mean key is subtracted from all keys, which moves all scores of a row alike; a cap or a sink it would not."""

    def scores(q: Array, k: Array, scale: float) -> Array:
        return scores_of(q, k - k.mean(axis=2, keepdims=True), scale)

    return lambda p: whole(p, dtype, scores=scores if p.softcap is None and p.sinks is None else scores_of)


def two_passes(*, one_number: bool) -> Callable[[Array], Array]:
    """First the log-sum-exp, then e^{(s − m) − ln l}, or e^{s − ln Z} with ln Z = m + ln l: no division."""

    def weights(s: Array) -> Array:
        top = s.max(axis=-1, keepdims=True)
        top = np.where(np.isneginf(top), 0, top)
        log_sum = np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
        return np.exp(s - (top + log_sum) if one_number else (s - top) - log_sum)

    return weights


def half_away(x: Array, dtype: str) -> Array:
    """Halves are rounded away from zero, not to even: float32 inside leaves next to none."""
    bits = {"float16": 13, "bfloat16": 16}.get(dtype)
    if bits is None:
        return round_to(x, dtype)
    up = x.astype(np.float32).view(np.uint32) + np.uint32(1 << (bits - 1))
    return round_to((up & np.uint32(-1 << bits & 0xFFFFFFFF)).view(np.float32), dtype)


def summed_rounded(dtype: str) -> Attention:
    """The denominator is the sum of the weights as they were stored, so that they sum to 1 again."""
    store = rounder(dtype)

    def weights(s: Array) -> Array:
        e = store(np.exp(s - s.max(axis=-1, keepdims=True)))
        return e / e.sum(axis=-1, keepdims=True)

    return partial(whole, dtype=dtype, weights=weights)


def sink_as_key(dtype: str) -> Attention:
    """A sink is one more key 0 with the value 0 and the sink for bias; bias and mask are one array."""

    def attend(problem: Problem) -> Answers:
        n, found = problem.shape.keys, whole(problem.without_sinks(), dtype)
        return {
            name: one if name in (OUTPUT, "query gradient") else one[:, :, :n] for name, one in found.items()
        }

    return attend


def heads_written_out(dtype: str) -> Attention:
    """Heads of key and value are repeated in memory, and their gradients are stored before they are summed."""
    store = rounder(dtype)

    def gather(x: Array, group: int) -> Array:
        heads = store(x).reshape(x.shape[0], -1, group, *x.shape[2:])
        return np.asarray(heads.sum(axis=2))

    return partial(whole, dtype=dtype, gather=gather)


def cap_by_exponentials(s: Array, problem: Problem) -> Array:
    """tanh as (1 − e^{−2x})/(1 + e^{−2x}) with its sign put back."""
    cap = problem.softcap
    if cap is not None:
        e = np.exp(-2 * np.abs(s / s.dtype.type(cap)))
        s = np.asarray(s.dtype.type(cap) * np.sign(s) * -np.expm1(np.log(e)) / (1 + e))
    return composed(s, problem.with_(softcap=None))


#: name -> how to make it in a dtype
RIGHT: dict[str, Make] = {
    "scores rounded": eager,
    "softmax written out": written_out,
    "hidden scores are -10^9": parted(hidden=-1e9),
    "weights rounded": lambda dtype: parted(weights=lambda s: rounder(dtype)(softmax(s)))(dtype),
    "fused, blocks of 16": fused(16),
    "fused, blocks of 64": fused(64),
    "fused, blocks of 100": fused(100),
    "float32 inside, blocks of 32": fused(32, exact=True),
    "partial sums of 32 stored": fused(32, sums=True),
    "last block first": fused(32, order="backwards"),
    "queries outside": fused(32, order="queries"),
    "lazy maximum": fused(32, lazy=8 * float(np.log(2))),
    "float64 inside": in_doubles(lambda dtype: {}),
    "exp2": powers_of_two,
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
    "D from the output, rounded": lambda dtype: parted(offset=from_output, save=rounder(dtype))(dtype),
    "half away from zero": parted(last=half_away),
    "sum of stored weights": summed_rounded,
    "sink as a key": sink_as_key,
    "heads written out": heads_written_out,
    "tanh by exponentials": parted(compose=cap_by_exponentials),
}
