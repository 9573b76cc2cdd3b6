"""Who was left out, the machine, and where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attnlab import units
from attnlab.problem.result import Outcome
from attnlab.report.analysis import Analysis
from attnlab.report.layout import markdown, shortened

WORDS = {
    Outcome.DECLINED: "declined",
    Outcome.UNAVAILABLE: "not available here",
    Outcome.WRONG: "wrong",
    Outcome.OVER_BUDGET: "over budget, not tried",
    Outcome.CRASHED: "crashed",
    Outcome.TIMED_OUT: "timed out",
}
#: activities in which a contender itself was at work
AT_WORK = ("timed", "warm-up", "memory", "instruments")


def left_out(analysis: Analysis) -> str:
    """One row for each contender and kind of outcome: at how many workloads, and a reason."""
    missing: dict[tuple[str, str], list[str]] = {}
    asked: dict[str, int] = {}
    for cell in analysis.cells:
        for name, answer in cell.answers.items():
            asked[name] = asked.get(name, 0) + 1
            if name in cell.faults:
                missing.setdefault((name, "failed measurement"), []).append(cell.faults[name])
            elif answer.outcome is not Outcome.MEASURED:
                missing.setdefault((name, WORDS[answer.outcome]), []).append(answer.reason or "")
    order = {name: place for place, name in enumerate(analysis.names)}
    rows = [
        [f"`{name}`", what, f"{len(every)} of {asked[name]}", _reasons(every)]
        for (name, what), every in sorted(missing.items(), key=lambda one: order[one[0][0]])
    ]
    return markdown(["contender", "outcome", "at", "why"], rows, left=4)


def _reasons(reasons: list[str]) -> str:
    distinct = list(dict.fromkeys(reasons))
    first = shortened(distinct[0], 160)
    return first if len(distinct) == 1 else f"{first} (the first of {len(distinct)})"


def environment(analysis: Analysis) -> str:
    """What of the environment changes a time, in a few rows; the table beside the page has every entry."""
    rows = [
        [name, shortened(text, 90)] for name, text in entries(analysis.run.environment) if ": " not in name
    ]
    return markdown(["", ""], rows, left=2)


def entries(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Every entry of the environment; contenders with equal facts share one."""
    return list(_entries(facts))


def _entries(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ") if not prefix else f"{prefix}{name}"
        if name.endswith("_bytes") and isinstance(value, int):
            yield label.removesuffix(" bytes"), units.bytes_text(value)
        elif isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
            yield from _alike(label, value)
        elif isinstance(value, Mapping) and value:
            yield from _entries(value, f"{label}: ")
        else:
            yield label, _text(value)


def _alike(label: str, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Rows for the owners of facts, those with equal ones together."""
    owners: dict[str, list[str]] = {}
    for owner, known in facts.items():
        owners.setdefault(_text(known), []).append(owner)
    for text, names in owners.items():
        yield f"{label}: {', '.join(names)}", text


def _text(value: Any) -> str:
    if value is None:
        return "not readable here"
    if isinstance(value, Mapping):
        known = {name: one for name, one in value.items() if one is not None}
        return "; ".join(f"{name} {_text(one)}" for name, one in known.items()) or "none"
    if isinstance(value, list | tuple):
        texts = [_text(one) for one in value]
        return ", ".join(sorted(texts) if any(isinstance(one, Mapping) for one in value) else texts) or "none"
    return str(value)


def account_summary(analysis: Analysis) -> str:
    """How much of the time contenders themselves were at work."""
    spent = analysis.run.account
    total = sum(spent.values())
    if total <= 0:
        return "The run's time was not recorded."
    working = sum(spent.get(name, 0.0) for name in AT_WORK)
    return (
        f"Timed, warm-up and memory calls took {units.percent(working / total)} of {total:.0f} s; "
        "the rest is start-up, checking, and changing from one contender's process to the next."
    )
