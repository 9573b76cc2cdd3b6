"""The page of all experiments and of the claims that they decide; and what a run's report shows of an experiment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab import figures, lab
from attnlab.report.render import fill

PAGE, STORE, CLAIMS, FIGURES = "numerics.md", "numerics.json", "claims.json", "figures"
#: rows shown of an experiment that missed their prediction
_MOST_FAILED = 10


def chapter_of(run: Path, folder: Path) -> list[dict[str, Any]]:
    """What the report of the run in the folder `run` shows of its experiments; a damaged file is left out."""
    try:
        return sections(lab.read_chapter(run), folder)
    except ValueError:
        return []


def sections(findings: Sequence[lab.Finding], folder: Path) -> list[dict[str, Any]]:
    """What templates show of each finding; its figures are drawn into ``figures`` of `folder`.

    Raises OSError where the folder cannot be written to.
    """
    shown = []
    for section in lab.chapter(findings):
        one, pictures = section.finding, []
        for name, (figure, says) in section.figures.items():
            link = f"{FIGURES}/finding-{name}.png"
            figures.save(figure, folder / link)
            pictures.append({"says": f"{one.title}: {says}", "link": link})
        closest: dict[str, lab.Row] = {}
        for row in one.rows:
            if row.quantity not in closest or row.excess > closest[row.quantity].excess:
                closest[row.quantity] = row
        shown.append(
            {
                **{name: getattr(one, name) for name in ("title", "question", "conclusion")},
                "theory": section.theory,
                "lesson": section.lesson,
                "pictures": pictures,
                "passed": sum(row.passed for row in one.rows if row.compared),
                "compared": sum(row.compared for row in one.rows),
                "closest": list(closest.values()),
                "failed": [row for row in one.rows if not row.passed][:_MOST_FAILED],
            }
        )
    return shown


def write(
    findings: Sequence[lab.Finding],
    folder: Path,
    *,
    environment: Mapping[str, Any],
    command: str,
    claims: Sequence[lab.Claim] = (),
) -> Path:
    """Write the page, its figures, ``numerics.json`` and, with `claims`, ``claims.json`` into `folder`.

    Returns the page's path. Raises OSError where the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored: dict[str, Any] = {STORE: [one.to_dict() for one in findings]}
    if claims:
        stored[CLAIMS] = [one.to_dict() for one in claims]
    for name, plain in stored.items():
        (folder / name).write_text(json.dumps(plain, ensure_ascii=False) + "\n", encoding="utf-8")
    text = fill(
        "numerics.md.j2",
        sections=sections(findings, folder),
        claims=claims,
        missing={name: reason for one in findings for name, reason in one.missing.items()},
        cpu=environment.get("cpu"),
        date=datetime.now(UTC).date(),
        command=command,
    )
    (folder / PAGE).write_text(text, encoding="utf-8")
    return folder / PAGE
