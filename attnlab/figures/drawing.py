"""One look for every figure: object-oriented Matplotlib, no global state, labels on the curves themselves.

Matplotlib loads when a figure is asked for, never with this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attnlab.figures.palette import styles
from attnlab.numerics.finding import STANDARD_ERRORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

#: colours that differ in lightness too and are told apart with impaired colour vision (Okabe and Ito 2008)
BLUE, ORANGE, GREEN, PURPLE, SKY, RED, BLACK, GREY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#A50026", "#222222", "#6E6E6E",
)  # fmt: skip
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, BLACK)
_SIZE = 11.0


def new_figure(
    columns: int = 1,
    rows: int = 1,
    *,
    width: float | None = None,
    height: float | None = None,
    **options: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row; `options` go to ``Figure.subplots``. Sizes in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(width or 4.2 * columns + 0.8, height or 3.6 * rows + 0.4), dpi=120, layout="constrained"
    )
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = [one for line in grid for one in line]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=_SIZE - 1.5)
        one.grid(True, color="#E6E6E6", linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes


def entitle(axes: Axes, title: str, x: str, y: str) -> None:
    """The message of a panel above it, and what its axes are."""
    axes.set_title(title, loc="left", fontsize=_SIZE, fontweight="bold", color=BLACK)
    axes.set_xlabel(x, fontsize=_SIZE)
    axes.set_ylabel(y, fontsize=_SIZE)


def note(axes: Axes, x: float, y: float, text: str, colour: str = BLACK, **options: Any) -> None:
    """A label at a point in data coordinates, on a pale ground so that lines under it do not disturb."""
    style = {"fontsize": _SIZE - 1.5, "color": colour, "zorder": 6, **options}
    axes.text(
        x, y, text, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0}, **style
    )


def backend_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's options for each backend's points: the same as in every other figure."""
    return {
        name: {"marker": one.marker, "color": one.colour} for name, one in styles(sorted(set(names))).items()
    }


def points(
    axes: Axes, x: ArrayLike, y: ArrayLike, standard_errors: ArrayLike, colour: str, **options: Any
) -> None:
    """Measured points with bars of five standard errors; `options` go to ``Axes.errorbar``."""
    import numpy as np

    bars = STANDARD_ERRORS * np.asarray(standard_errors, np.float64)
    style = {"fmt": "o", "color": colour, "markersize": 4.5, "linewidth": 1, **options}
    axes.errorbar(x, y, bars, **style)


def spread(index: int, count: int, width: float = 0.12) -> float:
    """A factor on x that sets points of several backends side by side on a logarithmic axis."""
    return float((1 + width) ** (index - (count - 1) / 2))


def legend(axes: Axes, **options: Any) -> None:
    """A legend without a frame, where there is anything to name; `options` go to ``Axes.legend``."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**{"frameon": False, "fontsize": _SIZE - 2.5, "title_fontsize": _SIZE - 2.5, **options})


def powers_of_two(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic x axis with a tick at each of `values`, thinned to what fits, written as plain numbers."""
    values = values if len(values) > 1 else (1.0, 2.0)  # nothing was measured: an empty panel, still drawn
    axes.set_xscale("log", base=2)
    step = max(1, -(-len(values) // 8))
    axes.set_xticks(list(values[::step]), [f"{value:g}" for value in values[::step]])
    axes.minorticks_off()


def smooth(x: Sequence[float], y: ArrayLike) -> tuple[Any, Any]:
    """A curve through exact points, for the eye: monotone cubic in ln x between them (Fritsch and Carlson 1980)."""
    import numpy as np
    from scipy.interpolate import PchipInterpolator

    fine = np.geomspace(min(x), max(x), 200)
    return fine, PchipInterpolator(np.log(x), np.asarray(y, np.float64))(np.log(fine))


def nested_sizes(count: int) -> list[float]:
    """Marker sizes from large to small, so that points that lie on each other all show."""
    return [9.0 - 6.0 * i / max(1, count - 1) for i in range(count)]
