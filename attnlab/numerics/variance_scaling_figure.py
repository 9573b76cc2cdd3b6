"""The variance experiment drawn: four panels, exact curves in colour, measured points on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.figures.drawing import (
    BLACK,
    BLUE,
    CYCLE,
    GREEN,
    GREY,
    ORANGE,
    backend_styles,
    entitle,
    legend,
    nested_sizes,
    new_figure,
    note,
    points,
    powers_of_two,
)
from attnlab.numerics.finding import Finding, Row
from attnlab.numerics.score_sampling import FAMILIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = (
    ("unscaled", ORANGE, 1.0, "q·k:  Var = d_k"),
    ("scaled", BLUE, 0.0, "q·k/√d_k:  Var = 1"),
    ("μP", GREEN, -1.0, "q·k/d_k:  Var = 1/d_k"),
)


def draw(finding: Finding) -> Figure:
    """Variance of the logits, kurtosis by family, characteristic function and distribution function."""
    figure, (variance, kurtosis, characteristic, distribution) = new_figure(2, 2, width=12.0, height=8.4)
    _variance(variance, [row for row in finding.rows if row.quantity == "variance"])
    _kurtosis(kurtosis, [row for row in finding.rows if row.quantity == "kurtosis of q·k"])
    _law(characteristic, [row for row in finding.rows if row.quantity == "characteristic function"], "t")
    _law(distribution, [row for row in finding.rows if row.quantity == "distribution function"], "x")
    entitle(
        variance,
        "The scale 1/√d_k keeps the variance of the logits at 1",
        "head dimension d_k",
        "variance of the logits",
    )
    entitle(
        kurtosis,
        "The tails become normal, unless anisotropic",
        "head dimension d_k",
        "excess kurtosis of q·k (normal: 0)",
    )
    entitle(
        characteristic, "The law of s = q·k/√d_k is normal only as d_k grows", "t", "E cos(t s) − exp(−t²/2)"
    )
    entitle(distribution, "The same law, as a distribution function", "x", "P(s ≤ x) − Φ(x)")
    return figure


def _variance(panel: Axes, rows: Sequence[Row]) -> None:
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    dims = np.array(sorted({float(row.where["head_dim"]) for row in rows}) or [1.0, 2.0])
    for scaling, colour, power, label in _LINES:
        panel.plot(dims, dims**power, color=colour, linewidth=1.6, zorder=2)
        note(
            panel,
            dims[-1],
            dims[-1] ** power * {1.0: 0.05, 0.0: 1.6, -1.0: 12.0}[power],
            label,
            colour,
            ha="right",
            va="bottom",
        )
        for (name, style), size in zip(styles.items(), nested_sizes(len(styles)), strict=True):
            mine = [row for row in rows if (row.where["backend"], row.where["scaling"]) == (name, scaling)]
            panel.plot(
                [float(row.where["head_dim"]) for row in mine],
                [row.measured for row in mine],
                style["marker"],
                color=colour,
                markerfacecolor="none",
                markersize=size,
                markeredgewidth=0.8,
                label=name if scaling == "scaled" else None,
            )
    panel.set_yscale("log", base=2)
    powers_of_two(panel, list(dims))
    legend(panel, fontsize=8, title="read through", title_fontsize=8, loc="lower left", ncols=2)


def _kurtosis(panel: Axes, rows: Sequence[Row]) -> None:
    families = list(dict.fromkeys(str(row.where["family"]) for row in rows))
    for family, colour in zip(families, CYCLE, strict=False):
        mine = sorted(
            (row for row in rows if row.where["family"] == family),
            key=lambda row: float(row.where["head_dim"]),
        )
        mine = [row for row in mine if float(row.where["head_dim"]) <= 256]
        x = [float(row.where["head_dim"]) for row in mine]
        exact = (
            [2**power for power in range(1, 9)]
            if family == "anisotropic"
            else sorted({round(2 ** (step / 4)) for step in range(33)})
        )
        panel.plot(
            exact, [FAMILIES[family].moments(d).kurtosis - 3 for d in exact], color=colour, linewidth=1.4
        )
        excess, errors = [row.measured - 3 for row in mine], [row.standard_error for row in mine]
        points(panel, x, excess, errors, colour, markersize=4, label=family)
    panel.set_yscale("symlog", linthresh=0.03)
    powers_of_two(panel, [2.0**power for power in range(9)])
    panel.axhline(0, color=BLACK, linewidth=0.8)
    legend(panel, title="components", ncols=2, loc="lower right")


def _law(panel: Axes, rows: Sequence[Row], variable: str) -> None:
    """What the law has beyond the normal one, which lies at 0."""
    dims = sorted({int(row.where["head_dim"]) for row in rows})
    for head_dim, colour in zip(dims, CYCLE, strict=False):
        mine = [row for row in rows if row.where["head_dim"] == head_dim]
        at = np.array([float(row.where[variable]) for row in mine])
        normal = np.exp(-(at**2) / 2) if variable == "t" else _normal_distribution(at)
        curve_x, curve = _curve(variable, head_dim, float(at.min()), float(at.max()))
        panel.plot(curve_x, curve, color=colour, linewidth=1.4)
        beyond = np.array([row.measured for row in mine]) - normal
        points(panel, at, beyond, [row.standard_error for row in mine], colour, markersize=4)
        if variable == "x" and head_dim > 4:
            continue  # too close to 0 and to each other for labels; the colours are those of the other panel
        top = int(np.argmax(curve))
        lift = 0.025 * (panel.get_ylim()[1] - panel.get_ylim()[0])
        if head_dim == 64:  # too low for a label between its curve and the next
            note(panel, curve_x[top], -2 * lift, f"d_k = {head_dim}", colour, ha="center", va="top")
        else:
            note(
                panel, curve_x[top], curve[top] + lift, f"d_k = {head_dim}", colour, ha="center", va="bottom"
            )
    panel.axhline(0, color=GREY, linewidth=1.2)
    low, high = panel.get_ylim()
    panel.set_ylim(low - 0.03 * (high - low), high + 0.08 * (high - low))


def _curve(variable: str, head_dim: int, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    from attnlab.theory import score_cdf, score_characteristic_function

    x = np.linspace(min(low, 0.0), high, 241)
    unit = head_dim**-0.5
    if variable == "t":
        return x, score_characteristic_function(x, head_dim, unit) - np.exp(-(x**2) / 2)
    return x, score_cdf(x, head_dim, unit) - _normal_distribution(x)


def _normal_distribution(x: np.ndarray) -> np.ndarray:
    return np.array([0.5 * math.erfc(-float(one) / math.sqrt(2)) for one in x])
