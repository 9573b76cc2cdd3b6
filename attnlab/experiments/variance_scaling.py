"""Does the variance of the logits grow with d_k, and does dividing by √d_k stop it, in the backends themselves?

Vaswani et al. 2017 (section 3.2.1, footnote 4) argue with Var(q·k) = d_k. Here every logit is read out of a
backend's weights (`read_logits`) and its variance held against the exact one, with the standard
error that many rows sharing few queries and keys really have. The rest of the law (other families of components,
kurtosis, the whole distribution) needs no backend and is sampled in `attnlab.experiments.variance_sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.experiments import anisotropy
from attnlab.experiments.estimates import log_log_slope
from attnlab.experiments.finding import Finding, Row, Where, pick
from attnlab.experiments.panels import by_backend, numbers
from attnlab.experiments.responses import Array, read_logits
from attnlab.experiments.score_sampling import FAMILIES
from attnlab.experiments.survey import OpenBackend, Survey, agreement, generator
from attnlab.experiments.variance_sampling import DOT_PRODUCTS, sampled_rows
from attnlab.figures import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    entitle,
    legend,
    new_figure,
    note,
    points,
    powers_of_two,
)
from attnlab.theory import dot_product_moments, score_cdf, score_characteristic_function

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEAD_DIMS = tuple(2**power for power in range(11))
#: what the dot product is multiplied by, as a power of d_k
SCALINGS: Mapping[str, float] = {"unscaled": 0.0, "scaled": -0.5, "μP": -1.0}
#: independent heads, and queries and keys in each: 131,072 logits a point; a slow backend gets the second
_SIZES, _SLOW_SIZES = (32, 64, 64), (8, 16, 16)


def measure(survey: Survey) -> None:
    """Var(logit) against d_k, for three scalings, read through each backend in float64; and the law of q·k.

    Prediction: scale²·d_k for standard normal q and k, and `attnlab.theory` for the rest. Measured: the mean of s² over
    all logits, its mean being 0 by symmetry. Standard error: `DotProductMoments.variance_standard_error`.
    """
    survey.facts["dot products sampled"] = DOT_PRODUCTS
    survey.rows += sampled_rows(survey.seed, SCALINGS)
    survey.each(_through, anisotropy.shared_direction)


def _through(one: OpenBackend, seed: int) -> list[Row]:
    """Variances at every d_k and scaling through one backend, and the slopes on d_k."""
    rows: list[Row] = []
    for scaling, power in SCALINGS.items():
        variances = [_variance(one, seed, scaling, d, float(d) ** power) for d in HEAD_DIMS]
        found, errors = ([getattr(row, name) for row in variances] for name in ("measured", "standard_error"))
        slope, error = log_log_slope(HEAD_DIMS, found, errors)
        quantity, where = "slope of ln variance on ln d_k", {"scaling": scaling}
        rows += [*variances, one.row(quantity, where, 1 + 2 * power, slope, standard_error=error)]
    return rows


def _variance(one: OpenBackend, seed: int, scaling: str, head_dim: int, scale: float) -> Row:
    heads, n_q, n_k = _SLOW_SIZES if one.slow else _SIZES
    # the same draw for every backend and both scalings: what differs between points is what was changed
    rng = generator(seed, head_dim)
    q, k = (rng.standard_normal((1, heads, n, head_dim)) for n in (n_q, n_k))
    logits: Array = read_logits(one.attend, q, k, scale=scale)
    moments = dot_product_moments(head_dim, scale=scale)
    found = float(np.mean((logits - moments.mean) ** 2))
    error = moments.variance_standard_error(n_q, n_k) / math.sqrt(heads)
    where: Where = {"scaling": scaling, "head_dim": head_dim}
    return one.row("variance", where, moments.variance, found, standard_error=error)


def conclusion(rows: Sequence[Row]) -> str:
    """The powers of d_k with which the variances grow."""
    slopes = [row for row in rows if row.quantity.startswith("slope")]

    def power(scaling: str) -> str:
        best = min(pick(slopes, scaling=scaling), key=lambda row: row.standard_error)
        return f"{best.measured:.3f} ± {2 * best.standard_error:.3f}".replace("-", "−")

    through = len({str(row.where["backend"]) for row in slopes if "backend" in row.where})

    return (
        f"The variance of the logits grows as d_k to the power {power('unscaled')}; with 1/√d_k the power is "
        f"{power('scaled')}, with 1/d_k {power('μP')} (predicted 1, 0, −1; ± two standard errors), and the "
        f"same is read through {through} backends. {anisotropy.told(rows)}{agreement(rows, 'the prediction')}."
    )


#: excess kurtosis up to which its axis is linear
_LINEAR = 0.03
_LINES = (
    ("unscaled", ORANGE, 1.0, "q·k:  Var = d_k", 0.05),
    ("scaled", BLUE, 0.0, "q·k/√d_k:  Var = 1", 1.6),
    ("μP", GREEN, -1.0, "q·k/d_k:  Var = 1/d_k", 12.0),
)


def draw(finding: Finding) -> Figure:
    """Variance of the logits, kurtosis by family, characteristic function and distribution function."""
    figure, (variance, kurtosis, characteristic, distribution) = new_figure(2, 2, width=12.0, height=8.4)
    _variances(variance, pick(finding.rows, "variance"))
    _kurtosis(kurtosis, pick(finding.rows, "kurtosis of q·k"))
    _law(characteristic, pick(finding.rows, "characteristic function"), "t")
    _law(distribution, pick(finding.rows, "distribution function"), "x")
    title, dim = "The scale 1/√d_k keeps the variance of the logits at 1", "head dimension d_k"
    entitle(variance, title, dim, "variance of the logits")
    entitle(
        kurtosis,
        "The tails become normal, unless anisotropic",
        dim,
        "excess kurtosis of q·k\n(dotted: linear within, logarithmic beyond)",
    )
    title = "The law of s = q·k/√d_k becomes normal as d_k grows"
    entitle(characteristic, title, "t", "E cos(t s) − exp(−t²/2)")
    entitle(distribution, "The same law, as a distribution function", "x", "P(s ≤ x) − Φ(x)")
    return figure


def _variances(panel: Axes, rows: Sequence[Row]) -> None:
    dims = np.array(sorted(set(numbers(rows, "head_dim"))) or [1.0, 2.0])
    for scaling, colour, power, label, lift in _LINES:
        panel.plot(dims, dims**power, color=colour, linewidth=1.6, zorder=2)
        note(panel, dims[-1], dims[-1] ** power * lift, label, colour, ha="right", va="bottom")
        by_backend(panel, pick(rows, scaling=scaling), "head_dim", colour, named=scaling == "scaled")
    panel.set_yscale("log", base=2)
    powers_of_two(panel, list(dims))
    legend(panel, fontsize=8, title="read through", title_fontsize=8, loc="lower left", ncols=2)


def _kurtosis(panel: Axes, rows: Sequence[Row]) -> None:
    families = list(dict.fromkeys(str(row.where["family"]) for row in rows))
    for family, colour in zip(families, CYCLE, strict=False):
        mine = [row for row in pick(rows, family=family) if float(row.where["head_dim"]) <= 256]
        steps = range(4, 33, 4) if family == "anisotropic" else range(33)
        dims = sorted({round(2 ** (step / 4)) for step in steps})
        exact = [FAMILIES[family].moments(d).kurtosis - 3 for d in dims]
        panel.plot(dims, exact, color=colour, linewidth=1.4)
        excess, errors = [row.measured - 3 for row in mine], [row.standard_error for row in mine]
        points(panel, numbers(mine, "head_dim"), excess, errors, colour, markersize=4, label=family)
    panel.set_yscale("symlog", linthresh=_LINEAR)
    powers_of_two(panel, [2.0**power for power in range(9)])
    panel.axhline(0, color=BLACK, linewidth=0.8)
    for edge in (-_LINEAR, _LINEAR):
        panel.axhline(edge, color=GREY, linestyle=":", linewidth=0.8)
    panel.set_ylim(bottom=-300)  # room for the legend below the lowest curve
    panel.set_yticks([-1.0, -0.1, -0.01, 0.0, 0.01, 0.1, 1.0, 10.0])
    legend(panel, title="components", ncols=3, loc="lower center")


def _law(panel: Axes, rows: Sequence[Row], variable: str) -> None:
    """What the law has beyond the normal one, which lies at 0."""
    dims = sorted({int(row.where["head_dim"]) for row in rows})
    for head_dim, colour in zip(dims, CYCLE, strict=False):
        mine = pick(rows, head_dim=head_dim)
        at = numbers(mine, variable)
        x = np.linspace(min(at.min(), 0.0), at.max(), 241)
        law = score_characteristic_function if variable == "t" else score_cdf
        curve = law(x, head_dim, head_dim**-0.5) - _normal(variable, x)
        panel.plot(x, curve, color=colour, linewidth=1.4, label=f"{head_dim}")
        beyond = np.array([row.measured for row in mine]) - _normal(variable, at)
        points(panel, at, beyond, [row.standard_error for row in mine], colour, markersize=4)
        if variable == "x" and head_dim > 4:
            continue  # too close to 0 and to each other for labels at the curve: they are in the legend
        top = int(np.argmax(curve))
        lift = 0.025 * (panel.get_ylim()[1] - panel.get_ylim()[0])
        # the lowest has no room for a label between its curve and the next
        y, side = (-2 * lift, "top") if head_dim == 64 else (curve[top] + lift, "bottom")
        note(panel, x[top], y, f"d_k = {head_dim}", colour, ha="center", va=side)
    panel.axhline(0, color=GREY, linewidth=1.2)
    if variable == "x":
        legend(panel, title="d_k", loc="lower right")
    low, high = panel.get_ylim()
    panel.set_ylim(low - 0.03 * (high - low), high + 0.08 * (high - low))


def _normal(variable: str, x: Array) -> Array:
    """The characteristic function of a standard normal number, of t, or its distribution function, of x."""
    if variable == "t":
        return np.asarray(np.exp(-(x**2) / 2))
    return np.array([0.5 * math.erfc(-float(one) / math.sqrt(2)) for one in x])
