"""The figures of a run: latency by length, the fastest at each size, memory, and the roofline.

Each asks one question; its title is the answer, and `says` states the result for whoever does not see it. Names stand
beside curves and in cells, so that no figure needs colours to be read. None where there is nothing to draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlab import figure_style
from attnlab.figure_style import Drawn
from attnlab.report.frames import Frames, Grid, evenly, grids
from attnlab.report.render import plural, speedup
from attnlab.text import bytes_text, flops_text, number_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: a contender that the fastest beats by this factor wherever measured would press all other curves together
FAR = 100.0
#: panels of one figure; inches of a panel of curves, and of a cell of the map
_PANELS, _PANEL, _CELL = 3, (4.9, 4.6), (2.0, 0.62)
#: edges of cells that are not decided, which are paler too
_EDGES = {"decided": "-", "alone": "-", "close": "--", "tie": "--", "no interval": ":"}
_PALE = 0.18


class Curves(NamedTuple):
    """What one figure of curves shows: columns of the results, what is best in it, and how a value is written.

    guides : columns that are known by arithmetic, drawn as grey lines under their names.
    """

    x: str
    y: str
    best: str
    x_label: str
    y_label: str
    written: Callable[[float], str]
    better: Callable[..., Any]
    guides: Mapping[str, str] = {}


LATENCY = Curves("n", "seconds", "Lowest median time", "n, length", "time of one call", seconds_text, min)
MEMORY = Curves(
    *("n", "peak_bytes", "Lowest peak memory", "n, length", "peak memory of one call", bytes_text, min),
    {"score matrix": "score_bytes", "output": "output_bytes"},
)
ROOFLINE = Curves(
    *("flop_per_byte", "flops", "Nearest to the machine's limit", "FLOPs per byte of inputs and output"),
    *("arithmetic per second", flops_text, max),
)


def draw(frames: Frames) -> dict[str, Drawn]:
    """The figures that there is something to draw for, by name, the most important first."""
    drawn = {
        "latency": curves(frames, LATENCY),
        "winners": winners(frames),
        "memory": curves(frames, MEMORY),
        "roofline": curves(frames, ROOFLINE) if frames.run.ceilings else None,
    }
    return {name: one for name, one in drawn.items() if one is not None}


# -- curves --------------------------------------------------------------------------------------------


def curves(frames: Frames, kind: Curves) -> Drawn | None:
    """`kind` against length, a panel for each group and head count; of many panels an even part."""
    behind = frames.results.groupby("contender", sort=False).behind.min()
    far = behind[behind >= FAR]
    known = frames.results[frames.results[kind.y].notna() & ~frames.results.contender.isin(far.index)]
    by_heads = known.sort_values("heads", kind="stable").groupby(["group", "heads"], sort=False)
    every = [rows for _, rows in by_heads if rows.n.nunique() > 1]
    if not every:
        return None
    panels = every[-1:] if kind is ROOFLINE else evenly(every, _PANELS)
    figure, axes = figure_style.new_figure(
        len(panels), width=_PANEL[0] * len(panels) + 2.2 * (len(panels) < 2), height=_PANEL[1]
    )
    styles, ends = figure_style.styles(list(frames.contenders.contender)), []
    for one, rows in zip(axes, panels, strict=True):
        if kind is ROOFLINE:
            _roofs(one, frames, rows)
        _panel(one, rows, kind, styles)
        place = ", ".join(filter(None, (plural(int(rows.heads.iloc[0]), "head"), rows.group.iloc[0])))
        figure_style.entitle(one, place, kind.x_label, kind.y_label if one is axes[0] else "")
        last = rows[rows.n == rows.n.max()].sort_values(kind.y, ascending=kind.better is min)
        ends.append((place, int(last.n.iloc[0]), last.iloc[0], last.iloc[-1]))
    names, lengths = (
        list(dict.fromkeys(found))
        for found in zip(*((one[2].contender, one[1]) for one in ends), strict=True)
    )
    at = f"n = {lengths[0]}" if len(lengths) == 1 else "the longest lengths"
    title = f"{kind.best} at {at}: {' or '.join(names[:2])}{' or others' if len(names) > 2 else ''}"
    figure.suptitle(title, fontsize=figure_style.SIZE + 2, fontweight="bold")
    told = [f"{title}."]
    for place, n, best, worst in ends:
        values = f"{best.contender} {kind.written(best[kind.y])}"
        if worst.contender != best.contender:
            values = f"from {values} to {worst.contender} {kind.written(worst[kind.y])}"
        told.append(f"{place}, n = {n}: {values}.")
    if len(far):
        told.append(f"Not shown: {', '.join(far.index)}, at least {number_text(far.min())} times slower.")
        figure.supxlabel(
            told[-1], fontsize=figure_style.SIZE - 1.5, color=figure_style.GREY, parse_math=False
        )
    if len(panels) < len(every):
        told.append(f"Panels: {len(panels)} of {len(every)}.")
    return Drawn(figure, " ".join(told))


def _panel(axes: Axes, rows: pd.DataFrame, kind: Curves, styles: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator

    ends, count = [], rows.contender.nunique()
    for at, (name, mine) in enumerate(rows.sort_values("n").groupby("contender", sort=False)):
        look, x, y = styles[str(name)], list(mine[kind.x]), list(mine[kind.y])
        under = 1 - at / count  # curves that coincide show, the earlier being broader
        size: dict[str, Any] = {"markersize": 4 + 3 * under, "linewidth": 1.2 + 1.6 * under}
        axes.plot(x, y, color=look.colour, marker=look.marker, linestyle=look.dashes, **size)
        ends.append((x[-1], y[-1], str(name), look.colour))
    for text, column in kind.guides.items():
        lengths = rows.drop_duplicates("n").sort_values("n")
        x, y = list(lengths[kind.x]), list(lengths[column])
        axes.plot(x, y, color=figure_style.GREY, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        ends.append((x[-1], y[-1], text, figure_style.GREY))
    values = sorted(set(rows[kind.x]))
    even = [2.0**at for at in range(0, 13, 2) if values[0] <= 4 * 2.0**at and 2.0**at <= 4 * values[-1]]
    figure_style.powers_of_two(axes, values if kind.x == "n" else even, most=7)
    figure_style.unit_axis(axes, kind.written, base=16 if kind.written is bytes_text else 10)
    if kind.written is not bytes_text and rows[kind.y].max() < 100 * rows[kind.y].min():
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    figure_style.label_ends(axes, ends)


def _roofs(axes: Axes, frames: Frames, rows: pd.DataFrame) -> None:
    """The two ceilings of the machine: the best copy, and the best matrix product."""
    ceiling = next((one for one in frames.run.ceilings if one.dtype == rows.dtype.iloc[0]), None)
    if ceiling is None:
        return
    ridge, last = ceiling.matmul_flops / ceiling.copy_bytes, float(rows.flop_per_byte.max())
    x = sorted({min(ridge / 4, float(rows.flop_per_byte.min())), ridge, max(last, ridge)})
    roof = [min(ceiling.matmul_flops, one * ceiling.copy_bytes) for one in x]
    axes.plot(x, roof, color=figure_style.BLACK, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate("measured limit of this machine", (x[1], roof[1]), xytext=(0, 4), textcoords="offset points",
                  fontsize=figure_style.SIZE - 3, color=figure_style.BLACK)  # fmt: skip


# -- the map of the fastest ----------------------------------------------------------------------------


def winners(frames: Frames) -> Drawn | None:
    """A cell for each size with the fastest contender and its speedup; dashed and pale where that is not decided."""
    rows, every = frames.winners, grids(frames.winners)
    if not every:
        return None
    shown, styles = every[:_PANELS], figure_style.styles(list(frames.contenders.contender))
    heights = [_CELL[1] * len(one.lengths) + 0.5 for one in shown]
    width = _CELL[0] * max(len(one.heads) for one in shown) + 0.9
    figure, axes = figure_style.new_figure(
        1, len(shown), width=max(width, 5.0), height=sum(heights) + 0.7, height_ratios=heights
    )
    for one, grid in zip(axes, shown, strict=True):
        _map(one, grid, styles)
    decided = rows[rows.sure == "decided"].contender.value_counts()
    title = "No size has a decided winner"
    if len(decided):
        title = f"{decided.index[0]} is decidedly fastest at {decided.iloc[0]} of {plural(len(rows), 'size')}"
    figure.suptitle(title, fontsize=figure_style.SIZE + 2, fontweight="bold", parse_math=False)
    about = "number: speedup over the runner-up; dashed: not decided"
    figure.supxlabel(about, fontsize=figure_style.SIZE - 1.5, color=figure_style.GREY)
    told = [
        f"{name} leads at {len(mine)}, decidedly at {decided.get(name, 0)}"
        for name, mine in sorted(rows.groupby("contender"), key=lambda one: -len(one[1]))
    ]
    return Drawn(figure, f"{title}. Of {plural(len(rows), 'size')} {'; '.join(told)}.")


def _map(axes: Axes, grid: Grid, styles: dict[str, Any]) -> None:
    from matplotlib.patches import Rectangle

    axes.set(xlim=(-0.5, len(grid.heads) - 0.5), ylim=(len(grid.lengths) - 0.5, -0.5))
    axes.set_xticks(range(len(grid.heads)), [plural(one, "head") for one in grid.heads])
    axes.set_yticks(range(len(grid.lengths)), [f"n = {one}" for one in grid.lengths])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    figure_style.entitle(axes, grid.name)
    look: dict[str, Any] = {"ha": "center", "va": "center", "parse_math": False}
    for (heads, n), row in grid.cells.items():
        if heads not in grid.heads or n not in grid.lengths:
            continue
        x, y, edge = grid.heads.index(heads), grid.lengths.index(n), _EDGES[row.sure]
        colour = styles[row.contender].colour
        ground = (colour, 1.0 if edge == "-" else _PALE)
        shown = figure_style.ink(colour) if edge == "-" else figure_style.BLACK
        line: dict[str, Any] = {"edgecolor": figure_style.BLACK, "linestyle": edge}
        axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, facecolor=ground, **line))
        told = speedup(row.speedup, row.speedup_low, row.speedup_high) if row.runner_up else "alone"
        for text, above, weight in ((row.contender, -0.17, "bold"), (told, 0.2, "normal")):
            fitting = min(figure_style.SIZE - 1.5, _CELL[0] * 72 / 0.66 / max(1, len(text)))
            ink: dict[str, Any] = {"color": shown, "fontsize": fitting, "fontweight": weight}
            axes.text(x, y + above, text, **ink, **look)
