"""What all figures share: colours by contender, axes, direct labels that do not overlap, and saving.

Figures are drawn on a white ground, so that they read in light and in dark pages, at twice the size at
which they are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.report import units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BASELINE_COLOUR = "#222222"
#: told apart by most colour-blind readers (Okabe and Ito 2008, darkened for thin lines), then a few more
_COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#7B4FB5",
    "#8C5A2B",
    "#B22222",
    "#6B8E23",
)
_MARKERS = "osD^vPX<>h"
_DPI = 150
_GUIDE = "#777777"


@dataclass(frozen=True)
class Style:
    """How a contender is drawn in every figure of a report."""

    colour: str
    marker: str
    dashes: str


def styles(names: Sequence[str], baseline: str) -> dict[str, Style]:
    """A style for each of `names` in order; the baseline is near black, and repeats of a colour are dashed."""
    found = {}
    others = [name for name in names if name != baseline]
    for index, name in enumerate(others):
        turn, place = divmod(index, len(_COLOURS))
        found[name] = Style(_COLOURS[place], _MARKERS[place], ("-", "--", "-.", ":")[turn % 4])
    if baseline in names:
        found[baseline] = Style(BASELINE_COLOUR, "o", "-")
    return found


def panels(count: int, *, height: float = 4.9) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels, at most three in a row, and its axes, the superfluous ones removed."""
    from matplotlib.figure import Figure

    columns = min(count, 3)
    rows = -(-count // columns)
    width = {1: 8.4, 2: 12.0, 3: 15.0}[columns]
    figure = Figure(figsize=(width, height * rows), layout="constrained", facecolor="white")
    grid = figure.subplots(rows, columns, squeeze=False, sharey="row")
    every = [axes for row in grid for axes in row]
    for spare in every[count:]:
        spare.remove()
    for axes in every[:count]:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(which="major", color="#DDDDDD", linewidth=0.8)
        axes.grid(which="minor", color="#F0F0F0", linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=12, labelleft=True)
    return figure, every[:count]


def length_axis(axes: Axes, lengths: Sequence[int], *, room: float = 0.62) -> None:
    """A logarithmic axis of lengths, ticked at those measured, with `room` at the right for labels."""
    import math

    axes.set_xscale("log", base=2)
    low, high = min(lengths), max(lengths)
    span = max(math.log(high / low), math.log(2))
    axes.set_xlim(low / math.exp(0.05 * span), high * math.exp(room * span))
    step = -(-len(lengths) // 6)
    kept = list(lengths)[::-1][::step][::-1]
    axes.set_xticks(kept, [str(n) for n in kept])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("n, length", fontsize=12)


def unit_axis(axes: Axes, kind: str) -> None:
    """A logarithmic axis of seconds ("s"), bytes ("B") or FLOP/s ("FLOP/s") with ticks a person reads."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    words = {"s": units.seconds, "B": units.size, "FLOP/s": units.flops}[kind]
    base = 16.0 if kind == "B" else 10.0
    axes.set_yscale("log", base=base)
    axes.yaxis.set_major_locator(LogLocator(base=base, numticks=14))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(words(value))))
    minor = (2.0, 4.0, 8.0) if kind == "B" else tuple(float(d) for d in range(2, 10))
    axes.yaxis.set_minor_locator(LogLocator(base=base, subs=minor, numticks=40))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _short(text: str) -> str:
    """``1 ms`` for ``1.00 ms``."""
    number, _, unit = text.partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Text:
    """A grey dashed line that is no measurement, and its label at the end."""
    axes.plot(x, y, color=_GUIDE, linestyle=(0, (4, 3)), linewidth=1.4, zorder=1)
    return label(axes, x[-1], y[-1], text, _GUIDE)


def label(axes: Axes, x: float, y: float, text: str, colour: str) -> Text:
    """A label at a line's right end, in the line's colour; `settle` moves it clear of the others."""
    return axes.annotate(
        text,
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        color=colour,
        fontsize=11.5,
        va="center",
        annotation_clip=False,
    )


def settle(figure: Figure, texts: Sequence[Text]) -> None:
    """Move labels of one panel up and down until none covers another.

    Labels that overlap sideways are stacked in order of height, each pushed just clear of its neighbours, and
    the stack is centred on where its members wanted to be.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    gap = 1.0
    stacks = [[index] for index in sorted(range(len(texts)), key=lambda i: boxes[i].y0 + boxes[i].y1)]
    wanted = {index: (boxes[index].y0 + boxes[index].y1) / 2 for index in range(len(texts))}
    tall = {index: boxes[index].height + gap for index in range(len(texts))}

    def spread(stack: list[int]) -> dict[int, float]:
        total = sum(tall[i] for i in stack)
        bottom = sum(wanted[i] for i in stack) / len(stack) - total / 2
        places = {}
        for i in stack:
            places[i] = bottom + tall[i] / 2
            bottom += tall[i]
        return places

    def beside(one: list[int], other: list[int]) -> bool:
        return any(boxes[i].x0 < boxes[j].x1 and boxes[j].x0 < boxes[i].x1 for i in one for j in other)

    merged = True
    while merged:
        merged = False
        for a in range(len(stacks)):
            for b in range(a + 1, len(stacks)):
                one, other = spread(stacks[a]), spread(stacks[b])
                touch = any(
                    abs(one[i] - other[j]) < (tall[i] + tall[j]) / 2 - 0.01
                    and boxes[i].x0 < boxes[j].x1
                    and boxes[j].x0 < boxes[i].x1
                    for i in one
                    for j in other
                )
                if touch and beside(stacks[a], stacks[b]):
                    joint = sorted(stacks.pop(b) + stacks[a], key=lambda i: wanted[i])
                    stacks[a] = joint
                    merged = True
                    break
            if merged:
                break
    points = 72 / figure.dpi
    for stack in stacks:
        for index, place in spread(stack).items():
            x, y = texts[index].xyann  # type: ignore[attr-defined]  # annotations have it, plain texts do not
            texts[index].xyann = (x, y + (place - wanted[index]) * points)  # type: ignore[attr-defined]  # as above


def save(figure: Figure, file: Path) -> Path:
    """Write `figure` as PNG, without anything that differs from one drawing of it to the next."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI, metadata={"Software": None})
    return file
