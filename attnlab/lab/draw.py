"""One way to draw every experiment: what theory predicts as a line, with its band, and what was measured as circles.

The band is five standard errors of the measurement to either side: every circle must lie in it. A row that misses its
prediction is a red cross with the name of its backend.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab import figure_style
from attnlab.lab.experiments import Chart, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH, _HEIGHT = 6.4, 3.9
#: conditions as a reader names them; any other is shown as it is
_LABELS = {
    "head_dim": "head dimension d_k",
    "keys": "keys n",
    "temperature": "temperature / freezing temperature",
}


def draw(chart: Chart, rows: Sequence[Row]) -> Figure | None:
    """`chart` from the rows of its experiment; None where none of its rows was measured."""
    lines = {label: one(rows) for label, one in chart.lines.items()}
    found = {label: mine for label, mine in lines.items() if mine}
    if not found:
        return None
    figure, (axes,) = figure_style.new_figure(width=_WIDTH, height=_HEIGHT)
    if chart.by:
        figure.set_figheight(max(2.2, 0.27 * _dots(axes, chart, found) + 1.3))
        figure_style.entitle(axes, "", chart.y, "")
    else:
        ends = _curves(axes, chart, found)
        figure_style.entitle(axes, "", chart.x_label or _LABELS.get(chart.x, chart.x), chart.y)
    for text, at in chart.marks.items():
        axes.axvline(at, color=figure_style.GREY, linestyle="--", linewidth=1.1, zorder=1)
        across = axes.get_xaxis_transform()
        axes.text(
            at,
            1.01,
            text,
            transform=across,
            fontsize=figure_style.SIZE - 2,
            color=figure_style.GREY,
            ha="center",
        )
    look: dict[str, Any] = {"fontsize": figure_style.SIZE, "fontweight": "bold", "color": figure_style.BLACK}
    axes.set_title(chart.title, loc="left", pad=18 if chart.marks else 6, **look)
    if not chart.by:
        figure_style.label_ends(axes, ends)
    return figure


def _curves(axes: Axes, chart: Chart, lines: dict[str, list[Row]]) -> list[tuple[float, float, str, str]]:
    """Measured against a condition; returns the end of each line, its name and colour."""
    ends = []
    for (label, rows), colour in zip(lines.items(), figure_style.CYCLE, strict=False):
        by_backend: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: float(row.where[chart.x])):
            by_backend.setdefault(str(row.where.get("backend", "")), []).append(row)
        # of the backend with the most rows: what theory predicts is the same for all
        longest = max(by_backend.values(), key=len)
        room = np.array(
            [max(figure_style.STANDARD_ERRORS * row.standard_error, row.slack) for row in longest]
        )
        x = np.array([float(row.where[chart.x]) for row in longest])
        y = np.array([row.predicted for row in longest])
        if any(row.compared for row in rows):
            curved = len(x) > 2 and chart.log_x and not chart.log_y
            line, low, high = (
                (figure_style.smooth(list(x), one) if curved else (x, one)) for one in (y, y - room, y + room)
            )
            axes.plot(*line, color=colour, linewidth=1.6)
            axes.fill_between(low[0], low[1], high[1], color=colour, alpha=0.18, linewidth=0)
        else:
            axes.plot(x, y, color=colour, linewidth=1.0, linestyle=":")
        for row in rows:
            _mark(axes, row.where[chart.x], row.measured, row, colour)
        ends.append((float(x[-1]), float(y[-1]), label, colour))
    if chart.log_x:
        figure_style.powers_of_two(
            axes, sorted({float(row.where[chart.x]) for rows in lines.values() for row in rows})
        )
    if chart.log_y:
        axes.set_yscale("log")
    if chart.limits:
        axes.set_ylim(*chart.limits)
    return ends


def _dots(axes: Axes, chart: Chart, lines: dict[str, list[Row]]) -> int:
    """A row of marks for each category, with what is predicted as a bar across it; returns how many there are."""
    named = {
        label: [(str({"quantity": row.quantity, **row.where}.get(chart.by, "")), row) for row in rows]
        for label, rows in lines.items()
    }
    names = list(dict.fromkeys(name for rows in named.values() for name, _ in rows))
    # what is 0 stands at the left edge
    least = chart.limits[0] if chart.limits and chart.log_x else -math.inf
    for (label, rows), colour in zip(named.items(), figure_style.CYCLE, strict=False):
        for name, row in rows:
            height = names.index(name)
            if row.compared:
                at = row.predicted
                axes.plot([at, at], [height - 0.36, height + 0.36], color=colour, linewidth=2.4, alpha=0.4)
            _mark(axes, max(least, row.measured), height, row, colour)
        if len(lines) > 1:
            axes.plot([], [], "o", color=colour, markerfacecolor="none", label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.limits:
        axes.set_xlim(*chart.limits)
    if len(lines) > 1:
        axes.legend(
            frameon=False, fontsize=figure_style.SIZE - 2, loc="upper left", bbox_to_anchor=(1.0, 1.0)
        )
    return len(names)


def _mark(axes: Axes, x: float, y: float, row: Row, colour: str) -> None:
    """What was measured: one circle, or a red cross with a name."""
    if row.passed:
        axes.plot([x], [y], "o", color=colour, markerfacecolor="none", markersize=5, zorder=3)
        return
    axes.plot([x], [y], "X", color=figure_style.RED, markersize=7, zorder=5)
    name = str(row.where.get("backend", ""))
    axes.annotate(
        name,
        (x, y),
        (6, 4),
        textcoords="offset points",
        fontsize=figure_style.SIZE - 3,
        color=figure_style.RED,
    )
