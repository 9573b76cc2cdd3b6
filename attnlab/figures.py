"""One look for every figure: colours, panels, axes, titles, points, legends, labels, and how it is saved.

Object-oriented Matplotlib without global state, on white ground so that a figure reads in light and in dark pages.
Matplotlib loads when a figure is asked for, never with this module.
"""

from __future__ import annotations

import io
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnlab.text import bytes_text, seconds_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from numpy.typing import ArrayLike

#: after Okabe and Ito 2008, told apart with impaired colour vision; darkened so that words in them read on white
BLUE, ORANGE, GREEN, PURPLE, SKY, RED = "#1F5FBF", "#D55E00", "#00855A", "#B0408E", "#0093A8", "#C1121F"
BLACK, GREY, GRID = "#222222", "#6E6E6E", "#E2E2E2"
#: in the order in which curves take them
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY, BLACK)
#: standard errors to either end of a bar: a measured value that agrees with its prediction lies within so many
STANDARD_ERRORS = 5.0
#: of letters, in points; ticks and notes are a little smaller
SIZE = 11.0
_DPI = 150


class Drawn(NamedTuple):
    """A figure, and what it shows in words. It can be pickled, so that another process can write it."""

    figure: Figure
    says: str


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

    size = (width or 4.2 * columns + 0.8, height or 3.6 * rows + 0.4)
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    axes = [one for line in grid for one in line]
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=SIZE - 1.5)
        one.grid(True, color=GRID, linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes


def entitle(axes: Axes, title: str, x: str = "", y: str = "") -> None:
    """The message of a panel above it, and what its axes are."""
    axes.set_title(title, loc="left", fontsize=SIZE, fontweight="bold", color=BLACK)
    axes.set_xlabel(x, fontsize=SIZE)
    axes.set_ylabel(y, fontsize=SIZE)


def note(axes: Axes, x: float, y: float, text: str, colour: str = BLACK, **options: Any) -> None:
    """A label at a point in data coordinates, on a pale ground so that lines under it do not disturb."""
    style = {"fontsize": SIZE - 1.5, "color": colour, "zorder": 6, **options}
    axes.text(
        x, y, text, bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0}, **style
    )


def backend_styles(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Matplotlib's options for each backend's points: the same as in every other figure."""
    return {
        name: {"marker": one.marker, "color": one.colour} for name, one in styles(sorted(set(names))).items()
    }


def points(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    standard_errors: ArrayLike,
    colour: str,
    within: tuple[float, float] = (-math.inf, math.inf),
    **options: Any,
) -> None:
    """Measured points with bars of `STANDARD_ERRORS` standard errors; `options` go to ``Axes.errorbar``.

    Bars end at the limits of `within`, beyond which the quantity cannot be.
    """
    import numpy as np

    values, bars = np.asarray(y, np.float64), STANDARD_ERRORS * np.asarray(standard_errors, np.float64)
    bars = np.clip([bars, bars], 0, np.maximum([values - within[0], within[1] - values], 0))
    style = {"fmt": "o", "color": colour, "markersize": 4.5, "linewidth": 1, **options}
    axes.errorbar(x, y, bars, **style)


def spread(index: int, count: int, width: float = 0.12) -> float:
    """A factor on x that sets points of several backends side by side on a logarithmic axis."""
    return float((1 + width) ** (index - (count - 1) / 2))


def legend(axes: Axes, **options: Any) -> None:
    """A legend without a frame, where there is anything to name; `options` go to ``Axes.legend``."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**{"frameon": False, "fontsize": SIZE - 2.5, "title_fontsize": SIZE - 2.5, **options})


def powers_of_two(axes: Axes, values: Sequence[float], most: int = 8) -> None:
    """A logarithmic x axis with a tick at each of `values`, thinned to `most`, written as plain numbers."""
    values = values if len(values) > 1 else (1.0, 2.0)  # nothing was measured: an empty panel, still drawn
    axes.set_xscale("log", base=2)
    step = max(1, -(-len(values) // most))
    shown = list(values)[::-1][::step][::-1]
    axes.set_xticks(shown, [f"{value:g}" for value in shown])
    axes.minorticks_off()


def seconds_axis(axes: Axes) -> None:
    """A logarithmic y axis of seconds, in units a person reads."""
    _unit_axis(axes, 10.0, seconds_text, tuple(float(one) for one in range(2, 10)))


def seconds_ticks(axes: Axes) -> None:
    """Ticks of seconds in units a person reads, on a linear y axis."""
    axes.yaxis.set_major_formatter(lambda value, _: _short(seconds_text, value, _) if value else "0")


def bytes_axis(axes: Axes) -> None:
    """A logarithmic y axis of bytes, in binary units."""
    _unit_axis(axes, 16.0, bytes_text, (2.0, 4.0, 8.0))


def _unit_axis(axes: Axes, base: float, written: Callable[[float], str], minor: tuple[float, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, numticks=14))
    axes.yaxis.set_major_formatter(FuncFormatter(partial(_short, written)))
    axes.yaxis.set_minor_locator(LogLocator(base=base, subs=minor, numticks=40))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short(written: Callable[[float], str], value: float, _: object) -> str:
    """A tick without zeros that say nothing: ``1 ms`` for ``1.00 ms``."""
    number, _, unit = written(value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def share_axis(axes: Axes, most: float = 1.0) -> None:
    """A linear y axis of shares in percent, from nothing to a little over all, or over the greatest, `most`."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, max(1.08 * max(most, 1.0), axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def mixed(colour: str, part: float) -> str:
    """So much of `colour` (``#RRGGBB``) on white."""
    channels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - part * (255 - one)):02X}" for one in channels)


def contrast(one: str, other: str) -> float:
    """The contrast of two colours (``#RRGGBB``), 1 to 21, as WCAG 2.2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def ink(ground: str) -> str:
    """White where it reads on `ground` (``#RRGGBB``) at a contrast of 4.5 or more, else black, which then does."""
    return "#FFFFFF" if contrast("#FFFFFF", ground) >= 4.5 else "#000000"


def smooth(x: Sequence[float], y: ArrayLike) -> tuple[Any, Any]:
    """A curve through exact points, for the eye: monotone cubic in ln x between them (Fritsch and Carlson 1980)."""
    import numpy as np
    from scipy.interpolate import PchipInterpolator

    fine = np.geomspace(min(x), max(x), 200)
    return fine, PchipInterpolator(np.log(x), np.asarray(y, np.float64))(np.log(fine))


def nested_sizes(count: int) -> list[float]:
    """Marker sizes from large to small, so that points that lie on each other all show."""
    return [9.0 - 6.0 * i / max(1, count - 1) for i in range(count)]


def lay_out(figure: Figure) -> None:
    """Give panels, ticks and titles their places, once: to find them takes longer than to draw them.

    A bar that goes on beyond its panel gets an arrow at the edge.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)  # with the placeholder that "none" leaves, each file is drawn twice
        for axes in figure.axes:
            _point_beyond(axes)


def _point_beyond(axes: Axes) -> None:
    """An arrow at the edge of the panel for every end of an error bar that lies outside."""
    from matplotlib.container import ErrorbarContainer

    to_panel = axes.transData + axes.transAxes.inverted()  # 0 and 1 are its edges
    drawn = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    for bars in (lines for one in drawn for lines in one.lines[2]):
        for ends in map(to_panel.transform, bars.get_segments()):
            for along, marks in enumerate((("<", ">"), ("v", "^"))):
                out = ends[:, along].min() < -1e-3, ends[:, along].max() > 1 + 1e-3
                for edge in (at for at in (0, 1) if out[at] and 0 <= ends[0, 1 - along] <= 1):
                    place = (edge, ends[0, 1]) if along == 0 else (ends[0, 0], edge)
                    look: dict[str, Any] = {"color": bars.get_color()[0], "markersize": 6, "clip_on": False}
                    axes.plot(*place, marks[edge], transform=axes.transAxes, **look)


def save(figure: Figure, file: Path) -> Path:
    """Write `figure` as PNG to `file` and as SVG beside it, the same at every drawing of it; return the PNG's path.

    The PNG has at most 256 colours, which halves it; by octree, since by median cut a figure with a colour map lost
    those of its curves. The SVG holds its letters as shapes, so that no font is needed.
    """
    from matplotlib import rc_context
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    lay_out(figure)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI, format="rgba")
    size = figure.canvas.get_width_height(physical=True)
    image = Image.frombytes("RGBA", size, drawn.getvalue())
    few = image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    colours = few.getpalette() or []
    # the octree's white is a pale blue beside the white of a page
    lightest = max(range(0, len(colours), 3), key=lambda at: sum(colours[at : at + 3]), default=0)
    few.putpalette([*colours[:lightest], 255, 255, 255, *colours[lightest + 3 :]])
    few.save(file)  # optimized, they would be a tenth smaller and take eight times as long
    with rc_context({"svg.hashsalt": "attnlab"}):
        figure.savefig(file.with_suffix(".svg"), format="svg", metadata={"Date": None})
    return file


# -- a colour, marker and dash for each contender ----------------------------------------------------
#
# By its name, the same in every figure, table and page. The colours were chosen one after the other, each as far as
# possible from all before it in OKLab (Ottosson 2020, "A perceptual color space for image processing"), seen with
# normal, protanopic and deuteranopic vision (Machado, Oliveira and Fernandes 2009), among those on which white words,
# and which on white ground, read at a contrast of 4.5 or more. Nearly thirty colours cannot all be told apart by
# everybody, so that a marker and a dash go with each, and figures write names beside curves and cells.

#: those usually raced together stand first and are furthest apart
COLOURS = {
    "torch_eager": "#222222",
    "torch_sdpa": "#1F5FBF",
    "numpy_blocked": "#C24E00",
    "torch_sdpa_math": "#870A69",
    "numpy_vectorized": "#3C8269",
    "naive_loop": "#694100",
    "numba_fused": "#6400FF",
    "torch_sdpa_flash": "#8269A0",
    "onnxruntime": "#E61464",
    "openvino": "#0F4646",
    "keras": "#5F4191",
    "mlx": "#7D5FE6",
    "jax_xla": "#96413C",
    "executorch": "#6E1E28",
    "vllm_cpu": "#AF00B4",
    "torch_compile": "#417D00",
    "torch_sdpa_efficient": "#5A0082",
    "onnxruntime_contrib": "#3C00A5",
    "ggml_flash": "#D7239B",
    "torch_flex": "#2D4673",
    "array_api": "#006987",
    "torch_mha": "#966946",
    "torch_sdpa_cudnn": "#4646DC",
    "flash_attn": "#A00A19",
    "flashinfer": "#0A694B",
    "jax_cudnn": "#96417D",
    "sageattention": "#0000D7",
    "xformers": "#697887",
}
#: for backends that are not named above; beyond these their colours repeat, with other dashes
OTHERS = ("#5F00B9", "#AF1E5F", "#5F6ECD", "#870A41", "#7841FF")
MARKERS, DASHES = "osD^vPX<>h", ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Style:
    """A contender's colour (``#RRGGBB``), marker and dashes, the latter two as Matplotlib writes them."""

    colour: str
    marker: str
    dashes: str


def styles(names: Sequence[str]) -> dict[str, Style]:
    """A style for each of `names`, which are contenders or backends.

    A contender has the colour of its backend; with settings (``NAME[...]``) it has the next marker and dash. A backend
    of the user's own has a place by its name among further colours, or the next that is free among `names`.
    """
    known, others = list(COLOURS), _places(names)
    found: dict[str, Style] = {}
    variants: dict[str, int] = {}
    for name in dict.fromkeys(names):
        backend, _, settings = name.partition("[")
        turn = 0
        if settings:
            turn = variants[backend] = variants.get(backend, 0) + 1
        place = known.index(backend) if backend in COLOURS else len(known) + others[backend]
        colour = COLOURS[backend] if backend in COLOURS else OTHERS[others[backend] % len(OTHERS)]
        dashes = DASHES[(place // len(MARKERS) + turn) % len(DASHES)]
        found[name] = Style(colour, MARKERS[(place + 3 * turn) % len(MARKERS)], dashes)
    return found


def _places(names: Sequence[str]) -> dict[str, int]:
    """For each backend among `names` without a colour of its own, a number that no other has."""
    unknown = sorted({one.partition("[")[0] for one in names} - set(COLOURS))
    places: dict[str, int] = {}
    for name in unknown:
        size = len(OTHERS) if len(unknown) <= len(OTHERS) else len(unknown)
        place = zlib.crc32(name.encode()) % size
        while place in places.values():
            place = (place + 1) % size
        places[name] = place
    return places


# -- names at the ends of curves, moved up and down until none covers another -------------------------
#
# Placed by our own rule: adjustText leaves labels of curves that coincide on top of each other, and moves others out of
# the figure.

_INCHES_A_LETTER = 0.087
#: inches from a line's end to its label and beyond it, for the thin line between them
LEADER = 0.4


def make_room(axes: Axes, x: Sequence[float], texts: Sequence[str], inches: float) -> None:
    """Widen the logarithmic horizontal axis of a panel, `inches` wide, so that labels at the right end fit in."""
    needed = LEADER + _INCHES_A_LETTER * max((len(text) for text in texts), default=0)
    part = needed / max(inches - needed, 0.4 * inches)
    low, high = min(x), max(x)
    span = max(math.log(high / low), math.log(2))
    axes.set_xlim(low / math.exp(0.05 * span), high * math.exp(part * span))


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Text:
    """A grey dashed line that is no measurement, and its label at the end."""
    axes.plot(x, y, color=GREY, linestyle=(0, (4, 3)), linewidth=1.4, zorder=1)
    return label(axes, x[-1], y[-1], text, GREY)


def label(axes: Axes, x: float, y: float, text: str, colour: str) -> Text:
    """A label right of a line's end, joined to it, in its colour; `settle` moves it clear of the others."""
    line = {
        "arrowstyle": "-",
        "color": colour,
        "linewidth": 0.7,
        "relpos": (0, 0.5),
        "shrinkA": 0,
        "shrinkB": 4,
    }
    return axes.annotate(
        text,
        (x, y),
        xytext=(20, 0),
        textcoords="offset points",
        color=colour,
        fontsize=SIZE,
        ha="left",
        va="center",
        arrowprops=line,
        annotation_clip=False,
        in_layout=False,
    )


def lead(axes: Axes, x: tuple[float, float], y: float, colour: str) -> None:
    """A thin dotted line from where a curve ends early to its label, which stands with the others at the right."""
    axes.plot(x, (y, y), color=colour, linestyle=(0, (1, 3)), linewidth=0.9, zorder=1)


def settle(figure: Figure, panels: Sequence[tuple[Axes, Sequence[Text]]]) -> None:
    """Move the labels of each panel up and down until none covers another, or leaves the panel: see `settled`.

    A thin line joins each to the end of its curve.
    """
    from matplotlib.text import Text

    lay_out(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas of Agg has one
    for axes, texts in panels:
        for text in texts:
            text.update_positions(renderer)  # type: ignore[attr-defined]  # annotations have it, plain texts do not
        boxes = [Text.get_window_extent(text, renderer) for text in texts]  # without the line to the curve
        middles = [(box.y0 + box.y1) / 2 for box in boxes]
        sides = [(float(box.x0), float(box.x1)) for box in boxes]
        frame = axes.get_window_extent(renderer)
        places = settled(middles, [box.height + 1.0 for box in boxes], sides, (frame.y0, frame.y1))
        for text, place, middle in zip(texts, places, middles, strict=True):
            x, y = text.xyann  # type: ignore[attr-defined]  # as above
            text.xyann = (x, y + (place - middle) * 72 / figure.dpi)  # type: ignore[attr-defined]  # as above


def settled(
    middles: Sequence[float],
    heights: Sequence[float],
    sides: Sequence[tuple[float, float]],
    within: tuple[float, float] = (-math.inf, math.inf),
) -> list[float]:
    """Vertical middles, as near to `middles` as lets no two boxes overlap that share some of their width.

    `heights` are those of the boxes and `sides` their left and right edges, all in one unit. Boxes that overlap are
    stacked in order of height, each stack centred on where its members wanted to be; stacks that touch become one. A
    stack stays `within` a lower and an upper limit; one that is higher than that stands on the lower.
    """

    def spread(stack: list[int]) -> dict[int, float]:
        height = sum(heights[i] for i in stack)
        bottom = sum(middles[i] for i in stack) / len(stack) - height / 2
        bottom = max(within[0], min(bottom, within[1] - height))
        found = {}
        for i in stack:
            found[i] = bottom + heights[i] / 2
            bottom += heights[i]
        return found

    def touch(one: list[int], other: list[int]) -> bool:
        here, there = spread(one), spread(other)
        return any(
            sides[i][0] < sides[j][1]
            and sides[j][0] < sides[i][1]
            and abs(here[i] - there[j]) < (heights[i] + heights[j]) / 2 - 1e-6
            for i in one
            for j in other
        )

    stacks = [[index] for index in range(len(middles))]
    while pair := next((p for p in itertools.combinations(stacks, 2) if touch(*p)), None):
        for stack in pair:
            stacks.remove(stack)
        stacks.append(sorted([*pair[0], *pair[1]], key=lambda i: (middles[i], -i)))
    found = {index: place for stack in stacks for index, place in spread(stack).items()}
    return [found[index] for index in range(len(middles))]
