"""What the page shows of runs: the report's analysis, as columns.

Nothing is judged here or in the page: verdicts and intervals are those of `attnlab.judge.analysis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from attnlab import figures
from attnlab.judge.analysis import MORE_MEMORY, Cell
from attnlab.judge.groups import condition, conditions
from attnlab.judge.pairing import Kind, Verdict
from attnlab.judge.ranking import Lead, Standing
from attnlab.judge.replication import Estimate, seconds
from attnlab.problem.result import Measurement, Result
from attnlab.report import layout, sentences
from attnlab.report.analysis import Analysis, analyse
from attnlab.report.page_columns import Texts, columns, figure_columns
from attnlab.report.page_machine import about, settings_of
from attnlab.report.page_rounds import Rounds
from attnlab.runs.store import Run
from attnlab.text import one_line

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
    """One workload of one run: its `cell`, in the run's group of that number, and who is first there, if anybody."""

    run: int
    group: int
    cell: Cell
    first: Cell | None

    @property
    def state(self) -> str:
        """How sure the first place is, in the words of `attnlab.judge.ranking.Sure`; ``nobody`` without one."""
        return str(self.first.won.sure) if self.first else "nobody"

    @property
    def same(self) -> list[str]:
        """Further names of the kernels in first place: who is `first.won.first` stands for them."""
        if self.first is None or self.cell.ranking is None:
            return []
        names = (one.contender for one in self.cell.ranking.standings)
        return [one for one in names if one in self.first.first and one not in self.first.won.first]


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


def page_data(runs: Sequence[Run], known: Sequence[Analysis] = ()) -> tuple[dict[str, Any], list[Rounds]]:
    """All but the raw rounds, and those of each answer that has a time, in the order of the answers.

    known : reports' analyses of some of the runs.
    """
    analyses = [_analysed(run, known) for run in runs]
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
        "results": _results(answers, names, texts),
        "texts": list(texts.known),
        "more_memory": MORE_MEMORY,
    }
    return data, [Rounds.of(one.latency) for one in answers if one.latency is not None]


def _analysed(run: Run, known: Sequence[Analysis]) -> Analysis:
    """`run`, judged; by one of the `known`, where no text had to be changed in it for Markdown."""
    shown = plainly(run)
    for one in known:
        if replace(one.run, findings=run.findings) == shown:  # the page shows no findings
            return one
    return analyse(shown, lambda same: same)


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
    styles = figures.styles(names)
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
        for cell in group.ordered:
            yield Place(number, index, cell, cell if cell.ranking else None)


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
    return one_line(condition(name, value, always=True) or str(value))


def _workloads(places: Sequence[Place], names: Sequence[str], texts: Texts) -> dict[str, Any]:
    number = {name: index for index, name in enumerate(names)}

    def over(place: Place) -> int:
        lead = _ahead(place)
        return -1 if lead is None else number[lead.over]

    shown = {
        "run": lambda one: one.run,
        "group": lambda one: one.group,
        "label": lambda one: texts.place(one.cell.workload.label),
        "state": lambda one: texts.place(one.state),
        "best": lambda one: number[one.cell.ranking.best.contender] if one.cell.ranking else -1,
        "first": lambda one: [number[name] for name in one.first.won.first] if one.first else [],
        "same": lambda one: [number[name] for name in one.same],
        "next": over,
        "turns": lambda one: one.cell.ranking.turns if one.cell.ranking else 0,
        "disturbed": lambda one: one.cell.ranking.disturbed if one.cell.ranking else 0,
    }
    figures = {
        "margin": lambda one: one.cell.margin,
        "score": lambda one: one.cell.workload.score_bytes,
        **_lead("next", _ahead),
        **_lead("baseline", lambda one: one.first.won.over_baseline if one.first else None),
    }
    return {**columns(places, shown), "figures": figure_columns(places, figures)}


def _ahead(place: Place) -> Lead | None:
    """The winner's lead over the next implementation."""
    return place.first.won.ahead if place.first else None


def _lead(prefix: str, of: Callable[[Place], Lead | None]) -> dict[str, Callable[[Place], float | None]]:
    """How many times as fast as another the winner is, and the interval."""

    def end(name: str) -> Callable[[Place], float | None]:
        return lambda one: None if (lead := of(one)) is None else getattr(lead, name)

    return {f"{prefix}_{name}": end(name) for name in ("ratio", "low", "high")}


# -- results -----------------------------------------------------------------------------------------


def _results(
    answers: Sequence[Answer],
    names: Sequence[str],
    texts: Texts,
) -> dict[str, Any]:
    number = {name: index for index, name in enumerate(names)}
    shown = {
        "workload": lambda one: one.place,
        "contender": lambda one: number[one.name],
        "outcome": lambda one: texts.place(_outcome(one)),
        "reason": lambda one: texts.place(one.cell.faults.get(one.name) or one.result.reason),
        "kernel": lambda one: texts.place(_kernel(one.result)),
        "computes_in": lambda one: texts.place(one.result.computes_in),
        "rounds": lambda one: one.standing.rounds if one.standing else 0,
        "processes": lambda one: one.interval.processes if one.interval else 0,
        "baseline": lambda one: _kind(one.against_baseline),
        "best": lambda one: _kind(one.against_best),
    }
    figures = {
        "time": lambda one: one.standing.seconds if one.standing else None,
        "time_low": lambda one: one.interval.low if one.interval else None,
        "time_high": lambda one: one.interval.high if one.interval else None,
        "memory": lambda one: one.result.peak_bytes if one.standing else None,
        "memory_high": lambda one: _greatest(one.result) if one.standing else None,
        "error": lambda one: one.result.accuracy.relative_error if one.result.accuracy else None,
        "allowed": lambda one: one.result.accuracy.budget if one.result.accuracy else None,
        "share": lambda one: _rate(one, "compute"),
        "bandwidth": lambda one: _rate(one, "bandwidth"),
        **_verdict("baseline", lambda one: one.against_baseline),
        **_verdict("best", lambda one: one.against_best),
    }
    return {**columns(answers, shown), "figures": figure_columns(answers, figures)}


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


def _rate(answer: Answer, name: str) -> float | None:
    rate = answer.cell.rates.get(answer.name) if answer.standing else None
    found: float | None = None if rate is None else getattr(rate, name)
    return found


#: the page tells kinds by their places
_KINDS = {kind: place for place, kind in enumerate(Kind)}


def _kind(verdict: Verdict | None) -> int:
    return -1 if verdict is None else _KINDS[verdict.kind]


def _verdict(
    prefix: str, of: Callable[[Answer], Verdict | None]
) -> dict[str, Callable[[Answer], float | None]]:
    """The ratio of a verdict and its interval, as times as fast."""

    def end(name: str) -> Callable[[Answer], float | None]:
        def faster(one: Answer) -> float | None:
            value = getattr(verdict, name) if (verdict := of(one)) is not None else 0.0
            return 1 / value if value > 0 else None

        return faster

    return {f"{prefix}_{name}": end(of_verdict) for name, of_verdict in _ENDS.items()}


#: the slowest is the least times as fast
_ENDS = {"ratio": "ratio", "low": "high", "high": "low"}
