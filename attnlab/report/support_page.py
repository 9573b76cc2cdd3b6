"""The support matrix as Markdown: a table a backend, and a short one of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnlab.report.layout import markdown
from attnlab.runs.features import BASE
from attnlab.runs.support import FAULT, YES, Support
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


def page(found: Sequence[Support]) -> str:
    """The whole page."""
    lines = [
        "# What each backend supports",
        "",
        "Each backend was asked for every feature in every direction and number format, on a small workload "
        f"(batch {BASE.batch}, {BASE.heads} heads, {BASE.keys} queries and keys, head_dim {BASE.head_dim}). "
        "**yes** means that it does not decline, was run once and was right by the check that precedes every race. "
        "A number format alone means yes in that one; a number in brackets is the reason for the others, below the "
        "table. Large shapes are another question: `attnlab compare` answers it.",
        "",
        "`attnlab backends --matrix` asks anew on your machine.",
    ]
    for device in dict.fromkeys(one.device for one in found):
        mine = [one for one in found if one.device == device]
        there = [one for one in mine if one.unavailable is None]
        lines += ["", f"## In short, on {device}", "", short(there) or "No backend could be asked."]
        absent = [[f"`{one.backend}`", one.unavailable or ""] for one in mine if one.unavailable is not None]
        if absent:
            lines += ["", f"Not asked on {device}:", "", markdown(["backend", "why"], absent, left=2)]
        for one in there:
            lines += ["", f"## {one.backend} on {device}", "", *_backend(one)]
    return "\n".join(lines) + "\n"


def short(found: Sequence[Support]) -> str:
    """A row a backend: the features that people ask for first, forward in float32; gradients; number formats."""
    rows = []
    asked = [one for one in found if one.unavailable is None]
    shown = [one.backend for one in asked if not _never(one, *_axes(one))]
    for one in asked:
        if one.backend not in shown:
            continue
        cells = [_all(one, features) for features in SHORT.values()]
        plain = next(iter(one.answers.values()))
        gradients = [name for name in ("training",) if plain.get(name, {}).get(_DTYPE) == YES]
        formats = [dtype for dtype, answer in plain[_DIRECTION].items() if answer == YES]
        rows.append([f"`{one.backend}`", *cells, YES if gradients else NO, ", ".join(formats) or NO])
    left_out = [f"`{one.backend}`" for one in asked if one.backend not in shown]
    table = markdown(["backend", *SHORT, "gradients", "number formats"], rows, left=len(SHORT) + 3)
    rest = f"Of {listed(left_out)} nothing runs here." if left_out else ""
    return "\n\n".join(filter(None, (table, rest)))


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
        rows.append(
            [feature, f"{len(able)} of {len(asked)}", "all" if not unable else some if able else "none"]
        )
    return markdown(["", "backends", "which"], rows, left=3)


def _all(one: Support, features: Sequence[str]) -> str:
    """Yes where it has all of `features`, forward in float32."""
    answers = (one.answers.get(name, {}).get(_DIRECTION, {}).get(_DTYPE) for name in features)
    return YES if all(answer == YES for answer in answers) else NO


def _backend(one: Support) -> list[str]:
    """What is the same throughout in a sentence, the rest as a table, and the reasons."""
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    lines = [f"Asked with {versions}."] if versions else []
    directions, dtypes = _axes(one)
    without = {name: why for name in dtypes if (why := _never(one, directions, (name,)))}
    dtypes = [name for name in dtypes if name not in without]
    never = {name: why for name in directions if dtypes and (why := _never(one, (name,), dtypes))}
    directions = [name for name in directions if name not in never]
    by_reason: dict[str, list[str]] = {}
    for name, why in (*never.items(), *without.items()):
        by_reason.setdefault(why, []).append(name)
    if len(by_reason) == 1 and not dtypes:
        return [" ".join([*lines, f"Nothing is supported: {next(iter(by_reason))}."])]
    lines += [f"No {listed(names, 'and no')}: {why}." for why, names in by_reason.items()]
    if not directions or not dtypes:
        return [" ".join(lines)]
    reasons: dict[str, int] = {}
    rows = []
    for feature, answers in one.answers.items():
        cells = [_cell({dtype: answers[name][dtype] for dtype in dtypes}, reasons) for name in directions]
        rows.append([feature, *cells])
    table = markdown(["", *directions], rows, left=len(directions) + 1)
    return [" ".join(lines), "", table, *_notes(reasons)]


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


def _cell(answers: Mapping[str, str], reasons: dict[str, int]) -> str:
    """``yes``, ``float32, float64 (1)``, ``– (2)``, or a fault."""
    whys = list(dict.fromkeys(answer for answer in answers.values() if answer != YES))
    done = [dtype for dtype, answer in answers.items() if answer == YES]
    if not whys:
        return YES
    numbers = ", ".join(str(reasons.setdefault(why, len(reasons) + 1)) for why in whys)
    fault = "**fault** " if any(why.startswith(FAULT) for why in whys) else ""
    return f"{fault}{', '.join(done) or NO} ({numbers})"


def _notes(reasons: Mapping[str, int]) -> list[str]:
    return ["", *(f"{number}. {why}" for why, number in reasons.items())] if reasons else []
