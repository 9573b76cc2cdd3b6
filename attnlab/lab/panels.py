"""What the panels of several figures share: rows as measured points, predicted curves, a mark for every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attnlab import figures
from attnlab.lab.finding import Array, Row, pick, values

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def of_first_backend(rows: Sequence[Row]) -> list[Row]:
    """Those of the first backend, by name: what theory predicts is the same for all."""
    return pick(rows, backend=min(str(row.where["backend"]) for row in rows)) if rows else []


def of_most_keys(rows: Iterable[Row]) -> list[Row]:
    """Those of the longest rows: a slow backend was asked for short ones."""
    rows = list(rows)
    return pick(rows, keys=max((row.where["keys"] for row in rows), default=0))


def measured(
    panel: Axes, rows: Sequence[Row], x: str, colour: str, unit: float | Array = 1.0, **options: Any
) -> None:
    """The measured values against the condition `x`, in units of `unit`, with their bars; `options` : of `points`."""
    found, errors = values(rows, "measured") / unit, values(rows, "standard_error") / unit
    figures.points(panel, values(rows, x), found, errors, colour, **options)


def compared(
    panel: Axes, rows: Sequence[Row], x: str, colour: str, unit: float | Array = 1.0, *, smooth: bool = False
) -> None:
    """As `measured`, and the predicted values: a line, or a curve where `smooth`."""
    at, line = values(rows, x), values(rows, "predicted") / unit
    panel.plot(*(figures.smooth(list(at), line) if smooth else (at, line)), color=colour, linewidth=1.8)
    measured(panel, rows, x, colour, unit)


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
    styles = figures.backend_styles([str(row.where["backend"]) for row in rows])
    for (name, style), size in zip(styles.items(), figures.nested_sizes(len(styles)), strict=True):
        mine = pick(rows, backend=name)
        at = values(mine, x) if isinstance(x, str) else [x] * len(mine)
        look: dict[str, Any] = {"color": colour or style["color"], "mfc": "none", "ms": size, "mew": 0.8}
        label = name if named else None
        panel.plot(at, [form(row.measured) for row in mine], style["marker"], label=label, **look)


def boundary(panel: Axes, x: float) -> None:
    """A dashed line at `x`, where one behaviour ends and another begins."""
    panel.axvline(x, color=figures.GREY, linestyle="--", linewidth=1.2)
