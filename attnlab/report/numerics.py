"""The page of experiments, ``numerics.md``: what each found, with figures of theory against measurement.

All experiments are drawn in the same way. A line with a band is the prediction of theory; open marks are measured
values. The band is the range that passes for the backend with the most rows: the marks of that backend must lie in it.
A row that misses its prediction is a red cross with the name of its backend.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnlab import figure_style as style
from attnlab import lab
from attnlab.report.render import fill

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, CLAIMS = "numerics.md", "claims.json"
#: most rows shown per experiment of those that missed their prediction
_MOST_FAILED = 10
_WIDTH, _HEIGHT = 6.4, 3.9
#: labels of conditions; a condition without a label is shown by its name
_LABELS = {
    "head_dim": "head dimension d_k",
    "keys": "keys n",
    "T/T_c": "temperature / freezing temperature, T/T_c",
}


def sections(findings: Sequence[lab.Finding], folder: Path) -> list[dict[str, Any]]:
    """The values of each finding for the templates. Its figures are written to ``figures`` in `folder`.

    Raises OSError if the folder cannot be written to.
    """
    shown = []
    for one in findings:
        known = lab.load_experiment(one.experiment) if one.experiment in lab.EXPERIMENTS else None
        pictures = []
        for at, chart in enumerate(known.charts if known else ()):
            if figure := draw(chart, one.rows):
                link = f"figures/finding-{one.experiment}-{at}.png"
                style.save(figure, folder / link)
                says = f"{one.title}: {figure.axes[0].get_title(loc='left')}"
                pictures.append({"says": says, "link": link})
        of = dict[str, list[lab.Row]]()
        for row in one.rows:
            of.setdefault(row.quantity, []).append(row)
        shown.append(
            {
                **{name: getattr(one, name) for name in ("title", "question", "conclusion")},
                "theory": known.texts[1] if known else "",
                "lesson": known.lesson if known else "",
                "pictures": pictures,
                "passed": sum(row.passed for row in one.judged),
                "compared": len(one.judged),
                "closest": [max(rows, key=lambda row: (row.excess, row.measured)) for rows in of.values()],
                "failed": [row for row in one.rows if not row.passed][:_MOST_FAILED],
            }
        )
    return shown


def write_numerics(
    findings: Sequence[lab.Finding],
    folder: Path,
    *,
    environment: Mapping[str, Any],
    command: str,
    claims: Sequence[lab.Claim] = (),
) -> Path:
    """Write the page, its figures and, with `claims`, ``claims.json`` into `folder`.

    Returns the page's path. Raises OSError if the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if claims:
        plain = json.dumps([one.to_dict() for one in claims], ensure_ascii=False)
        (folder / CLAIMS).write_text(plain + "\n", encoding="utf-8")
    measured = {row.where.get("backend") for one in findings for row in one.rows}
    missing = {name: reason for one in findings for name, reason in one.missing.items()}
    text = fill(
        "numerics.md.j2",
        sections=sections(findings, folder),
        claims=claims,
        absent=[name for name in missing if name not in measured],
        partly={name: reason for name, reason in missing.items() if name in measured},
        cpu=environment.get("cpu"),
        dates=sorted({str(one.facts["date"]) for one in findings if "date" in one.facts}),
        command=command,
    )
    (folder / PAGE).write_text(text, encoding="utf-8")
    return folder / PAGE


# -- figures -----------------------------------------------------------------------------------------


def draw(chart: lab.Chart, rows: Sequence[lab.Row]) -> Figure | None:
    """Draw `chart` from the rows of its experiment; None if none of its rows was measured."""
    lines = {label: one(rows) for label, one in chart.lines.items()}
    found = {label: mine for label, mine in lines.items() if mine}
    if not found:
        return None
    figure, (axes,) = style.new_figure(_WIDTH, _HEIGHT)
    if chart.by:
        figure.set_figheight(max(2.2, 0.27 * _dots(axes, chart, found) + 1.3))
        names = (chart.y, "")
    else:
        drawn = _curves(axes, chart, found)
        names = (chart.x_label or _LABELS.get(chart.x, chart.x), chart.y)
    for text, at in chart.marks.items():
        axes.axvline(at, color=style.GREY, linestyle="--", linewidth=1.1, zorder=1)
        across = axes.get_xaxis_transform()
        axes.text(at, 1.03, text, transform=across, fontsize=style.SIZE - 2, color=style.GREY, ha="center")
    passed = [row.passed for mine in found.values() for row in mine]
    # the title of a chart is true if all rows agree with theory
    title = chart.title if all(passed) else f"{passed.count(False)} of {len(passed)} rows failed"
    style.entitle(axes, title, *names, pad=18 if chart.marks else 6)
    if not chart.by:
        style.label_ends(axes, drawn)
    return figure


def _curves(axes: Axes, chart: lab.Chart, lines: dict[str, list[lab.Row]]) -> list[style.Curve]:
    """Draw values against a condition. Returns each predicted line with its colour and its name, after its mark."""
    drawn = list[style.Curve]()
    for (label, rows), colour, marker in zip(lines.items(), style.CYCLE, style.MARKERS, strict=False):
        by_backend: dict[str, list[lab.Row]] = {}
        for row in sorted(rows, key=lambda row: float(row.where[chart.x])):
            by_backend.setdefault(str(row.where.get("backend", "")), []).append(row)
        # only for the backend with the most rows: the predictions are the same for all
        longest = max(by_backend.values(), key=len)
        room = np.array([row.room for row in longest])
        x = np.array([float(row.where[chart.x]) for row in longest])
        y = np.array([row.predicted for row in longest])
        if all(row.compared for row in longest):
            curved = len(x) > 2 and chart.log_x and not chart.log_y
            line, low, high = (
                (style.smooth(list(x), one) if curved else (x, one)) for one in (y, y - room, y + room)
            )
            axes.plot(*line, color=colour, linewidth=1.6)
            axes.fill_between(low[0], low[1], high[1], color=colour, alpha=0.18, linewidth=0)
        else:
            axes.plot(x, y, color=colour, linewidth=1.0, linestyle=":")
        for row in rows:
            _mark(axes, row.where[chart.x], _shown(row, chart), row, colour, marker)
        drawn.append((x.tolist(), y.tolist(), f"{style.SIGNS[len(drawn)]} {label}", colour))
    if chart.log_x:
        style.powers_of_two(
            axes, sorted({float(row.where[chart.x]) for rows in lines.values() for row in rows})
        )
    if chart.log_y:
        axes.set_yscale("log")
    if chart.limits:
        axes.set_ylim(*chart.limits)
    return drawn


def _dots(axes: Axes, chart: lab.Chart, lines: dict[str, list[lab.Row]]) -> int:
    """Draw a row of marks for each category, with bars for the predictions. Returns the number of categories."""
    named = {
        label: [(str({"quantity": row.quantity, **row.where}.get(chart.by, "")), row) for row in rows]
        for label, rows in lines.items()
    }
    names = list(dict.fromkeys(name for rows in named.values() for name, _ in rows))
    for at, ((label, rows), colour) in enumerate(zip(named.items(), style.CYCLE, strict=False)):
        # each line has its own height and mark: none hides another, and all differ without colours too
        half, marker = 0.36 / len(named), style.MARKERS[at]
        for name, row in rows:
            y = names.index(name) - 0.36 + (2 * at + 1) * half
            if row.compared:
                axes.vlines(row.predicted, y - half, y + half, colors=colour, linewidth=2.4, alpha=0.4)
            _mark(axes, _shown(row, chart), y, row, colour, marker)
        if len(lines) > 1:
            axes.plot([], [], marker, color=colour, markerfacecolor="none", label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if chart.log_x:
        axes.set_xscale("log")
    if chart.limits:
        axes.set_xlim(*chart.limits)
    if len(lines) > 1:
        axes.legend(frameon=False, fontsize=style.SIZE - 2, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return len(names)


def _shown(row: lab.Row, chart: lab.Chart) -> float:
    """The measured value, or the edge of the figure if it lies outside, such as 0 on a logarithmic axis."""
    low, high = chart.limits or (-math.inf, math.inf)
    return high if math.isnan(row.measured) else min(max(low, row.measured), high)


def _mark(axes: Axes, x: float, y: float, row: lab.Row, colour: str, marker: str) -> None:
    """Draw an open mark, or a red cross with a name if the row failed. At the edge of the figure it is not clipped."""
    if row.passed:
        axes.plot([x], [y], marker, color=colour, mfc="none", ms=5, zorder=3, clip_on=False)
        return
    axes.plot([x], [y], "X", color=style.RED, ms=7, zorder=5, clip_on=False)
    name = str(row.where.get("backend", ""))
    axes.annotate(name, (x, y), (6, 4), textcoords="offset points", fontsize=style.SIZE - 3, color=style.RED)
