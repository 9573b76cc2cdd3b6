"""The support matrix as values for its template: a table for each device and direction, reasons by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.correctness.support import BASE, FAULT, YES, Support
from attnlab.report.render import fill

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
            without[one.backend] = next(iter(answers[0].values()))
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
