"""The support matrix as Markdown: a table a direction, a short one of all backends, and one by feature."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from attnlab.report.layout import markdown
from attnlab.runs.support import BASE, FAULT, YES, Support
from attnlab.text import listed

NO = "–"
_DIRECTION, _DTYPE = "forward", "float32"
#: columns of the short table, and the features that all have to be there for a yes
SHORT: Mapping[str, Sequence[str]] = {
    "causal": ("causal, as many queries as keys",),
    "bottom-right": ("causal bottom-right, fewer queries",),
    "window": ("window and causal",),
    "key lengths": ("key lengths",),
    "any mask": ("any boolean mask",),
    "bias": ("bias",),
    "soft cap": ("soft cap",),
    "sinks": ("sinks",),
    "grouped heads": ("grouped heads", "one key head"),
    "value_dim ≠ head_dim": ("value_dim ≠ head_dim",),
}
#: numbers of the reasons, which stand at the end of the page
Reasons = dict[str, int]


def page(found: Sequence[Support]) -> str:
    """The whole page: for each device who was asked, then a table a direction; the reasons at the end."""
    reasons: Reasons = {}
    lines = [
        "# What each backend supports",
        "Each backend was asked for every feature in every direction and number format, on a small workload "
        f"(batch {BASE.batch}, {BASE.heads} heads, {BASE.keys} queries and keys, head_dim {BASE.head_dim}). "
        "**yes**: in every number format that it has it does not decline, was run once and was right by the check that "
        "precedes every race. Formats alone mean yes in those (f32 is float32, bf16 bfloat16); a number in brackets is "
        "the reason why not, at the end. Large shapes are another question, for `attnlab compare`.",
        "`attnlab backends --matrix` asks anew on your machine.",
    ]
    devices = dict.fromkeys(one.device for one in found)
    for device in devices:
        mine = [one for one in found if one.device == device]
        there = [one for one in mine if one.unavailable is None]
        lines.append(f"## {device}")
        if not there:
            lines.append("No backend could be asked.")
        absent = _by_reason((one.backend, one.unavailable) for one in mine)
        if absent and (there or len(devices) == 1):
            lines += ["Not asked:", "\n".join(f"- {names}: {why}" for why, names in absent.items())]
        if there:
            rows = [
                (f"`{one.backend}`", ", ".join(map(" ".join, one.versions.items())), _formats(one, reasons))
                for one in there
            ]
            lines.append(markdown(["backend", "asked with", "number formats"], rows, left=3, narrow=True))
        for direction in dict.fromkeys(name for one in there for name in _axes(one)[0]):
            lines += [f"## {direction}, on {device}", *_direction(there, direction, reasons)]
    if reasons:
        lines += ["## Reasons", "\n".join(f"{number}. {why}" for why, number in reasons.items())]
    return "\n\n".join(lines) + "\n"


def short(found: Sequence[Support]) -> str:
    """A row a backend: the features that people ask for first, forward in float32; gradients; number formats."""
    asked = [one for one in found if one.unavailable is None]
    shown = [one for one in asked if not _never(one, *_axes(one))]
    rows = []
    for one in shown:
        plain = next(iter(one.answers.values()))
        gradients = YES if plain.get("training", {}).get(_DTYPE) == YES else NO
        formats = [dtype for dtype, answer in plain[_DIRECTION].items() if answer == YES]
        cells = [_all(one, features) for features in SHORT.values()]
        rows.append([f"`{one.backend}`", *cells, gradients, ", ".join(formats) or NO])
    headers = ["backend", *SHORT, "gradients", "number formats"]
    left_out = [f"`{one.backend}`" for one in asked if one not in shown]
    rest = f"Of {listed(left_out)} nothing runs here." if left_out else ""
    return "\n\n".join(filter(None, (markdown(headers, rows, left=len(headers), narrow=True), rest)))


def by_feature(found: Sequence[Support]) -> str:
    """A row a feature: who has it, forward in float32, of those that compute a core at all; or who lacks it."""
    here = [one for one in found if one.unavailable is None]
    # not who computes whole blocks alone, or nothing on this device
    asked = [one for one in here if any(_all(one, needed) == YES for needed in SHORT.values())]
    rows = []
    for feature, needed in SHORT.items():
        able = [f"`{one.backend}`" for one in asked if _all(one, needed) == YES]
        unable = [f"`{one.backend}`" for one in asked if _all(one, needed) != YES]
        some = listed(able) if len(able) <= len(unable) else f"all but {listed(unable)}"
        which = "all" if not unable else some if able else "none"
        rows.append([feature, f"{len(able)} of {len(asked)}", which])
    return markdown(["", "backends", "which"], rows, left=3)


def _all(one: Support, features: Sequence[str]) -> str:
    """Yes where it has all of `features`, forward in float32."""
    answers = (one.answers.get(name, {}).get(_DIRECTION, {}).get(_DTYPE) for name in features)
    return YES if all(answer == YES for answer in answers) else NO


def _axes(one: Support) -> tuple[list[str], list[str]]:
    """The directions and the number formats that it was asked in."""
    plain = next(iter(one.answers.values()))
    return list(plain), list(next(iter(plain.values())))


def _never(one: Support, directions: Sequence[str], dtypes: Sequence[str]) -> str | None:
    """Why not even plain attention is done in these directions and formats, nor anything else; None where some is."""
    answers = [
        by_direction[name][dtype]
        for by_direction in one.answers.values()
        for name in directions
        for dtype in dtypes
    ]
    done = any(answer == YES or answer.startswith(FAULT) for answer in answers)
    return None if done else answers[0]


def _had(one: Support) -> list[str]:
    """The number formats that it has in some direction."""
    directions, dtypes = _axes(one)
    return [name for name in dtypes if not _never(one, directions, (name,))]


def _brief(dtype: str) -> str:
    """``f32`` for float32."""
    return dtype.replace("float", "f")


def _formats(one: Support, reasons: Reasons) -> str:
    """``f32, f64; not f16, bf16 (1)``."""
    directions, dtypes = _axes(one)
    without = _by_reason((_brief(name), _never(one, directions, (name,))) for name in dtypes)
    told = [f"not {names.replace('`', '')} ({_number(why, reasons)})" for why, names in without.items()]
    return "; ".join(filter(None, (", ".join(map(_brief, _had(one))), *told)))


def _direction(found: Sequence[Support], direction: str, reasons: Reasons) -> list[str]:
    """Who has nothing in this direction, and a row a feature of the others."""
    never = {one.backend: _never(one, (direction,), _had(one) or _axes(one)[1]) for one in found}
    without = _by_reason(never.items())
    shown = [one for one in found if never[one.backend] is None]
    lines = [f"Not {names} ({_number(why, reasons)})." for why, names in without.items()]
    rows = [
        [feature, *(_cell(one.answers[feature][direction], _had(one), reasons) for one in shown)]
        for feature in dict.fromkeys(name for one in shown for name in one.answers)
    ]
    headers = ["", *(f"`{one.backend}`" for one in shown)]
    return list(filter(None, ("\n".join(lines), markdown(headers, rows, left=len(headers), narrow=True))))


def _cell(answers: Mapping[str, str], dtypes: Sequence[str], reasons: Reasons) -> str:
    """``yes``, ``f32,f64 (1)``, ``(2)``, or a fault."""
    whys = dict.fromkeys(answers[dtype] for dtype in dtypes if answers[dtype] != YES)
    if not whys:
        return YES
    fault = "**fault** " if any(why.startswith(FAULT) for why in whys) else ""
    done = ",".join(_brief(dtype) for dtype in dtypes if answers[dtype] == YES)
    numbers = ",".join(dict.fromkeys(str(_number(why, reasons)) for why in whys))
    return f"{fault}{done} ({numbers})".replace("  ", " ").strip()


def _number(why: str, reasons: Reasons) -> int:
    """The number of a reason, without what its row, column or cell says: the shapes, storage, format and library."""
    general = re.sub(r", got [^:;]*|, not [^:;]*$|storage \w+: | \(d_model \d+\)", "", why)
    general = re.sub(r"attnlab's \w+ library", "attnlab's library for it", general)
    return reasons.setdefault(general, len(reasons) + 1)


def _by_reason(pairs: Iterable[tuple[str, str | None]]) -> dict[str, str]:
    """Names listed by their reason; those without one are left out."""
    found: dict[str, list[str]] = {}
    for name, why in pairs:
        if why is not None:
            found.setdefault(why, []).append(f"`{name}`")
    return {why: listed(names) for why, names in found.items()}
