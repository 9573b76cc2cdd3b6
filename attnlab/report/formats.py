"""A report of a run in its forms: Markdown or HTML with figures and tables beside it, JSON, CSV, one line for CI."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnlab import figures, units
from attnlab.errors import NotStored
from attnlab.figures import Drawn
from attnlab.judge import growth
from attnlab.judge.growth import Fitting
from attnlab.plain import finite
from attnlab.report import (
    as_ran,
    data_tables,
    experiments,
    layout,
    sentences,
    speed_figures,
    tables,
    verdict_figures,
)
from attnlab.report.analysis import Analysis, analyse
from attnlab.report.answer import Answer, answer_of, lower_precision
from attnlab.report.html_page import html_page
from attnlab.report.layout import linked, picture_link, plain
from attnlab.runs.store import Run
from attnlab.subprocesses import Aside
from attnlab.system import cores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT, HTML, FIGURES, TABLES = "report.md", "report.html", "figures", "tables"
#: groups of workloads that have tables of their own on the page
MOST_GROUPS = 16
#: results whose tables take as long as figures do to be written
LARGE = 5000


@dataclass(frozen=True)
class Content:
    """A run as a report shows it, whatever the form: read and judged."""

    analysis: Analysis

    @cached_property
    def answer(self) -> Answer:
        """Whom to use, in words."""
        return answer_of(self.analysis)

    @cached_property
    def fitting(self) -> Fitting:
        """The fits of growth; many are begun when this is first asked for, and go on beside what follows."""
        return Fitting(self.analysis)

    @property
    def large(self) -> bool:
        """Whether a part of the work is worth a process of its own, on a machine that can do two things at once."""
        return len(self.analysis.run.results) >= LARGE and cores() > 1

    def tables(self) -> Iterator[tuple[str, data_tables.Table]]:
        """Its tables of plain values with their names, one by one: of a large run all together fill the memory."""
        return data_tables.tables(self.analysis, self.fitting)


def content_of(run: Run) -> Content:
    """Everything that a report of `run` says."""
    return Content(analyse(run))


# -- figures as files --------------------------------------------------------------------------------


class Picture(NamedTuple):
    """A figure as PNG, with the SVG beside it: its file, and what it shows in words."""

    file: Path
    says: str


class Writing:
    """Figures on their way into `folder`, from which those of an earlier report are removed.

    aside : they are written while the caller goes on, in a process of their own, and else at once.
    Raises OSError where the folder cannot be written to.
    """

    def __init__(self, drawn: Mapping[str, Drawn], folder: Path, *, aside: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("*.png"), *folder.glob("*.svg")):
            old.unlink()
        self.pictures = {name: Picture(folder / f"{name}.png", one.says) for name, one in drawn.items()}
        every = [(one.figure, self.pictures[name].file) for name, one in drawn.items()]
        self._aside = Aside(_save_all, every) if aside else None
        self._fault = None if aside else _save_all(every)

    def finish(self) -> None:
        """Wait until all of them are there. Raises OSError where they cannot be written."""
        fault = self._fault if self._aside is None else self._aside.result()
        if fault is not None:
            raise fault


def _save_all(every: Sequence[tuple[Figure, Path]]) -> OSError | None:
    """Save each of them, and return why that could not be done, if so: another process cannot raise it here."""
    try:
        for figure, file in every:
            figures.save(figure, file)
    except OSError as fault:
        return fault
    return None


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


# -- Markdown and HTML -------------------------------------------------------------------------------


def write(run: Run, folder: Path | None = None, content: Content | None = None) -> Path:
    """Write ``report.md``, ``figures/`` and ``tables/`` into `folder`, by default the run's own; return the page.

    content : that of the run, where it is known already.
    Works on any run, be it interrupted or empty. Figures and tables of an earlier report there are replaced. Raises
    NotStored, in one line, where the folder cannot be written to.
    """
    place = run.folder if folder is None else folder
    with _written(content or content_of(run), place, place / FIGURES) as (text, _):
        (place / REPORT).write_text(text, encoding="utf-8")
    return place / REPORT


def write_html(run: Run, folder: Path | None = None, content: Content | None = None) -> Path:
    """Write ``report.html``, with its figures inside, and ``tables/``; else as `write`."""
    place = run.folder if folder is None else folder
    with (
        tempfile.TemporaryDirectory() as drawing,
        _written(content or content_of(run), place, Path(drawing)) as (text, pictures),
    ):
        (place / HTML).write_text(html_page(text, pictures), encoding="utf-8")
    return place / HTML


@contextmanager
def _written(content: Content, place: Path, drawing: Path) -> Iterator[tuple[str, Mapping[str, Picture]]]:
    """The page as Markdown and its figures, written into `drawing` with the tables in `place`.

    Raises NotStored in place of OSError: which folder, why, and what to do.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        content.fitting  # noqa: B018  # begun, it goes on beside all that follows
        writing = Writing(draw(content.analysis), drawing, aside=content.large)
        files = data_tables.write(content.tables(), place / TABLES)
        text = render(content, writing.pictures, files)
        writing.finish()
        yield text, writing.pictures
    except OSError as fault:
        raise NotStored(
            f"the report cannot be written into {place}: {fault.strerror}; give another folder with --out"
        ) from None


def render(content: Content, pictures: Mapping[str, Picture], files: Sequence[str] = ()) -> str:
    """The page as Markdown, with links to the figures and to the tables of those names."""
    analysis, run = content.analysis, content.analysis.run
    groups = [
        {
            "heading": f"**{group.name}**\n\n" if group.name else "",
            "name": group.name,
            "peaks": tables.peaks(analysis, group),
            "further": tables.further(analysis, group),
            "growth": sentences.growth(group, fits),
        }
        for group, fits in zip(analysis.groups, content.fitting.found, strict=True)
    ]
    shown = {name: picture_link(one.says, f"{FIGURES}/{one.file.name}") for name, one in pictures.items()}
    return layout.fill(
        "report.md.j2",
        analysis=analysis,
        run=run,
        answer=content.answer,
        groups=groups,
        kinds=[[one.name, one.line] for one in content.answer.groups],
        pictures=shown,
        files=[linked(name, f"{TABLES}/{name}.csv") for name in files],
        most_groups=MOST_GROUPS,
        linked=lambda name: linked(name, f"{TABLES}/{name}.csv"),
        growth=growth,
        lower_precision=lower_precision,
        as_ran=as_ran,
        sentences=sentences,
        tables=tables,
        percent=units.percent,
        markdown=layout.markdown,
        findings=experiments.content(run.findings, shown, TABLES),
        parquet=data_tables.with_parquet(),
    )


# -- plain data, and one line ------------------------------------------------------------------------


def json_text(run: Run) -> str:
    """What the report says as one JSON object: ``answer``, ``sentences``, ``warnings``, and every table by its name.

    Numbers are in base units; infinities and nan are null.
    """
    content = content_of(run)
    told = {
        "answer": plain(content.answer.line),
        "groups": [{"name": one.name, "answer": plain(one.line)} for one in content.answer.groups],
        "sentences": [plain(one) for one in content.answer.sentences],
        "warnings": [plain(one) for one in sentences.warnings(content.analysis)],
        "complete": run.complete,
        "baseline": content.analysis.baseline,
        "margin": content.analysis.margin,
        "command": run.command,
        "tables": dict(content.tables()),
    }
    return json.dumps(finite(told, named=False), indent=1, ensure_ascii=False, allow_nan=False)


def csv_text(run: Run) -> str:
    """The table ``results``: a row a contender and workload, whatever became of it."""
    return data_tables.csv_text(list(data_tables.results(analyse(run))))


def summary(run: Run) -> str:
    """One line of Markdown: the answer, how much was measured, how sure, and what to worry about."""
    content = content_of(run)
    analysis, answer = content.analysis, content.answer
    measured = sum(bool(cell.measured) for cell in analysis.cells)
    told = [answer.line, *answer.sentences[:1]]
    told.append(
        f"{measured} of {len(analysis.cells)} workloads measured, margin ±{units.percent(analysis.margin)}."
    )
    if warned := len(sentences.warnings(analysis)):
        told.append(f"{warned} warning{'s' if warned > 1 else ''}: see the report.")
    return " ".join(told)


def in_words(content: Content) -> str:
    """The verdict, its tables, the warnings and its sentences as plain text, for a terminal."""
    found = content.answer
    lines = [found.line, *(f"Warning: {one}" for one in sentences.warnings(content.analysis))]
    for group in found.groups:
        lines += ["", f"{group.name}: {group.line}"] if group.name else [""]
        lines += [group.text]
    lines += ["", found.legend] if found.legend else []
    lines += [f"- {one}" for one in found.sentences]
    return "\n".join(map(plain, lines))
