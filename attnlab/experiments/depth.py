"""How large the dot products become layer by layer, with the scale 1/√d_k and without, with a layer norm and without.

A stack of attention layers at initialisation, x ← x + W_O Attention(x), whose projections preserve variance. Where x is
normalised before each layer (pre-norm, here to |x|² = d_model) E(q·k)² = d_k at every depth and with any scale, as q
and k see a vector of the same length each time. Without a norm x grows with what each layer adds, and so does q·k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab.experiments.estimates import mean_over_clusters, mean_row
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.panels import measured, numbers
from attnlab.experiments.responses import Array
from attnlab.experiments.survey import OpenBackend, generator
from attnlab.figures import BLACK, BLUE, ORANGE, entitle, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LAYERS = 6
#: independent stacks, tokens, dimensions of a token, heads
_STACKS, _TOKENS, _MODEL_DIM, _HEADS = 24, 64, 128, 4
_HEAD_DIM = _MODEL_DIM // _HEADS
NORMS = ("none", "pre-norm")
SIZE, RATIO = "Var(q·k) / d_k", "Var(q·k) of the last layer, unscaled over scaled"


def by_layer(one: OpenBackend, seed: int) -> Iterator[Row]:
    """The mean square of q·k over d_k at each layer, and at the last without the scale over with it.

    Predicted where the length of x is known: at the first layer, and at all of them under a pre-norm. Standard errors
    are those of independent stacks, which are the same with the scale and without.
    """
    for norm in NORMS:
        last: list[Array] = []
        for scaling, scale in (("unscaled", 1.0), ("scaled", _HEAD_DIM**-0.5)):
            for layer, sizes in enumerate(_sizes(one, seed, norm, scale), start=1):
                where: Where = {"backend": one.name, "norm": norm, "scaling": scaling, "layer": layer}
                if norm == "pre-norm" or layer == 1:
                    yield mean_row(SIZE, where, sizes[:, None], predicted=1.0)
                else:
                    mean, error = mean_over_clusters(sizes[:, None])
                    yield Row.only_measured(SIZE, where, mean, standard_error=error)
            last.append(sizes)
        unscaled, scaled = last
        ratio = float(unscaled.mean() / scaled.mean())
        # of a ratio of two means: that of the mean of a − ratio·b, over the mean of b
        _, error = mean_over_clusters(((unscaled - ratio * scaled) / scaled.mean())[:, None])
        where = {"backend": one.name, "norm": norm, "layer": LAYERS}
        if norm == "pre-norm":
            yield Row.compare(RATIO, where, 1.0, ratio, standard_error=error)
        else:
            yield Row.only_measured(RATIO, where, ratio, standard_error=error)


def _sizes(one: OpenBackend, seed: int, norm: str, scale: float) -> Iterator[Array]:
    """E(q·k)²/d_k of each stack, (stacks,), a layer at a time."""
    rng = generator(seed, 1700)
    x = _normalised(rng.standard_normal((_STACKS, _TOKENS, _MODEL_DIM)))
    for _ in range(LAYERS):
        weights = rng.standard_normal((4, _STACKS, _MODEL_DIM, _MODEL_DIM)) / math.sqrt(_MODEL_DIM)
        seen = _normalised(x) if norm == "pre-norm" else x
        q, k, v = (np.ascontiguousarray(_heads(seen @ w)) for w in weights[:3])
        yield np.asarray(((q @ k.swapaxes(-1, -2)) ** 2).mean(axis=(1, 2, 3)) / _HEAD_DIM)
        output = one.attend(q, k, v, causal=False, scale=scale)
        x = x + output.swapaxes(1, 2).reshape(x.shape) @ weights[3]


def _normalised(x: Array) -> Array:
    return np.asarray(x * (math.sqrt(_MODEL_DIM) / np.linalg.norm(x, axis=-1, keepdims=True)))


def _heads(x: Array) -> Array:
    return x.reshape(_STACKS, _TOKENS, _HEADS, _HEAD_DIM).swapaxes(1, 2)


def told(rows: Sequence[Row]) -> str:
    """The sizes by layer in a sentence, with a space before it."""

    def of(norm: str, scaling: str) -> str:
        return ", ".join(f"{row.measured:.3g}" for row in pick(rows, SIZE, norm=norm, scaling=scaling))

    if not pick(rows, SIZE):
        return ""
    return (
        f" Through {LAYERS} layers (d_model {_MODEL_DIM}, d_k {_HEAD_DIM}, {_TOKENS} tokens) without a norm "
        f"Var(q·k)/d_k is {of('none', 'unscaled')} unscaled and {of('none', 'scaled')} with 1/√d_k; under a pre-norm "
        f"{of('pre-norm', 'unscaled')} and {of('pre-norm', 'scaled')}."
    )


def draw(panel: Axes, rows: Sequence[Row]) -> None:
    """The sizes against the layer: solid without a norm, dashed with a pre-norm, where theory has 1 throughout."""
    entitle(panel, "Depth enters where nothing is normalised", "layer", SIZE)
    panel.set_yscale("log")
    panel.axhline(1.0, color=BLACK, linewidth=1.0)
    for norm in NORMS:
        for start, (scaling, colour) in enumerate((("unscaled", ORANGE), ("scaled", BLUE))):
            mine = pick(rows, SIZE, norm=norm, scaling=scaling)
            # both lie at 1 with a pre-norm: the dashes of one fill the gaps of the other
            line: Any = (5 * start, (5, 5)) if norm == "pre-norm" else "-"
            if mine:
                name = f"{scaling}, {'pre-norm' if norm == 'pre-norm' else 'no norm'}"
                sizes = [row.measured for row in mine]
                panel.plot(
                    numbers(mine, "layer"), sizes, linestyle=line, color=colour, linewidth=1.4, label=name
                )
                measured(panel, mine, "layer", colour, fmt="none")
    legend(panel, loc="upper left")
