"""Does the variance of the logits grow with d_k, and does dividing by √d_k stop it, in the backends themselves?

Vaswani et al. 2017 (section 3.2.1, footnote 4) argue with Var(q·k) = d_k. Here every logit is read out of a
backend's weights (`attnlab.numerics.logits`) and its variance held against the exact one, with the standard
error that many rows sharing few queries and keys really have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attnlab.numerics.contestants import Contestant, Facts, agreement, contestants, generator, rows_or_failure
from attnlab.numerics.drawing import (
    BLUE,
    ORANGE,
    backend_styles,
    entitle,
    new_figure,
    note,
    powers_of_two,
    spread,
)
from attnlab.numerics.finding import Finding, Row
from attnlab.numerics.logits import Array, read_logits
from attnlab.numerics.slopes import log_log_slope
from attnlab.theory import dot_product_moments

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The variance of the logits"
HEAD_DIMS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5}
#: independent heads, and queries and keys in each: 131,072 logits a point; a slow backend gets the second
_SIZES, _SLOW_SIZES = (32, 64, 64), (8, 16, 16)


def run(backends: Sequence[str], *, seed: int = 0, folders: Sequence[Path | str] = ()) -> Finding:
    """Var(logit) against d_k, scaled and unscaled, read through each of `backends` in float64.

    Prediction: scale²·d_k for standard normal q and k. Measured: the mean of s² over all logits, its mean
    being 0 by symmetry. Standard error: `DotProductMoments.variance_standard_error`. Raises ValueError for an
    unknown backend or a bad seed.
    """
    facts: Facts = {"seed": seed, "dtype": "float64"}
    rows: list[Row] = []
    for one in contestants(backends, facts, folders=folders):
        rows += rows_or_failure(one.name, lambda one=one: _through(one, seed))  # type: ignore[misc]
    return Finding(
        experiment="variance_scaling",
        title=TITLE,
        question="Does Var(q·k) grow as d_k, and does the scale 1/√d_k keep it at 1?",
        conclusion=_conclusion(rows),
        rows=tuple(rows),
        facts=facts,
    )


def _through(one: Contestant, seed: int) -> list[Row]:
    """Variances at every d_k and scaling through one backend, and the slopes on d_k."""
    rows = []
    for scaling, power in SCALINGS.items():
        variances = [_variance(one, seed, scaling, d, float(d) ** power) for d in HEAD_DIMS]
        slope, error = log_log_slope(
            HEAD_DIMS,
            [row.measured for row in variances],
            [row.standard_error for row in variances],
        )
        where = {"backend": one.name, "scaling": scaling}
        rows += variances
        rows.append(
            Row.compare(
                "slope of ln variance on ln d_k",
                where,
                predicted=1 + 2 * power,
                measured=slope,
                standard_error=error,
            )
        )
    return rows


def _variance(one: Contestant, seed: int, scaling: str, head_dim: int, scale: float) -> Row:
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    # the same draw for every backend and both scalings: what differs between points is what was changed
    rng = generator(seed, head_dim)
    q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
    logits: Array = read_logits(one.attend, q, k, scale=scale)
    moments = dot_product_moments(head_dim, scale=scale)
    return Row.compare(
        "variance",
        {"backend": one.name, "scaling": scaling, "head_dim": head_dim},
        predicted=moments.variance,
        measured=float(np.mean((logits - moments.mean) ** 2)),
        standard_error=moments.variance_standard_error(n_q, n_k) / np.sqrt(heads),
    )


def _conclusion(rows: Sequence[Row]) -> str:
    slopes = [row for row in rows if row.quantity.startswith("slope")]
    if not slopes:
        return "No backend could be measured."

    def range_of(scaling: str) -> str:
        found = [row for row in slopes if row.where["scaling"] == scaling]
        widest = max(row.standard_error for row in found)
        return f"{np.mean([row.measured for row in found]):.3f} ± {2 * widest:.3f}"

    return (
        f"Unscaled, the variance of the logits grows as d_k to the power {range_of('unscaled')}; multiplied by "
        f"1/√d_k the power is {range_of('scaled')} (prediction 1 and 0; intervals of two standard errors); "
        f"{agreement(rows, 'the prediction')}."
    )


def figure(finding: Finding) -> Figure:
    """Variance against d_k on logarithmic axes above, measured over predicted with five standard errors below."""
    figure, (top, below) = new_figure(1, 2, width=7.2, height=7.0, sharex=True, height_ratios=[2.2, 1])
    points = [row for row in finding.rows if row.quantity == "variance"]
    styles = backend_styles([str(row.where["backend"]) for row in points])
    dims = sorted({float(row.where["head_dim"]) for row in points}) or [1.0]
    for colour, power in ((ORANGE, 1.0), (BLUE, 0.0)):
        top.plot(dims, [d**power for d in dims], color=colour, linewidth=1.6, zorder=2)
    for index, (name, style) in enumerate(styles.items()):
        for scaling, colour in (("unscaled", ORANGE), ("scaled", BLUE)):
            mine = [row for row in points if (row.where["backend"], row.where["scaling"]) == (name, scaling)]
            x = np.array([float(row.where["head_dim"]) for row in mine])
            beside = x * spread(index, len(styles), 0.06)
            error = np.array([row.standard_error for row in mine])
            measured, predicted = (
                np.array([getattr(row, f) for row in mine]) for f in ("measured", "predicted")
            )
            drawn = {
                "fmt": style["marker"],
                "color": colour,
                "markersize": 4,
                "linewidth": 0.8,
                "mfc": "white",
            }
            top.errorbar(x, measured, 5 * error, label=name if scaling == "scaled" else None, **drawn)
            below.errorbar(beside, measured / predicted, 5 * error / predicted, **drawn)
    top.set_yscale("log", base=2)
    powers_of_two(below, dims)
    below.axhline(1.0, color="black", linewidth=1)
    entitle(
        top, "Unscaled logits grow with d_k; 1/√d_k keeps their variance at 1", "", "variance of the logits"
    )
    entitle(below, "", "head dimension d_k", "measured / predicted")
    note(top, dims[-1] / 4, dims[-1] / 2.2, "s = q·k:  Var = d_k", ORANGE, ha="right", va="bottom")
    note(top, dims[-1] / 2, 1.4, "s = q·k/√d_k:  Var = 1", BLUE, ha="right", va="bottom")
    top.legend(frameon=False, fontsize=8.5, title="through (bars: 5 standard errors)", title_fontsize=8.5)
    return figure
