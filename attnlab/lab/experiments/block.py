"""How large are logits in a block: at initialisation, and layer by layer?

For inputs with |x|² = d_model, as after a layer norm, and independent projection weights of variance σ_w², a logit
scaled by 1/√d_k has the variance (d_model σ_w² + σ_b²)² at initialisation, σ_b² being that of the biases, 0 but for
nn.Linear's default: 1 only for one of the four usual schemes. In a stack of layers x ← x + W_O Attention(x) with a
pre-norm |x|² is d_model each time, and so the dot products have the same variance at every depth, whatever the scale;
without a norm |x|² grows by what each layer adds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from attnlab.lab.experiment import Array, Chart, Experiment, Row, Subject, mean_over_clusters, measured, of
from attnlab.lab.experiments.heads import joined, split
from attnlab.lab.observables import read_logits
from attnlab.lab.theory import initial_logit_variance

MODEL_DIM, HEAD_DIM = 256, 32
#: independent draws of both projections, and tokens of each
_DRAWS, _TOKENS = 32, 16
#: layers of the stack; independent stacks, their tokens, dimensions of a token, heads
LAYERS, NORMS = 6, ("none", "pre-norm")
_STACKS, _STACK_TOKENS, _STACK_DIM, _STACK_HEADS = 16, 48, 96, 4
_STACK_HEAD_DIM = _STACK_DIM // _STACK_HEADS
START, SIZE = "variance of the logits at initialisation", "Var(q·k) / d_k"
RATIO = "Var(q·k) of the last layer, unscaled over scaled"
#: scheme of the theory, its weight_std, and half the width of the uniform law that a projection is drawn from
SCHEMES: Mapping[str, tuple[str, float | None, float]] = {
    "nn.MultiheadAttention": ("fused_xavier", None, (6 / (4 * MODEL_DIM)) ** 0.5),
    "separate Xavier matrices": ("xavier", None, (6 / (2 * MODEL_DIM)) ** 0.5),
    "nn.Linear's default": ("linear_default", None, MODEL_DIM**-0.5),
    "N(0, .02²)": ("normal", 0.02, 0.0),
}


def measure(one: Subject) -> Iterator[Row]:
    """Variances of logits at four initialisations; through one backend the size of q·k by layer."""
    yield from _initialisation(one)
    if one.lead:
        yield from _by_layer(one)


def _normalised(x: Array) -> Array:
    """Every vector at |x|² = its dimension."""
    return np.asarray(x * (math.sqrt(x.shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)))


def _initialisation(one: Subject) -> Iterator[Row]:
    """Each draw of W_q and W_k is a cluster: within it all logits share the projections."""
    for number, (label, (scheme, weight_std, half)) in enumerate(SCHEMES.items()):
        rng, shape, squares = one.rng(1300, number), (MODEL_DIM, MODEL_DIM + 1), []
        for _ in range(_DRAWS):
            x = _normalised(rng.standard_normal((2, 1, _TOKENS, MODEL_DIM)))
            if scheme == "linear_default":  # the only one with a bias, the last column, that is not 0
                x = np.concatenate([x, np.ones((2, 1, _TOKENS, 1))], axis=-1)
            drawn = (
                weight_std * rng.standard_normal(shape) if weight_std else rng.uniform(-half, half, shape)
                for _ in range(2)
            )
            heads = MODEL_DIM // HEAD_DIM
            q, k = (split(tokens @ w[:, : x.shape[-1]].T, heads) for tokens, w in zip(x, drawn, strict=True))
            squares.append([np.mean(read_logits(one.attend, q, k, scale=HEAD_DIM**-0.5) ** 2)])
        expected = initial_logit_variance(MODEL_DIM, scheme, weight_std)
        yield one.mean(START, {"scheme": label}, np.array(squares), expected)


def _by_layer(one: Subject) -> Iterator[Row]:
    """The mean square of q·k over d_k at each layer, and at the last without the scale over with it.

    Predicted where the length of x is known: at the first layer, and at all of them under a pre-norm. Standard errors
    are those of independent stacks, which are the same with the scale and without.
    """
    for norm in NORMS:
        last: list[Array] = []
        for scaling, scale in (("unscaled", 1.0), ("scaled", _STACK_HEAD_DIM**-0.5)):
            for layer, sizes in enumerate(_sizes(one, norm, scale), start=1):
                expected = 1.0 if norm == "pre-norm" or layer == 1 else None
                where = {"norm": norm, "scaling": scaling, "layer": layer}
                yield one.mean(SIZE, where, sizes[:, None], expected)
            last.append(sizes)
        unscaled, scaled = last
        ratio, expected = float(unscaled.mean() / scaled.mean()), 1.0 if norm == "pre-norm" else None
        # of a ratio of two means: that of the mean of a − ratio·b, over the mean of b
        _, error = mean_over_clusters(((unscaled - ratio * scaled) / scaled.mean())[:, None])
        yield one.row(RATIO, {"norm": norm, "layer": LAYERS}, expected, ratio, standard_error=error)


def _sizes(one: Subject, norm: str, scale: float) -> Iterator[Array]:
    """E(q·k)²/d_k of each stack, (stacks,), a layer at a time."""
    rng = one.rng(1700)
    x = _normalised(rng.standard_normal((_STACKS, _STACK_TOKENS, _STACK_DIM)))
    for _ in range(LAYERS):
        weights = rng.standard_normal((4, _STACKS, _STACK_DIM, _STACK_DIM)) / math.sqrt(_STACK_DIM)
        seen = _normalised(x) if norm == "pre-norm" else x
        q, k, v = (split(seen @ w, _STACK_HEADS) for w in weights[:3])
        yield np.asarray(((q @ k.swapaxes(-1, -2)) ** 2).mean(axis=(1, 2, 3)) / _STACK_HEAD_DIM)
        x = x + joined(one.attend(q, k, v, causal=False, scale=scale)) @ weights[3]


EXPERIMENT = Experiment(
    title="Logits in a block",
    measure=measure,
    sentence="At d_model = 256 the logits start with a variance of {fused:.2f} in nn.MultiheadAttention, "
    "{xavier:.2f} with separate Xavier matrices and {linear:.2f} with nn.Linear's default. Over 6 layers without a "
    "norm Var(q·k)/d_k grows to {unscaled:.1f} unscaled and {scaled:.1f} with 1/√d_k; under a pre-norm it stays at "
    "{pre:.2f}.",
    numbers={
        "fused": measured(START, scheme="nn.MultiheadAttention"),
        "xavier": measured(START, scheme="separate Xavier matrices"),
        "linear": measured(START, scheme="nn.Linear's default"),
        "unscaled": measured(SIZE, norm="none", scaling="unscaled", layer=LAYERS),
        "scaled": measured(SIZE, norm="none", scaling="scaled", layer=LAYERS),
        "pre": measured(SIZE, norm="pre-norm", layer=LAYERS),
    },
    lesson="The scale 1/√d_k alone does not make the logits start with variance 1; the initialisation decides. "
    "And depth enters only where nothing is normalised.",
    charts=(
        Chart(
            title="Without a norm logits grow with depth",
            x="layer",
            y=SIZE,
            log_x=False,
            log_y=True,
            lines={
                "unscaled, no norm": of(SIZE, norm="none", scaling="unscaled"),
                "scaled, no norm": of(SIZE, norm="none", scaling="scaled"),
                "pre-norm": of(SIZE, norm="pre-norm"),
            },
        ),
    ),
)
