"""A run as a report may show it: no name, reason or setting in it is Markdown or HTML, whoever wrote it.

A report is opened in viewers that run HTML, and its data may come from another machine. Every text of the run is
changed once, before anything is computed, and alike wherever it stands, so that names still find each other. Ordinary
names and reasons stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from attnlab.contract.result import Result
from attnlab.contract.text import one_line
from attnlab.numerics.finding import Finding
from attnlab.program.store import Run

#: what begins a tag or a comment of HTML
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: what ends a code span, begins an image, ends the text of a link, begins a formula in a figure
_SIGNS = {"`": "'", "![": "! [", "](": "] (", "$": "\N{FULLWIDTH DOLLAR SIGN}"}
T = TypeVar("T")


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
    return replace(
        run,
        environment=_every(run.environment, neutral_text),
        contenders=tuple(map(neutral_text, run.contenders)),
        baseline=neutral_text(run.baseline),
        command=one_line(run.command, 4000).replace("```", "'''"),
        started=neutral_text(run.started),
        account={neutral_text(name): seconds for name, seconds in run.account.items()},
        ceilings=[_every_field(one) for one in run.ceilings],
        results=[_result(one) for one in run.results],
        invariance=[_every_field(one) for one in run.invariance],
        findings=[Finding.from_dict(_every(one.to_dict(), without_tags)) for one in run.findings],
    )


def _result(one: Result) -> Result:
    changed: dict[str, Any] = {
        name: neutral_text(value)
        for name in ("contender", "reason", "kernel", "library", "asked_kernel", "computes_in")
        if isinstance(value := getattr(one, name), str)
    }
    measurements = tuple(
        replace(
            each,
            quantity=neutral_text(each.quantity),
            unit=neutral_text(each.unit),
            facts=_every(each.facts, neutral_text),
        )
        for each in one.measurements
    )
    accuracy = None if one.accuracy is None else _every_field(one.accuracy)
    tail = None if one.tail is None else "\n".join(map(neutral_text, one.tail.splitlines()))
    return replace(one, measurements=measurements, accuracy=accuracy, tail=tail, **changed)


def _every_field(one: T) -> T:
    """A dataclass of plain data, every text in it neutral."""
    changed = _every(msgspec.to_builtins(one), neutral_text)
    return msgspec.convert(changed, type(one))


def _every(value: Any, change: Any) -> Any:
    """Plain data with `change` made to every text in it, names of entries included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _every(one, change) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_every(one, change) for one in value]
    return value
