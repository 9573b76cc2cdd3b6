"""Figures of speed and memory against length: a panel for each head count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from attnlab.report import canvas, wording
from attnlab.report.evidence import Cell, Evidence, Family

#: more panels than this are not drawn in one figure
_MOST_PANELS = 12

Curve = dict[int, float]
Value = Callable[[Cell, str], float | None]


def latency(evidence: Evidence, folder: Path) -> Path | None:
    """Median seconds per call against n. None where no head count has two lengths."""

    def seconds(cell: Cell, name: str) -> float | None:
        standing = cell.ranking.of(name) if cell.ranking is not None else None
        return None if standing is None else standing.seconds

    return _draw(evidence, folder / "latency.png", seconds, "s", "Time of one call (median)", {})


def memory(evidence: Evidence, folder: Path) -> Path | None:
    """Peak bytes of a call against n, with the score matrix and the output, each known by arithmetic."""

    def peak(cell: Cell, name: str) -> float | None:
        return cell.measured[name].peak_bytes if name in cell.measured else None

    guides: dict[str, Callable[[Cell], float]] = {
        "score matrix": lambda cell: cell.workload.score_bytes,
        "output": lambda cell: cell.workload.output_bytes,
    }
    return _draw(evidence, folder / "memory.png", peak, "B", "Peak memory of one call", guides)


def ceiling(evidence: Evidence, folder: Path) -> Path | None:
    """Achieved FLOP/s against n, under the best matrix product of this run."""
    if not evidence.run.ceilings:
        return None

    def flops(cell: Cell, name: str) -> float | None:
        return cell.rates[name].flops if name in cell.measured and name in cell.rates else None

    def roof(cell: Cell) -> float:
        rates = [one.flops / one.compute for one in cell.rates.values()]
        return rates[0] if rates else float("nan")

    guides = {"best matrix product": roof}
    return _draw(evidence, folder / "ceiling.png", flops, "FLOP/s", "Achieved rate", guides)


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
    styles = canvas.styles(evidence.names, evidence.baseline)
    figure, every = canvas.panels(len(chosen))
    labels = []
    for axes, (family, count, curves) in zip(every, chosen, strict=True):
        canvas.unit_axis(axes, unit)
        canvas.length_axis(axes, sorted({n for curve in curves.values() for n in curve}))
        texts = []
        for text, known in guides.items():
            line = {n: known(family.cells[count, n]) for n in family.grid[count]}
            drawn = {n: y for n, y in line.items() if y == y}  # not NaN
            texts.append(canvas.guide(axes, list(drawn), list(drawn.values()), text))
        for name, curve in curves.items():
            style = styles[name]
            axes.plot(
                list(curve),
                list(curve.values()),
                color=style.colour,
                marker=style.marker,
                linestyle=style.dashes,
                markersize=5,
                linewidth=1.8,
            )
            last = max(curve)
            texts.append(canvas.label(axes, last, curve[last], name, style.colour))
        panel = wording.counted(count, "head")
        if len(evidence.families) > 1:
            panel += f"\n{family.title}"
        axes.set_title(panel, fontsize=13, loc="left", fontweight="bold")
        labels.append(texts)
    figure.suptitle(
        f"{title}: lower is better" if unit != "FLOP/s" else f"{title}: higher is better", fontsize=14
    )
    for texts in labels:
        canvas.settle(figure, texts)
    return canvas.save(figure, file)


def _curves(evidence: Evidence, family: Family, count: int, value: Value) -> dict[str, Curve]:
    curves = {}
    for name in evidence.names:
        points = {n: value(family.cells[count, n], name) for n in family.grid[count]}
        curve = {n: float(y) for n, y in points.items() if y is not None and y > 0}
        if curve:
            curves[name] = curve
    return curves
