"""Faults of the chain rule: another scale, another D, another softmax on the way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .backward_parts import (
    RESULTS,
    Backward,
    Four,
    from_output,
    from_weights,
    in_blocks,
    products_of,
    scaled,
    then,
    with_parts,
)
from .fault import Fault
from .formula import uniform
from .parts import Array, exponentials, scores_of


def gained(change: Callable[[float, int], float], *results: str) -> Callable[[str], Backward]:
    """`results` times change(scale, head_dim), before they are rounded."""

    def make(dtype: str) -> Backward:
        def gradients(q: Array, k: Array, v: Array, g: Array, **options: Any) -> Four:
            factor = change(options["scale"], q.shape[-1])
            parts = {f"for_{name}": lambda w: (w * factor).astype(w.dtype) for name in results}
            found: Four = with_parts(**parts)(dtype)(q, k, v, g, **options)
            return found

        return gradients

    return make


def rescored(factor: float) -> Callable[[str], Backward]:
    """Scores are made again with a wrong scale, and normalised by what the forward pass saved."""
    return in_blocks(again=lambda q, k, scale: scores_of(q, k, scale * factor))


def renormalised(factor: float) -> Callable[[str], Backward]:
    """Scores are made again with a wrong scale, and normalised anew."""
    return with_parts(again=lambda q, k, scale: scores_of(q, k, scale * factor))


def default_scale(q: Array, k: Array, scale: float) -> Array:
    return scores_of(q, k, q.shape[-1] ** -0.5)


def no_offset(p: Array, a: Array, g: Array, o: Array) -> Array:
    return np.zeros_like(p[..., :1])


def offset_times(factor: float) -> Callable[..., Array]:
    return lambda p, a, g, o: (from_weights(p, a, g, o) * factor).astype(p.dtype)


def rolled_offset(axis: int) -> Callable[..., Array]:
    """D of the neighbour on `axis`."""
    return lambda p, a, g, o: np.roll(from_weights(p, a, g, o), 1, axis)


def mean_offset(p: Array, a: Array, g: Array, o: Array) -> Array:
    """The mean over the value dimension instead of the sum."""
    return (g * o).mean(axis=-1, keepdims=True)


def plain_mean(p: Array, a: Array, g: Array, o: Array) -> Array:
    """The mean of A over the keys, not weighted."""
    return a.mean(axis=-1, keepdims=True)


def offset_of_half(p: Array, a: Array, g: Array, o: Array) -> Array:
    """The sum stops at the last whole group of four components."""
    end = max(4, o.shape[-1] // 4 * 4)
    return from_output(p, a, g[..., :end], o[..., :end])


def offset_without_last(p: Array, a: Array, g: Array, o: Array) -> Array:
    """One component of g·o left out, where there are several."""
    end = max(1, o.shape[-1] - 1)
    return from_output(p, a, g[..., :end], o[..., :end])


def shared_offset(p: Array, a: Array, g: Array, o: Array) -> Array:
    """D of a block's first row for all sixteen."""
    d = from_weights(p, a, g, o)
    return d[:, :, np.arange(d.shape[2]) // 16 * 16]


def diagonal_only(p: Array, a: Array, d: Array) -> Array:
    """Only the diagonal of softmax's Jacobian."""
    return p * (1 - p) * a


def dropped_out(rate: float, *, slopes_too: bool) -> Callable[[str], Backward]:
    """Dropout that the forward pass did not have."""

    def make(dtype: str) -> Backward:
        rng = np.random.default_rng(0)

        def drop(w: Array) -> Array:
            return (w * (rng.random(w.shape) >= rate) / (1 - rate)).astype(w.dtype)

        parts = {"products": lambda g, v: drop(products_of(g, v))} if slopes_too else {"for_value": drop}
        return with_parts(**parts)(dtype)

    return make


def clipped(most: float) -> Callable[[Array], Array]:
    return lambda x: np.clip(x, -most, most)


def below_dropped(least: float) -> Callable[[Array], Array]:
    return lambda p: np.where(p < least, 0, p).astype(p.dtype)


def exponent_clipped(least: float) -> Callable[[Array], Array]:
    """Exponents below `least` are taken for it, where a key is seen."""
    return lambda x: np.where(np.isneginf(x), 0, np.exp(np.maximum(x, x.dtype.type(least)))).astype(x.dtype)


def quotient_of_exponentials(dtype: str) -> Backward:
    """e^s / e^(ln Z) instead of e^(s − ln Z): ∞/∞ or 0/0 where the scores are large."""

    def weights(s: Array) -> Array:
        top = s.max(axis=-1, keepdims=True)
        logs = top + np.log(np.exp(s - top).sum(axis=-1, keepdims=True))
        return np.exp(s) / np.exp(logs)

    return with_parts(again=scores_of, weights=weights_twice(weights))(dtype)


def weights_twice(second: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The right softmax in the forward pass, `second` on the way back; calls alternate."""
    count = [0]

    def weights(s: Array) -> Array:
        count[0] += 1
        e = exponentials(s)
        return e / e.sum(axis=-1, keepdims=True) if count[0] % 2 else second(s)

    return weights


def logarithms(p: Array, a: Array, d: Array) -> Array:
    """T through ln P, which is −∞ where a weight is 0."""
    return np.exp(np.log(p)) * (a - d) + 0 * np.log(p)


def quotient_of_weights(p: Array, a: Array, d: Array) -> Array:
    """(PA − PD)/(1 − P)·(1 − P): 0/0 where a weight is 1."""
    return (p * a - p * d) / (1 - p) * (1 - p)


def mean_of(axis: int) -> Callable[..., None]:
    """The gradients of all are the mean over `axis`: a batch or a group of heads summed that should not be."""

    def change(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
        for name in RESULTS[2:]:
            found[name][...] = found[name].mean(axis=axis, keepdims=True)

    return change


def per_query(found: dict[str, Array], inputs: Four, options: dict[str, Any]) -> None:
    """Divided by the number of queries: the gradient of a mean."""
    for name in RESULTS[1:]:
        found[name] /= found[name].dtype.type(inputs[0].shape[2])


def sign(scale: float, dim: int) -> float:
    return float(np.sign(scale))


FAULTS = (
    Fault("dq: scale missing", gained(lambda scale, dim: 1 / scale, "query")),
    Fault("dk: scale missing", gained(lambda scale, dim: 1 / scale, "key")),
    Fault("dq and dk: scale missing", gained(lambda scale, dim: 1 / scale, "query", "key")),
    Fault("dq: scale twice", gained(lambda scale, dim: scale, "query")),
    Fault("dk: scale twice", gained(lambda scale, dim: scale, "key")),
    Fault("dq: scale 1/d", gained(lambda scale, dim: 1 / (dim * scale), "query")),
    Fault("dk: always the default scale", gained(lambda scale, dim: dim**-0.5 / scale, "key")),
    Fault("dq: sign of the scale lost", gained(sign, "query")),
    Fault("dq: log2 e left in the scale", gained(lambda scale, dim: np.log2(np.e), "query")),
    Fault("dk: log2 e left in the scale", gained(lambda scale, dim: np.log2(np.e), "key")),
    Fault("dq: gain of 0.1 %", gained(lambda scale, dim: 1.001, "query")),
    Fault("dk: gain of 0.1 %", gained(lambda scale, dim: 1.001, "key")),
    Fault("dv: gain of 0.1 %", gained(lambda scale, dim: 1.001, "value")),
    Fault("dk: wrong sign", gained(lambda scale, dim: -1.0, "key")),
    Fault("scores again: scale 1 % large", rescored(1.01)),
    Fault("scores again: scale 0.3 % large", rescored(1.003)),
    Fault("scores again: scale 0.3 % small", rescored(1 / 1.003)),
    Fault("scores again: scale 0.3 % large, normalised", renormalised(1.003)),
    Fault("scores again: always the default scale", with_parts(again=default_scale)),
    Fault(
        "scores again: capped at 50",
        with_parts(again=lambda q, k, scale: 50 * np.tanh(scores_of(q, k, scale) / 50)),
    ),
    Fault("D left out", with_parts(offset=no_offset)),
    Fault("D twice", with_parts(offset=offset_times(2.0))),
    Fault("D 1 % large", with_parts(offset=offset_times(1.01))),
    Fault("D of the wrong sign", with_parts(offset=offset_times(-1.0))),
    Fault("D of another row", with_parts(offset=rolled_offset(2))),
    Fault("D of another head", with_parts(offset=rolled_offset(1))),
    Fault("D of another batch", with_parts(offset=rolled_offset(0))),
    Fault("D a mean, not a sum", with_parts(offset=mean_offset)),
    Fault("D not weighted", with_parts(offset=plain_mean)),
    Fault("D without the components after the last four", with_parts(offset=offset_of_half)),
    Fault("D without the last component", with_parts(offset=offset_without_last)),
    Fault("D shared by sixteen rows", with_parts(offset=shared_offset)),
    Fault("T not centred: P∘A − D", with_parts(slopes=lambda p, a, d: p * a - d)),
    Fault("T without P", with_parts(slopes=lambda p, a, d: a - d)),
    Fault("T of the Jacobian's diagonal", with_parts(slopes=diagonal_only)),
    Fault("T through ln P", with_parts(slopes=logarithms)),
    Fault("T divided by 1 − P", with_parts(slopes=quotient_of_weights)),
    Fault("T clipped at 1", with_parts(times=lambda t, scale: scaled(clipped(1.0)(t), scale))),
    Fault("P detached", with_parts(slopes=lambda p, a, d: np.zeros_like(a))),
    Fault(
        "P uniform in dv",
        with_parts(for_value=lambda p: uniform(np.where(p > 0, 0, -np.inf).astype(p.dtype))),
    ),
    Fault("P below 1 % dropped", with_parts(weights_again=below_dropped(1e-2))),
    Fault("P below 1e-3 dropped in dv", with_parts(for_value=below_dropped(1e-3))),
    Fault("P clipped at e^-10", in_blocks(exp=exponent_clipped(-10.0))),
    Fault("P as e^s / e^(ln Z)", quotient_of_exponentials),
    Fault("ln Z in base 2", in_blocks(save_logs=lambda top, log: (top + log) * np.log2(np.e))),
    Fault("ln Z 0.1 % off", in_blocks(save_logs=lambda top, log: (top + log) * 1.001)),
    Fault("ln Z 0.01 off", in_blocks(save_logs=lambda top, log: top + log + 0.01)),
    Fault("ln Z without the maximum", in_blocks(save_logs=lambda top, log: log)),
    Fault("ln Z is the maximum", in_blocks(save_logs=lambda top, log: top + 0 * log)),
    Fault("ln Z of another row", in_blocks(save_logs=lambda top, log: np.roll(top + log, 1, 2))),
    Fault("ln Z of another head", in_blocks(save_logs=lambda top, log: np.roll(top + log, 1, 1))),
    Fault("P normalised twice", in_blocks(save_logs=lambda top, log: top + 2 * log)),
    Fault("dropout of 1 % in dv", dropped_out(0.01, slopes_too=False)),
    Fault("dropout of 1 % in A", dropped_out(0.01, slopes_too=True)),
    Fault("dropout of 0.1 % in dv", dropped_out(0.001, slopes_too=False)),
    Fault("dk, dv averaged over heads", then(mean_of(1))),
    Fault("dk, dv averaged over the batch", then(mean_of(0))),
    Fault("divided by the number of queries", then(per_query)),
)
