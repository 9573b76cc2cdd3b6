"""What the figures of several experiments share: rows as numbers, measured points, a mark for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.experiments.finding import Row, pick
from attnlab.figures import GREY, backend_styles, nested_sizes, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def numbers(rows: Iterable[Row], condition: str) -> NDArray[np.float64]:
    """The values of one condition, a number a row."""
    return np.array([float(row.where[condition]) for row in rows])


def of_first_backend(rows: Sequence[Row]) -> list[Row]:
    """Those of the first backend, by name: what theory predicts is the same for all."""
    return pick(rows, backend=min(str(row.where["backend"]) for row in rows)) if rows else []


def measured(
    panel: Axes,
    rows: Sequence[Row],
    x: str,
    colour: str,
    unit: float | NDArray[np.float64] = 1.0,
    **options: Any,
) -> None:
    """The measured values against the condition `x`, in units of `unit`, with their bars."""
    values, errors = (
        np.array([getattr(row, name) for row in rows]) for name in ("measured", "standard_error")
    )
    points(panel, numbers(rows, x), values / unit, errors / unit, colour, **options)


def by_backend(
    panel: Axes,
    rows: Sequence[Row],
    x: str | float,
    colour: str = "",
    *,
    form: Callable[[float], float] = float,
    named: bool = True,
) -> None:
    """`form` of the measured values against the condition `x`, or at x: open marks a backend, nested so that all show.

    Without a colour each backend has its own; `named` puts them into the legend.
    """
    styles = backend_styles([str(row.where["backend"]) for row in rows])
    for (name, style), size in zip(styles.items(), nested_sizes(len(styles)), strict=True):
        mine = pick(rows, backend=name)
        at = numbers(mine, x) if isinstance(x, str) else [x] * len(mine)
        panel.plot(
            at, [form(row.measured) for row in mine], style["marker"], color=colour or style["color"],
            mfc="none", ms=size, mew=0.8, label=name if named else None,
        )  # fmt: skip


def boundary(panel: Axes, x: float) -> None:
    """A dashed line at `x`, where one behaviour ends and another begins."""
    panel.axvline(x, color=GREY, linestyle="--", linewidth=1.2)
