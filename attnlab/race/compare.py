"""Race two or more contenders on one workload: results, and verdicts against the first one."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.backends.contender import parse_all
from attnlab.errors import Unavailable
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import Notice
from attnlab.race.sittings import Combined, Record
from attnlab.stats.intervals import Verdict, verdicts_against
from attnlab.system import hidden
from attnlab.text import interval_text, number_text, one_line, suggestion, within
from attnlab.workload.grid import choices, workloads
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

#: the least number of visits, and the seconds in which more visits are made
VISITS, SECONDS = 3, 10.0


@dataclass(frozen=True)
class Comparison:
    """The visits to one workload: a result for each contender, and verdicts against the baseline for those measured.

    visits : their number, of `visit_seconds` each on average. sittings : by contender, the verdict over all its
    sittings, this one included. unseen : disturbances that this system does not report. interrupted : whether an
    interrupt ended it early. ran_with : the versions of Python and libraries of each contender, if any contender ran
    elsewhere. command : the command that repeats it.
    """

    workload: Workload
    baseline: str
    results: tuple[Result, ...]
    verdicts: dict[str, Verdict]
    visits: int
    visit_seconds: float = 0.0
    unseen: tuple[str, ...] = ()
    ran_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sittings: Mapping[str, Combined] = field(default_factory=dict)
    command: str = ""
    interrupted: bool = False

    def frame(self) -> pd.DataFrame:
        """A tidy table with one row for each contender.

        Columns: ``contender``, ``outcome``, ``reason``, ``seconds_median``, ``ratio`` to the baseline's time with the
        ends of its 95 % interval, ``ratio_low`` and ``ratio_high``, or why it has no interval, ``no_interval``;
        ``verdict``, ``peak_bytes``, ``relative_error``, and the other figures of `to_json`.
        """
        import pandas as pd

        return pd.DataFrame(self.to_json()["contenders"]).rename(columns={"name": "contender"})

    def __repr__(self) -> str:
        lines = [f"{self.workload.label}, against {self.baseline}"]
        for one in self.results:
            lines.append(f"{one.contender}: {one.latency or f'{one.outcome}. {one.reason}'}")
            if verdict := self.verdicts.get(one.contender):
                span = interval_text(verdict.turned.low, verdict.turned.high)
                lines[-1] += f"; speedup {number_text(verdict.turned.ratio)} {span}, {verdict.kind}"
        return "\n".join(one_line(one, 150) for one in lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs; a figure that is missing is None."""
        return {
            "workload": self.workload.to_dict(),
            "baseline": self.baseline,
            "visits": self.visits,
            "interrupted": self.interrupted,
            "command": self.command,
            "contenders": [self._contender(result) for result in self.results],
        }

    def _contender(self, result: Result) -> dict[str, Any]:
        latency, verdict = result.latency, self.verdicts.get(result.contender)
        sat = self.sittings.get(result.contender)
        ratio: tuple[float | None, ...] = (None,) * 3
        if verdict:
            ratio = verdict.ratio, _known(verdict.low), _known(verdict.high)
        is_baseline = result.contender == self.baseline and latency is not None
        ratio = (1.0, 1.0, 1.0) if is_baseline else ratio
        return {
            "name": result.contender,
            "outcome": str(result.outcome),
            "reason": result.reason,
            "seconds_median": latency.median if latency else None,
            "rounds": len(latency.samples) if latency else 0,
            "disturbed_rounds": len(latency.disturbed_rounds) if latency else 0,
            **dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)),
            "sittings": len(sat.sittings) if sat else None,
            "between_sittings": sat.between if sat else None,
            "this_sitting": sat.sittings[-1].span if sat else None,
            "no_interval": verdict.no_interval if verdict else None,
            "verdict": str(verdict.kind) if verdict else "baseline" if is_baseline else None,
            "setup_seconds": result.setup_seconds,
            "peak_bytes": result.peak_bytes,
            "relative_error": _known(result.accuracy.relative_error) if result.accuracy else None,
            "kernel": result.kernel,
            "computes_in": result.computes_in,
            "ran_with": self.ran_with.get(result.contender),
        }


def first_verdicts(baseline: str, tell: Callable[[str], None]) -> Callable[[Sequence[Result]], None]:
    """A function to call with the results after each visit; reports each contender's first verdict over 2 visits."""
    told = set[str]()

    def each(results: Sequence[Result]) -> None:
        for name, one in verdicts_against(results, baseline).items():
            if one.visits > 1 and one.low > 0 and name not in told:
                told.add(name)
                ratio, span = number_text(one.turned.ratio), interval_text(one.turned.low, one.turned.high)
                tell(Notice(f"{name} after {one.visits} visits: speedup {ratio} {span}; measuring on."))

    return each


def compare(
    *contenders: str,
    workload: Workload | None = None,
    folders: Sequence[Path | str] = (),
    seconds: float | None = None,
    visits: int | None = None,
    afresh: bool = False,
    limits: Limits | None = None,
    on_event: Callable[[str], None] = lambda text: None,
    words: Sequence[str] = (),
    interruptible: bool = False,
    **fields: Any,
) -> Comparison:
    """Race the contenders on one workload; the first is the baseline.

    contenders : two or more, each with its settings if it has any: ``torch_sdpa[threads=1]``.
    workload : the workload for all of them. Or give its fields, by the names of the command line's options:
    ``length=1024, heads=8, causal=True``. The defaults are 512 tokens and 8 heads.
    folders : folders with further backends.
    seconds : time for the visits; there are at least three visits.
    visits : the exact number of visits, whatever time they take.
    afresh : ignore what earlier calls with the same question found on this machine.
    limits : all limits, instead of `seconds` and `visits`.
    on_event : called with a text about each step; a `Notice` should stay visible.
    words : the words that describe the workload on the command line, if they are not its own options.
    interruptible : an interrupt ends the race, and what was measured before is returned.

    Raises ValueError for a number out of bounds, fewer than two contenders, broken notation, an unknown backend, an
    unknown field, and as `Workload` does; Unavailable if fewer than two contenders have their libraries here.
    """
    workload = _workload(workload, fields)
    raced = parse_all(contenders)
    if len(raced) < 2:
        raise ValueError("compare needs at least two contenders; name the same one twice to test the machine")
    for one in raced:
        one.require(folders)
    places = [str(folder) for folder in folders]
    limits, ran_with = limits or _limits(seconds, visits), dict[str, dict[str, str]]()
    with Conductor(raced, folders=places, limits=limits, on_event=on_event) as conductor:
        told = first_verdicts(raced[0].name, on_event)
        results = tuple(conductor.race(workload, each=told, interruptible=interruptible))
        if conductor.interrupted and not results:
            raise KeyboardInterrupt
        loaded = [one for one in results if one.outcome is not Outcome.UNAVAILABLE]
        if len(loaded) < 2:
            said = "; ".join(f"{one.contender}: {one.reason}" for one in results if one not in loaded)
            raise Unavailable(f"nothing to compare: {said or 'the machine was suspended in every visit'}")
        if any(one.elsewhere for one in raced):
            ran_with = versions_of(conductor.facts)
    found = verdicts_against(results, raced[0].name)
    record = Record(afresh=afresh, tell=on_event)
    combined = record.combine(workload, raced, found, places, not conductor.interrupted)
    done = max((len(set(one.latency.visits.values())) for one in results if one.latency), default=0)
    spent = max((one.race_seconds or 0.0 for one in results), default=0.0)
    return Comparison(
        workload=workload,
        baseline=raced[0].name,
        results=results,
        verdicts=found | {name: one.verdict for name, one in combined.items()},
        sittings=combined,
        visits=done,
        visit_seconds=spent / max(1, done),
        unseen=tuple(hidden()),
        ran_with=ran_with,
        command=_command(contenders, words or workload.options(), places, limits),
        interrupted=conductor.interrupted,
    )


def _limits(seconds: float | None, visits: int | None) -> Limits:
    """The limits for visits within these seconds, or for this number of visits. Raises ValueError."""
    seconds = SECONDS if seconds is None else seconds
    within("seconds", seconds)
    longest = max(5.0, seconds / 4)
    limits = Limits(workload_seconds=seconds, visits=VISITS, call_seconds=longest)
    limits = replace(limits, deadline_seconds=max(limits.deadline_seconds, 4 * longest))
    return limits if visits is None else replace(limits, visits=visits, most_visits=visits)


def _workload(given: Workload | None, fields: Mapping[str, Any]) -> Workload:
    """The given workload, or the workload with these fields. Raises ValueError."""
    if given is not None and (fields or not isinstance(given, Workload)):
        got = " and ".join([type(given).__name__, *fields])
        raise ValueError(f"give a Workload or its fields, got {got}")
    known = [choice.name for choice in choices(grid=False)]
    for name in fields:
        if name not in known:
            raise ValueError(f"a workload has no field {name!r}; {suggestion(name, known)}")
    return given or workloads(fields, grid=False)[0]


def versions_of(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The versions of Python and libraries by contender, from `Conductor.facts`; only contenders that report them."""
    return {
        name: {"Python": one["python"], **one["versions"]} for name, one in facts.items() if "python" in one
    }


def _command(texts: Sequence[str], words: Sequence[str], folders: Sequence[str], limits: Limits) -> str:
    """The command that repeats this; of the limits, it can only have the time and the number of visits."""
    further = [word for folder in folders for word in ("--implementations", folder)]
    if limits.workload_seconds != SECONDS:
        further += ["--seconds", f"{limits.workload_seconds:g}"]
    if limits.visits == limits.most_visits:
        further += ["--visits", str(limits.most_visits)]
    return shlex.join(["attnlab", "compare", *texts, *words, *further])


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) and figure != 0 else None
