"""The style of every figure: colours, panels, axes, titles, labels, styles of contenders, and the saved file.

It uses Matplotlib's objects, without global state. The background is white, so that a figure can be read on light and
dark pages. Matplotlib is imported when a figure is made, not with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

#: colours after Okabe and Ito 2008, for impaired colour vision; darkened so that coloured words can be read on white
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#1F5FBF", "#D55E00", "#00855A", "#B0408E", "#0093A8", "#C1121F"
BROWN, BLACK, GREY, GRID = "#7A4A1E", "#222222", "#6E6E6E", "#E2E2E2"
#: the colours in the order in which curves take them
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BROWN, BLACK)
#: size of letters in points; ticks and notes are a little smaller
SIZE = 11.0
_DPI = 130


#: x and y in data coordinates, name, colour
Curve = tuple[Sequence[float], Sequence[float], str, str]


def new_figure(width: float, height: float, panels: int = 1) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, side by side. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=SIZE - 1.5)
        one.grid(True, color=GRID, linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes


def entitle(axes: Axes, title: str, x: str = "", y: str = "", pad: float = 6.0) -> None:
    """Set the title of a panel, `pad` points above it, and the names of its axes."""
    axes.set_title(title, loc="left", pad=pad, fontsize=SIZE, fontweight="bold", color=BLACK)
    axes.set_xlabel(x, fontsize=SIZE)
    axes.set_ylabel(y, fontsize=SIZE)


def powers_of_two(axes: Axes, values: Sequence[float], most: int = 8) -> None:
    """Set a logarithmic x axis with ticks at `values`, thinned to about `most`, written as plain numbers."""
    values = values if len(values) > 1 else (1.0, 2.0)  # a panel with less than two values is drawn too
    axes.set_xscale("log", base=2)
    apart, shown = (values[-1] / values[0]) ** (1 / (most + 1)), list[float]()
    for value in reversed(values):
        if not shown or shown[-1] > apart * value:
            shown.append(value)
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()


def unit_axis(axes: Axes, written: Callable[[float], str], *, base: int = 10) -> None:
    """Set a logarithmic y axis; `written` gives the text of a tick with its unit, such as ``1 ms``."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    def tick(value: float, _: object) -> str:
        number, _, unit = written(value).partition(" ")
        return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"

    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, numticks=14))
    axes.yaxis.set_major_formatter(FuncFormatter(tick))
    axes.yaxis.set_minor_formatter(NullFormatter())


def label_ends(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write the name of each curve right of the panel, that of the highest curve on top. Set the scales before.

    If one of two curves ends earlier, their heights are compared there. Names are moved apart, from the lowest up,
    until none covers another. A thin line joins each name to the end of its curve, a dotted one if it ends early.
    """
    import numpy as np

    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # names and lines to them keep the scales
    to_panel = axes.transData + axes.transAxes.inverted()
    places = {name: to_panel.transform([*zip(x, y, strict=True)]) for x, y, name, _ in curves}

    def above(one: Curve, other: Curve) -> int:
        both = places[one[2]], places[other[2]]
        at = min(line[-1, 0] for line in both)
        return int(np.sign(np.subtract(*(np.interp(at, *line.T) for line in both))))

    order = sorted(curves, key=cmp_to_key(above))
    # the height of a line of text, as a fraction of the panel
    gap = 1.25 * (SIZE - 2) / (0.78 * 72 * axes.figure.bbox.height / _DPI)
    heights = [float(places[name][-1, 1]) for _, _, name, _ in order]
    for at in range(1, len(heights)):
        heights[at] = max(heights[at], heights[at - 1] + gap)
    ceiling = 1.0
    for at in reversed(range(len(heights))):
        heights[at] = ceiling = min(heights[at], ceiling)
        ceiling -= gap
    look: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    last = max(line[-1, 0] for line in places.values())
    for (_, _, name, colour), height in zip(order, heights, strict=True):
        x, y = places[name][-1]
        # an arrow by Matplotlib would take longer than all the rest of a figure
        axes.plot([x, 1.05], [y, height], color=colour, lw=0.7, ls="-" if x == last else (0, (1, 3)), **look)
        axes.text(1.06, height, name, va="center", color=colour, fontsize=SIZE - 2, parse_math=False, **look)


def smooth(x: Sequence[float], y: ArrayLike) -> tuple[Any, Any]:
    """A smooth curve through exact points: monotone cubic in ln x between them (Fritsch and Carlson 1980)."""
    import numpy as np
    from scipy.interpolate import PchipInterpolator

    fine = np.geomspace(min(x), max(x), 200)
    return fine, PchipInterpolator(np.log(x), np.asarray(y, np.float64))(np.log(fine))


def save(figure: Figure, file: Path) -> Path:
    """Write `figure` as PNG to `file` and return its path. Equal figures give equal files."""
    import numpy as np
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    canvas: Any = figure.canvas  # an Agg canvas, see `new_figure`
    canvas.draw()
    # with 64 colours a file is a third as large
    drawn = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    drawn.quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)
    return file


# -- a colour, marker and dash for each contender ----------------------------------------------------

#: markers; characters that look like the open markers, written before the names of curves; dashes
MARKERS, SIGNS, DASHES = "osD^vPX<>h", "○□◇△▽✚✖◁▷⬡", ("-", "--", "-.", ":")


def styles(names: Sequence[str]) -> dict[str, tuple[str, str, str]]:
    """By name: a colour (``#RRGGBB``), a marker and dashes, as Matplotlib writes them. The first forty all differ."""
    looks = zip(cycle(CYCLE), cycle(MARKERS), cycle(one for one in DASHES for _ in CYCLE), strict=False)
    return dict(zip(dict.fromkeys(names), looks, strict=False))
