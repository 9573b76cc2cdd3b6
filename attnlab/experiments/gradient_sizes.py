"""What becomes of the rows without a gradient at other sizes: unscaled over d_k, scaled over the length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.experiments.estimates import mean_over_clusters, statistic_over_clusters
from attnlab.experiments.finding import Row, Where, pick
from attnlab.experiments.jacobian_sampling import Estimate, quantile, share_below
from attnlab.experiments.observables import Array, observe
from attnlab.experiments.panels import measured, numbers
from attnlab.experiments.survey import OpenBackend, generator
from attnlab.figures import BLUE, GREY, ORANGE, entitle, note, powers_of_two, share_axis, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: a row with a smaller Jacobian norm than this passes on next to nothing
SMALL = 1e-3
#: where the share of rows without a gradient is followed: over d_k unscaled, and over n scaled
HEAD_DIMS, LENGTHS = (64, 128, 256, 512, 1024, 1600, 4096), (256, 1024, 16384, 65536)
_KEYS, _HEAD_DIM = 1024, 64
_SCALE = _HEAD_DIM**-0.5
#: a square norm is read from a backend to about 1e-12
_NORM_SLACK = 2e-6

AGAINST_DIM = tuple(f"{name} against d_k" for name in ("share of rows below 1e-3", "median ‖J‖"))
AGAINST_LENGTH = "median ‖J‖ against n"


def quantile_row(quantity: str, where: Where, norms: Array, level: float, expected: Estimate) -> Row:
    """A quantile of the measured norms against the predicted one, which has an error of its own."""
    found, error = statistic_over_clusters(norms, lambda values: float(np.quantile(values, level)))
    error = math.hypot(error, expected.error)
    return Row.compare(quantity, where, expected.value, found, standard_error=error, slack=_NORM_SLACK)


def share_row(quantity: str, where: Where, norms: Array, threshold: float, expected: Estimate) -> Row:
    """The share of the measured norms below `threshold` against the predicted one.

    Where it is small, few rows were seen or none, and their spread says nothing of what might have been: the error is
    then that of the predicted share, and some four rows are too few to judge by.
    """
    found, error = mean_over_clusters((norms < threshold).astype(np.float64))
    independent = math.sqrt(expected.value * (1 - expected.value) / norms.size)
    error = math.hypot(max(error, independent), expected.error)
    return Row.compare(quantity, where, expected.value, found, standard_error=error, slack=4 / norms.size)


def against_size(one: OpenBackend, seed: int) -> Iterator[Row]:
    """Rows without a gradient against d_k, unscaled over 1024 keys; the median norm against n, scaled at d_k = 64.

    Given its query a row has independent normal logits, whose size follows from the query's length alone. So queries of
    a few dimensions with lengths of the law χ of d_k dimensions give rows of the same law for less work.
    """
    for head_dim in HEAD_DIMS:
        norms = _norms_of(
            one, generator(seed, 820, head_dim), _KEYS, head_dim, 1.0, dims=32, heads=160, queries=16
        )
        where: Where = {"backend": one.name, "scaling": "unscaled", "keys": _KEYS, "head_dim": head_dim}
        share, median = AGAINST_DIM
        yield share_row(share, where, norms, SMALL, share_below(SMALL, _KEYS, head_dim, 1.0))
        yield quantile_row(median, where, norms, 0.5, quantile(0.5, _KEYS, head_dim, 1.0))
    for keys in LENGTHS:
        scale = _SCALE
        norms = _norms_of(
            one, generator(seed, 830, keys), keys, _HEAD_DIM, scale, dims=8, heads=24, queries=16
        )
        where = {"backend": one.name, "scaling": "scaled", "keys": keys, "head_dim": _HEAD_DIM}
        yield quantile_row(AGAINST_LENGTH, where, norms, 0.5, quantile(0.5, keys, _HEAD_DIM, scale))


def _norms_of(
    one: OpenBackend,
    rng: np.random.Generator,
    keys: int,
    head_dim: int,
    scale: float,
    *,
    dims: int,
    heads: int,
    queries: int,
) -> Array:
    """‖J‖_F, (heads, queries), of queries of `dims` dimensions as long as those of `head_dim`."""
    q, k = (rng.standard_normal((1, heads, n, dims)) for n in (queries, keys))
    q *= np.sqrt(rng.chisquare(head_dim, (1, heads, queries, 1))) / np.linalg.norm(q, axis=-1, keepdims=True)
    squares = observe(one.attend, q, k, scale=scale).jacobian_norm_squared[0]
    return np.asarray(np.sqrt(squares))


def told(rows: Sequence[Row]) -> str:
    """What becomes of the share and of the median at other sizes."""
    shares, medians = (pick(rows, quantity) for quantity in AGAINST_DIM)
    long = pick(rows, AGAINST_LENGTH)
    if not (shares and medians and long):
        return ""
    first = next((row for row in medians if row.predicted < SMALL), None)
    percent = ", ".join(f"{100 * row.measured:.1f} ± {100 * row.standard_error:.1f}" for row in shares)
    median = f"; by theory the median row does at {first.where['head_dim']} and beyond" if first else ""
    return (
        f"Unscaled, {percent} % do at d_k = {', '.join(str(row.where['head_dim']) for row in shares)}{median}. "
        f"Scaled, the median falls with the length, from {long[0].measured:.3f} at n = {long[0].where['keys']} to "
        f"{long[-1].measured:.4f} at {long[-1].where['keys']}. "
    )


def draw_dims(panel: Axes, rows: Sequence[Row]) -> None:
    """The share of rows without a gradient against d_k."""
    entitle(
        panel,
        "... and the tail becomes the bulk as d_k grows",
        "head dimension d_k",
        "share of rows with ‖J‖_F < 1e-3",
    )
    mine = pick(rows, AGAINST_DIM[0])
    powers_of_two(panel, HEAD_DIMS)
    share_axis(panel)
    if not mine:
        return
    x = list(numbers(mine, "head_dim"))
    panel.plot(*smooth(x, [row.predicted for row in mine]), color=ORANGE, linewidth=1.8)
    measured(panel, mine, "head_dim", ORANGE)
    panel.axhline(0.5, color=GREY, linestyle="--", linewidth=1.2)
    note(panel, x[0], 0.515, "above this line the median row is among them", GREY)
    note(panel, 1.3 * x[2], 0.15, f"unscaled, n = {_KEYS}", ORANGE)
    panel.set_ylim(0, 0.8)


def draw_lengths(panel: Axes, rows: Sequence[Row]) -> None:
    """The median norm against n, scaled, beside its root mean square where a row's weights are near 1/n: √(e/n)."""
    entitle(panel, "Scaled, the gradient shrinks with the length", "keys n", "median ‖J‖_F")
    powers_of_two(panel, LENGTHS)
    panel.set_yscale("log")
    mine = pick(rows, AGAINST_LENGTH)
    if not mine:
        return
    x = numbers(mine, "keys")
    panel.plot(x, np.sqrt(math.e / x), "--", color=GREY, linewidth=1.2)
    panel.plot(x, [row.predicted for row in mine], color=BLUE, linewidth=1.8)
    measured(panel, mine, "keys", BLUE)
    note(panel, x[1], 1.25 * math.sqrt(math.e / x[1]), "√(e/n)", GREY)
    note(panel, x[0], 0.4 * mine[1].predicted, f"scaled, d_k = {_HEAD_DIM}", BLUE)
