"""Faults in the formula and its derivative: another softmax, another D, blocks that are lost or merged wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnlab.workload.inputs import Inputs

from . import parts
from .fault import BACKWARD, Fault, excused, scattered_by, shifted_by, then
from .parts import DK, DQ, DV, Add, Answers, Array, Attention, Memory, Remembering, add, parted, quiet_back


def with_more(extra: Callable[[Array], Array | float]) -> Callable[[Array], Array]:
    """Softmax with extra(scores) added to its denominator."""

    def weights(s: Array) -> Array:
        e = parts.exponentials(s)
        return (e / (e.sum(axis=-1, keepdims=True) + extra(s))).astype(s.dtype)

    return weights


def shifted(shift: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Softmax that subtracts shift(scores) instead of the maximum."""
    return lambda s: parts.divided(np.exp(s - shift(s).astype(s.dtype)))


def mean_of_seen(s: Array) -> Array:
    seen = ~np.isneginf(s)
    return np.where(seen, s, 0).sum(axis=-1, keepdims=True) / seen.sum(axis=-1, keepdims=True)


def argmax(s: Array) -> Array:
    return (np.arange(s.shape[-1]) == s.argmax(axis=-1)[..., None]).astype(s.dtype)


def uniform(s: Array) -> Array:
    seen = ~np.isneginf(s)
    return seen / seen.sum(axis=-1, keepdims=True, dtype=s.dtype)


@parts.remembering
def dropped_out(memory: Memory, rate: float, hook: str, problem: Inputs) -> Answers:
    """Dropout of the weights, or only of those that enter one sum, as `hook` says."""
    rng = memory.setdefault("rng", np.random.default_rng(0))

    def dropped(p: Array) -> Array:
        return (p * (rng.random(p.shape) >= rate) / (1 - rate)).astype(p.dtype)

    return parted(**{hook: (lambda s: dropped(parts.softmax(s))) if hook == "weights" else dropped})(problem)


def exp_from(least: float) -> Callable[[Array], Array]:
    """e^x with exponents raised to at least `least`; hidden keys still get 0."""
    return lambda x: np.where(np.isneginf(x), 0, np.exp(np.maximum(x, x.dtype.type(least)))).astype(x.dtype)


def largest_32(s: Array) -> Array:
    """Keep only the 32 largest scores of a row."""
    if s.shape[-1] <= 32:
        return s
    return np.where(s >= np.sort(s, axis=-1)[..., -32, None], s, -np.inf).astype(s.dtype)


def thresholded(s: Array) -> Array:
    """Weights below 1 % of the row's largest are replaced by zero."""
    e = parts.exponentials(s)
    return parts.divided(np.where(e < 1e-2, 0, e).astype(s.dtype))


def seen_scores(change: Callable[[Array], Array]) -> Attention:
    """Replace the scores of the keys that are seen by change(scores)."""
    return parted(change=lambda s: np.where(np.isneginf(s), s, change(s)).astype(s.dtype))


def sloped(s: Array) -> Array:
    """A bias that falls with the distance in positions."""
    n_q, n_k = s.shape[-2:]
    return (s - 1e-3 * np.abs(np.arange(n_q)[:, None] - np.arange(n_k))).astype(s.dtype)


def mask_added(size: float) -> Callable[[Array, Inputs], Array]:
    """Hidden keys keep their score minus `size`."""

    def compose(s: Array, problem: Inputs) -> Array:
        seen, s = parts.visible(problem), parts.composed(s, problem)
        return s if seen is None else np.where(seen, s, s - s.dtype.type(size))

    return compose


def unit_keys(q: Array, k: Array, scale: float) -> Array:
    """Cosine similarity: every key is scaled to the length √head_dim, its length on average."""
    length = np.sqrt((k * k).sum(axis=-1, keepdims=True))
    unit = k / np.where(length > 0, length, 1) * k.shape[-1] ** 0.5
    return parts.scores_of(q, unit.astype(k.dtype), scale)


def cubic(s: Array) -> Array:
    """Softmax with 2^f on [0, 1) by a polynomial of degree 3, which is wrong by up to 1e-4."""
    x = s - s.max(axis=-1, keepdims=True)
    y = np.maximum(np.asarray(x, dtype=np.float64) * 1.4426950408889634, -140.0)
    low = np.floor(y)
    f = y - low
    found = np.ldexp(0.9999252 + f * (0.6958335 + f * (0.2260671 + f * 0.0780245)), low.astype(int))
    return parts.divided(np.where(np.isneginf(x), 0, found).astype(x.dtype))


def sum_limited(most: float, beyond: float) -> Callable[[Array], Array]:
    """Softmax whose denominator is `beyond` if it is larger than `most`."""

    def weights(s: Array) -> Array:
        e = parts.exponentials(s)
        total = e.sum(axis=-1, keepdims=True)
        return e / np.where(total > most, s.dtype.type(beyond), total)

    return weights


def at_least(least: float) -> Callable[[Array], Array]:
    return lambda s: np.maximum(s.max(axis=-1, keepdims=True), s.dtype.type(least))


_EPS = "with l >= 1 it takes that part of an output at most, and of all outputs of a row alike"
_EXPONENT = "e^-20 for each of 1000 keys, as a part of the weights that are left"
_CUBIC = "the largest error of the polynomial, another for every weight"

#: wrong functions from masked scores to weights
_WEIGHTS: dict[str, Callable[[Array], Array]] = {
    "mean of the values": uniform,
    "value of the largest score": argmax,
    "2^x instead of e^x": lambda s: parts.divided(np.exp2(s - s.max(axis=-1, keepdims=True))),
    "largest score not subtracted": shifted(lambda s: np.zeros_like(s[..., :1])),
    "maximum begins at 0": shifted(at_least(0.0)),
    "maximum begins at -10000": shifted(at_least(-1e4)),
    "one maximum for all rows": shifted(lambda s: s.max(axis=(-1, -2), keepdims=True)),
    "mean subtracted, not the maximum": shifted(mean_of_seen),
    "exponent clipped at -20": lambda s: parts.divided(exp_from(-20.0)(s - parts.highest(s))),
    "softmax over the queries": lambda s: np.nan_to_num(parts.softmax(s.swapaxes(-1, -2)).swapaxes(-1, -2)),
    "1e-3 in the denominator": with_more(lambda s: 1e-3),
    "1e-6 in the denominator": with_more(lambda s: 1e-6),
    "e^-m in the denominator": with_more(lambda s: np.exp(-s.max(axis=-1, keepdims=True))),
    "denominator lacks a term": lambda s: (
        (e := parts.exponentials(s)) / e[..., :-1].sum(axis=-1, keepdims=True)
    ),
    "gain of 0.1 %": parts.after(parts.softmax, lambda p: p * 1.001),
    "weights below 1 % dropped": thresholded,
    "2^x by a cubic": cubic,
    "denominator ends at 2048": sum_limited(2048.0, 2048.0),
    "denominator infinite from 65504": sum_limited(65504.0, np.inf),
}
_EXCUSES = {
    "exponent clipped at -20": shifted_by(1000 * float(np.exp(-20)), _EXPONENT),
    "1e-6 in the denominator": shifted_by(1e-6, _EPS),
    "2^x by a cubic": scattered_by(1e-4, _CUBIC),
}

FORMULA = (
    *(
        Fault(name, parted(weights=weights), excuses=_EXCUSES.get(name, ()))
        for name, weights in _WEIGHTS.items()
    ),
    Fault("scores clipped at 80", seen_scores(lambda s: np.clip(s, -80, 80))),
    Fault("scores capped at 1000", seen_scores(lambda s: 1000 * np.tanh(s / 1000))),
    Fault("dropout of 0.1 left on", dropped_out(0.1, "weights")),
    Fault("dropout of 0.001 left on", dropped_out(0.001, "weights")),
    Fault("only the 32 largest scores", parted(change=largest_32)),
    Fault("bias with distance, 0.001", parted(change=sloped)),
    Fault("first key favoured", seen_scores(lambda s: s + 0.1 * (np.arange(s.shape[-1]) == 0))),
    Fault("keys normalised", parted(scores=unit_keys)),
    Fault("mask of -10 added", parted(compose=mask_added(10.0), seen_by=lambda p: None)),
    Fault("mask of -10000 added", parted(compose=mask_added(1e4), seen_by=lambda p: None)),
    Fault(
        "hidden scores are -65504",
        parted(hidden=-65504.0),
        excuses=excused("float16", 0.0, 1.0, "no float16 score lies below -65504: no hidden key weighs more"),
    ),
    Fault("output not rescaled between blocks", parts.in_blocks(rescale_output=False)),
    Fault("denominator not rescaled between blocks", parts.in_blocks(rescale_sum=False)),
    Fault("rises by 0.01 not rescaled", parts.in_blocks(block=16, forget_rise=0.01)),
    Fault("last partial block dropped", parts.in_blocks(drop_partial=True)),
    Fault("last partial block of 256 dropped", parts.in_blocks(drop_partial=True, block=256)),
    Fault("blocked: maximum begins at 0", parts.in_blocks(first_max=0.0)),
)


# -- the chain rule: another scale, another D, another softmax in the backward pass, lost blocks


_QUERIES, _KEYS = -2, -1


def gained(name: str, change: Callable[[float, int], float]) -> Fault:
    """One gradient times change(scale, head_dim), before it is rounded; `name` begins with the gradient's name."""
    hook = {"dq": "for_query", "dk": "for_key", "dv": "for_value"}[name[:2]]

    def attend(problem: Inputs) -> Answers:
        factor = change(problem.scale, problem.query.shape[-1])
        return parted(**{hook: lambda w: (w * factor).astype(w.dtype)})(problem)

    return Fault(name, attend, BACKWARD)


def rescored(factor: float) -> Callable[[Array, Array, float], Array]:
    return lambda q, k, scale: parts.scores_of(q, k, scale * factor)


def changed_offset(change: Callable[[Array], Array]) -> Attention:
    """Use change(D) instead of D."""
    return parted(offset=parts.after(parts.from_weights, lambda d: change(d).astype(d.dtype)))


def offset_without_last(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D without the last component of g·o, if there are several."""
    end = max(1, o.shape[-1] - 1)
    return parts.from_output(p, a, g[..., :end], o[..., :end])


def first_of_sixteen(d: Array) -> Array:
    """Use D of a block's first row for all its sixteen rows."""
    return d[:, :, np.arange(d.shape[2]) // 16 * 16]


def quotient(s: Array) -> Array:
    """e^s / e^(ln Z) instead of e^(s − ln Z): ∞/∞ or 0/0 if the scores are large."""
    top = s.max(axis=-1, keepdims=True)
    logs = top + np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
    return np.exp(s) / np.exp(logs)


def mean_of(axis: int) -> Callable[[Answers, Inputs], None]:
    """Replace dk and dv by their mean over `axis`: batch elements or heads are combined that should not be."""

    def spoil(found: Answers, problem: Inputs) -> None:
        for name in (DK, DV):
            found[name][...] = found[name].mean(axis=axis, keepdims=True)

    return spoil


def without(axis: int, start: Callable[[int], int]) -> Callable[[Array], Array]:
    """Set the weights from index start(n) on to 0, along `axis` of length n, unless start(n) is 0."""

    def change(w: Array) -> Array:
        w, first = w.copy(), start(w.shape[axis])
        if first:
            np.moveaxis(w, axis, -1)[..., first:] = 0
        return w

    return change


def without_last_block(axis: int, size: int) -> Callable[[Array], Array]:
    """Leave out the last, partial block, unless it is the only one."""
    return without(axis, lambda n: n // size * size)


def without_first_key(w: Array) -> Array:
    return w * (np.arange(w.shape[-1]) >= min(1, w.shape[-1] - 1))


def transposed(w: Array) -> Array:
    """The transpose of a square matrix; any other matrix is unchanged."""
    return w.swapaxes(-1, -2) if w.shape[-1] == w.shape[-2] else w


def narrow_products(g: Array, v: Array) -> Array:
    """A, summed over the first sixteen value components only."""
    return parts.products_of(g[..., :16], v[..., :16])


def other_blocks(name: str, wrong: Callable[[int, int], bool], factor: float) -> Add:
    """What a block adds to one gradient is multiplied by `factor` if wrong(i, j) is true for the block."""

    def change(total: Array, more: Array, which: str, at: tuple[int, int]) -> Array:
        bad = which == name and wrong(*at)
        return add(total, (more * factor).astype(more.dtype) if bad else more, which, at)

    return change


def skipping(skip: Callable[[int, int, int, int], bool]) -> Callable[[int, int], Iterator[tuple[int, int]]]:
    """Blocks in order, without those for which skip(i, j, blocks of queries, blocks of keys) is true."""
    return lambda n_q, n_k: ((i, j) for j in range(n_k) for i in range(n_q) if not skip(i, j, n_q, n_k))


_PARTS: dict[str, Attention | Remembering] = {
    "scores again: scale 0.3 % large": quiet_back(again=rescored(1.003)),
    "scores again: scale 0.3 % large, normalised": parted(again=rescored(1.003)),
    "scores again: always the default scale": parted(
        again=lambda q, k, scale: parts.scores_of(q, k, q.shape[-1] ** -0.5)
    ),
    "scores again: no mask": quiet_back(seen_again=lambda problem: None),
    "D left out": parted(offset=lambda p, a, g, o: np.zeros_like(p[..., :1])),
    "D 1 % large": changed_offset(lambda d: d * 1.01),
    "D of the wrong sign": changed_offset(np.negative),
    "D of another row": changed_offset(lambda d: np.roll(d, 1, axis=2)),
    "D of another head": changed_offset(lambda d: np.roll(d, 1, axis=1)),
    "D a mean, not a sum": parted(offset=lambda p, a, g, o: (g * o).mean(axis=-1, keepdims=True)),
    "D not weighted": parted(offset=lambda p, a, g, o: a.mean(axis=-1, keepdims=True)),
    "D without the last component": parted(offset=offset_without_last),
    "D shared by sixteen rows": changed_offset(first_of_sixteen),
    "T not centred: P∘A − D": parted(slopes=lambda p, a, d: p * a - d),
    "T of the Jacobian's diagonal": parted(slopes=lambda p, a, d: p * (1 - p) * a),
    "T through ln P": parted(slopes=lambda p, a, d: np.exp(np.log(p)) * (a - d) + 0 * np.log(p)),
    "T divided by 1 − P": parted(slopes=lambda p, a, d: (p * a - p * d) / (1 - p) * (1 - p)),
    "T clipped at 1": parted(times=lambda t, scale: parts.scaled(np.clip(t, -1, 1), scale)),
    "P detached": parted(slopes=lambda p, a, d: np.zeros_like(a)),
    "P uniform in dv": parted(for_value=lambda p: uniform(np.where(p > 0, 0, -np.inf).astype(p.dtype))),
    "P below 1 % dropped": parted(weights_kept=lambda p: np.where(p < 1e-2, 0, p).astype(p.dtype)),
    "P clipped at e^-10": quiet_back(exp=exp_from(-10.0)),
    "P as e^s / e^(ln Z)": parted(weights_again=quotient),
    "ln Z 0.01 off": quiet_back(save_logs=lambda top, log: top + log + 0.01),
    "ln Z without the maximum": quiet_back(save_logs=lambda top, log: log),
    "ln Z is the maximum": quiet_back(save_logs=lambda top, log: top + 0 * log),
    "ln Z of another row": quiet_back(save_logs=lambda top, log: np.roll(top + log, 1, 2)),
    "dropout of 0.1 % in dv": dropped_out(0.001, "for_value"),
    "dk, dv averaged over heads": then(mean_of(1)),
    "dk, dv averaged over the batch": then(mean_of(0)),
    "dq: last key dropped": parted(for_query=without(_KEYS, lambda n: n - 1)),
    "dk: first key dropped": parted(for_key=without_first_key),
    "dv: last key dropped": parted(for_value=without(_KEYS, lambda n: n - 1)),
    "dk: last query dropped": parted(for_key=without(_QUERIES, lambda n: n - 1)),
    "dv: last partial block of queries dropped": parted(for_value=without_last_block(_QUERIES, 64)),
    "dv: last partial block of 256 queries dropped": parted(for_value=without_last_block(_QUERIES, 256)),
    "dq: last partial block of keys dropped": parted(for_query=without_last_block(_KEYS, 64)),
    "dk: no query after 1024": parted(for_key=without(_QUERIES, lambda n: 1024)),
    "dq: no key after 2048": parted(for_query=without(_KEYS, lambda n: 2048)),
    "P transposed in dv": parted(for_value=transposed),
    "T transposed in dq": parted(for_query=transposed),
    "T one key off in dk": parted(for_key=lambda w: np.roll(w, 1, axis=-1)),
    "value_dim above 16 not in A": parted(products=narrow_products),
    "dq: 1 % off from the second block of keys": quiet_back(add=other_blocks(DQ, lambda i, j: j > 0, 1.01)),
    "dv: one block lost": quiet_back(block=32, add=other_blocks(DV, lambda i, j: (i, j) == (1, 0), 0.0)),
    "dq: one block lost": quiet_back(block=32, add=other_blocks(DQ, lambda i, j: (i, j) == (1, 1), 0.0)),
    "dk: one block twice": quiet_back(block=32, add=other_blocks(DK, lambda i, j: (i, j) == (1, 0), 2.0)),
    "dk: overwritten by the last block": quiet_back(
        add=lambda total, more, which, at: more if which == DK else total + more
    ),
    "last block of queries skipped": quiet_back(order=skipping(lambda i, j, n, m: i == n - 1 and n > 1)),
    "last block of keys skipped": quiet_back(order=skipping(lambda i, j, n, m: j == m - 1 and m > 1)),
    "diagonal blocks skipped": quiet_back(
        block=32, order=skipping(lambda i, j, n, m: i == j and n > 1 and m > 1)
    ),
}

CHAIN_RULE = (
    gained("dq: scale missing", lambda scale, dim: 1 / scale if scale else 1.1),
    gained("dk: scale missing", lambda scale, dim: 1 / scale if scale else 1.1),
    gained("dq: scale twice", lambda scale, dim: scale),
    gained("dk: always the default scale", lambda scale, dim: dim**-0.5 / scale if scale else 1.1),
    gained("dq: sign of the scale lost", lambda scale, dim: float(np.sign(scale))),
    gained("dk: log2 e left in the scale", lambda scale, dim: float(np.log2(np.e))),
    gained("dq: gain of 0.1 %", lambda scale, dim: 1.001),
    gained("dk: gain of 0.1 %", lambda scale, dim: 1.001),
    gained("dv: gain of 0.1 %", lambda scale, dim: 1.001),
    *(Fault(name, make, BACKWARD) for name, make in _PARTS.items()),
)
