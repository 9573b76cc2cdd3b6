"""A run as a report shows it: judged, and no name, reason or setting in it is Markdown or HTML, whoever wrote it.

A report is opened in viewers that run HTML, and its data may come from another machine. Every text of the run is
changed once, before anything is computed, and alike wherever it stands, so that names still find each other. Ordinary
names and reasons stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from typing import Any

from attnlab.lab import read_chapter
from attnlab.lab.finding import Finding
from attnlab.runs.store import Run
from attnlab.stats import analysis as judge
from attnlab.stats.analysis import Cell
from attnlab.stats.ranking import is_second_entry
from attnlab.text import one_line
from attnlab.workload.result import Result

#: what begins a tag or a comment of HTML
_TAG = re.compile(r"<(?=[A-Za-z/!?])")
#: what ends a code span, begins an image, ends the text of a link, begins a formula in a figure
_SIGNS = {"`": "'", "![": "! [", "](": "] (", "$": "\N{FULLWIDTH DOLLAR SIGN}"}
#: what of these makes a link in sentences, which may hold code and formulas, and what defines where a link leads
_LINKS = {"![": "! [", "](": "] (", "][": "] [", "]:": "] :"}
#: letters of a finding's text
_MOST = 20_000
#: why a measurement is not believed of which no turn counts
NO_TURN = "none of its turns counts: other programs used the cores"
#: fields of results that hold no text which a report shows
_NOT_SHOWN = ("workload", "samples", "columns", "tail")
Change = Callable[[str], str]


@dataclass(frozen=True, eq=False)
class Analysis(judge.Analysis):
    """What the results of `run` say, and the run itself."""

    run: Run

    def facts(self, contender: str) -> Mapping[str, Any]:
        """What is recorded of the process that a contender ran in."""
        return mapping(mapping(self.run.environment.get("contenders")).get(contender))

    @cached_property
    def turns(self) -> tuple[int, int]:
        """How many turns of all contenders do not count, as other programs disturbed them, and how many there were."""
        timed = [one.latency for one in self.run.results if one.latency]
        return sum(len(one.disturbed_rounds) for one in timed), sum(len(one.samples) for one in timed)

    @cached_property
    def uncounted(self) -> list[Result]:
        """Those of which no turn counts."""
        return [
            cell.answers[name] for cell in self.cells for name, why in cell.faults.items() if why == NO_TURN
        ]


def mapping(value: Any) -> Mapping[str, Any]:
    """An entry of an environment, which a file may hold anything in: itself, or nothing where it is no mapping."""
    return value if isinstance(value, Mapping) else {}


def pool_threads(facts: Mapping[str, Any]) -> list[int]:
    """How many threads there are in the pools of a contender's process, ascending."""
    pools = facts.get("pools")
    counts = [mapping(one).get("num_threads") for one in pools] if isinstance(pools, list) else []
    return sorted({one for one in counts if isinstance(one, int) and one > 0})


def neutral_text(text: str) -> str:
    """`text` in one safe line, without signs that Markdown or HTML would act on."""
    text = without_tags(one_line(text))
    for sign, shown in _SIGNS.items():
        text = text.replace(sign, shown)
    return text


def without_tags(text: str) -> str:
    """`text`, shown as it is by whoever would read HTML in it."""
    return _TAG.sub("&lt;", text)


def neutral_sentences(text: str) -> str:
    """`text` in one line of sentences, of whatever length: without tags, links and images."""
    text = without_tags(one_line(text, _MOST))
    for sign, shown in _LINKS.items():
        text = text.replace(sign, shown)
    return text


def neutral(run: Run) -> Run:
    """`run` with every text that a report shows neutral; its numbers, plan and folder as they are."""
    change = cache(neutral_text)  # results repeat a few texts
    names = (
        "environment",
        "contenders",
        "baseline",
        "started",
        "account",
        "ceilings",
        "results",
        "invariance",
        "torn",
    )
    return replace(
        run,
        command=one_line(run.command, 4000).replace("```", "'''"),
        plan=replace(run.plan, origins=_every(run.plan.origins, change)),
        **{name: _every(getattr(run, name), change) for name in names},
    )


def findings_of(run: Run) -> list[Finding]:
    """The numerical chapter of a run, its texts made neutral; empty where there is none, or its file is damaged."""
    try:
        found: list[Finding] = _every(read_chapter(run.folder), cache(neutral_sentences))
    except ValueError:
        return []
    return found


def analyse(run: Run, safe: Callable[[Run], Run] = neutral) -> Analysis:
    """Judge `run`; safe : what makes its texts fit to be shown, here in Markdown.

    A measurement of which no turn counts is not judged: it is one that is not believed.
    """
    run = safe(run)
    judged, lost = run.judged(), [one for one in run.results if one.uncounted]
    groups = [
        replace(one, cells={at: _told(cell, lost) for at, cell in one.cells.items()}) for one in judged.groups
    ]
    return Analysis(**{**vars(judged), "groups": tuple(groups)}, run=run)


def _told(cell: Cell, lost: Sequence[Result]) -> Cell:
    """`cell` with those results of its workload too of which no turn counts, each entry once."""
    mine = {one.contender: one for one in lost if one.workload == cell.workload}
    mine = {name: one for name, one in mine.items() if not is_second_entry(name)}
    if not mine:
        return cell
    faults = {**cell.faults, **dict.fromkeys(mine, NO_TURN)}
    return replace(cell, answers={**cell.answers, **mine}, faults=faults)


def _every(value: Any, change: Change) -> Any:
    """`value` with `change` made to every text in it, names of entries included; itself where that changes nothing."""
    made = value
    if isinstance(value, str):
        made = change(value)
    elif isinstance(value, Mapping):
        made = {change(str(name)): _every(one, change) for name, one in value.items()}
    elif isinstance(value, list | tuple):
        made = type(value)(_every(one, change) for one in value)
    elif is_dataclass(value) and not isinstance(value, type):
        texts = {name: one for name, one in vars(value).items() if name in _shown(type(value))}
        changed = {name: new for name, one in texts.items() if (new := _every(one, change)) is not one}
        return replace(value, **changed) if changed else value
    return value if made == value else made


@cache
def _shown(kind: Any) -> frozenset[str]:
    """The fields of a dataclass that may hold a text which is shown."""
    return frozenset(one.name for one in fields(kind)) - frozenset(_NOT_SHOWN)
