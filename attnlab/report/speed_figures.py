"""Figures of speed and memory against length: a panel for each group of workloads and head count."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from attnlab import figures, units
from attnlab.figures import Drawn, Style
from attnlab.figures import styles as styles_of
from attnlab.judge.analysis import Cell, Group
from attnlab.report.analysis import Analysis
from attnlab.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

#: more panels than this are not drawn in one figure, which then says so
_MOST_PANELS = 6
_HEIGHT, _WIDTHS = 4.6, {1: 8.0, 2: 11.5, 3: 14.0}

Curve = dict[int, float]
Value = Callable[[Cell, str], float | None]
Guides = Mapping[str, Callable[[Cell], float]]
Panel = tuple[Group, int, dict[str, Curve]]


def latency(analysis: Analysis) -> Drawn | None:
    """Median seconds per call against n. None where no head count has two lengths."""

    def seconds(cell: Cell, name: str) -> float | None:
        standing = cell.standing(name)
        return None if standing is None else standing.seconds

    title = "Time of one call (median): lower is better"
    return _draw(analysis, seconds, figures.seconds_axis, title, {}, units.seconds_text)


def memory(analysis: Analysis) -> Drawn | None:
    """Peak bytes of a call against n, with the score matrix and the results, each known by arithmetic."""

    def peak(cell: Cell, name: str) -> float | None:
        return cell.measured[name].peak_bytes if name in cell.measured else None

    guides: Guides = {
        "score matrix": lambda cell: cell.workload.score_bytes,
        "results": lambda cell: cell.workload.output_bytes,
    }
    title = "Peak memory of one call: lower is better"
    return _draw(analysis, peak, figures.bytes_axis, title, guides, units.bytes_text)


def ceiling(analysis: Analysis) -> Drawn | None:
    """Achieved FLOP/s as a share of the best matrix product of this run, against n."""

    def share(cell: Cell, name: str) -> float | None:
        return cell.rates[name].compute if name in cell.measured and name in cell.rates else None

    title = "Share of the best matrix-multiply rate: higher is better"
    guides: Guides = {"best matrix product": lambda cell: 1.0}
    shares = (share(cell, name) for cell in analysis.cells for name in cell.measured)
    axis = partial(figures.share_axis, most=max(filter(None, shares), default=1.0))
    return _draw(analysis, share, axis, title, guides, units.percent)


def _draw(
    analysis: Analysis,
    value: Value,
    axis: Callable[[Axes], None],
    title: str,
    guides: Guides,
    written: Callable[[float], str],
) -> Drawn | None:
    """All panels with a curve in them, those of a row on one vertical axis; None where there is none."""
    panels_of = (
        (group, count, _curves(analysis, group, count, value))
        for group in analysis.groups
        for count in group.heads
    )
    every = [panel for panel in panels_of if any(len(curve) > 1 for curve in panel[2].values())]
    if not every:
        return None
    chosen = every[:_MOST_PANELS]
    each = {sum(one is group for one, _, _ in chosen) for group, _, _ in chosen}
    # the head counts of a group stand side by side, where every group has as many
    columns = each.pop() if each in ({2}, {3}) else min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    width = _WIDTHS[columns]
    figure, panels = figures.new_figure(columns, rows, width=width, height=_HEIGHT * rows, sharey="row")
    for spare in panels[len(chosen) :]:
        spare.remove()
    styles = styles_of(analysis.names)
    panel = partial(_panel, styles=styles, axis=axis, guides=guides, inches=width / columns - 0.6)
    settled = [panel(axes, one) for axes, one in zip(panels, chosen, strict=False)]
    left_out = f" (the first {len(chosen)} of {len(every)} panels)" if len(every) > len(chosen) else ""
    figure.suptitle(title + left_out, fontsize=figures.SIZE + 2)
    figures.settle(figure, list(zip(panels, settled, strict=False)))
    return Drawn(figure, _says(title, chosen, written))


def _says(title: str, panels: Sequence[Panel], written: Callable[[float], str]) -> str:
    """The panel with the longest length in words: least and most there."""
    group, count, curves = max(panels, key=lambda one: (max(max(curve) for curve in one[2].values()), one[1]))
    last = max(max(curve) for curve in curves.values())
    there = {name: curve[last] for name, curve in curves.items() if last in curve}
    least, most = min(there, key=there.__getitem__), max(there, key=there.__getitem__)
    place = ", ".join(filter(None, (f"n = {last}", counted(count, "head"), group.name)))
    figures = f"{written(there[least])} ({least})"
    if most != least:
        figures = f"from {figures} to {written(there[most])} ({most})"
    return f"{title}, against length. At {place}: {figures}."


def _panel(
    axes: Axes,
    panel: Panel,
    *,
    styles: Mapping[str, Style],
    axis: Callable[[Axes], None],
    guides: Guides,
    inches: float,
) -> list[Text]:
    """One panel, and its labels, which are yet to be moved apart."""
    group, count, curves = panel
    lengths = sorted({n for curve in curves.values() for n in curve})
    figures.powers_of_two(axes, lengths, most=6)
    axis(axes)
    axes.margins(y=0.12)
    texts = [
        figures.guide(axes, lengths, [known(group.cells[count, n]) for n in lengths], text)
        for text, known in guides.items()
    ]
    texts += _curves_into(axes, curves, styles, lengths)
    figures.make_room(axes, lengths, [*guides, *curves], inches)
    title = ", ".join(filter(None, (counted(count, "head"), group.name)))
    figures.entitle(axes, textwrap.fill(title, int(inches / 0.1)), "n, length")
    return texts


def _curves_into(
    axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, Style], lengths: Sequence[int]
) -> list[Text]:
    """Draw `curves` and return their labels; earlier ones are broader, so that later ones do not hide them."""
    texts = []
    for place, (name, curve) in enumerate(curves.items()):
        style = styles[name]
        under = 1 - place / max(1, len(curves) - 1)
        # a length without a value is a gap, not a line drawn across it
        span = [n for n in lengths if min(curve) <= n <= max(curve)]
        axes.plot(
            span,
            [curve.get(n, float("nan")) for n in span],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            markersize=4.5 + 2.5 * under,
            linewidth=1.5 + 1.1 * under,
        )
        texts.append(figures.label(axes, lengths[-1], curve[max(curve)], name, style.colour))
        if max(curve) < lengths[-1]:
            figures.lead(axes, (max(curve), lengths[-1]), curve[max(curve)], style.colour)
    return texts


def _curves(analysis: Analysis, group: Group, count: int, value: Value) -> dict[str, Curve]:
    curves = {}
    for name in analysis.names:
        points = {n: value(group.cells[count, n], name) for n in group.grid[count]}
        curve = {n: float(y) for n, y in points.items() if y is not None and y > 0}
        if curve:
            curves[name] = curve
    return curves
