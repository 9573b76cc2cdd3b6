"""Two figures of a diagnosis: the spread of each head's logits, and its entropy against what chance would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from attnlab.experiments.heads import Head
from attnlab.figures import BLACK, BLUE, GREY, ORANGE, entitle, lay_out, legend, new_figure, note
from attnlab.units import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

#: of the heads beyond the line so many are named, and so many of those furthest from chance
_NAMED = 8
#: part of a layer's place that its heads are spread over
_WIDTH = 0.72


def spread(heads: Sequence[Head]) -> tuple[Figure, str]:
    """β by layer and head with the freezing line, and what it shows in words."""
    layers = 1 + max(one.layer for one in heads)
    figure, (panel,) = new_figure(width=max(7.0, min(18.0, 1.1 * layers + 1.5)), height=4.4)
    beyond = [one for one in heads if one.beyond]
    entitle(
        panel,
        f"{len(beyond)} of {len(heads)} heads are spread beyond the freezing line",
        "layer; within it, heads from left to right",
        "β: standard deviation of the logits in a row",
    )
    panel.set_yscale("log")
    places = {one: (_place(one, heads), one.beta) for one in heads}
    _points(panel, places)
    for layer in range(layers):
        mine = [one for one in heads if one.layer == layer]
        if mine:
            panel.hlines(mine[0].critical, layer - 0.5, layer + 0.5, color=BLACK, linewidth=1.4, zorder=1)
    named = sorted(beyond, key=lambda one: -one.beta)[:_NAMED]
    first = min(heads, key=lambda one: one.layer)
    panel.set_xlim(-0.5, layers - 0.5)
    note(
        panel,
        layers - 0.52,
        first.critical * 1.04,
        f"√(2 ln n) = {number_text(first.critical)}",
        ha="right",
        va="bottom",
    )
    panel.set_xticks(range(layers))
    _plain_ticks(panel, [one.beta for one in heads] + [first.critical])
    legend(panel, loc="upper right", ncols=2)
    _name(figure, panel, places, named)
    low, high = (f(heads, key=lambda one: one.beta) for f in (min, max))
    text = (
        f"Spread β of the logits of {len(heads)} heads in {layers} layers, from {number_text(low.beta)} "
        f"(layer {low.layer}, head {low.head}) to {number_text(high.beta)} (layer {high.layer}, head {high.head}); "
        f"{len(beyond)} lie above the freezing line at {number_text(first.critical)}."
    )
    return figure, text


def entropies(heads: Sequence[Head]) -> tuple[Figure, str]:
    """Entropy as measured against that of the random energy model at the same n and β, and what it shows in words."""
    figure, (panel,) = new_figure(width=6.4, height=5.4)
    below = [one for one in heads if one.departure < 0]
    entitle(
        panel,
        f"Heads depart from chance by up to {number_text(max(abs(one.departure) for one in heads))} nats",
        "entropy of independent logits of the same spread, nats",
        "measured entropy of a row, nats",
    )
    most = 1.06 * max(max(one.entropy, one.expected_entropy) for one in heads)
    panel.plot([0, most], [0, most], color=BLACK, linewidth=1.4, zorder=1)
    places = {one: (one.expected_entropy, one.entropy) for one in heads}
    _points(panel, places)
    named = sorted(heads, key=lambda one: -abs(one.departure))[: _NAMED // 2]
    panel.set_xlim(0, most)
    panel.set_ylim(0, most)
    panel.set_aspect("equal")
    note(panel, 0.97 * most, 0.06 * most, "sharper than chance", GREY, ha="right")
    note(panel, 0.03 * most, 0.72 * most, "flatter than chance", GREY)
    legend(panel, loc="upper left")
    _name(figure, panel, places, named)
    furthest = max(heads, key=lambda one: abs(one.departure))
    text = (
        f"Measured entropy of {len(heads)} heads against that of the random energy model at the same spread: "
        f"{len(below)} lie below the diagonal; the furthest from it is layer {furthest.layer}, head {furthest.head}, "
        f"with {number_text(furthest.entropy)} nats measured and {number_text(furthest.expected_entropy)} expected."
    )
    return figure, text


def _points(panel: Axes, places: Mapping[Head, tuple[float, float]]) -> None:
    for beyond, colour, label in ((False, BLUE, "below the freezing line"), (True, ORANGE, "beyond it")):
        x, y = [[place[axis] for one, place in places.items() if one.beyond == beyond] for axis in (0, 1)]
        panel.plot(x, y, "o", color=colour, markersize=5, zorder=5, label=label)


def _place(one: Head, heads: Sequence[Head]) -> float:
    count = 1 + max(each.head for each in heads if each.layer == one.layer)
    return one.layer + _WIDTH * ((one.head + 0.5) / count - 0.5)


_Side = tuple[float, float, Literal["left", "center", "right"]]
#: where a name may stand beside its point: points right of it and above it, and which end of the name that is
_SIDES: tuple[_Side, ...] = (
    (5, 3, "left"), (6, -3, "left"), (0, 6, "center"), (-5, 3, "right"), (-6, -3, "right"), (0, -13, "center"),
)  # fmt: skip


def _name(
    figure: Figure, panel: Axes, places: Mapping[Head, tuple[float, float]], named: Sequence[Head]
) -> None:
    """Layer and head beside the points of `named`, on that side where a name covers the fewest points and names."""
    from matplotlib.patheffects import withStroke

    lay_out(figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]  # the canvas of Agg has one
    points = panel.transData.transform(list(places.values()))
    taken: list[Bbox] = []
    for one in named:
        text = panel.annotate(
            f"{one.layer}.{one.head}",
            places[one],
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8.5,
            color=ORANGE if one.beyond else BLUE,
            path_effects=[withStroke(linewidth=2.5, foreground="white")],
            zorder=4,
        )

        def box(side: _Side, text: Annotation = text) -> Bbox:
            text.xyann = side[:2]
            text.set_horizontalalignment(side[2])
            return text.get_window_extent(renderer).padded(1.0)

        def covered(side: _Side, box: Callable[..., Bbox] = box) -> int:
            place = box(side)
            return place.count_contains(points) + 3 * place.count_overlaps(taken)

        taken.append(box(min(_SIDES, key=covered)))


def _plain_ticks(panel: Axes, values: Sequence[float]) -> None:
    """1, 2, 5 times powers of ten as plain numbers, over the values."""
    low, high = min(filter(None, values), default=1.0), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
    ticks = [tick for tick in steps if low / 1.6 <= tick <= high * 1.6]
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.set_ylim(low / 1.3, high * 1.6)
