"""The figure of the training runs: shares that learned against the learning rate, and curves over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.experiments.finding import Finding, Row, pick
from attnlab.experiments.panels import numbers
from attnlab.experiments.training import (
    CAPPED,
    CURVES,
    FULL,
    NONE,
    NORMED,
    SCALED,
    SHARE,
    SMALL,
    STEPS,
    interval,
)
from attnlab.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    entitle,
    new_figure,
    powers_of_two,
    share_axis,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {
    SCALED: (BLUE, "o"),
    NONE: (ORANGE, "s"),
    FULL: (GREEN, "D"),
    NORMED: (PURPLE, "^"),
    CAPPED: (SKY, "v"),
    SMALL: (GREY, "P"),
}


def draw(finding: Finding) -> Figure:
    """Eight panels: above the shares, below steps to learn, loss, entropy and gradient."""
    figure, panels = new_figure(4, 2, width=18.0, height=8.8)
    shares = [row for row in pick(finding.rows, SHARE) if "learning rate" in row.where]
    groups = list(dict.fromkeys((str(row.where["optimiser"]), row.where["head_dim"]) for row in shares))
    adam, momentum = groups[:-1], groups[-1:]
    for panel, (optimiser, dim) in zip(panels[:4], (*adam[-3:], *momentum), strict=False):
        _shares(panel, pick(shares, optimiser=optimiser, head_dim=dim))
        entitle(panel, f"{optimiser}, d_k = {dim}", "learning rate", "share of runs that learned")
    for panel in panels[len(adam[-3:]) + len(momentum) : 4]:
        panel.set_visible(False)
    largest = adam[-1] if adam else ("", 0)
    _steps(panels[4], pick(finding.rows, STEPS, optimiser=largest[0]))
    for panel, name, title, label in zip(
        panels[5:],
        ("loss", "entropy", "query_key_gradient"),
        ("Loss", "Entropy of the weights", "Gradient of W_q and W_k"),
        ("loss, nats", "entropy / ln n", "norm of the gradient"),
        strict=True,
    ):
        rows = pick(finding.rows, CURVES[name], optimiser=largest[0], head_dim=largest[1])
        _curves(panel, rows)
        entitle(panel, title, f"step, at the best learning rate, d_k = {largest[1]}", label)
    panels[7].set_yscale("log")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, frameon=False)
    return figure


def _shares(panel: Axes, rows: Sequence[Row]) -> None:
    """A curve a way to make scores, with 95 % intervals, set side by side."""
    panel.set_xscale("log")
    for index, (name, (colour, marker)) in enumerate(_STYLES.items()):
        mine = pick(rows, scores=name)
        if not mine:
            continue
        x = numbers(mine, "learning rate") * spread(index, len(_STYLES), 0.06)
        y = np.array([row.measured for row in mine])
        bounds = np.array(
            [interval(round(row.measured * int(row.where["runs"])), int(row.where["runs"])) for row in mine]
        )
        panel.plot(x, y, color=colour, linewidth=1.4, marker=marker, ms=5, mfc="none", label=name)
        panel.vlines(x, bounds[:, 0], bounds[:, 1], color=colour, linewidth=0.9, alpha=0.7)
    rates = sorted(set(numbers(rows, "learning rate")))
    panel.set_xticks(rates, [f"{rate:g}" for rate in rates])
    panel.minorticks_off()
    share_axis(panel)


def _steps(panel: Axes, rows: Sequence[Row]) -> None:
    entitle(
        panel, "How long it takes at the best learning rate", "head dimension d_k", "steps to learn, median"
    )
    powers_of_two(panel, sorted(set(numbers(rows, "head_dim"))) or [1.0])
    for name, (colour, marker) in _STYLES.items():
        mine = pick(rows, scores=name)
        panel.plot(
            numbers(mine, "head_dim"),
            [row.measured for row in mine],
            color=colour, marker=marker, ms=6, mfc="none", linewidth=1.4,
        )  # fmt: skip
    panel.set_ylim(bottom=0)


def _curves(panel: Axes, rows: Sequence[Row]) -> None:
    """The mean of the runs at each step, with a band of one standard error of the seeds."""
    panel.set_xscale("log")
    for name, (colour, _) in _STYLES.items():
        mine = pick(rows, scores=name)
        x, y = numbers(mine, "step") if mine else np.array([]), np.array([row.measured for row in mine])
        error = np.array([row.standard_error for row in mine])
        panel.plot(x, y, color=colour, linewidth=1.6)
        panel.fill_between(x, y - error, y + error, color=colour, alpha=0.18, linewidth=0)
    panel.axhline(0.0, color=BLACK, linewidth=0.6)
