"""The numerical chapter: for each experiment its question, theory, answer, figure and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.contract import units
from attnlab.figures import drawing
from attnlab.numerics import catalogue
from attnlab.numerics.finding import Finding, Row
from attnlab.report import wording
from attnlab.report.chapters import CHAPTERS, WORDS, Chapter
from attnlab.report.layout import linked, markdown
from attnlab.report.tables import NONE
from attnlab.report.verdict_figures import Picture

#: the backend whose rows the short table shows, where it was measured
_SHOWN = "torch_sdpa"
#: rows that missed their prediction, shown in a report
_MOST_FAILED = 10


def draw(findings: Sequence[Finding], folder: Path) -> dict[str, Picture | None]:
    """Each experiment's own figure in `folder`; one that this version does not know has its table alone."""
    return {
        f"finding-{one.experiment}": Picture(
            drawing.save(catalogue.figure(one), folder / f"finding-{one.experiment}.png"),
            f"{one.title}. {one.conclusion}",
        )
        for one in findings
        if one.experiment in catalogue.EXPERIMENTS
    }


def content(findings: Sequence[Finding], pictures: Mapping[str, str], tables: str) -> list[dict[str, Any]]:
    """What the templates show of each, with the Markdown of its picture and a link into the folder `tables`."""
    return [_content(one, pictures.get(f"finding-{one.experiment}"), tables) for one in findings]


def _content(one: Finding, picture: str | None, tables: str) -> dict[str, Any]:
    compared = [row for row in one.rows if row.compared]
    passed = sum(row.passed for row in compared)
    chapter = CHAPTERS.get(one.experiment, Chapter("", "", "", ()))
    chosen = picked(one.rows, chapter)
    return {
        "experiment": one.experiment,
        "title": one.title,
        "question": one.question,
        "theory": chapter.theory,
        "conclusion": one.conclusion,
        "lesson": chapter.lesson,
        "picture": picture,
        "caption": chapter.caption,
        "facts": conditions(one.facts),
        "chosen": table(chosen) if chosen else "",
        "failed": table([row for row in one.rows if not row.passed][:_MOST_FAILED]),
        "summary": f"{passed} of {wording.counted(len(compared), 'comparison')} passed",
        "link": linked("every row", f"{tables}/finding-{one.experiment}.csv"),
    }


def picked(rows: Sequence[Row], chapter: Chapter) -> list[Row]:
    """The rows that show best what was found, and every failed one after them."""
    names = list(dict.fromkeys(str(row.where["backend"]) for row in rows if "backend" in row.where))
    found: list[Row] = []
    for pick in chapter.picks:
        mine = [row for row in rows if pick.takes(row)]
        there = {row.where.get("backend") for row in mine}
        if not pick.every and len(there) > 1:
            # the first name that is there; the slow ones come with fewer sizes
            shown = next((name for name in (_SHOWN, *reversed(names)) if name in there), None)
            mine = [row for row in mine if row.where.get("backend") == shown]
        found += mine
    found += [row for row in rows if not row.passed and row not in found]
    return found


def conditions(facts: Mapping[str, str | float]) -> str:
    """What an experiment ran with as sentences; the backends that were left out gathered by reason."""
    plain: list[str] = []
    more: list[str] = []
    absent: dict[str, dict[str, list[str]]] = {}
    for key, value in facts.items():
        matched = re.fullmatch(r"without (\S+)(?: in (\S+))?", key)
        if matched:
            name, dtype = matched.groups()
            reason = re.sub(rf"^{re.escape(name)} declines .*?: ", "", str(value))
            absent.setdefault(reason, {}).setdefault(name, []).extend([dtype] if dtype else [])
        elif key == "backends":
            named = wording.named(str(value).split(", "))
            plain.append("through " + (named if value != "none" else "no backend"))
        elif key == "seconds":
            plain.append(f"in {float(value):.1f} s")
        elif key == "dtype":
            plain.append(f"in {value}")
        elif isinstance(value, int | float):
            plain.append(f"{key} {_short(value)}")
        else:
            more.append(f" {key[0].upper()}{key[1:]}: {value}.")
    text = f"Ran with {', '.join(plain)}." if plain else ""
    text += "".join(more)
    for reason, names in absent.items():
        formats = list(dict.fromkeys(dtype for dtypes in names.values() for dtype in dtypes))
        # what cannot be done in all formats is not for want of one
        within = f" in {wording.listed(formats)}" if len(formats) == 1 else ""
        text += f" Left out{within}: {wording.named(names)} ({reason})."
    return text.strip()


def table(rows: Iterable[Row]) -> str:
    """Predicted against measured, row by row."""
    rows = list(rows)
    keys = list(dict.fromkeys(key for row in rows for key in row.where))
    cells = [
        [
            _word(row.quantity),
            *(_short(row.where.get(key, NONE)) for key in keys),
            _predicted(row),
            units.figures(row.measured, 4),
            units.figures(row.standard_error, 2) if row.standard_error else NONE,
            NONE if row.passed and not row.compared else "pass" if row.passed else "**FAIL**",
        ]
        for row in rows
    ]
    headers = ["quantity", *map(_word, keys), "predicted", "measured", "standard error", "verdict"]
    return markdown(headers, cells)


def _predicted(row: Row) -> str:
    """The predicted figure, or the bound that it is: ``≤ 1.000``; a dash where nothing is predicted."""
    if not row.compared:
        return NONE
    figure = units.figures(row.predicted, 4)
    return figure if row.relation == "=" else f"{row.relation} {figure}"


def _word(name: str) -> str:
    return WORDS.get(name, name)


def _short(value: str | float) -> str:
    if isinstance(value, str):
        return _word(value)
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
