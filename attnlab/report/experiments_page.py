"""The pages that are of no run: all experiments with the claims that they decide, and the support matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from attnlab import figure_style, lab
from attnlab.correctness.support import BASE, FAULT, YES, Support
from attnlab.report.render import fill

PAGE, STORE, CLAIMS, FIGURES = "numerics.md", "numerics.json", "claims.json", "figures"
#: rows shown of an experiment that missed their prediction
_MOST_FAILED = 10


def sections(findings: Sequence[lab.Finding], folder: Path) -> list[dict[str, Any]]:
    """What templates show of each finding; its figures are drawn into ``figures`` of `folder`.

    Raises OSError where the folder cannot be written to.
    """
    from attnlab.lab.draw import draw

    shown = []
    for one in findings:
        known = lab.load_experiment(one.experiment) if one.experiment in lab.EXPERIMENTS else None
        pictures = []
        for at, chart in enumerate(known.charts if known else ()):
            if figure := draw(chart, one.rows):
                link = f"{FIGURES}/finding-{one.experiment}-{at}.png"
                figure_style.save(figure, folder / link)
                pictures.append({"says": f"{one.title}: {chart.title}", "link": link})
        closest: dict[str, lab.Row] = {}
        for row in one.rows:
            if row.quantity not in closest or row.excess > closest[row.quantity].excess:
                closest[row.quantity] = row
        shown.append(
            {
                **{name: getattr(one, name) for name in ("title", "question", "conclusion")},
                "theory": known.texts[1] if known else "",
                "lesson": known.lesson if known else "",
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
    stored: dict[str, Any] = {STORE: msgspec.to_builtins(findings)}
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


Reasons = dict[str, int]


def support_text(found: Sequence[Support]) -> str:
    """The whole page as Markdown: for each device what could be asked, a table for each direction, and the reasons."""
    reasons: Reasons = {}
    devices = {
        device: [one for one in found if one.device == device]
        for device in dict.fromkeys(one.device for one in found)
    }
    tables = [
        {"device": device, "direction": direction, **_direction(mine, direction, reasons)}
        for device, mine in devices.items()
        for direction in dict.fromkeys(name for one in mine for by in one.answers.values() for name in by)
    ]
    formats = {one.backend: _formats(one) for one in found}
    return fill("support.md.j2", base=BASE, found=found, formats=formats, tables=tables, reasons=reasons)


def _formats(one: Support) -> list[str]:
    """The number formats in which it does anything at all."""
    answers = [dtypes for by in one.answers.values() for dtypes in by.values()]
    return [name for name in (answers[0] if answers else ()) if any(_does(each[name]) for each in answers)]


def _does(answer: str) -> bool:
    return answer == YES or answer.startswith(FAULT)


def _direction(found: Sequence[Support], direction: str, reasons: Reasons) -> dict[str, Any]:
    """The backends that do anything in a direction with a cell for each feature, and why the others do nothing."""
    shown, without = [], {}
    for one in (one for one in found if one.answers):
        answers = [by[direction] for by in one.answers.values()]
        if any(_does(answer) for dtypes in answers for answer in dtypes.values()):
            shown.append(one)
        else:
            without[one.backend] = answers[0][next(iter(_formats(one) or answers[0]))]
    rows = {
        feature: [_cell(one.answers[feature][direction], _formats(one), reasons) for one in shown]
        for feature in dict.fromkeys(name for one in shown for name in one.answers)
    }
    return {"backends": [one.backend for one in shown], "without": without, "rows": rows}


def _cell(answers: Mapping[str, str], formats: Sequence[str], reasons: Reasons) -> dict[str, Any]:
    """`formats` : in which it does it, None for all that it has; `whys` : the numbers of the reasons for the others."""
    whys = dict.fromkeys(answers[name] for name in formats if answers[name] != YES)
    does = [name.replace("float", "f") for name in formats if answers[name] == YES]
    numbers = [reasons.setdefault(why, len(reasons) + 1) for why in whys]
    return {
        "formats": does if whys else None,
        "whys": numbers,
        "fault": any(why.startswith(FAULT) for why in whys),
    }
