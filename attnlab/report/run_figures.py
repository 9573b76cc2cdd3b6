"""The figures of a run: latency by length, the fastest at each size, memory, and the roofline.

Each returns None where there is nothing to draw. Names stand beside curves and in cells, so that no figure needs
colours to be read; `says` states the result for whoever does not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlab import figures
from attnlab.figures import Drawn
from attnlab.report.frames import Frames, Grid, evenly, grids
from attnlab.report.render import plural, speedup
from attnlab.text import bytes_text, flops_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: panels of one figure; inches of a panel of curves, and of a cell of the map
_PANELS, _PANEL, _CELL = 3, (4.9, 4.6), (2.0, 0.62)
#: edges of cells that are not decided, which are paler too
_EDGES = {"decided": "-", "alone": "-", "close": "--", "tie": "--", "no interval": ":"}
_PALE = 0.18


class Curves(NamedTuple):
    """What one figure of curves shows: columns of the results, the titles, and how a value is written."""

    x: str
    y: str
    title: str
    x_label: str
    written: Callable[[float], str]
    better: Callable[[pd.Series[float]], Any]


LATENCY = Curves("n", "seconds", "Time of one call (median): lower is better", "n, length", seconds_text, min)
MEMORY = Curves("n", "peak_bytes", "Peak memory of one call: lower is better", "n, length", bytes_text, min)
ROOFLINE = Curves(
    "flop_per_byte",
    "flops",
    "Arithmetic done per second: higher is better",
    "FLOPs per byte of inputs and output",
    flops_text,
    max,
)


def draw(frames: Frames) -> dict[str, Drawn]:
    """The figures that there is something to draw for, by name, the most important first."""
    drawn = {
        "latency": curves(frames, LATENCY),
        "winners": winners(frames),
        "memory": curves(frames, MEMORY, {"score matrix": "score_bytes", "output": "output_bytes"}),
        "roofline": curves(frames, ROOFLINE) if frames.run.ceilings else None,
    }
    return {name: one for name, one in drawn.items() if one is not None}


# -- curves --------------------------------------------------------------------------------------------


def curves(frames: Frames, kind: Curves, guides: dict[str, str] | None = None) -> Drawn | None:
    """`kind` against length, a panel for each group and head count; of many panels an even part.

    guides : columns that are known by arithmetic, drawn as grey lines under their names.
    """
    known = frames.results[frames.results[kind.y].notna()]
    every = [
        (str(rows["group"].iloc[0]), int(rows.heads.iloc[0]), rows)
        for _, rows in known.groupby(["group", "heads"], sort=False)
    ]
    every = [panel for panel in every if panel[2].n.nunique() > 1]
    if not every:
        return None
    panels = every[-1:] if kind is ROOFLINE else evenly(every, _PANELS)
    figure, axes = figures.new_figure(
        len(panels), width=_PANEL[0] * len(panels) + 2.2 * (len(panels) < 2), height=_PANEL[1]
    )
    styles = figures.styles(list(frames.contenders.contender))
    for one, (name, heads, rows) in zip(axes, panels, strict=True):
        if kind is ROOFLINE:
            _roofs(one, frames, rows)
        _panel(one, rows, kind, styles, guides or {})
        figures.entitle(one, f"{plural(heads, 'head')}{', ' if name else ''}{name}", kind.x_label)
    part = f" ({len(panels)} of {len(every)} panels)" if 1 < len(panels) < len(every) else ""
    figure.suptitle(kind.title + part, fontsize=figures.SIZE + 1)
    return Drawn(figure, _says(kind, *panels[-1]))


def _says(kind: Curves, group: str, heads: int, rows: pd.DataFrame) -> str:
    """The longest length of a panel in words: the best there, and the worst."""
    there = rows[rows.n == rows.n.max()].sort_values(kind.y, ascending=kind.better is min)
    best, worst = there.iloc[0], there.iloc[-1]
    place = f"n = {best.n}, {plural(heads, 'head')}{', ' if group else ''}{group}"
    told = f"{best.contender} {kind.written(best[kind.y])}"
    if len(there) > 1:
        told = f"from {told} to {worst.contender} {kind.written(worst[kind.y])}"
    return f"{kind.title}. At {place}: {told}."


def _panel(
    axes: Axes, rows: pd.DataFrame, kind: Curves, styles: dict[str, Any], guides: dict[str, str]
) -> None:
    ends, count = [], rows.contender.nunique()
    for at, (name, mine) in enumerate(rows.sort_values("n").groupby("contender", sort=False)):
        look, x, y = styles[str(name)], list(mine[kind.x]), list(mine[kind.y])
        under = 1 - at / count  # curves that coincide show, the earlier being broader
        size: dict[str, Any] = {"markersize": 4 + 3 * under, "linewidth": 1.2 + 1.6 * under}
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, **size)
        ends.append((x[-1], y[-1], str(name), look.colour))
    for text, column in guides.items():
        lengths = rows.drop_duplicates("n").sort_values("n")
        x, y = list(lengths[kind.x]), list(lengths[column])
        axes.plot(x, y, color=figures.GREY, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        ends.append((x[-1], y[-1], text, figures.GREY))
    values = sorted(set(rows[kind.x]))
    figures.powers_of_two(axes, values if kind.x == "n" else [2.0**at for at in range(0, 13, 2)], most=7)
    figures.unit_axis(axes, kind.written, base=16 if kind.written is bytes_text else 10)
    figures.label_ends(axes, ends)


def _roofs(axes: Axes, frames: Frames, rows: pd.DataFrame) -> None:
    """The two ceilings of the machine: the best copy, and the best matrix product."""
    ceiling = next((one for one in frames.run.ceilings if one.dtype == rows.dtype.iloc[0]), None)
    if ceiling is None:
        return
    ridge, last = ceiling.matmul_flops / ceiling.copy_bytes, float(rows.flop_per_byte.max())
    x = sorted({min(ridge / 4, float(rows.flop_per_byte.min())), ridge, max(last, ridge)})
    roof = [min(ceiling.matmul_flops, one * ceiling.copy_bytes) for one in x]
    axes.plot(x, roof, color=figures.BLACK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate("measured limit of this machine", (x[1], roof[1]), xytext=(0, 4), textcoords="offset points",
                  fontsize=figures.SIZE - 3, color=figures.BLACK)  # fmt: skip


# -- the map of the fastest ----------------------------------------------------------------------------


def winners(frames: Frames) -> Drawn | None:
    """A cell for each size with the fastest contender and its speedup; dashed and pale where that is not decided."""
    every = grids(frames.winners)
    if not every:
        return None
    shown, styles = every[:_PANELS], figures.styles(frames.analysis.names)
    heights = [_CELL[1] * len(one.lengths) + 0.5 for one in shown]
    width = _CELL[0] * max(len(one.heads) for one in shown) + 0.9
    figure, axes = figures.new_figure(
        1, len(shown), width=max(width, 5.0), height=sum(heights) + 0.5, height_ratios=heights
    )
    for one, grid in zip(axes, shown, strict=True):
        _map(one, grid, styles)
    figure.suptitle(
        "The fastest, and its speedup over the runner-up\n(dashed: not decided)", fontsize=figures.SIZE
    )
    return Drawn(figure, _map_says(frames.winners))


def _map(axes: Axes, grid: Grid, styles: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    axes.set(xlim=(-0.5, len(grid.heads) - 0.5), ylim=(len(grid.lengths) - 0.5, -0.5))
    axes.set_xticks(range(len(grid.heads)), [plural(one, "head") for one in grid.heads])
    axes.set_yticks(range(len(grid.lengths)), [f"n = {one}" for one in grid.lengths])
    axes.tick_params(length=0)
    axes.grid(False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    figures.entitle(axes, grid.name)
    for (heads, n), row in grid.cells.items():
        if heads not in grid.heads or n not in grid.lengths:
            continue
        x, y, edge = grid.heads.index(heads), grid.lengths.index(n), _EDGES[row.sure]
        colour = styles[row.contender].colour
        ground = colour if edge == "-" else figures.mixed(colour, _PALE)
        box = Rectangle(
            (x - 0.47, y - 0.45), 0.94, 0.9, facecolor=ground, edgecolor=figures.BLACK, linestyle=edge
        )
        axes.add_patch(box)
        told = speedup(row.speedup, row.speedup_low, row.speedup_high) if row.runner_up else "alone"
        look: dict[str, Any] = {
            "ha": "center",
            "va": "center",
            "color": figures.ink(ground),
            "parse_math": False,
        }
        axes.text(x, y - 0.17, row.contender, fontsize=_fitting(row.contender), fontweight="bold", **look)
        axes.text(x, y + 0.2, told, fontsize=_fitting(told), **look)


def _fitting(text: str) -> float:
    """The size of letters in points at which `text` fits into a cell."""
    return min(figures.SIZE - 1.5, _CELL[0] * 72 / 0.66 / max(1, len(text)))


def _map_says(rows: pd.DataFrame) -> str:
    told = [
        f"{name} at {len(mine)}, {(mine.sure == 'decided').sum()} of them decided"
        for name, mine in sorted(rows.groupby("contender"), key=lambda one: -len(one[1]))
    ]
    return f"Map of the fastest at {plural(len(rows), 'size')}: {'; '.join(told)}."
