"""A run as a report may show it: no name, reason or setting in it is Markdown or HTML, whoever wrote it.

A report is opened in viewers that run HTML, and its data may come from another machine. Every text of the run is
changed once, before anything is computed, and alike wherever it stands, so that names still find each other. Ordinary
names and reasons stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import msgspec

from attnlab.experiments.finding import Finding
from attnlab.problem.result import Measurement, Result
from attnlab.runs.store import Run
from attnlab.text import one_line

#: what begins a tag or a comment of HTML
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: what ends a code span, begins an image, ends the text of a link, begins a formula in a figure
_SIGNS = {"`": "'", "![": "! [", "](": "] (", "$": "\N{FULLWIDTH DOLLAR SIGN}"}
T = TypeVar("T")
Change = Callable[[str], str]


def without_tags(text: str) -> str:
    """`text`, shown as it is by whoever would read HTML in it."""
    return _TAG.sub("&lt;", text)


def neutral_text(text: str) -> str:
    """`text` in one safe line, without signs that Markdown or HTML would act on."""
    text = without_tags(one_line(text))
    for sign, shown in _SIGNS.items():
        text = text.replace(sign, shown)
    return text


def neutral(run: Run) -> Run:
    """`run` with every text that a report shows neutral; its numbers, plan and folder as they are."""
    change = cache(neutral_text)  # results repeat a few texts
    return replace(
        run,
        environment=_every(run.environment, change),
        contenders=tuple(map(change, run.contenders)),
        baseline=change(run.baseline),
        command=one_line(run.command, 4000).replace("```", "'''"),
        started=change(run.started),
        account={change(name): seconds for name, seconds in run.account.items()},
        ceilings=[_every_field(one, change) for one in run.ceilings],
        results=[_result(one, change) for one in run.results],
        invariance=[_every_field(one, change) for one in run.invariance],
        findings=[Finding.from_dict(_every(one.to_dict(), without_tags)) for one in run.findings],
    )


def _result(one: Result, change: Change) -> Result:
    """`one` itself where nothing in it has to be changed, which is nearly always."""
    told = {
        name: change(value)
        for name in ("contender", "reason", "kernel", "library", "asked_kernel", "computes_in")
        if isinstance(value := getattr(one, name), str)
    }
    changed: dict[str, Any] = {name: text for name, text in told.items() if text != getattr(one, name)}
    measurements = tuple(_measurement(each, change) for each in one.measurements)
    if any(new is not old for new, old in zip(measurements, one.measurements, strict=True)):
        changed["measurements"] = measurements
    if one.accuracy is not None and (accuracy := _every_field(one.accuracy, change)) is not one.accuracy:
        changed["accuracy"] = accuracy
    if one.tail is not None:
        changed["tail"] = "\n".join(map(change, one.tail.splitlines()))
    return replace(one, **changed) if changed else one


def _measurement(one: Measurement, change: Change) -> Measurement:
    quantity, unit, facts = change(one.quantity), change(one.unit), _every(one.facts, change)
    if (quantity, unit, facts) == (one.quantity, one.unit, one.facts):
        return one
    return replace(one, quantity=quantity, unit=unit, facts=facts)


def _every_field(one: T, change: Change) -> T:
    """A dataclass of plain data, every text in it neutral; itself where that changes nothing."""
    texts = (value for value in vars(one).values() if not isinstance(value, int | float | None))
    if all(_every(value, change) == value for value in texts):
        return one
    return msgspec.convert(_every(msgspec.to_builtins(one), change), type(one))


def _every(value: Any, change: Change) -> Any:
    """Plain data with `change` made to every text in it, names of entries included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _every(one, change) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_every(one, change) for one in value]
    return value
