"""The vanishing gradient drawn: its mean square against β, and who receives how little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.figures.drawing import (
    BLUE,
    GREY,
    ORANGE,
    backend_styles,
    entitle,
    legend,
    nested_sizes,
    new_figure,
    note,
    points,
)
from attnlab.numerics.finding import Finding, Row
from attnlab.theory import critical_beta, random_energy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(finding: Finding) -> Figure:
    """Root mean square against β; rms, median and 5 % quantile by scaling; the share of rows below 1e-3."""
    figure, (average, spread, tail) = new_figure(3, 1, width=14.0, height=4.6)
    _average(average, [row for row in finding.rows if row.quantity == "mean ‖J‖² against β"])
    compared = [row for row in finding.rows if "scaling" in row.where and row.where.get("head_dim")]
    most = max((int(row.where["keys"]) for row in compared), default=0)
    compared = [row for row in compared if row.where["keys"] == most]
    _spread(spread, compared)
    _tail(tail, [row for row in compared if row.quantity == "share of rows below"])
    return figure


def _average(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(
        panel,
        "The average is largest beyond freezing",
        "standard deviation of the logits, β / β_c",
        "rms ‖J‖_F",
    )
    if not rows:
        return
    keys = int(rows[0].where["keys"])
    x = np.array([float(row.where["beta / critical"]) for row in rows])
    fine = np.geomspace(x.min(), x.max(), 120)
    critical = critical_beta(keys)
    curve = [random_energy(keys, float(one) * critical).jacobian_norm_squared ** 0.5 for one in fine]
    panel.plot(fine, curve, color=BLUE, linewidth=1.8)
    measured = np.sqrt([row.measured for row in rows])
    points(panel, x, measured, np.array([row.standard_error for row in rows]) / (2 * measured), BLUE)
    for d, colour in ((64, ORANGE),):
        for beta, label in ((1.0, "scaled, any d_k"), (d**0.5, f"unscaled, d_k = {d}")):
            at = beta / critical
            height = random_energy(keys, beta).jacobian_norm_squared ** 0.5
            panel.plot([at], [height], "D", color=colour, markersize=8, zorder=5)
            panel.annotate(
                label,
                (at, height),
                (9, 7 if beta > critical else -13),
                textcoords="offset points",
                color=colour,
                fontsize=9.5,
            )
    panel.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2)
    note(panel, 0.6 * x[-1], 0.75 * max(curve), f"exact, n = {keys}", BLUE)


def _spread(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "Unscaled rows differ by orders of magnitude", "", "‖J‖_F of a row")
    quantities = ("mean ‖J‖²", "median ‖J‖", "5 % quantile of ‖J‖")
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    first = next(iter(styles), "")  # all are given the same rows: one error bar stands for all
    for scaling, colour, shift in (("scaled", BLUE, -0.12), ("unscaled", ORANGE, 0.12)):
        for place, quantity in enumerate(quantities):
            power = 0.5 if quantity.startswith("mean") else 1.0
            for (name, style), size in zip(styles.items(), nested_sizes(len(styles)), strict=True):
                for row in rows:
                    if (row.quantity, row.where["scaling"], row.where["backend"]) != (
                        quantity,
                        scaling,
                        name,
                    ):
                        continue
                    panel.plot(
                        [place + shift],
                        [row.measured**power],
                        style["marker"],
                        color=colour,
                        mfc="none",
                        ms=size,
                    )
                    if name == first:
                        measured, error = row.measured**power, 5 * row.standard_error
                        # of the root: |dx| / 2x
                        error = error / (2 * measured) if power == 0.5 else error
                        panel.errorbar([place + shift], [measured], [error], color=colour, linewidth=1)
                    panel.plot(
                        [place + shift - 0.1, place + shift + 0.1],
                        [row.predicted**power] * 2,
                        color=colour,
                        lw=1.6,
                    )
    panel.set_yscale("log")
    panel.set_xticks(range(3), ["root mean\nsquare", "median", "5 % quantile"])
    panel.set_xlim(-0.5, 2.5)
    panel.plot([], [], color=BLUE, label="scaled")
    panel.plot([], [], color=ORANGE, label="unscaled")
    legend(panel, fontsize=9.5, loc="lower left", title="bars predicted, marks measured", title_fontsize=8.5)


def _tail(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(panel, "A tail of rows gets next to nothing", "x", "share of rows with ‖J‖_F < x")
    if not rows:
        return
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    for scaling, colour in (("scaled", BLUE), ("unscaled", ORANGE)):
        for index, ((name, style), size) in enumerate(
            zip(styles.items(), nested_sizes(len(styles)), strict=True)
        ):
            mine = [row for row in rows if (row.where["scaling"], row.where["backend"]) == (scaling, name)]
            x = [float(row.where["norm"]) for row in mine]
            if index == 0:
                panel.plot(x, [row.predicted for row in mine], color=colour, linewidth=1.0)
                panel.errorbar(
                    x,
                    [row.measured for row in mine],
                    [5 * row.standard_error for row in mine],
                    color=colour,
                    linestyle="",
                    elinewidth=1,
                )
            panel.plot(
                x,
                [row.measured for row in mine],
                style["marker"],
                color=colour,
                mfc="none",
                ms=size,
                label=name if scaling == "scaled" else None,
            )
    panel.set_xscale("log")
    panel.set_yscale("symlog", linthresh=1e-3)
    panel.set_yticks([0, 1e-3, 1e-2, 1e-1, 1], ["0", "0.1 %", "1 %", "10 %", "100 %"])
    panel.axvline(1e-3, color=GREY, linestyle="--", linewidth=1.2)
    note(panel, 1.4e-3, 6e-3, "unscaled", ORANGE)
    note(panel, 2e-3, 1.5e-4, "scaled", BLUE)
    panel.set_ylim(-2e-4, 1.3)
    legend(panel, fontsize=8, title="through", title_fontsize=8, loc="upper left")
