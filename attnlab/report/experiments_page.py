"""The page of all experiments, without any race, and of the claims that they decide."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.experiments.claim import Claim, ClaimVerdict, Ledger
from attnlab.experiments.finding import Finding
from attnlab.report import data_tables, layout
from attnlab.report.experiments import content, draw, first_sentence, left_out, passed
from attnlab.report.formats import Writing
from attnlab.report.layout import markdown, picture_link, shortened

PAGE, STORE, CLAIMS, FIGURES, TABLES = "numerics.md", "numerics.json", "claims.json", "figures", "tables"
#: letters of what is said of an experiment in the table of all
_MOST = 165
#: conditions of a row that do not belong to the question: who answered, and what the answer showed
_ANSWERS = ("backend", "precision", "subnormals", "counted", "reason")
_MARKS = {
    ClaimVerdict.CONFIRMED: "✓ confirmed",
    ClaimVerdict.CONDITIONAL: "~ conditional",
    ClaimVerdict.REFUTED: "✗ refuted",
    ClaimVerdict.NOT_MEASURABLE: "· not measurable",
}


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
    stored: dict[str, Any] = {STORE: [finding.to_dict() for finding in findings]}
    tables = {f"finding-{one.experiment}": data_tables.finding_rows(one.rows) for one in findings}
    tables["facts"] = [
        {"experiment": one.experiment, "fact": name, "value": str(fact)}
        for one in findings
        for name, fact in one.facts.items()
    ]
    if ledger:
        stored[CLAIMS], tables["claims"] = ledger.to_dict(), ledger.rows()
    for name, plain in stored.items():
        (folder / name).write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    written = Writing(draw(findings), folder / FIGURES).pictures
    pictures = {name: picture_link(one.says, f"{FIGURES}/{one.file.name}") for name, one in written.items()}
    data_tables.write(tables.items(), folder / TABLES)
    text = layout.fill(
        "experiments.md.j2",
        count=len(findings),
        missed=[one.title for one in findings if not one.passed],
        compared=compared(findings),
        seconds=sum(float(one.facts.get("seconds", 0.0)) for one in findings),
        cpu=environment.get("cpu"),
        date=datetime.now(UTC).date(),
        overview=overview(findings),
        findings=content(findings, pictures, TABLES),
        left_out=left_out(findings),
        ledger=ledger,
        counts=", ".join(f"{count} {verdict}" for verdict, count in ledger.counts.items() if count)
        if ledger
        else "",
        themes=_themes(ledger.entries) if ledger else {},
        command=command,
    )
    (folder / PAGE).write_text(text, encoding="utf-8")
    return folder / PAGE


def compared(findings: Sequence[Finding]) -> str:
    """How many comparisons there are, and of how many questions: all backends are asked the same, on the same draws."""
    rows = [(one.experiment, row) for one in findings for row in one.rows if row.compared]
    asked = [
        (name, row.quantity, *sorted((key, str(row.where[key])) for key in row.where if key not in _ANSWERS))
        for name, row in rows
    ]
    return f"{len(rows):,} comparisons on {len(set(asked)):,} questions"


def overview(findings: Sequence[Finding]) -> str:
    """A row an experiment: what was found, of which the chapter says all, and how many comparisons passed."""
    rows = [[one.title, _found(one), "{} of {}".format(*passed(one))] for one in findings]
    return markdown(["experiment", "what was found", "passed"], rows, left=2, narrow=True)


def _found(finding: Finding) -> str:
    """The first sentence of the conclusion, up to the last clause of it that ends before `_MOST` letters."""
    sentence = first_sentence(finding.conclusion)
    if len(sentence) <= _MOST:
        return sentence
    starts = (sentence[: one.start()] for one in re.finditer(r"[;,:] | \(", sentence[:_MOST]))
    ends = [len(one) for one in starts if one.count("(") == one.count(")")]  # not within brackets
    return f"{sentence[: ends[-1]]} …" if ends else shortened(sentence, _MOST)


def _themes(entries: Iterable[Claim]) -> dict[str, str]:
    """A table of claims by theme."""
    themes: dict[str, list[list[str]]] = {}
    for one in entries:
        verdict, figure = one.verdict_in(_MARKS), one.deciding_figure
        cells = [f"`{one.id}`", one.says, verdict, one.truth, figure, one.reference]
        themes.setdefault(one.theme, []).append(cells)
    headers = ["id", "claim", "verdict", "what is so", "deciding figure", "read more"]
    return {theme: markdown(headers, rows, left=6, narrow=True) for theme, rows in themes.items()}
