"""A report in another form than Markdown: HTML, JSON, CSV, and one line for a continuous integration job."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from attnlab import units
from attnlab.report import data_tables, page, sentences, table_files
from attnlab.report.analysis import analyse
from attnlab.report.answer import answer_of
from attnlab.report.figure_files import Writing
from attnlab.report.html_page import html_page
from attnlab.report.layout import plain
from attnlab.runs.store import Run

HTML = "report.html"


def write_html(run: Run, folder: Path | None = None, content: page.Content | None = None) -> Path:
    """Write ``report.html`` into `folder`, by default the run's own, with its figures inside; return its path.

    content : that of the run, where it is known already.

    Raises NotStored where the folder cannot be written to.
    """
    place = run.folder if folder is None else folder
    content = content or page.content_of(run)
    with page.cannot_be_written(place), tempfile.TemporaryDirectory() as drawing:
        place.mkdir(parents=True, exist_ok=True)
        figures = Writing(page.draw(content.analysis), Path(drawing), aside=content.large)
        tables = table_files.write(content.tables(), place / page.TABLES)
        text = page.render(content, figures.pictures, tables)
        figures.finish()
        (place / HTML).write_text(html_page(text, figures.pictures), encoding="utf-8")
    return place / HTML


def json_text(run: Run) -> str:
    """What the report says as one JSON object: ``answer``, ``sentences``, ``warnings``, and every table by its name.

    Numbers are in base units; infinities and nan are null.
    """
    content = page.content_of(run)
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
    return json.dumps(table_files.plain(told), indent=1, ensure_ascii=False, allow_nan=False)


def csv_text(run: Run) -> str:
    """The table ``results``: a row a contender and workload, whatever became of it."""
    return table_files.csv_text(data_tables.results(analyse(run)))


def summary(run: Run) -> str:
    """One line of Markdown: the answer, how much was measured, how sure, and what to worry about."""
    analysis = analyse(run)
    answer = answer_of(analysis)
    measured = sum(bool(cell.measured) for cell in analysis.cells)
    told = [answer.line, *answer.sentences[:1]]
    warned = len(sentences.warnings(analysis))
    told.append(
        f"{measured} of {len(analysis.cells)} workloads measured, margin ±{units.percent(analysis.margin)}."
    )
    if warned:
        told.append(f"{warned} warning{'s' if warned > 1 else ''}: see the report.")
    return " ".join(told)
