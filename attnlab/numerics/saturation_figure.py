"""The saturation experiment drawn: against d_k through every backend, then the phase diagram and its temperature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnlab.figures.drawing import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    backend_styles,
    entitle,
    legend,
    nested_sizes,
    new_figure,
    note,
    points,
    powers_of_two,
    smooth,
)
from attnlab.numerics.finding import Finding, Row
from attnlab.numerics.saturation import frozen_fraction
from attnlab.theory import (
    critical_beta,
    extreme_level,
    freezing_head_dim,
    random_energy,
    random_energy_frozen,
    random_energy_high_temperature,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Offsets = tuple[tuple[float, float], tuple[float, float]]


def draw(finding: Finding) -> Figure:
    """Entropy, largest weight and keys that take part above; map, entropy and frozen rows below."""
    figure, panels = new_figure(3, 2, width=14.0, height=8.6)
    compared = [row for row in finding.rows if "scaling" in row.where]
    most = max((int(row.where["keys"]) for row in compared), default=2)
    _against_head_dim(panels[:3], [row for row in compared if row.where["keys"] == most], most)
    _map(panels[3], [row for row in finding.rows if row.quantity == "largest_weight on the map"])
    _entropy(panels[4], [row for row in finding.rows if row.quantity == "entropy against temperature"])
    _frozen(panels[5], finding.rows)
    return figure


def _against_head_dim(panels: Sequence[Axes], rows: Sequence[Row], keys: int) -> None:
    freezing = freezing_head_dim(keys)
    # where the names of the curves go, unscaled and scaled: in points from the third mark before the end
    shown: tuple[tuple[str, str, str, Callable[[float], float], float, _Offsets], ...] = (
        (
            "entropy",
            "Unscaled, the entropy collapses",
            "entropy / ln n",
            lambda h: h / math.log(keys),
            0.04,
            ((4, 8), (4, -17)),
        ),
        (
            "largest_weight",
            "Unscaled, one key takes the weight",
            "mean largest weight",
            lambda p: p,
            0.95,
            ((12, -14), (4, 8)),
        ),
        (
            "participation",
            "How many keys take part",
            "effective number of keys, 1 / mean Σp²",
            lambda s: 1 / s,
            0.6,
            ((4, 8), (4, -17)),
        ),
    )
    for panel, (quantity, title, label, form, height, offsets) in zip(panels, shown, strict=True):
        _draw(panel, [row for row in rows if row.quantity == quantity], form, offsets)
        entitle(panel, title, "head dimension d_k", label)
        panel.axvline(freezing, color=GREY, linestyle="--", linewidth=1.2)
        place = panel.get_xaxis_transform()  # x in data, y as a fraction of the panel
        label = f"d_k = 2 ln n = {freezing:.1f}"
        panel.text(freezing * 1.1, height, label, fontsize=9, color=GREY, transform=place)
    panels[2].set_yscale("log")
    legend(panels[0], fontsize=8, title=f"through, n = {keys}", title_fontsize=8)


def _draw(panel: Axes, rows: Sequence[Row], form: Callable[[float], float], offsets: _Offsets) -> None:
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    sizes = nested_sizes(len(styles))
    for scaling, colour in (("unscaled", ORANGE), ("scaled", BLUE)):
        for index, (name, style) in enumerate(styles.items()):
            mine = [row for row in rows if (row.where["backend"], row.where["scaling"]) == (name, scaling)]
            x = [float(row.where["head_dim"]) for row in mine]
            if index == 0:
                exact = [form(row.predicted) for row in mine]
                panel.plot(*smooth(x, exact), color=colour, linewidth=1.8, zorder=2)
                panel.annotate(
                    scaling,
                    (x[-3], exact[-3]),
                    offsets[0] if scaling == "unscaled" else offsets[1],
                    textcoords="offset points",
                    color=colour,
                    fontsize=10,
                )
            panel.plot(
                x,
                [form(row.measured) for row in mine],
                style["marker"],
                color=colour,
                markerfacecolor="none",
                markersize=sizes[index],
                markeredgewidth=0.8,
                label=name if scaling == "scaled" else None,
            )
    powers_of_two(panel, sorted({float(row.where["head_dim"]) for row in rows}) or [1.0])


def _map(panel: Axes, rows: Sequence[Row]) -> None:
    """Measured largest weight over the plane, and the line on which the softmax freezes."""
    keys = sorted({int(row.where["keys"]) for row in rows})
    dims = sorted({int(row.where["head_dim"]) for row in rows})
    entitle(panel, "Unscaled attention freezes above d_k = 2 ln n", "keys n", "head dimension d_k")
    if not rows:
        return
    at = {(int(row.where["keys"]), int(row.where["head_dim"])): row.measured for row in rows}
    grid = np.array([[at[n, d] for n in keys] for d in dims])
    mesh = panel.pcolormesh(
        keys, dims, grid, cmap="cividis", vmin=0, vmax=1, shading="nearest", rasterized=True
    )
    bar = panel.figure.colorbar(mesh, ax=panel, pad=0.02)
    bar.set_label("mean largest weight", fontsize=9)
    panel.set_yscale("log", base=2)
    powers_of_two(panel, keys)
    panel.set_yticks(dims, [str(d) for d in dims])
    line = np.geomspace(min(keys), max(keys), 100)
    panel.plot(line, 2 * np.log(line), color="white", linewidth=2.2)
    middle = line[55]
    panel.text(
        middle,
        2 * math.log(middle) * 1.25,
        "d_k = 2 ln n",
        color="white",
        fontsize=10,
        ha="center",
        va="bottom",
    )
    panel.text(keys[-2], dims[-2], "frozen", color=BLACK, fontsize=12, ha="right", va="center")
    panel.text(keys[-2], dims[0], "all keys take part", color="white", fontsize=12, ha="right", va="center")
    panel.grid(False)


def _entropy(panel: Axes, rows: Sequence[Row]) -> None:
    """Entropy against temperature, with the exact curve and both asymptotes."""
    entitle(
        panel,
        "Entropy across the freezing temperature",
        "temperature / freezing temperature",
        "entropy / ln n",
    )
    if not rows:
        return
    keys = int(rows[0].where["keys"])
    x = np.array([float(row.where["temperature / freezing"]) for row in rows])
    fine = np.geomspace(x.min(), x.max(), 80)
    beta = critical_beta(keys) / fine
    unit = math.log(keys)
    panel.plot(fine, [random_energy(keys, float(b)).entropy / unit for b in beta], color=BLUE, linewidth=1.8)
    panel.plot(
        fine,
        [random_energy_high_temperature(keys, float(b)).entropy / unit for b in beta],
        ":",
        color=GREEN,
        linewidth=3.4,
    )
    panel.plot(
        fine,
        [random_energy_frozen(keys, float(b)).entropy / unit for b in beta],
        "--",
        color=ORANGE,
        linewidth=1.8,
    )
    measured, errors = (
        [getattr(row, name) / unit for row in rows] for name in ("measured", "standard_error")
    )
    points(panel, x, measured, errors, BLUE, linewidth=1.5)
    panel.set_ylim(-0.03, 1.03)
    _temperatures(panel)
    note(panel, 2.3, 0.62, "limit far above:\nln n − β²/2 + …", GREEN)
    note(panel, 0.12, 0.42, "limit far below:\nψ(1) − ψ(1 − m)", ORANGE)
    note(panel, 1.15, 0.2, f"exact, n = {keys}", BLUE)


def _temperatures(panel: Axes) -> None:
    """The x axis of a panel against temperature, with a line where the softmax freezes."""
    panel.set_xscale("log")
    panel.set_xticks([0.125, 0.25, 0.5, 1, 2, 4, 8], ["1/8", "1/4", "1/2", "1", "2", "4", "8"])
    panel.minorticks_off()
    panel.axvline(1.0, color=GREY, linestyle="--", linewidth=1.2)


def _frozen(panel: Axes, rows: Sequence[Row]) -> None:
    """Share of rows in which one key holds more than half of the weight."""
    weights = [row for row in rows if row.quantity == "largest_weight against temperature"]
    frozen = [row for row in rows if row.quantity == "frozen fraction"]
    entitle(
        panel,
        "Below freezing few keys hold the weight",
        "temperature / freezing temperature",
        "weight, or share of rows",
    )
    if not frozen:
        return
    keys = int(weights[0].where["keys"])
    x = np.array([float(row.where["temperature / freezing"]) for row in weights])
    fine = np.geomspace(x.min(), x.max(), 80)
    critical = critical_beta(keys)
    panel.plot(
        fine, [random_energy(keys, critical / t).largest_weight for t in fine], color=BLUE, linewidth=1.8
    )
    cold = fine[critical / fine > extreme_level(keys) * 1.02]
    panel.plot(cold, [frozen_fraction(keys, critical / t) for t in cold], "--", color=ORANGE, linewidth=1.8)
    for found, colour in ((weights, BLUE), (frozen, ORANGE)):
        at = [float(row.where["temperature / freezing"]) for row in found]
        errors = [row.standard_error for row in found]
        points(panel, at, [row.measured for row in found], errors, colour, linewidth=1.5)
    _temperatures(panel)
    note(panel, 1.15, 0.45, "mean largest weight", BLUE)
    note(panel, 0.12, 0.2, "share of rows in which\none key has over half\n(frozen limit)", ORANGE)
