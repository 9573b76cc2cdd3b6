"""Names written at the ends of curves, moved up and down until none covers another.

Placed by our own rule: adjustText leaves labels of curves that coincide on top of each other, and moves others out of
the figure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnlab.figures.drawing import GREY, SIZE, lay_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_INCHES_A_LETTER = 0.087


def make_room(axes: Axes, x: Sequence[float], texts: Sequence[str], inches: float) -> None:
    """Widen the logarithmic horizontal axis of a panel, `inches` wide, so that labels at the right end fit in."""
    needed = 0.2 + _INCHES_A_LETTER * max((len(text) for text in texts), default=0)
    part = needed / max(inches - needed, 0.4 * inches)
    low, high = min(x), max(x)
    span = max(math.log(high / low), math.log(2))
    axes.set_xlim(low / math.exp(0.05 * span), high * math.exp(part * span))


def guide(axes: Axes, x: Sequence[float], y: Sequence[float], text: str) -> Text:
    """A grey dashed line that is no measurement, and its label at the end."""
    axes.plot(x, y, color=GREY, linestyle=(0, (4, 3)), linewidth=1.4, zorder=1)
    return label(axes, x[-1], y[-1], text, GREY)


def label(axes: Axes, x: float, y: float, text: str, colour: str) -> Text:
    """A label right of a line's end, in the line's colour; `settle` moves it clear of the others."""
    return axes.annotate(
        text,
        (x, y),
        xytext=(8, 0),
        textcoords="offset points",
        color=colour,
        fontsize=SIZE,
        ha="left",
        va="center",
        annotation_clip=False,
        in_layout=False,
    )


def lead(axes: Axes, x: tuple[float, float], y: float, colour: str) -> None:
    """A thin dotted line from where a curve ends early to its label, which stands with the others at the right."""
    axes.plot(x, (y, y), color=colour, linestyle=(0, (1, 3)), linewidth=0.9, zorder=1)


def settle(figure: Figure, panels: Sequence[tuple[Axes, Sequence[Text]]]) -> None:
    """Move the labels of each panel up and down until none covers another, or leaves the panel: see `settled`."""
    lay_out(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas of Agg has one
    for axes, texts in panels:
        boxes = [text.get_window_extent(renderer) for text in texts]
        middles = [(box.y0 + box.y1) / 2 for box in boxes]
        sides = [(float(box.x0), float(box.x1)) for box in boxes]
        frame = axes.get_window_extent(renderer)
        places = settled(middles, [box.height + 1.0 for box in boxes], sides, (frame.y0, frame.y1))
        for text, place, middle in zip(texts, places, middles, strict=True):
            x, y = text.xyann  # type: ignore[attr-defined]  # annotations have it, plain texts do not
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
