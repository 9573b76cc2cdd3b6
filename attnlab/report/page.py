"""The report's page: everything computed, then laid out by the template ``report.md.j2``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.contract import units
from attnlab.program.store import Run
from attnlab.report import (
    appendix,
    as_ran,
    blocks,
    findings,
    growths,
    layout,
    sentences,
    speed_figures,
    storages,
    tables,
)
from attnlab.report.analysis import Analysis, Group, analyse
from attnlab.statistics import growth

REPORT = "report.md"
FIGURES = "figures"


def write(run: Run) -> Path:
    """Write ``report.md`` and ``figures/*.png`` into the run's folder and return the page's path.

    Works on any run, be it interrupted or empty. Figures of an earlier report in that folder are replaced.
    Raises OSError where the folder cannot be written to.
    """
    analysis, page = analyse(run), run.folder / REPORT
    page.write_text(render(analysis, draw(analysis, run.folder / FIGURES)), encoding="utf-8")
    return page


def draw(analysis: Analysis, folder: Path) -> dict[str, str]:
    """File names of the figures that there was something to draw for; those of an earlier report are removed."""
    for old in folder.glob("*.png"):
        old.unlink()
    drawn: dict[str, Path | None] = {
        "latency": speed_figures.latency(analysis, folder),
        "memory": speed_figures.memory(analysis, folder),
        "ceiling": speed_figures.ceiling(analysis, folder),
    }
    drawn |= findings.draw(analysis.run.findings, folder)
    return {name: file.name for name, file in drawn.items() if file is not None}


def render(analysis: Analysis, figures: Mapping[str, str]) -> str:
    """The page as Markdown, with links to `figures` by file name."""
    return layout.fill("report.md.j2", **_content(analysis, figures))


def _content(analysis: Analysis, figures: Mapping[str, str]) -> dict[str, Any]:
    run = analysis.run
    groups = [_group(analysis, one) for one in analysis.groups]
    kinds = ("latency", "memory", "ceiling")
    return {
        "title": "Which attention to run here",
        "about": sentences.about(analysis),
        "models": sentences.models(analysis),
        "warnings": sentences.warnings(analysis),
        "verdict": sentences.verdict(analysis),
        "footnote": sentences.footnote(analysis),
        "figures": {kind: figures.get(kind) for kind in kinds},
        "groups": groups,
        "folded": layout.folded,
        "baseline": analysis.baseline,
        "any_speed": any(one["fastest"] for one in groups),
        "any_peaks": any(one["peaks"] for one in groups),
        "storages": storages.content(analysis),
        "any_growth": any(one["growths"] for one in groups),
        "growth_level": units.percent(growth.LEVEL),
        "growth_worst": units.percent(growth.WORST),
        "blocks": blocks.content(analysis),
        "accuracy": tables.accuracy(analysis),
        "as_ran": as_ran.as_ran(analysis),
        "fallbacks": as_ran.fallbacks(analysis),
        "same_bits": as_ran.same_bits(analysis),
        "ceilings": layout.table(run.ceilings, tables.CEILINGS),
        "findings": findings.content(run.findings, figures),
        "left_out": appendix.left_out(analysis),
        "self_test_summary": sentences.self_test_summary(analysis),
        "two_speeds": sentences.two_speeds(analysis),
        "self_test": layout.table(analysis.self_test.twins, appendix.SELF_TEST, left=2),
        "environment": appendix.environment(analysis),
        "account": appendix.account(analysis),
        "account_summary": appendix.account_summary(analysis),
        "margin": units.percent(analysis.margin),
        "command": run.command,
    }


def _group(analysis: Analysis, group: Group) -> dict[str, Any]:
    fits = growths.fits(analysis, group)
    return {
        "heading": f"**{group.name}**\n\n" if group.name else "",
        "suffix": f": {group.name}" if group.name else "",
        "latencies": tables.latencies(analysis, group),
        "peaks": tables.peaks(analysis, group),
        "further": tables.further(analysis, group),
        "set_up": as_ran.set_up(analysis, group),
        "fastest": tables.fastest(analysis, group),
        "speedups": tables.speedups(analysis, group),
        "shares": tables.shares(analysis, group),
        "growths": growths.coefficients(fits),
        "growth_sentences": growths.sentences(group, fits),
    }
