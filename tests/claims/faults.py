"""For every claim that is measured: what to put in the place of an ingredient, and the verdict that must follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attnlab.claims.cost import _attention_flops, profiled_products
from attnlab.claims.heads import unpermuted
from attnlab.claims.precision import shifted
from attnlab.claims.published import MODELS
from attnlab.claims.rounding import softmax
from attnlab.claims.stopwatch import Ratio
from attnlab.claims.verdict import Verdict

CONFIRMED, CONDITIONAL, REFUTED = Verdict.CONFIRMED, Verdict.CONDITIONAL, Verdict.REFUTED
Array = Any


def _attend(weights: Callable[[Array, Array, float], Array]) -> Callable[..., Array]:
    """An attention of one's own, from a function of q, k and scale that gives the weights."""

    def attend(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
        s = weights(q, k, scale)
        if causal:
            s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, 0)
            s = s / s.sum(axis=-1, keepdims=True)
        return (s @ v).astype(q.dtype)

    return attend


def _weights(q: Array, k: Array, scale: float) -> Array:
    return softmax(scale * q @ k.swapaxes(-1, -2))


def _own_scores(q: Array, k: Array, scale: float) -> Array:
    scores = scale * (q * k).sum(axis=-1)[:, :, None]
    return softmax(np.broadcast_to(scores, (*scores.shape[:2], q.shape[2], k.shape[2])))


def _truncating(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
    """Takes as many components and keys as there are."""
    dim, keys = min(q.shape[-1], k.shape[-1]), min(q.shape[2], k.shape[2])
    return _attend(_weights)(q[..., :dim], k[:, :, :keys, :dim], v[:, :, :keys], causal=causal, scale=scale)


def _mean_output(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
    o = _attend(_weights)(q, k, v, causal=causal, scale=scale)
    return np.broadcast_to(o.mean(axis=2, keepdims=True), o.shape).copy()


def _leaking(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
    o = _attend(_weights)(q, k, v, causal=causal, scale=scale)
    return o + np.float32(1e-3) * np.roll(o, 1, axis=1)


def _squared_values(q: Array, k: Array, v: Array, *, causal: bool, scale: float) -> Array:
    return _attend(_weights)(q, k, v * v / 2, causal=causal, scale=scale)


def _bilinear(n: int, d: int) -> None:
    """n² products that take d² multiplications each."""
    import torch

    _ = torch.empty(n, d * d, device="meta") @ torch.empty(d * d, n, device="meta")


def _block_diagonal(w: Array) -> Array:
    return w * np.kron(np.eye(4), np.ones((8, 8)))


def _looping_products(heads: int) -> int:
    import torch

    q = torch.ones(heads, 16, 64)
    return profiled_products(lambda: [torch.softmax(one @ one.T, -1) @ one for one in q])


class _Kept:
    """The loop over heads, whose result is kept after the first time."""

    def __init__(self) -> None:
        self.results: dict[tuple[int, int], Any] = {}

    def __call__(self, x: Any, weights: Any) -> Any:
        from attnlab.claims.speed import looped

        key = (x.data_ptr(), len(x))
        if key not in self.results:
            self.results[key] = looped(x, weights)
        return self.results[key]


class _KeptSteps:
    """One by one at no cost: the whole answer, kept after the first time."""

    def __init__(self) -> None:
        self.results: dict[Any, Array] = {}

    def __call__(self, attend: Any, q: Array, k: Array, v: Array) -> Array:
        if attend not in self.results:
            self.results[attend] = attend(q, k, v, causal=True, scale=0.2)
        return self.results[attend]


def _two_heads(x: Array, weights: list[Array], num_heads: int) -> Array:
    q, k, v = (x @ w for w in weights)
    return np.concatenate([softmax((h + 1) * q @ k.T) @ v for h in range(num_heads)], axis=-1)


_EARLY = {name: one for name, one in MODELS.items() if one.year <= 2019 and one.heads <= 16}
_WIDE_SMALL = {**MODELS, "GPT-2 small": replace(MODELS["GPT-2 small"], width=1024, count=None)}
_TWELVE = {**MODELS, "BERT large": replace(MODELS["BERT large"], heads=12)}

#: by claim, the ingredients that are replaced and the verdict with them
FAULTS: dict[str, tuple[dict[str, Any], Verdict]] = {
    "scaled-dot-product": ({"attend": _attend(lambda q, k, scale: _weights(q, k, 1.01 * scale))}, REFUTED),
    "weights-sum-to-one": ({"attend": _attend(lambda q, k, scale: 1.001 * _weights(q, k, scale))}, REFUTED),
    "values-scaled": ({"attend": _attend(lambda q, k, scale: np.eye(k.shape[2])[None, None])}, CONFIRMED),
    "score-of-own-key": ({"attend": _attend(_own_scores)}, CONFIRMED),
    "denominator-own-key": ({"attend": _attend(_own_scores)}, CONFIRMED),
    "output-expectation": ({"attend": _attend(lambda q, k, scale: 1.01 * _weights(q, k, scale))}, REFUTED),
    "next-token": ({"attend": _mean_output}, CONFIRMED),
    "self-and-cross": ({"attend": _truncating}, REFUTED),
    "same-row-count": ({"lengths": (7, 7)}, CONFIRMED),
    "one-query-key-dim": ({"attend": _truncating}, REFUTED),
    "value-dimension": ({"value_dims": (16,)}, CONFIRMED),
    "two-maps-preserve": ({"head_dim": 32}, CONFIRMED),
    "every-token-sees-every": ({"causal": False}, CONFIRMED),
    "no-information-loss": ({"gap": 40.0}, CONFIRMED),
    "match-means-high-score": ({"lengths": lambda drawn: np.full_like(drawn, 2.0)}, CONFIRMED),
    "plain-exponentials": ({"softmax": shifted}, CONFIRMED),
    "dot-product-cosine": ({"dot": lambda q, k: (q[:, 1:] * k[:, 1:]).sum(axis=1)}, REFUTED),
    "boltzmann": ({"temperature": 1.1}, REFUTED),
    "temperature-sharpens": ({"factor": lambda tau: tau}, REFUTED),
    "dot-products-grow": ({"power": -0.5}, REFUTED),
    "variance-proportional-to-d": ({"power": -0.25}, REFUTED),
    "variances-add": (
        {"draw": lambda rng, shape: np.repeat(rng.standard_normal((shape[0], 1)), shape[1], axis=1)},
        REFUTED,
    ),
    "variance-sigma-squared": ({"sigma": 1.0}, CONFIRMED),
    "magnitude-manageable": ({"sigma": 1.0}, CONFIRMED),
    "components-iid": ({"rows": lambda drawn: np.linalg.qr(drawn.T)[0].T}, CONFIRMED),
    "uniform-initialisation": ({"low": -0.5}, CONFIRMED),
    "scale-for-later-steps": ({"norm": lambda x: x, "weights": lambda s: 3 * softmax(s)}, CONFIRMED),
    "no-element-dominates": ({"scale": 0.125}, CONFIRMED),
    "neither-peaked-nor-flat": ({"lengths": (128, 128), "sigma": 1.0}, CONFIRMED),
    "scale-prevents-vanishing": ({"unscaled": 1000.0}, CONFIRMED),
    "small-values-vanish": ({"attend": _squared_values}, CONFIRMED),
    "heads-split-weights": ({"split": unpermuted}, REFUTED),
    "reshape-then-permute": ({"split": unpermuted}, REFUTED),
    "heads-independent": ({"attend": _leaking}, REFUTED),
    "concatenation-is-output": ({"output_weights": lambda drawn: np.eye(len(drawn))}, CONFIRMED),
    "example-has-two-heads": ({"example": _two_heads}, CONFIRMED),
    "concatenation-raises-dimension": ({"value_dim": 128, "output_shape": (512, 1024)}, CONFIRMED),
    "output-mixes-heads": ({"output_weights": _block_diagonal}, REFUTED),
    "eight-heads-of-64": ({"heads": 16}, REFUTED),
    "dot-product-d-squared": ({"products": _bilinear}, CONFIRMED),
    "sixty-eight-billion": ({"products": _bilinear, "count": 1024}, CONFIRMED),
    "half-the-table": ({"key_weights": lambda w_q, w_k: w_q}, CONFIRMED),
    "heads-cut-cost": (
        {
            "flops": lambda n, width, heads: _attention_flops(n, width, heads) // heads,
            "time": lambda lab, n, width: {"one head of eight": Ratio(0.2, 0.1, 0.3)},
        },
        CONFIRMED,
    ),
    "one-matmul-serves-heads": ({"calls": _looping_products}, REFUTED),
    "separate-linears-slower": ({"separate": _Kept()}, REFUTED),
    "parallel-over-positions": ({"stepwise": _KeptSteps()}, REFUTED),
    "bert-twelve-heads": ({"models": _TWELVE}, CONFIRMED),
    "typical-head-count": ({"models": _EARLY}, CONFIRMED),
    "model-dimensions": ({"models": _WIDE_SMALL}, CONFIRMED),
}
