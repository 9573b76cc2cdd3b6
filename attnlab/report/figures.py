"""The figures of a run: latency by length, memory by length, and the roofline.

The title of a figure is the answer to one question, and `says` states the result for readers who cannot see it. Names
stand beside curves, so a figure can be read without its colours. A figure with nothing to draw is None.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlab import figure_style as style
from attnlab.report.frames import Frames, evenly
from attnlab.report.render import plural
from attnlab.text import bytes_text, flops_text, number_text, seconds_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: a contender that is slower than the fastest by this factor everywhere is not drawn: it would compress other curves
FAR = 100.0
#: most panels of a figure; width and height of a panel in inches
_PANELS, _PANEL = 3, (4.9, 4.0)


class Drawn(NamedTuple):
    """A figure, and what it shows in words."""

    figure: Figure
    says: str


class Curves(NamedTuple):
    """What one figure of curves shows against length.

    y : a column of the results. best, label : names of its best value and of its axis. written : writes a value.
    better : min or max. guides : by name, columns that are computed, not measured; they are drawn as grey lines.
    """

    y: str
    best: str
    label: str
    written: Callable[[float], str]
    better: Callable[..., Any]
    guides: Mapping[str, str] = {}


LATENCY = Curves("seconds", "Fastest by median", "time of one call", seconds_text, min)
MEMORY = Curves(
    *("peak_bytes", "Least peak memory", "peak memory of one call", bytes_text, min),
    {"size of n × n scores": "score_bytes", "size of the output": "output_bytes"},
)
ROOFLINE = Curves(
    *("flops", "Most arithmetic per second", "arithmetic per second", flops_text, max),
    {"measured limit": "limit_flops"},
)


def draw(frames: Frames) -> dict[str, Drawn | None]:
    """The figures by name, the most important first; None if there is nothing to draw."""
    return {
        "latency": curves(frames, LATENCY),
        "memory": curves(frames, MEMORY),
        "roofline": curves(frames, ROOFLINE) if frames.run.ceilings else None,
    }


def curves(frames: Frames, kind: Curves) -> Drawn | None:
    """Draw `kind` against length, with a panel for each group and head count; None if there is nothing to draw.

    Of many panels, evenly spaced ones are drawn; of the roofline, only the last. If others are within the margin of the
    best, usually one percent, none is named as the best.
    """
    behind = frames.results.groupby("contender", sort=False).behind.min()
    far = behind[behind >= FAR]
    known = frames.results[frames.results[kind.y].notna() & ~frames.results.contender.isin(far.index)]
    # a further name of the same kernel has few visits: it is not drawn
    aliases = dict(zip(frames.winners.workload, frames.winners.same_kernel, strict=True))
    others = [aliases.get(one.workload, {}).get(one.contender) for one in known.itertuples()]
    same = {name: one for name, one in zip(known.contender, others, strict=True) if one}
    known = known.loc[[one is None for one in others]]
    by_heads = known.sort_values("heads", kind="stable").groupby(["group", "heads"], sort=False)
    every = [rows for _, rows in by_heads if rows.n.nunique() > 1]
    if not every:
        return None
    panels = every[-1:] if kind is ROOFLINE else evenly(every, _PANELS)
    width = _PANEL[0] * len(panels) + 2.2 * (len(panels) < 2)
    figure, axes = style.new_figure(width, _PANEL[1], len(panels))
    styles, ends = style.styles(list(frames.contenders.contender)), []
    for one, rows in zip(axes, panels, strict=True):
        _panel(one, rows, kind, styles)
        place = _place(rows)
        style.entitle(one, place, "n, length", kind.label if one is axes[0] else "")
        last = rows[rows.n == rows.n.max()].sort_values(kind.y, ascending=kind.better is min)
        best, worst = last.iloc[0], last.iloc[-1]
        near = abs(last[kind.y] - best[kind.y]) <= frames.analysis.margin * best[kind.y]
        name = "several contenders" if near.sum() > 1 else best.contender
        ends.append((place, int(last.n.iloc[0]), name, best[kind.y], worst.contender, worst[kind.y]))
    names = list(dict.fromkeys(one[2] for one in ends))
    lengths = list(dict.fromkeys(one[1] for one in ends))
    at = f"n = {lengths[0]}" if len(lengths) == 1 else "the longest lengths"
    title = f"{kind.best} at {at}: {' or '.join(names[:2])}{' or others' if len(names) > 2 else ''}"
    figure.suptitle(title, fontsize=style.SIZE + 2, fontweight="bold", parse_math=False)
    told = [f"{title}."]
    for place, n, name, value, other, most in ends:
        values = f"{name} {kind.written(value)}"
        if abs(most - value) > frames.analysis.margin * value:
            values = f"from {values} to {other} {kind.written(most)}"
        told.append(f"{place}, n = {n}: {values}.")
    absent = [
        f"{alias}{', at some sizes' * (alias in set(known.contender))} (runs the same kernel as {name})"
        for alias, name in same.items()
    ]
    absent += [
        f"{name} (too slow: its time is at least {number_text(far[name])}× that of the fastest)"
        for name in far.index
    ]
    if absent:
        told.append(f"Timed, but not drawn in the figures: {'; '.join(absent)}.")
        lines = textwrap.fill(told[-1], int(13 * width))
        figure.supxlabel(lines, fontsize=style.SIZE - 1.5, color=style.GREY, parse_math=False)
    if absent := [_place(one) for one in every if not any(one is shown for shown in panels)]:
        told.append(f"No panel is drawn for {' and '.join(absent)}.")
    return Drawn(figure, " ".join(told))


def _place(rows: pd.DataFrame) -> str:
    return ", ".join(filter(None, (plural(int(rows.heads.iloc[0]), "head"), rows.group.iloc[0])))


def _panel(axes: Axes, rows: pd.DataFrame, kind: Curves, styles: dict[str, Any]) -> None:
    from matplotlib.ticker import LogLocator

    drawn = list[style.Curve]()
    for name, mine in rows.sort_values("n").groupby("contender", sort=False):
        (colour, marker, dashes), x, y = styles[str(name)], list(mine.n), list(mine[kind.y])
        axes.plot(x, y, color=colour, marker=marker, linestyle=dashes, linewidth=1.8)
        ends = f" (only up to {x[-1]})" if x[-1] < rows.n.max() else ""
        drawn.append((x, y, f"{name}{ends}", colour))
    for text, column in kind.guides.items():
        lengths = rows.sort_values(column).drop_duplicates("n").sort_values("n")
        x, y = list(lengths.n), list(lengths[column])
        axes.plot(x, y, color=style.GREY, linestyle=(0, (4, 3)), linewidth=1.2, zorder=1)
        drawn.append((x, y, text, style.GREY))
    style.powers_of_two(axes, sorted(set(rows.n)), most=7)
    style.unit_axis(axes, kind.written, base=16 if kind.written is bytes_text else 10)
    if kind.written is not bytes_text and rows[kind.y].max() < 100 * rows[kind.y].min():
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    style.label_ends(axes, drawn)
