"""What all figures share: colours by contender, axes, direct labels that do not overlap, and saving.

Figures are drawn on a white ground, so that they read in light and in dark pages, at twice the size at
which they are shown.
"""

from __future__ import annotations

import io
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.contract import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_DPI = 150
_GUIDE = "#777777"
_INCHES_A_LETTER = 0.089


def panels(count: int, *, height: float = 4.9, shared: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most three in a row, and its axes, the superfluous ones removed.

    With `shared` the panels of a row have one vertical axis.
    """
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    width = {1: 8.4, 2: 11.5, 3: 13.5}[columns]
    figure = Figure(figsize=(width, height * rows), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row" if shared else False)
    every = [axes for row in grid for axes in row]
    for spare in every[count:]:
        spare.remove()
    for axes in every[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(which="major", color="#DDDDDD", linewidth=0.8)
        axes.grid(which="minor", color="#F0F0F0", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=12)
        axes.tick_params(axis="x", labelsize=10.5)
        axes.margins(y=0.12)
    return figure, every[:count]


def length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """A logarithmic axis of lengths, ticked at those measured, at most six of them."""
    axes.set_xscale("log", base=2)
    step = -(-len(lengths) // 6)
    kept = list(lengths)[::-1][::step][::-1]
    axes.set_xticks(kept, [str(n) for n in kept])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("n, length", fontsize=12)


def make_room(figure: Figure, axes: Axes, x: Sequence[float], texts: Sequence[str]) -> None:
    """Widen the horizontal axis of a panel so that labels at the right end fit in."""
    panels_abreast = {8.4: 1, 11.5: 2, 13.5: 3}[round(float(figure.get_size_inches()[0]), 1)]
    inches = float(figure.get_size_inches()[0]) / panels_abreast - 0.6
    needed = 0.2 + _INCHES_A_LETTER * max((len(text) for text in texts), default=0)
    part = needed / max(inches - needed, 0.4 * inches)
    low, high = min(x), max(x)
    if axes.get_xscale() == "log":
        span = max(math.log(high / low), math.log(2))
        axes.set_xlim(low / math.exp(0.05 * span), high * math.exp(part * span))
    else:
        span = (high - low) or 1.0
        axes.set_xlim(low - 0.05 * span, high + part * span)


def unit_axis(axes: Axes, kind: str) -> None:
    """A logarithmic axis of seconds ("s") or bytes ("B") with ticks a person reads."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    words = {"s": units.seconds_text, "B": units.bytes_text}[kind]
    base = 16.0 if kind == "B" else 10.0
    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, numticks=14))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(words(value))))
    minor = (2.0, 4.0, 8.0) if kind == "B" else tuple(float(d) for d in range(2, 10))
    axes.yaxis.set_minor_locator(LogLocator(base=base, subs=minor, numticks=40))
    axes.yaxis.set_minor_formatter(NullFormatter())


def share_axis(axes: Axes) -> None:
    """A linear axis of shares in percent, from nothing to a little over all."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, max(1.08, axes.get_ylim()[1]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _short(text: str) -> str:
    """``1 ms`` for ``1.00 ms``."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Text:
    """A grey dashed line that is no measurement, and its label at the end."""
    axes.plot(x, y, color=_GUIDE, linestyle=(0, (4, 3)), linewidth=1.4, zorder=1)
    return label(axes, x[-1], y[-1], text, _GUIDE)


def label(
    axes: Axes, x: float, y: float, text: str, colour: str, *, early: bool = False, leftmost: bool = False
) -> Text:
    """A label at a line's right end, in the line's colour; `settle` moves it clear of the others.

    `early` is for a line that ends before the others do: its label stands above the end, out of their way. It ends
    there; or begins at x, where the line ends so far to the left that the label would cover the axis (`leftmost`).
    """
    from matplotlib.patheffects import withStroke

    return axes.annotate(
        text,
        (x, y),
        path_effects=[withStroke(linewidth=3.5, foreground="white")],
        xytext=((-6, 9) if leftmost else (4, 9)) if early else (8, 0),
        textcoords="offset points",
        color=colour,
        fontsize=11.5,
        ha="right" if early and not leftmost else "left",
        va="bottom" if early else "center",
        annotation_clip=False,
    )


def settle(figure: Figure, panels: Sequence[Sequence[Text]]) -> None:
    """Move the labels of each panel up and down until none covers another.

    Labels that overlap are stacked in order of height, and each stack is centred on where its members wanted
    to be; stacks that then touch become one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]  # matplotlib leaves it without types
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]  # as above
    for texts in panels:
        boxes = [text.get_window_extent(renderer) for text in texts]
        middles = [(box.y0 + box.y1) / 2 for box in boxes]
        sides = [(float(box.x0), float(box.x1)) for box in boxes]
        places = settled(middles, [box.height + 1.0 for box in boxes], sides)
        for text, place, middle in zip(texts, places, middles, strict=True):
            x, y = text.xyann  # type: ignore[attr-defined]  # annotations have it, plain texts do not
            text.xyann = (x, y + (place - middle) * 72 / figure.dpi)  # type: ignore[attr-defined]  # as above


def settled(
    middles: Sequence[float], heights: Sequence[float], sides: Sequence[tuple[float, float]]
) -> list[float]:
    """Vertical middles, as near to `middles` as lets no two boxes overlap that share some of their width.

    `heights` are those of the boxes and `sides` their left and right edges, all in one unit.
    """

    def spread(stack: list[int]) -> dict[int, float]:
        bottom = sum(middles[i] for i in stack) / len(stack) - sum(heights[i] for i in stack) / 2
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
    while True:
        pair = next(
            (p for p in itertools.combinations(range(len(stacks)), 2) if touch(*(stacks[k] for k in p))), None
        )
        if pair is None:
            break
        joint = stacks.pop(pair[1]) + stacks[pair[0]]
        stacks[pair[0]] = sorted(joint, key=lambda i: (middles[i], -i))
    found = {index: place for stack in stacks for index, place in spread(stack).items()}
    return [found[index] for index in range(len(middles))]


def save(figure: Figure, file: Path) -> Path:
    """Write `figure` as PNG of at most 256 colours, half the size, the same at every drawing of it.

    By octree: by median cut a figure with a colour map lost those of its curves, and green was drawn blue.
    """
    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=_DPI, format="png")
    drawn.seek(0)
    with Image.open(drawn) as image:
        few = image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        few.save(file, optimize=True)
    return file
