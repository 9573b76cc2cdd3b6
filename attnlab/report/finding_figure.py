"""An experiment as a picture: measured with error bars, predicted as a line, one colour a series."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.numerics.finding import Finding, Row
from attnlab.report import canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

#: facts of a finding whose name begins so are marked by an upright line: {"mark d_k = 2 ln n": 11.1}
MARK = "mark "
#: values that span more than this are drawn on a logarithmic axis
_DECADES = 100.0


def draw(finding: Finding, folder: Path) -> Path | None:
    """The figure of `finding`, a panel for each quantity; None where nothing in it is a number to plot against.

    The horizontal axis is the numeric key of the rows' `where` with most values; the others tell series apart.
    """
    panels: list[tuple[str, str, list[Row]]] = []
    for quantity in dict.fromkeys(row.quantity for row in finding.rows):
        rows = [row for row in finding.rows if row.quantity == quantity and _drawable(row)]
        key = _axis(rows)
        if key is not None:
            panels.append((quantity, key, rows))
    if not panels:
        return None
    figure, every = canvas.panels(len(panels), height=5.2, shared=False)
    labels = []
    for axes, (quantity, key, rows) in zip(every, panels, strict=True):
        labels.append(_panel(figure, axes, key, rows))
        axes.set_title(quantity, fontsize=13, loc="left", fontweight="bold")
        for name, value in finding.facts.items():
            if name.startswith(MARK) and isinstance(value, int | float):
                _mark(axes, float(value), name.removeprefix(MARK))
    figure.suptitle("points: measured, ±2 standard errors; lines: predicted", fontsize=12, color="#555555")
    canvas.settle(figure, labels)
    slug = re.sub(r"[^\w-]+", "-", finding.experiment)
    return canvas.save(figure, folder / f"finding-{slug}.png")


def _drawable(row: Row) -> bool:
    return math.isfinite(row.measured) and math.isfinite(row.predicted)


def _axis(rows: Sequence[Row]) -> str | None:
    """Of the keys that are a number in every row the one that takes most values, if more than one."""
    counts = {}
    for key in rows[0].where if rows else ():
        values = [row.where.get(key) for row in rows]
        if all(isinstance(one, int | float) for one in values):
            counts[key] = len(set(values))
    best = max(counts, key=lambda key: counts[key], default=None)
    return best if best is not None and counts[best] > 1 else None


def _panel(figure: Figure, axes: Axes, key: str, rows: Sequence[Row]) -> list[Text]:
    other = [name for name in dict.fromkeys(k for row in rows for k in row.where) if name != key]
    varying = [name for name in other if len({row.where.get(name) for row in rows}) > 1]
    series: dict[str, list[Row]] = {}
    for row in rows:
        series.setdefault(", ".join(_named(name, row) for name in varying), []).append(row)
    palette = canvas.styles(list(series), baseline="")
    x_values = [float(row.where[key]) for row in rows]
    _scale(axes, "x", x_values)
    _scale(axes, "y", [value for row in rows for value in (row.measured, row.predicted)])
    texts = []
    for shift, (name, members) in enumerate(series.items()):
        members.sort(key=lambda row: float(row.where[key]))
        x = [float(row.where[key]) for row in members]
        style = palette[name]
        axes.plot(x, [row.predicted for row in members], color=style.colour, linewidth=1.6, alpha=0.8)
        axes.errorbar(
            x,
            [row.measured for row in members],
            yerr=[2 * max(row.standard_error, 0.0) for row in members],
            color=style.colour,
            marker=style.marker,
            markersize=5 + 2.5 * (len(series) - 1 - shift) / max(1, len(series) - 1),
            linestyle="none",
            capsize=3,
            markerfacecolor="none",
        )
        missed = [row for row in members if not row.passed]
        axes.plot(
            [float(row.where[key]) for row in missed],
            [row.measured for row in missed],
            linestyle="none",
            marker="x",
            markersize=13,
            markeredgewidth=2.5,
            color="#CC0000",
        )
        if name:
            texts.append(canvas.label(axes, x[-1], members[-1].measured, name, style.colour))
    axes.set_xlabel(key, fontsize=12)
    _ticks(axes, x_values)
    canvas.make_room(figure, axes, x_values, [text.get_text() for text in texts])
    return texts


def _named(key: str, row: Row) -> str:
    value = row.where.get(key, "")
    return value if isinstance(value, str) else f"{key} = {value:g}"


def _scale(axes: Axes, which: str, values: Sequence[float]) -> None:
    positive = all(value > 0 for value in values)
    if positive and max(values) > _DECADES * min(values):
        axes.set(**{f"{which}scale": "log"})


def _ticks(axes: Axes, x: Sequence[float]) -> None:
    """Ticks at the values measured, where they are few and lie on a logarithmic axis."""
    values = sorted(set(x))
    if axes.get_xscale() == "log" and len(values) <= 12:
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)


def _mark(axes: Axes, x: float, text: str) -> None:
    axes.axvline(x, color="#777777", linestyle=(0, (2, 2)), linewidth=1.2, zorder=1)
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(4, -4),
        textcoords="offset points",
        fontsize=11,
        color="#555555",
        va="top",
    )
