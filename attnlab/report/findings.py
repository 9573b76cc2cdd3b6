"""The numerical chapter: for each experiment its question, theory, answer, figure and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab import units
from attnlab.experiments import catalogue
from attnlab.experiments.finding import Finding, Row
from attnlab.figures import Drawn
from attnlab.report.chapters import CHAPTERS, WORDS, Chapter
from attnlab.report.layout import NONE, linked, markdown
from attnlab.text import counted, listed, named

#: the backend whose rows the short table shows, where it was measured
_SHOWN = "torch_sdpa"
#: rows shown of an experiment: that were picked, and that missed their prediction
_MOST_SHOWN, _MOST_FAILED = 10, 10
_WITHOUT = r"without (\S+)(?: in (\S+))?"


def draw(findings: Sequence[Finding]) -> dict[str, Drawn]:
    """Each experiment's own figure; one that this version does not know has its table alone."""
    return {
        f"finding-{one.experiment}": Drawn(
            catalogue.figure(one), f"{one.title}. {first_sentence(one.conclusion)}"
        )
        for one in findings
        if one.experiment in catalogue.EXPERIMENTS
    }


def first_sentence(text: str) -> str:
    """Up to the first full stop that ends a sentence."""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", text, maxsplit=1)[0]


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
        "summary": f"{passed} of {counted(len(compared), 'comparison')} passed",
        "link": linked("every row", f"{tables}/finding-{one.experiment}.csv"),
    }


def picked(rows: Sequence[Row], chapter: Chapter) -> list[Row]:
    """The rows that show best what was found, a few of each pick, and every failed one after them."""
    names = list(dict.fromkeys(str(row.where["backend"]) for row in rows if "backend" in row.where))
    every: list[list[Row]] = []
    for pick in chapter.picks:
        mine = [row for row in rows if pick.takes(row)]
        there = {row.where.get("backend") for row in mine}
        if not pick.every and len(there) > 1:
            # the first name that is there; the slow ones come with fewer sizes
            shown = next((name for name in (_SHOWN, *reversed(names)) if name in there), None)
            mine = [row for row in mine if row.where.get("backend") == shown]
        every.append(mine)
    few = _ends(every, _MOST_SHOWN)
    return few + [row for row in rows if not row.passed and row not in few][:_MOST_FAILED]


def _ends(every: Sequence[Sequence[Row]], most: int) -> list[Row]:
    """About `most` of the rows in all, as many of each list: its first, its last, and those evenly between."""
    each = max(1, most // max(1, sum(map(bool, every))))
    found: list[Row] = []
    for rows in every:
        count = min(each, len(rows))
        places = [round(at * (len(rows) - 1) / max(1, count - 1)) for at in range(count)]
        found += [rows[at] for at in places]
    return found[:most]


def conditions(facts: Mapping[str, str | float]) -> str:
    """What an experiment ran with as sentences; who was left out is told once for all of them, by `left_out`."""
    plain: list[str] = []
    more: list[str] = []
    for key, value in facts.items():
        if re.fullmatch(_WITHOUT, key):
            continue
        if key == "backends":
            count = len(str(value).split(", "))
            plain.append("through " + (counted(count, "backend") if value != "none" else "no backend"))
        elif key == "seconds":
            plain.append(f"in {float(value):.1f} s")
        elif key == "dtype":
            plain.append(f"in {value}")
        elif isinstance(value, int | float):
            plain.append(f"{key} {_short(value)}")
        else:
            more.append(f" {key[0].upper()}{key[1:]}: {value}.")
    return ((f"Ran with {', '.join(plain)}." if plain else "") + "".join(more)).strip()


def left_out(findings: Iterable[Finding]) -> list[str]:
    """Who took no part in some experiment, a sentence a reason."""
    absent: dict[str, dict[str, list[str]]] = {}
    for key, value in ((key, value) for one in findings for key, value in one.facts.items()):
        matched = re.fullmatch(_WITHOUT, key)
        if matched:
            name, dtype = matched.groups()
            reason = re.sub(rf"^{re.escape(name)} declines .*?: ", "", str(value))
            formats = absent.setdefault(reason, {}).setdefault(name, [])
            formats += [dtype] if dtype and dtype not in formats else []
    told = []
    for reason, names in absent.items():
        formats = list(dict.fromkeys(dtype for dtypes in names.values() for dtype in dtypes))
        # what cannot be done in all formats is not for want of one
        within = f" in {listed(formats)}" if len(formats) == 1 else ""
        told.append(f"{named(list(names))}{within}: {reason}")
    return told


def facts(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """What each experiment ran with as plain values, a row a fact."""
    return [
        {"experiment": one.experiment, "fact": name, "value": str(value)}
        for one in findings
        for name, value in one.facts.items()
    ]


def table(rows: Iterable[Row]) -> str:
    """Predicted against measured, row by row."""
    rows = list(rows)
    keys = list(dict.fromkeys(key for row in rows for key in row.where))
    cells = [
        [
            _word(row.quantity),
            *(_short(row.where.get(key, NONE)) for key in keys),
            _predicted(row),
            units.number_text(row.measured, 4),
            units.number_text(row.standard_error, 2) if row.standard_error else NONE,
            NONE if row.passed and not row.compared else "pass" if row.passed else "**FAIL**",
        ]
        for row in rows
    ]
    headers = ["quantity", *map(_word, keys), "predicted", "measured", "standard error", "verdict"]
    return markdown(headers, cells, narrow=True)


def _predicted(row: Row) -> str:
    """The predicted figure, or the bound that it is: ``≤ 1.000``; a dash where nothing is predicted."""
    if not row.compared:
        return NONE
    figure = units.number_text(row.predicted, 4)
    return figure if row.relation == "=" else f"{row.relation} {figure}"


def _word(name: str) -> str:
    return WORDS.get(name, name)


def _short(value: str | float) -> str:
    if isinstance(value, str):
        return _word(value)
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
