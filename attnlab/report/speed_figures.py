"""Figures of speed and memory against length: a panel for each head count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.figures import canvas, palette
from attnlab.report import wording
from attnlab.report.evidence import Cell, Evidence, Family

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

#: more panels than this are not drawn in one figure
_MOST_PANELS = 12

Curve = dict[int, float]
Value = Callable[[Cell, str], float | None]


def latency(evidence: Evidence, folder: Path) -> Path | None:
    """Median seconds per call against n. None where no head count has two lengths."""

    def seconds(cell: Cell, name: str) -> float | None:
        standing = cell.ranking.of(name) if cell.ranking is not None else None
        return None if standing is None else standing.seconds

    return _draw(
        evidence, folder / "latency.png", seconds, "s", "Time of one call (median): lower is better", {}
    )


def memory(evidence: Evidence, folder: Path) -> Path | None:
    """Peak bytes of a call against n, with the score matrix and the output, each known by arithmetic."""

    def peak(cell: Cell, name: str) -> float | None:
        return cell.measured[name].peak_bytes if name in cell.measured else None

    guides: dict[str, Callable[[Cell], float]] = {
        "score matrix": lambda cell: cell.workload.score_bytes,
        "output": lambda cell: cell.workload.output_bytes,
    }
    return _draw(
        evidence, folder / "memory.png", peak, "B", "Peak memory of one call: lower is better", guides
    )


def ceiling(evidence: Evidence, folder: Path) -> Path | None:
    """Achieved FLOP/s as a share of the best matrix product of this run, against n."""

    def share(cell: Cell, name: str) -> float | None:
        return cell.rates[name].compute if name in cell.measured and name in cell.rates else None

    guides: dict[str, Callable[[Cell], float]] = {"best matrix product": lambda cell: 1.0}
    title = "Share of the best matrix-multiply rate: higher is better"
    return _draw(evidence, folder / "ceiling.png", share, "%", title, guides)


def _draw(
    evidence: Evidence,
    file: Path,
    value: Value,
    unit: str,
    title: str,
    guides: Mapping[str, Callable[[Cell], float]],
) -> Path | None:
    chosen = []
    for family in evidence.families:
        for count in family.heads:
            curves = _curves(evidence, family, count, value)
            if any(len(curve) > 1 for curve in curves.values()):
                chosen.append((family, count, curves))
    if not chosen:
        return None
    chosen = chosen[:_MOST_PANELS]
    styles = palette.styles(evidence.names)
    figure, every = canvas.panels(len(chosen))
    labels = []
    for axes, (family, count, curves) in zip(every, chosen, strict=True):
        lengths = sorted({n for curve in curves.values() for n in curve})
        canvas.length_axis(axes, lengths)
        if unit == "%":
            canvas.share_axis(axes)
        else:
            canvas.unit_axis(axes, unit)
        texts = [
            canvas.guide(axes, lengths, [known(family.cells[count, n]) for n in lengths], text)
            for text, known in guides.items()
        ]
        texts += _curves_into(axes, curves, styles, lengths)
        # a line that ends early has its label above, and needs no room at the right
        at_end = [*guides, *(name for name, curve in curves.items() if max(curve) == lengths[-1])]
        canvas.make_room(figure, axes, lengths, at_end)
        panel = wording.counted(count, "head")
        if len(evidence.families) > 1:
            panel += f"\n{family.title}"
        axes.set_title(panel, fontsize=13, loc="left", fontweight="bold")
        labels.append(texts)
    figure.suptitle(title, fontsize=14)
    canvas.settle(figure, labels)
    return canvas.save(figure, file)


def _curves_into(
    axes: Axes, curves: Mapping[str, Curve], styles: Mapping[str, palette.Style], lengths: Sequence[int]
) -> list[Text]:
    """Draw `curves` and return their labels; earlier ones are broader, so that later ones do not hide them."""
    texts = []
    for place, (name, curve) in enumerate(curves.items()):
        style = styles[name]
        under = 1 - place / max(1, len(curves) - 1)
        # a length without a value is a gap, not a line drawn across it
        span = [n for n in lengths if min(curve) <= n <= max(curve)]
        axes.plot(
            span,
            [curve.get(n, float("nan")) for n in span],
            color=style.colour,
            marker=style.marker,
            linestyle=style.dashes,
            markersize=4.5 + 2.5 * under,
            linewidth=1.5 + 1.1 * under,
        )
        last = max(curve)
        early, leftmost = last < lengths[-1], last in lengths[:2]
        at = lengths[0] if early and leftmost else last
        texts.append(canvas.label(axes, at, curve[last], name, style.colour, early=early, leftmost=leftmost))
    return texts


def _curves(evidence: Evidence, family: Family, count: int, value: Value) -> dict[str, Curve]:
    curves = {}
    for name in evidence.names:
        points = {n: value(family.cells[count, n], name) for n in family.grid[count]}
        curve = {n: float(y) for n, y in points.items() if y is not None and y > 0}
        if curve:
            curves[name] = curve
    return curves
