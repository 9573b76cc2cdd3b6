"""Faults of the chain rule: another scale, another D, another softmax on the way back, blocks that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from attnlab.problem.problem import Problem

from .fault import BACKWARD, Fault, then
from .formula import dropped_out, uniform
from .parts import (
    DK,
    DQ,
    DV,
    Add,
    Answers,
    Array,
    Attention,
    Remembering,
    add,
    from_output,
    from_weights,
    parted,
    products_of,
    quiet_back,
    scaled,
    scores_of,
)

_QUERIES, _KEYS = -2, -1


def gained(name: str, change: Callable[[float, int], float]) -> Fault:
    """One gradient times change(scale, head_dim), before it is rounded; `name` begins with which."""
    hook = {"dq": "for_query", "dk": "for_key", "dv": "for_value"}[name[:2]]

    def attend(problem: Problem) -> Answers:
        factor = change(problem.scale, problem.query.shape[-1])
        return parted(**{hook: lambda w: (w * factor).astype(w.dtype)})(problem)

    return Fault(name, attend, BACKWARD)


def rescored(factor: float) -> Callable[[Array, Array, float], Array]:
    return lambda q, k, scale: scores_of(q, k, scale * factor)


def offset_times(factor: float) -> Callable[..., Array]:
    return lambda p, a, g, o: (from_weights(p, a, g, o) * factor).astype(p.dtype)


def rolled_offset(axis: int) -> Callable[..., Array]:
    """D of the neighbour on `axis`."""
    return lambda p, a, g, o: np.roll(from_weights(p, a, g, o), 1, axis)


def offset_without_last(p: Array, a: Array, g: Array, o: Array) -> Array:
    """One component of g·o left out, where there are several."""
    end = max(1, o.shape[-1] - 1)
    return from_output(p, a, g[..., :end], o[..., :end])


def shared_offset(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D of a block's first row for all sixteen."""
    d = from_weights(p, a, g, o)
    return d[:, :, np.arange(d.shape[2]) // 16 * 16]


def clipped(most: float) -> Callable[[Array], Array]:
    return lambda x: np.clip(x, -most, most)


def below_dropped(least: float) -> Callable[[Array], Array]:
    return lambda p: np.where(p < least, 0, p).astype(p.dtype)


def exponent_clipped(x: Array) -> Array:
    """Exponents below -10 are taken for it, where a key is seen."""
    return np.where(np.isneginf(x), 0, np.exp(np.maximum(x, x.dtype.type(-10.0)))).astype(x.dtype)


def quotient(s: Array) -> Array:
    """e^s / e^(ln Z) instead of e^(s − ln Z): ∞/∞ or 0/0 where the scores are large."""
    top = s.max(axis=-1, keepdims=True)
    logs = top + np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
    return np.exp(s) / np.exp(logs)


def mean_of(axis: int) -> Callable[[Answers, Problem], None]:
    """The gradients of all are the mean over `axis`: a batch or heads summed that should not be."""

    def spoil(found: Answers, problem: Problem) -> None:
        for name in (DK, DV):
            found[name][...] = found[name].mean(axis=axis, keepdims=True)

    return spoil


def without(axis: int, start: Callable[[int], int]) -> Callable[[Array], Array]:
    """No weights from start(n) of the n on `axis` on, where others are left."""

    def change(w: Array) -> Array:
        w, first = w.copy(), start(w.shape[axis])
        if first:
            np.moveaxis(w, axis, -1)[..., first:] = 0
        return w

    return change


def without_last(axis: int) -> Callable[[Array], Array]:
    return without(axis, lambda n: n - 1)


def without_last_block(axis: int, size: int) -> Callable[[Array], Array]:
    """The last, partial block is left out, where there is another."""
    return without(axis, lambda n: n // size * size)


def without_first_key(w: Array) -> Array:
    return w * (np.arange(w.shape[-1]) >= min(1, w.shape[-1] - 1))


def transposed(w: Array) -> Array:
    """Its transpose, where it is square."""
    return w.swapaxes(-1, -2) if w.shape[-1] == w.shape[-2] else w


def narrow_products(g: Array, v: Array) -> Array:
    """A summed over sixteen value components only."""
    return products_of(g[..., :16], v[..., :16])


def other_blocks(name: str, wrong: Callable[[int, int], bool], factor: float) -> Add:
    """What some blocks give to one gradient enters `factor` times."""

    def change(total: Array, more: Array, which: str, at: tuple[int, int]) -> Array:
        bad = which == name and wrong(*at)
        return add(total, (more * factor).astype(more.dtype) if bad else more, which, at)

    return change


def skipping(skip: Callable[[int, int, int, int], bool]) -> Callable[[int, int], Iterator[tuple[int, int]]]:
    """Blocks in order but for those of skip(i, j, blocks of queries, blocks of keys)."""
    return lambda n_q, n_k: ((i, j) for j in range(n_k) for i in range(n_q) if not skip(i, j, n_q, n_k))


_PARTS: dict[str, Attention | Remembering] = {
    "scores again: scale 0.3 % large": quiet_back(again=rescored(1.003)),
    "scores again: scale 0.3 % large, normalised": parted(again=rescored(1.003)),
    "scores again: always the default scale": parted(
        again=lambda q, k, scale: scores_of(q, k, q.shape[-1] ** -0.5)
    ),
    "scores again: no mask": quiet_back(seen_again=lambda problem: None),
    "D left out": parted(offset=lambda p, a, g, o: np.zeros_like(p[..., :1])),
    "D 1 % large": parted(offset=offset_times(1.01)),
    "D of the wrong sign": parted(offset=offset_times(-1.0)),
    "D of another row": parted(offset=rolled_offset(2)),
    "D of another head": parted(offset=rolled_offset(1)),
    "D a mean, not a sum": parted(offset=lambda p, a, g, o: (g * o).mean(axis=-1, keepdims=True)),
    "D not weighted": parted(offset=lambda p, a, g, o: a.mean(axis=-1, keepdims=True)),
    "D without the last component": parted(offset=offset_without_last),
    "D shared by sixteen rows": parted(offset=shared_offset),
    "T not centred: P∘A − D": parted(slopes=lambda p, a, d: p * a - d),
    "T of the Jacobian's diagonal": parted(slopes=lambda p, a, d: p * (1 - p) * a),
    "T through ln P": parted(slopes=lambda p, a, d: np.exp(np.log(p)) * (a - d) + 0 * np.log(p)),
    "T divided by 1 − P": parted(slopes=lambda p, a, d: (p * a - p * d) / (1 - p) * (1 - p)),
    "T clipped at 1": parted(times=lambda t, scale: scaled(clipped(1.0)(t), scale)),
    "P detached": parted(slopes=lambda p, a, d: np.zeros_like(a)),
    "P uniform in dv": parted(for_value=lambda p: uniform(np.where(p > 0, 0, -np.inf).astype(p.dtype))),
    "P below 1 % dropped": parted(weights_kept=below_dropped(1e-2)),
    "P clipped at e^-10": quiet_back(exp=exponent_clipped),
    "P as e^s / e^(ln Z)": parted(weights_again=quotient),
    "ln Z 0.01 off": quiet_back(save_logs=lambda top, log: top + log + 0.01),
    "ln Z without the maximum": quiet_back(save_logs=lambda top, log: log),
    "ln Z is the maximum": quiet_back(save_logs=lambda top, log: top + 0 * log),
    "ln Z of another row": quiet_back(save_logs=lambda top, log: np.roll(top + log, 1, 2)),
    "dropout of 0.1 % in dv": dropped_out(0.001, "for_value"),
    "dk, dv averaged over heads": then(mean_of(1)),
    "dk, dv averaged over the batch": then(mean_of(0)),
    "dq: last key dropped": parted(for_query=without_last(_KEYS)),
    "dk: first key dropped": parted(for_key=without_first_key),
    "dv: last key dropped": parted(for_value=without_last(_KEYS)),
    "dk: last query dropped": parted(for_key=without_last(_QUERIES)),
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

FAULTS = (
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
