"""The report's page: everything computed, then laid out by the template ``report.md.j2``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnlab import units
from attnlab.errors import NotStored
from attnlab.figures import Drawn
from attnlab.judge import growth
from attnlab.judge.analysis import Group
from attnlab.judge.growth import Fits, Fitting
from attnlab.report import (
    appendix,
    as_ran,
    blocks,
    data_tables,
    experiments,
    growths,
    layout,
    sentences,
    speed_figures,
    storages,
    table_files,
    tables,
    verdict_figures,
)
from attnlab.report.analysis import Analysis, analyse
from attnlab.report.answer import Answer, answer_of
from attnlab.report.data_tables import Table
from attnlab.report.figure_files import Picture, Writing
from attnlab.report.layout import linked, picture_link
from attnlab.report.lower_precision import lower_precision
from attnlab.runs.store import Run
from attnlab.system import cores

REPORT, FIGURES, TABLES = "report.md", "figures", "tables"
#: groups of workloads that have tables of their own on the page
MOST_GROUPS = 16
#: results whose tables take as long as figures do to be written
LARGE = 5000


@dataclass(frozen=True)
class Content:
    """A run as a report shows it, whatever the format: read and judged, its fits on their way."""

    analysis: Analysis
    answer: Answer
    fitting: Fitting

    @property
    def large(self) -> bool:
        """Whether a part of the work is worth a process of its own, on a machine that can do two things at once."""
        return len(self.analysis.run.results) >= LARGE and cores() > 1

    def tables(self) -> Iterator[tuple[str, Table]]:
        """Its tables of plain values with their names, one by one: of a large run all together fill the memory."""
        return data_tables.tables(self.analysis, self.fitting)


def content_of(run: Run) -> Content:
    """Everything that a report of `run` says."""
    analysis = analyse(run)
    fitting = Fitting(analysis)  # which may go on beside all that follows
    return Content(analysis, answer_of(analysis), fitting)


def write(run: Run, folder: Path | None = None, content: Content | None = None) -> Path:
    """Write ``report.md``, ``figures/`` and ``tables/`` into `folder`, by default the run's own; return the page.

    content : that of the run, where it is known already.
    Works on any run, be it interrupted or empty. Figures and tables of an earlier report there are replaced. Raises
    NotStored, in one line, where the folder cannot be written to.
    """
    place = run.folder if folder is None else folder
    page = place / REPORT
    content = content or content_of(run)
    with cannot_be_written(place):
        place.mkdir(parents=True, exist_ok=True)
        figures = Writing(draw(content.analysis), place / FIGURES, aside=content.large)
        tables = table_files.write(content.tables(), place / TABLES)
        text = render(content, figures.pictures, tables)
        figures.finish()
        page.write_text(text, encoding="utf-8")
    return page


class cannot_be_written:  # noqa: N801  # a context, read as a sentence
    """Raises NotStored in place of OSError: which folder, why, and what to do."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, fault: BaseException | None, __: object) -> None:
        if isinstance(fault, OSError):
            raise NotStored(
                f"the report cannot be written into {self.place}: {fault.strerror}; give another folder with --out"
            ) from None


def draw(analysis: Analysis) -> dict[str, Drawn]:
    """The figures that there was something to draw for, by name."""
    drawn: dict[str, Drawn | None] = {
        **verdict_figures.heat_maps(analysis),
        "trailing": verdict_figures.trailing(analysis),
        "latency": speed_figures.latency(analysis),
        "memory": speed_figures.memory(analysis),
        "ceiling": speed_figures.ceiling(analysis),
        **experiments.draw(analysis.run.findings),
    }
    return {name: one for name, one in drawn.items() if one is not None}


def render(content: Content, figures: Mapping[str, Picture], tables: Sequence[str] = ()) -> str:
    """The page as Markdown, with links to `figures` and to the `tables` of those names."""
    return layout.fill("report.md.j2", **_content(content, figures, tables))


def _content(content: Content, figures: Mapping[str, Picture], files: Sequence[str]) -> dict[str, Any]:
    analysis, run = content.analysis, content.analysis.run
    groups = [_group(analysis, *pair) for pair in zip(analysis.groups, content.fitting.found, strict=True)]
    shown = {name: picture_link(one.says, f"{FIGURES}/{one.file.name}") for name, one in figures.items()}
    return {
        "answer": content.answer,
        "about": sentences.about(analysis),
        "models": sentences.models(analysis),
        "warnings": sentences.warnings(analysis),
        "verdict_figures": [link for name, link in shown.items() if name.startswith(("winners", "speedups"))],
        "time_figures": [shown[name] for name in ("trailing", "latency") if name in shown],
        "figures": {name: shown.get(name) for name in ("memory", "ceiling")},
        "groups": groups,
        "most_groups": MOST_GROUPS,
        "kinds": layout.markdown(
            ["workloads", "use"], [[one.name, one.line] for one in content.answer.groups], left=2, narrow=True
        ),
        "linked": lambda name: linked(name, f"{TABLES}/{name}.csv"),
        "any_speed": bool(analysis.won),
        "any_peaks": any(one["peaks"] for one in groups),
        "two_speeds": sentences.two_speeds(analysis),
        "growth_level": units.percent(growth.LEVEL),
        "growth_worst": units.percent(growth.WORST),
        "accuracy": tables.accuracy(analysis),
        "lower": [said for group in analysis.groups for said in lower_precision(analysis, group)],
        "ceilings": layout.table(run.ceilings, tables.CEILINGS),
        "overview": as_ran.overview(analysis),
        "fallbacks": as_ran.fallbacks(analysis),
        "left_out": appendix.left_out(analysis),
        "storages": storages.content(analysis),
        "blocks": blocks.content(analysis),
        "findings": experiments.content(run.findings, shown, TABLES),
        "self_test": sentences.self_test_summary(analysis),
        "account": appendix.account_summary(analysis),
        "environment": appendix.environment(analysis),
        "margin": units.percent(analysis.margin),
        "command": run.command,
        "files": ", ".join(linked(name, f"{TABLES}/{name}.csv") for name in files),
        "parquet": table_files.with_parquet(),
    }


def _group(analysis: Analysis, group: Group, fits: Fits) -> dict[str, Any]:
    return {
        "heading": f"**{group.name}**\n\n" if group.name else "",
        "name": group.name,
        "peaks": tables.peaks(analysis, group),
        "further": tables.further(analysis, group),
        "growth_sentences": growths.sentences(group, fits),
    }
