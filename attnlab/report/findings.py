"""The numerical chapter: for each experiment its question, answer, figure and table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.numerics import catalogue
from attnlab.numerics.finding import Finding
from attnlab.report import canvas, units, wording
from attnlab.report.tables import NONE, markdown


def draw(findings: Sequence[Finding], folder: Path) -> dict[str, Path | None]:
    """Each experiment's own figure in `folder`; one that this version does not know has its table alone."""
    return {
        one.experiment: canvas.save(catalogue.figure(one), folder / f"finding-{one.experiment}.png")
        for one in findings
        if one.experiment in catalogue.EXPERIMENTS
    }


def content(findings: Sequence[Finding], figures: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the template shows of each, with links to `figures` by file name."""
    return [_content(one, figures.get(one.experiment)) for one in findings]


def _content(one: Finding, figure: str | None) -> dict[str, Any]:
    passed = sum(row.passed for row in one.rows)
    return {
        "title": one.title,
        "question": one.question,
        "conclusion": one.conclusion,
        "figure": figure,
        "facts": ", ".join(
            f"{k} {v:g}" if isinstance(v, int | float) else f"{k} {v}" for k, v in one.facts.items()
        ),
        "summary": f"{passed} of {wording.counted(len(one.rows), 'comparison')} passed",
        "table": table(one),
    }


def table(one: Finding) -> str:
    """Predicted against measured, row by row."""
    keys = list(dict.fromkeys(key for row in one.rows for key in row.where))
    rows = [
        [
            row.quantity,
            *(_short(row.where.get(key, NONE)) for key in keys),
            units.figures(row.predicted, 4),
            units.figures(row.measured, 4),
            units.figures(row.standard_error, 2),
            "pass" if row.passed else "**FAIL**",
        ]
        for row in one.rows
    ]
    headers = ["quantity", *keys, "predicted", "measured", "standard error", ""]
    return markdown(headers, rows)


def _short(value: str | float) -> str:
    return f"{value:g}" if isinstance(value, int | float) else value
