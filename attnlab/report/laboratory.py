"""The laboratory's page: every experiment that was run, without any race."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.experiments import ledger_page as claims_page
from attnlab.experiments.finding import Finding
from attnlab.experiments.ledger import Ledger
from attnlab.report import data_tables, layout
from attnlab.report import findings as chapter
from attnlab.report.data_tables import finding_rows
from attnlab.report.formats import Writing
from attnlab.report.layout import markdown, picture_link, shortened

PAGE, STORE, CLAIMS, FIGURES, TABLES = "numerics.md", "numerics.json", "claims.json", "figures", "tables"

#: letters of what is said of an experiment in the table of all
_MOST = 165
#: conditions of a row that do not belong to the question: who answered, and what the answer showed
ANSWERS = ("backend", "precision", "subnormals", "counted", "reason")


def write(
    findings: Sequence[Finding],
    folder: Path,
    *,
    environment: Mapping[str, Any],
    command: str,
    ledger: Ledger | None = None,
) -> Path:
    """Write the page, its figures, ``numerics.json`` and, with a `ledger`, ``claims.json`` into `folder`.

    Returns the page's path.

    Raises OSError where the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = [finding.to_dict() for finding in findings]
    (folder / STORE).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if ledger:
        (folder / CLAIMS).write_text(json.dumps(ledger.to_dict(), indent=1) + "\n", encoding="utf-8")
    written = Writing(chapter.draw(findings), folder / FIGURES).pictures
    pictures = {name: picture_link(one.says, f"{FIGURES}/{one.file.name}") for name, one in written.items()}
    tables = {f"finding-{one.experiment}": finding_rows(one.rows) for one in findings}
    tables["facts"] = chapter.facts(findings)
    if ledger:
        tables["claims"] = claims_page.figures(ledger)
    data_tables.write(tables.items(), folder / TABLES)
    seconds = sum(float(one.facts.get("seconds", 0.0)) for one in findings)
    about = (
        f"{len(findings)} experiments, {compared(findings)}, {seconds:.0f} s, {environment.get('cpu')}, "
        f"{datetime.now(UTC).date()}."
    )
    page = folder / PAGE
    page.write_text(
        layout.fill(
            "laboratory.md.j2",
            about=about,
            summary=summary(findings),
            overview=overview(findings),
            findings=chapter.content(findings, pictures, TABLES),
            left_out=chapter.left_out(findings),
            claims=claims_page.render(ledger) if ledger else "",
            command=command,
        ),
        encoding="utf-8",
    )
    return page


def compared(findings: Sequence[Finding]) -> str:
    """How many comparisons there are, and of how many questions: all backends are asked the same, on the same draws."""
    rows = [(one.experiment, row) for one in findings for row in one.rows if row.compared]
    questions = {
        (
            name,
            row.quantity,
            *sorted((key, str(value)) for key, value in row.where.items() if key not in ANSWERS),
        )
        for name, row in rows
    }
    return (
        f"{len(rows):,} comparisons on {len(questions):,} questions (every backend is given the same inputs, so that "
        "its sampling error is that of the others)"
    )


def summary(findings: Sequence[Finding]) -> str:
    """How many experiments held, and which did not."""
    failed = [one.title for one in findings if not one.passed]
    if not failed:
        return f"**All {len(findings)} experiments meet their predictions.**"
    held = len(findings) - len(failed)
    return f"**{held} of {len(findings)} experiments meet every prediction**; not so: {', '.join(failed)}."


def overview(findings: Sequence[Finding]) -> str:
    """A row an experiment: what was found, of which the chapter says all, and how many comparisons passed."""
    rows = [
        [one.title, _found(one), f"{sum(row.passed for row in rows)} of {len(rows)}"]
        for one in findings
        for rows in [[row for row in one.rows if row.compared]]
    ]
    return markdown(["experiment", "what was found", "passed"], rows, left=2, narrow=True)


def _found(finding: Finding) -> str:
    """The first sentence of the conclusion, up to the last clause of it that ends before `_MOST` letters."""
    sentence = chapter.first_sentence(finding.conclusion)
    if len(sentence) <= _MOST:
        return sentence
    starts = (sentence[: one.start()] for one in re.finditer(r"[;,:] | \(", sentence[:_MOST]))
    ends = [len(one) for one in starts if one.count("(") == one.count(")")]  # not within brackets
    return f"{sentence[: ends[-1]]} …" if ends else shortened(sentence, _MOST)
