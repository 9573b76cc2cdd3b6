"""The tables behind the figures: who was left out, the self-test, the machine, and where the time went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnlab.contract import units
from attnlab.contract.result import Outcome
from attnlab.report import wording
from attnlab.report.analysis import Analysis, At
from attnlab.report.layout import markdown
from attnlab.statistics.selftest import Twin

WORDS = {
    Outcome.DECLINED: "declined",
    Outcome.UNAVAILABLE: "not available here",
    Outcome.WRONG: "wrong",
    Outcome.OVER_BUDGET: "over budget, not tried",
    Outcome.CRASHED: "crashed",
    Outcome.TIMED_OUT: "timed out",
}
#: the ratio of the second entry to the first, by column
SELF_TEST: Mapping[str, Callable[[Twin], object]] = {
    "workload": lambda twin: twin.workload.label,
    "contender": lambda twin: f"`{twin.contender}`",
    "second / first": lambda twin: units.ratio(twin.verdict.ratio),
    "interval": lambda twin: units.interval(twin.verdict.low, twin.verdict.high),
    "processes": lambda twin: twin.verdict.processes,
    "between processes": lambda twin: "" if twin.between is None else f"± {units.percent(twin.between)}",
    "rounds": lambda twin: twin.verdict.rounds,
    "left out": lambda twin: twin.verdict.disturbed,
    "": lambda twin: "**differs**" if twin.differs else str(twin.verdict.kind),
}
#: activities in which a contender itself was at work
AT_WORK = ("timed", "warm-up", "memory", "instruments")


def left_out(analysis: Analysis) -> str:
    """One row for each contender and kind of outcome: where, and the reasons, of which one is shown."""
    rows = []
    for name in analysis.names:
        for group in analysis.groups:
            missing: dict[str, dict[At, str]] = {}
            for at, cell in sorted(group.cells.items()):
                answer = cell.answers.get(name)
                if name in cell.faults:
                    missing.setdefault("failed measurement", {})[at] = cell.faults[name]
                elif answer is not None and answer.outcome is not Outcome.MEASURED:
                    missing.setdefault(WORDS[answer.outcome], {})[at] = answer.reason or ""
            for what, reasons in missing.items():
                everywhere = len(reasons) == len(group.cells)
                place = "everywhere" if everywhere else wording.where(reasons, group.grid)
                if group.name:
                    place += f" ({group.name})"
                rows.append([f"`{name}`", what, place, _reasons(list(reasons.values()))])
    return markdown(["contender", "outcome", "where", "why"], rows, left=4)


def _reasons(reasons: list[str]) -> str:
    distinct = list(dict.fromkeys(reasons))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} (the first of {len(distinct)})"


def environment(analysis: Analysis) -> str:
    """Every entry of the environment; contenders with equal facts share a row."""
    return markdown(["", ""], [[name, text] for name, text in _entries(analysis.run.environment)], left=2)


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


def account(analysis: Analysis) -> str:
    """Seconds by activity, the longest first, with shares of the total."""
    spent = analysis.run.account
    total = sum(spent.values())
    if total <= 0:
        return ""
    ordered = sorted(spent.items(), key=lambda item: -item[1])
    rows = [[name, f"{value:.1f} s", f"{value / total:.0%}"] for name, value in ordered]
    return markdown(["activity", "time", "share"], [*rows, ["**total**", f"{total:.1f} s", "100%"]])


def account_summary(analysis: Analysis) -> str:
    """How much of the time contenders themselves were at work."""
    spent = analysis.run.account
    total = sum(spent.values())
    if total <= 0:
        return "The run's time was not recorded."
    working = sum(spent.get(name, 0.0) for name in AT_WORK)
    return (
        f"Timed, warm-up and memory calls took {working / total:.0%} of {total:.0f} s; "
        "the rest is start-up, checking, and changing from one contender's process to the next."
    )
