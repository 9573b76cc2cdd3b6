"""The thermodynamics experiment drawn: potentials, heat capacity, and how exactly the identities hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.figures.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    backend_styles,
    entitle,
    legend,
    new_figure,
    note,
    points,
    smooth,
)
from attnlab.numerics.finding import Finding, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: what rounding can do to nothing at all: violations below are drawn here
_FLOOR = 1e-17


def draw(finding: Finding) -> Figure:
    """Potentials and heat capacity against β on the left, violations of the identities on the right."""
    figure, (potentials, capacity, violations) = new_figure(
        3, 1, width=15.0, height=5.0, width_ratios=[1, 1, 1.25]
    )
    _potentials(potentials, finding.rows)
    _capacity(capacity, [row for row in finding.rows if row.quantity == "heat_capacity"])
    _violations(violations, [row for row in finding.rows if "beta" in row.where])
    return figure


def _potentials(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(
        panel,
        "Above β_c ln Z grows linearly and H is small",
        "inverse temperature β / β_c",
        "ln Z, β⟨s⟩ and H, over ln n",
    )
    shown = (
        ("log_partition", "ln Z", BLUE),
        ("mean_energy", "β⟨s⟩ = β d ln Z/dβ", ORANGE),
        ("entropy", "H", GREEN),
    )
    for quantity, label, colour in shown:
        mine = [row for row in rows if row.quantity == quantity]
        if not mine:
            continue
        unit = math.log(float(mine[0].where["keys"]))
        _exact_and_measured(panel, mine, unit, colour)
        place = mine[-3]
        x, y = float(place.where["beta / critical"]), place.predicted / unit
        panel.annotate(
            label, (x, y), (-8, 9), textcoords="offset points", color=colour, fontsize=10, ha="right"
        )
    panel.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2)


def _exact_and_measured(panel: Axes, rows: Sequence[Row], unit: float, colour: str) -> None:
    x = [float(row.where["beta / critical"]) for row in rows]
    panel.plot(*smooth(x, [row.predicted / unit for row in rows]), color=colour, linewidth=1.8)
    measured, error = (
        np.array([getattr(row, name) for row in rows]) for name in ("measured", "standard_error")
    )
    points(panel, x, measured / unit, error / unit, colour)


def _capacity(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "The heat capacity peaks near freezing", "inverse temperature β / β_c", "β² Var_p(s)")
    if not rows:
        return
    _exact_and_measured(panel, rows, 1.0, RED)
    panel.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2)
    last, top = float(rows[-1].where["beta / critical"]), max(row.measured for row in rows)
    text = f"exact, n = {rows[0].where['keys']}\nbars: 5 standard errors"
    note(panel, last, top, text, RED, ha="right", va="top")


def _violations(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "How exactly the identities hold", "largest violation over all rows", "")
    names = list(dict.fromkeys(row.quantity for row in rows))
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    for index, (backend, style) in enumerate(styles.items()):
        mine = [
            max(row.measured for row in rows if (row.where["backend"], row.quantity) == (backend, name))
            for name in names
        ]
        heights = np.arange(len(names)) + 0.09 * (index - (len(styles) - 1) / 2)
        panel.plot(
            np.maximum(mine, _FLOOR),
            heights,
            style["marker"],
            color=style["color"],
            markersize=4,
            label=backend,
            linestyle="",
        )
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(_FLOOR / 3, 1e-5)
    ticks = [10.0**power for power in range(-15, -4, 2)]
    panel.set_xticks([_FLOOR, *ticks], ["0", *(f"$10^{{{round(math.log10(one))}}}$" for one in ticks)])
    legend(panel, fontsize=8, loc="upper right")
