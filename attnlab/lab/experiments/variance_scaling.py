"""How large are logits: does Var(q·k) grow as d_k, does 1/√d_k keep it at 1, and with what do layers start?

A dot product q·k = Σ_c q_c k_c has d_k terms. If the components are independent, with mean 0 and variances σ_q² and
σ_k², its variance is d_k σ_q² σ_k², whatever their distribution. Its standard deviation grows as √d_k. At σ_q = σ_k = 1
the factor 1/√d_k leaves a variance of 1. The factor 1/d_k, the scale of μP (Yang et al. 2022), leaves 1/d_k. Without
independence all this may fail: if q and k each repeat one number, the variance is d_k². Logits of one matrix share
queries and keys; the standard errors allow for that.

In a layer q and k are projections of x. Let |x|² = d_model, as after a layer norm. Let all weights be independent, of
mean 0 and variance σ_w², and the biases of σ_b². Over their draws q·k/√d_k has the variance (d_model σ_w² + σ_b²)².
Four schemes are measured here: one Xavier matrix for q, k and v (nn.MultiheadAttention), separate ones, nn.Linear's
default, and normal weights of standard deviation .02. Only separate square Xavier matrices make it 1 at every width.

Stack layers x ← x + W_O Attention(x). With a pre-norm, Attention(norm x), every layer sees |x|² = d_model. With fresh
random weights q·k then has the same mean square at every depth, whatever the scale. Within a row it varies less at
depth, as tokens become alike. Without a norm |x|² grows by what each layer adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.lab.experiments import Array, Chart, Experiment, Row, Subject, mean_over_clusters, measured, of
from attnlab.lab.experiments.heads import MODEL_DIM, joined, split
from attnlab.lab.observables import read_logits
from attnlab.lab.theory import dot_product_moments, initial_logit_variance

#: the factor on the dot product, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
#: head dimensions for the leading backend; for other backends and for the families of components
_HEAD_DIMS, _FEWER_HEAD_DIMS = (1, 4, 16, 64, 256, 1024), (1, 4, 16, 64, 256)
#: independent heads, and queries and keys in each; the same for a slow backend
_SIZES, _SLOW_SIZES = (24, 48, 48), (8, 16, 16)
#: number of queries, and of keys, in a block of dot products; independent blocks per point
_BLOCK, _BLOCKS = 256, 24
#: independent draws of both projections; tokens and heads of each draw
_DRAWS, _TOKENS, _HEADS = 32, 16, 8
#: layers of a stack, and its kinds of norm; independent stacks, their tokens, the dimension of a token, heads
LAYERS, NORMS = 6, ("none", "pre-norm")
_STACKS, _STACK_TOKENS, _STACK_DIM, _STACK_HEADS = 16, 48, 96, 4
_STACK_HEAD_DIM = _STACK_DIM // _STACK_HEADS
#: relative error of products and sums in float32
_ROUNDING = 2e-5
VARIANCE, SLOPE = "variance of the logits", "slope of ln variance on ln d_k"
OF_FAMILY = BY_LAYER = "Var(q·k) / d_k"
START = "variance of the logits at initialisation"
RATIO = "Var(q·k) of the last layer, unscaled over scaled"
WITHIN_ROW = "Var(q·k) within a row / d_k"
#: variances of weights and of biases, and whether they are uniform
SCHEMES: Mapping[str, tuple[float, float, bool]] = {
    "nn.MultiheadAttention": (1 / (2 * MODEL_DIM), 0.0, True),
    "separate Xavier matrices": (1 / MODEL_DIM, 0.0, True),
    "nn.Linear's default": (1 / (3 * MODEL_DIM), 1 / (3 * MODEL_DIM), True),
    "N(0, .02²)": (0.02**2, 0.0, False),
}


#: the laws of the components of q and of k
_UNIT: Mapping[str, Callable[[np.random.Generator, tuple[int, int]], NDArray[Any]]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape, np.float32),
    "Rademacher": lambda rng, shape: rng.integers(0, 2, shape, dtype=np.int8) * 2.0 - 1,
    "Laplace": lambda rng, shape: rng.laplace(0.0, 0.5**0.5, shape),
    "equal": lambda rng, shape: np.repeat(rng.standard_normal((shape[0], 1)), shape[1], axis=1),
    "sphere": lambda rng, shape: _normalised(rng.standard_normal(shape)) / shape[1] ** 0.5,
}
#: the law that is drawn, the factor on it and the mean added to it, and the power of d_k as which Var(q·k)/d_k grows
FAMILIES: Mapping[str, tuple[str, float, float, int]] = {
    "normal": ("normal", 1.0, 0.0, 0),
    "Rademacher": ("Rademacher", 1.0, 0.0, 0),
    "Laplace": ("Laplace", 1.0, 0.0, 0),
    "means of ½": ("normal", 1.0, 0.5, 0),
    "normal, σ = 2": ("normal", 2.0, 0.0, 0),
    "equal components": ("equal", 1.0, 0.0, 1),
    "vectors of length 1": ("sphere", 1.0, 0.0, -2),
}


def measure(one: Subject) -> Iterator[Row]:
    """Variances at every d_k and scaling with their slopes, and at four initialisations, from the backend's weights.

    The leading backend also gives the variance of q·k for seven families of components, and by layer.
    """
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    dims = _HEAD_DIMS if one.lead else _FEWER_HEAD_DIMS
    for scaling, power in SCALINGS.items():
        rows = []
        for head_dim in dims:
            # the same draw for every backend and scaling, so that rows differ only by what was changed
            rng, scale = one.rng(head_dim), float(head_dim) ** power
            q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
            exact = dot_product_moments(head_dim, scale=scale)
            found = float(np.mean((read_logits(one.attend, q, k, scale=scale) - exact.mean) ** 2))
            error = exact.variance_standard_error(n_q, n_k) / math.sqrt(heads)
            where = {"scaling": scaling, "head_dim": head_dim}
            rows.append(one.row(VARIANCE, where, exact.variance, found, standard_error=error))
        yield from rows
        y = np.array([row.measured for row in rows])
        y_error = np.array([row.standard_error for row in rows])
        # weighted least squares: points are independent, and their errors are known and small (Press et al., §15.2)
        fit, covariance = np.polyfit(np.log(dims), np.log(y), 1, w=y / y_error, cov="unscaled")
        error = math.sqrt(covariance[0, 0])
        yield one.row(SLOPE, {"scaling": scaling}, 1 + 2 * power, fit[0], standard_error=error)
    if not one.slow:
        yield from _initialisation(one)
    if one.lead:
        yield from _families(one)
        yield from _by_layer(one)


def _families(one: Subject) -> Iterator[Row]:
    """The variance of q·k for each family, over independent blocks of dot products; this needs no backend."""
    for number, (label, (law, std, mean, power)) in enumerate(FAMILIES.items()):
        for head_dim in _FEWER_HEAD_DIMS:
            rng, blocks = one.rng(100 + number, head_dim), []
            for _ in range(_BLOCKS):
                unit = (_UNIT[law](rng, (_BLOCK, head_dim)) for _ in range(2))
                q, k = (np.asarray(std * each + mean, np.float32) for each in unit)
                squares = np.square(q @ k.T - np.float32(head_dim * mean**2))
                blocks.append([np.mean(squares, dtype=np.float64) / head_dim])
            found, error = mean_over_clusters(np.array(blocks))
            where = {"family": label, "head_dim": head_dim}
            exact = (std**4 + 2 * (std * mean) ** 2) * head_dim**power
            yield Row.compare(OF_FAMILY, where, exact, found, standard_error=error, slack=_ROUNDING * exact)


def _normalised(x: Array) -> Array:
    """Every vector, scaled to |x|² = its dimension."""
    return np.asarray(x * (math.sqrt(x.shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)))


def _initialisation(one: Subject) -> Iterator[Row]:
    """Variances at initialisation. A draw of W_q and W_k is a cluster: its logits share it. A bias is a last column."""
    for number, (label, (variance, bias, uniform)) in enumerate(SCHEMES.items()):
        rng, squares = one.rng(1300, number), []
        for _ in range(_DRAWS):
            x = _normalised(rng.standard_normal((2, 1, _TOKENS, MODEL_DIM)))
            x = np.concatenate([x, np.full((2, 1, _TOKENS, 1), bias > 0)], axis=-1)
            shape, half = (2, MODEL_DIM, MODEL_DIM + 1), math.sqrt(3 * variance)
            drawn = rng.uniform(-half, half, shape) if uniform else rng.normal(0, math.sqrt(variance), shape)
            q, k = (split(tokens @ w.T, _HEADS) for tokens, w in zip(x, drawn, strict=True))
            scale = (_HEADS / MODEL_DIM) ** 0.5
            squares.append([np.mean(read_logits(one.attend, q, k, scale=scale) ** 2)])
        expected = initial_logit_variance(MODEL_DIM, math.sqrt(variance), math.sqrt(bias))
        yield one.mean(START, {"scheme": label}, np.array(squares), expected)


def _by_layer(one: Subject) -> Iterator[Row]:
    """The mean square of q·k over d_k at each layer; for the last layer also its ratio, unscaled over scaled.

    It is predicted if the length of x is known: at the first layer, and at all layers under a pre-norm. Standard errors
    are those of independent stacks, which have the same random numbers with the scale and without.
    """
    for norm in NORMS:
        last: list[Array] = []
        for scaling, scale in (("unscaled", 1.0), ("scaled", _STACK_HEAD_DIM**-0.5)):
            rng = one.rng(1700)
            x = _normalised(rng.standard_normal((_STACKS, _STACK_TOKENS, _STACK_DIM)))
            for layer in range(1, LAYERS + 1):
                weights = rng.standard_normal((4, _STACKS, _STACK_DIM, _STACK_DIM)) / math.sqrt(_STACK_DIM)
                seen = _normalised(x) if norm == "pre-norm" else x
                q, k, v = (split(seen @ w, _STACK_HEADS) for w in weights[:3])
                dots = q @ k.swapaxes(-1, -2) / math.sqrt(_STACK_HEAD_DIM)
                sizes = np.asarray((dots**2).mean(axis=(1, 2, 3)))
                where = {"norm": norm, "scaling": scaling, "layer": layer}
                known = 1.0 if norm == "pre-norm" or layer == 1 else None
                yield one.mean(BY_LAYER, where, sizes[:, None], known)
                yield one.mean(WITHIN_ROW, where, dots.var(axis=-1).mean(axis=(1, 2))[:, None], None)
                x = x + joined(one.attend(q, k, v, causal=False, scale=scale)) @ weights[3]
            last.append(sizes)
        unscaled, scaled = last
        ratio, expected = float(unscaled.mean() / scaled.mean()), 1.0 if norm == "pre-norm" else None
        # the error of a ratio of two means is that of the mean of a − ratio·b, divided by the mean of b
        _, error = mean_over_clusters(((unscaled - ratio * scaled) / scaled.mean())[:, None])
        yield one.row(RATIO, {"norm": norm, "layer": LAYERS}, expected, ratio, standard_error=error)


EXPERIMENT = Experiment(
    about=__doc__,
    title="The variance of the logits",
    measure=measure,
    sentences=(
        "The variance of q·k grows as d_k to the power {unscaled:.3f} (predicted: 1).",
        "From the same draws, with 1/√d_k the power is {scaled:.3f} (0), with 1/d_k {mup:.3f} (−1).",
        "Components of standard deviation 2 give {wide:.2f} d_k at d_k = 256 (predicted: 16 d_k).",
        "With d_model = 256, scaled logits start with a variance of {fused:.2f} with weights that are drawn as "
        "nn.MultiheadAttention draws them, and {xavier:.2f} with separate Xavier matrices.",
        "Over 6 layers of width 96 (4 heads, 48 tokens, weights of variance 1/96) without a norm Var(q·k)/d_k grows "
        "to {deep:.0f} ± {deep_off:.0f} unscaled and {deep_scaled:.1f} ± {scaled_off:.2f} with 1/√d_k. Under a "
        "pre-norm, with 1/√d_k, it ends at {pre:.2f}, and within a row it falls from {first:.2f} to {row:.2f} "
        "(unscaled to {unscaled_row:.2f}).",
    ),
    numbers={
        "unscaled": measured(SLOPE, scaling="unscaled"),
        "scaled": measured(SLOPE, scaling="scaled"),
        "mup": measured(SLOPE, scaling="μP"),
        "wide": measured(OF_FAMILY, family="normal, σ = 2", head_dim=256),
        "fused": measured(START, scheme="nn.MultiheadAttention"),
        "xavier": measured(START, scheme="separate Xavier matrices"),
        "deep": measured(BY_LAYER, norm="none", scaling="unscaled", layer=LAYERS),
        "deep_scaled": measured(BY_LAYER, norm="none", scaling="scaled", layer=LAYERS),
        "deep_off": measured(BY_LAYER, field="standard_error", norm="none", scaling="unscaled", layer=LAYERS),
        "scaled_off": measured(BY_LAYER, field="standard_error", norm="none", scaling="scaled", layer=LAYERS),
        "pre": measured(BY_LAYER, norm="pre-norm", scaling="scaled", layer=LAYERS),
        "first": measured(WITHIN_ROW, norm="pre-norm", scaling="scaled", layer=1),
        "row": measured(WITHIN_ROW, norm="pre-norm", scaling="scaled", layer=LAYERS),
        "unscaled_row": measured(WITHIN_ROW, norm="pre-norm", scaling="unscaled", layer=LAYERS),
    },
    lesson="Divide by √d_k if the components are independent, with mean 0 and variance 1. It removes d_k from the "
    "variance and nothing else. Components of standard deviation σ leave a variance of σ⁴, and a mean of the queries "
    "raises the variance within a row, on average. The initialisation decides with what variance logits start. Here "
    "q·k grows only without a norm.",
    charts=(
        Chart(
            title="1/√d_k keeps the variance at 1 for standard normal components",
            x="head_dim",
            y="variance of the logits",
            log_y=True,
            lines={
                "q·k": of(VARIANCE, scaling="unscaled"),
                "q·k/√d_k": of(VARIANCE, scaling="scaled"),
                "q·k/d_k": of(VARIANCE, scaling="μP"),
            },
        ),
        Chart(
            title="Var(q·k) / d_k is σ⁴ with mean 0, more without",
            x="head_dim",
            y=OF_FAMILY,
            log_y=True,
            lines={
                name: of(OF_FAMILY, family=name)
                for name in ("normal, σ = 2", "means of ½", "Laplace", "Rademacher")
            },
        ),
        Chart(
            title="Without a norm logits grow with depth",
            x="layer",
            y=BY_LAYER,
            log_x=False,
            log_y=True,
            lines={
                "unscaled, no norm": of(BY_LAYER, norm="none", scaling="unscaled"),
                "scaled, no norm": of(BY_LAYER, norm="none", scaling="scaled"),
                "pre-norm": of(BY_LAYER, norm="pre-norm"),
            },
        ),
    ),
)
