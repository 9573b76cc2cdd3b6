"""What the page shows of runs: the report's analysis, as columns.

Nothing is judged here or in the page: verdicts, intervals and first places are those of `attnlab.report.analysis`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab.contract.result import Measurement, Result
from attnlab.contract.text import one_line
from attnlab.explore.columns import Texts, columns, figure
from attnlab.explore.machine import about, settings_of
from attnlab.explore.rounds import Rounds
from attnlab.figures import palette
from attnlab.program.store import Run
from attnlab.report import layout, sentences, wording
from attnlab.report.analysis import Analysis, At, Cell, analyse, conditions
from attnlab.statistics.pairing import Kind, Verdict
from attnlab.statistics.processes import Estimate, seconds
from attnlab.statistics.ranking import Standing

#: fields that have a filter of their own whatever the run; all others have one where they take several values
ALWAYS = ("heads", "keys", "dtype", "direction", "device")
#: Matplotlib's markers by the names that the page has for such shapes
_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "^": "up",
    "v": "down",
    "P": "plus",
    "X": "times",
    "<": "left",
    ">": "right",
    "h": "hexagon",
}
_DASHES = {"-": "", "--": "6 4", "-.": "8 3 2 3", ":": "2 3"}


@dataclass(frozen=True)
class Place:
    """One workload of one run: its `cell`, in the run's group of that number."""

    run: int
    group: int
    at: At
    cell: Cell


@dataclass(frozen=True)
class Answer:
    """One contender's answer at one place, `place` being its number."""

    place: int
    cell: Cell
    name: str
    result: Result

    @cached_property
    def standing(self) -> Standing | None:
        """Its place in the ranking, where it was measured."""
        return self.cell.standing(self.name) if self.name in self.cell.measured else None

    @property
    def latency(self) -> Measurement | None:
        """Its time a call, where it was measured and is believed."""
        return self.result.latency if self.standing else None

    @cached_property
    def interval(self) -> Estimate | None:
        """Of its time, over processes."""
        return None if self.latency is None else seconds(self.latency)

    @property
    def against_baseline(self) -> Verdict | None:
        """The verdict on it against the baseline."""
        return self.standing.against_baseline if self.standing else None

    @property
    def against_best(self) -> Verdict | None:
        """The verdict on it against the fastest."""
        return self.standing.against_best if self.standing else None


def page_data(runs: Sequence[Run]) -> tuple[dict[str, Any], list[Rounds]]:
    """All but the raw rounds, and those of each answer that has a time, in the order of the answers."""
    analyses = [analyse(run, plainly) for run in runs]
    names = list(dict.fromkeys(name for one in analyses for name in one.names))
    places = [place for number, one in enumerate(analyses) for place in _places(number, one)]
    answers = [
        Answer(number, place.cell, name, result)
        for number, place in enumerate(places)
        for name, result in place.cell.answers.items()
    ]
    texts = Texts()
    data = {
        "runs": [_run(run, one) for run, one in zip(runs, analyses, strict=True)],
        "contenders": _contenders(names),
        "fields": _fields(places),
        "workloads": _workloads(places, names, texts),
        "results": _results(answers, names, analyses, places, texts),
        "texts": list(texts.known),
    }
    return data, [Rounds.of(one.latency) for one in answers if one.latency is not None]


def plainly(run: Run) -> Run:
    """`run` as it is: the page shows every text as text, so that none has to be changed but into one line.

    Contenders, reasons and kernels of results are in one line since they were made.
    """
    return replace(run, contenders=tuple(map(one_line, run.contenders)), baseline=one_line(run.baseline))


def _run(run: Run, analysis: Analysis) -> dict[str, Any]:
    return {
        "name": one_line(run.folder.resolve().name),
        "started": one_line(run.started),
        "complete": run.complete,
        "command": one_line(run.command, 4000),
        "baseline": analysis.baseline,
        "margin": analysis.margin,
        "shared": one_line(analysis.shared),
        "warnings": [layout.plain(one_line(one, 1000)) for one in sentences.warnings(analysis)],
        "groups": [one_line(group.name) for group in analysis.groups],
        "machine": one_line(sentences.machine(run.environment)),
        "about": about(run.environment),
        "settings": settings_of(analysis),
    }


def _contenders(names: Sequence[str]) -> list[dict[str, str]]:
    styles = palette.styles(names)
    return [
        {
            "name": name,
            "colour": styles[name].colour,
            "symbol": _SYMBOLS.get(styles[name].marker, "circle"),
            "dashes": _DASHES.get(styles[name].dashes, ""),
        }
        for name in names
    ]


# -- workloads ---------------------------------------------------------------------------------------


def _places(number: int, analysis: Analysis) -> Iterator[Place]:
    for index, group in enumerate(analysis.groups):
        for at, cell in sorted(group.cells.items()):
            yield Place(number, index, at, cell)


def _told(place: Place) -> dict[str, Any]:
    workload = place.cell.workload
    return {"heads": workload.heads, "keys": workload.keys, **conditions(workload)}


def _fields(places: Sequence[Place]) -> list[dict[str, Any]]:
    """Fields to filter by: their values, as text and where they are numbers as such, and each workload's."""
    told = [_told(place) for place in places]
    found = []
    for name in dict.fromkeys([*ALWAYS, *(name for one in told for name in one)]):
        values = list(dict.fromkeys(one[name] for one in told))
        if name not in ALWAYS and len(values) < 2:
            continue
        values.sort(key=lambda one: (not _is_number(one), one if _is_number(one) else 0, str(one)))
        found.append(
            {
                "name": name,
                "label": "n" if name == "keys" else name.replace("_", " "),
                "values": [_said(name, one) for one in values],
                "numbers": values if all(map(_is_number, values)) else None,
                "of": [values.index(one[name]) for one in told],
            }
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(name: str, value: Any) -> str:
    if name in ("heads", "keys"):
        return str(value)
    if name == "direction":
        return str(value).replace("_", " ")
    return one_line(wording.condition(name, value, always=True) or str(value))


def _workloads(places: Sequence[Place], names: Sequence[str], texts: Texts) -> dict[str, list[Any]]:
    number = {name: index for index, name in enumerate(names)}

    def first(place: Place) -> list[int]:
        return [number[name] for name in _first(place.cell, names)]

    def same(place: Place) -> list[int]:
        ranking, told = place.cell.ranking, _first(place.cell, names)
        return [
            number[one.contender] for one in (ranking.first if ranking else ()) if one.contender not in told
        ]

    def runner_up(place: Place) -> int:
        ranking = place.cell.ranking
        found = ranking.runner_up if ranking else None
        return -1 if found is None else number[found.contender]

    shown = {
        "run": lambda one: one.run,
        "group": lambda one: one.group,
        "label": lambda one: texts.place(one.cell.workload.label),
        "state": lambda one: state(one.cell),
        "best": lambda one: number[one.cell.ranking.best.contender] if one.cell.ranking else -1,
        "first": first,
        "same": same,
        "next": runner_up,
        "margin": lambda one: figure(one.cell.margin),
        "turns": lambda one: one.cell.ranking.turns if one.cell.ranking else 0,
        "disturbed": lambda one: one.cell.ranking.disturbed if one.cell.ranking else 0,
    }
    return columns(places, shown)


def _first(cell: Cell, names: Sequence[str]) -> list[str]:
    """One name, the first in `names`, for each implementation in first place, that of the best before the others."""
    if cell.ranking is None:
        return []
    ordered = sorted(cell.ranking.first, key=lambda one: names.index(one.contender))
    told = {one.implementation: one.contender for one in reversed(ordered)}
    best = told.pop(cell.ranking.best.implementation)
    return [best, *sorted(told.values(), key=names.index)]


def state(cell: Cell) -> str:
    """Who is first here: ``alone``, ``shared``, the ``only`` one measured, ``undecided``, or ``nobody``."""
    ranking = cell.ranking
    if ranking is None:
        return "nobody"
    if len(ranking.standings) == 1:
        return "only"
    if not ranking.decided:
        return "undecided"
    return "alone" if len({one.implementation for one in ranking.first}) == 1 else "shared"


# -- results -----------------------------------------------------------------------------------------


def _results(
    answers: Sequence[Answer],
    names: Sequence[str],
    analyses: Sequence[Analysis],
    places: Sequence[Place],
    texts: Texts,
) -> dict[str, list[Any]]:
    number = {name: index for index, name in enumerate(names)}
    shown = {
        "workload": lambda one: one.place,
        "contender": lambda one: number[one.name],
        "outcome": lambda one: texts.place(_outcome(one)),
        "reason": lambda one: texts.place(one.cell.faults.get(one.name) or one.result.reason),
        "kernel": lambda one: texts.place(_kernel(one.result)),
        "computes_in": lambda one: texts.place(one.result.computes_in),
        "time": lambda one: figure(one.standing.seconds) if one.standing else None,
        "rounds": lambda one: one.standing.rounds if one.standing else 0,
        "time_low": lambda one: figure(one.interval.low) if one.interval else None,
        "time_high": lambda one: figure(one.interval.high) if one.interval else None,
        "processes": lambda one: one.interval.processes if one.interval else 0,
        "memory": lambda one: figure(one.result.peak_bytes) if one.standing else None,
        "memory_high": lambda one: figure(_greatest(one.result)) if one.standing else None,
        "error": lambda one: _accuracy(one.result, "relative_error"),
        "allowed": lambda one: _accuracy(one.result, "budget"),
        "share": lambda one: _rate(one, "compute"),
        "bandwidth": lambda one: _rate(one, "bandwidth"),
        **_verdict("baseline", "against_baseline"),
        **_verdict("best", "against_best"),
    }
    return columns(answers, shown)


def _outcome(answer: Answer) -> str:
    if answer.name in answer.cell.faults:
        return "not believed"
    return str(answer.result.outcome).replace("_", " ")


def _kernel(result: Result) -> str | None:
    if result.fell_back:
        return f"{result.kernel} (asked for {result.asked_kernel})"
    return result.kernel


def _greatest(result: Result) -> float | None:
    memory = result.measurement("peak_memory")
    return None if memory is None else max(memory.samples)


def _accuracy(result: Result, name: str) -> float | int | None:
    return None if result.accuracy is None else figure(getattr(result.accuracy, name))


def _rate(answer: Answer, name: str) -> float | int | None:
    rate = answer.cell.rates.get(answer.name) if answer.standing else None
    return None if rate is None else figure(getattr(rate, name))


def _verdict(prefix: str, name: str) -> dict[str, Any]:
    """The kind of a verdict by its place in `Kind`, -1 for none; its ratio and interval as times as fast."""
    kinds = list(Kind)

    def of(answer: Answer) -> Verdict | None:
        found: Verdict | None = getattr(answer, name)
        return found

    def faster(value: float) -> float | int | None:
        return figure(1 / value) if value > 0 else None

    return {
        prefix: lambda one: -1 if (verdict := of(one)) is None else kinds.index(verdict.kind),
        f"{prefix}_ratio": lambda one: None if (verdict := of(one)) is None else faster(verdict.ratio),
        f"{prefix}_low": lambda one: None if (verdict := of(one)) is None else faster(verdict.high),
        f"{prefix}_high": lambda one: None if (verdict := of(one)) is None else faster(verdict.low),
    }
