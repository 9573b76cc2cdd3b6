"""Contenders raced on one workload, and what to say about it.

Every claim rests on pairs of fresh processes: five, and eight where five do not decide it. Two processes of one backend
may differ by 30 %; a contender that has two speeds, by visit, is told with both of them.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnlab.backends.contender import Contender, huge_pages_refused, parse_all, with_huge_pages
from attnlab.backends.library import huge_page_variables
from attnlab.plain import suggestion
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.sentences import precision_apart, sentence
from attnlab.stats.replication import Speed, speeds
from attnlab.stats.verdicts import CLOSE, Verdict, pay_off, verdicts_against
from attnlab.system import hidden
from attnlab.text import first_lines, interval_text, listed, ratio_text, seconds_text
from attnlab.workload.declaring import UTMOST_PROCESSES, within
from attnlab.workload.grid import choices, workloads
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

#: for each contender's part in the rounds of the first five processes, unless another time is asked for
SECONDS = 1.0
#: processes of each contender, and how many there are where these do not decide it
PROCESSES, MOST_PROCESSES = 5, 8


@dataclass(frozen=True)
class Comparison:
    """One workload's race: a result a contender, and verdicts against the baseline where both were measured.

    `sets` tells how many fresh sets of processes were raced, in `set_seconds` each; `unseen` which disturbances this
    system does not tell. `huge_pages` holds, for contenders with two speeds, seconds a call with huge pages, where that
    could be measured. `ran_with` tells of contenders that ran elsewhere the versions of Python and of their libraries.
    `command` repeats it.
    """

    workload: Workload
    baseline: str
    results: tuple[Result, ...]
    verdicts: dict[str, Verdict]
    sets: int
    set_seconds: float = 0.0
    unseen: tuple[str, ...] = ()
    huge_pages: Mapping[str, float] = field(default_factory=dict)
    ran_with: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    command: str = ""

    def frame(self) -> pd.DataFrame:
        """A tidy table, one row a contender.

        Columns: ``contender``, ``outcome``, ``reason``, ``seconds_median``, ``ratio`` to the baseline's time with the
        ends of its 95 % interval, ``ratio_low`` and ``ratio_high``, or why there is none, ``no_interval``; ``verdict``,
        ``peak_bytes``, ``relative_error``, and what else `to_json` has.
        """
        import pandas as pd

        return pd.DataFrame(self.to_json()["contenders"]).rename(columns={"name": "contender"})

    def __repr__(self) -> str:
        lines = [f"{self.workload.label}, against {self.baseline}"]
        for one in self.results:
            lines.append(f"{one.contender}: {one.latency or f'{one.outcome}. {one.reason}'}")
            if verdict := self.verdicts.get(one.contender):
                span = "[no interval]" if verdict.no_interval else interval_text(verdict.low, verdict.high)
                lines[-1] += f"; {ratio_text(verdict.ratio)} {span} times as long, {verdict.kind}"
        return first_lines(lines)

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs; a figure that does not exist is None."""
        return {
            "workload": self.workload.to_dict(),
            "baseline": self.baseline,
            "sets": self.sets,
            "command": self.command,
            "contenders": [self._contender(result) for result in self.results],
        }

    def _contender(self, result: Result) -> dict[str, Any]:
        latency, verdict = result.latency, self.verdicts.get(result.contender)
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
            "seconds_by_placement": [speed.seconds for speed in speeds(latency)] if latency else None,
            "rounds": len(latency.samples) if latency else 0,
            "disturbed_rounds": len(latency.disturbed_rounds) if latency else 0,
            **dict(zip(("ratio", "ratio_low", "ratio_high"), ratio, strict=True)),
            "no_interval": verdict.no_interval if verdict else None,
            "verdict": str(verdict.kind) if verdict else "baseline" if is_baseline else None,
            "visits_needed": verdict.visits_needed if verdict else None,
            "setup_seconds": result.setup_seconds,
            "peak_bytes": result.peak_bytes,
            "relative_error": _known(result.accuracy.relative_error) if result.accuracy else None,
            "kernel": result.kernel,
            "computes_in": result.computes_in,
            "ran_with": self.ran_with.get(result.contender),
        }

    def sentences(self) -> list[str]:
        """One sentence a contender: what came out, and what to do where nothing did."""
        said = []
        by_name = {result.contender: result for result in self.results}
        missing: dict[str, list[str]] = {}
        for result in self.results:
            if result.outcome is not Outcome.MEASURED:
                missing.setdefault(f"{result.outcome}. {result.reason}", []).append(result.contender)
            elif result.contender in self.verdicts:
                baseline = by_name.get(self.baseline)
                precision = precision_apart(result, baseline) if baseline else ""
                verdict = self.verdicts[result.contender]
                said.append(sentence(result.contender, self.baseline, verdict, precision=precision))
                medians = [one.latency.median for one in (result, baseline) if one and one.latency]
                quotient = medians[0] / medians[-1]
                if verdict.low and max(verdict.low / quotient, quotient / verdict.high) > 1 + CLOSE:
                    said.append(
                        f"The quotient of their medians over all rounds is {ratio_text(quotient)}. The ratio, by which "
                        "to go, is that of calls in the same round."
                    )
        said += [f"{listed(names)}: {why}." for why, names in missing.items()]
        for result in self.results:
            paid = pay_off(self.results, result.contender)
            if paid and result.setup_seconds:
                said.append(
                    f"{paid.contender} takes {seconds_text(result.setup_seconds)} to get ready: it pays off after "
                    f"{paid.calls:,} calls against {paid.against}."
                )
        noted: dict[str, list[str]] = {}
        for result in self.results:
            if result.outcome is Outcome.MEASURED and result.reason:
                noted.setdefault(result.reason.removeprefix("its "), []).append(result.contender)
        said += [f"{listed(names)}: {note}." for note, names in noted.items()]
        for name, versions in self.ran_with.items():
            said.append(
                f"{name} ran with {', '.join(f'{one} {number}' for one, number in versions.items())}."
            )
        needed = [one.visits_needed for one in self.verdicts.values() if one.visits_needed]
        if needed:
            it, seconds = "it" if len(self.verdicts) == 1 else "all of it", max(needed) * self.set_seconds
            said.append(
                f"Likely to decide {it}: --processes {max(needed)}, about {seconds:.0f} s."
                if max(needed) > self.sets
                else "Another race like this one is likely to decide all of it."
            )
        for result in self.results:
            found = speeds(result.latency) if result.latency else ()
            if len(found) > 1:
                said.append(two_speeds(result.contender, found, self.huge_pages.get(result.contender)))
        facts = {
            name: text for one in self.results if one.latency for name, text in one.latency.facts.items()
        }
        if "cut short" in facts:
            said.append(f"The race was cut short, after {facts['cut short']}.")
        others = facts.get("others")
        if others:
            said.append(
                f"Meanwhile other programs took {others}: turns that had to wait for a core do not count."
            )
        if self.unseen:
            said.append(f"This system does not tell the {' nor the '.join(self.unseen)}: it goes unseen.")
        return said


def compare(
    *contenders: str,
    workload: Workload | None = None,
    folders: Sequence[Path | str] = (),
    seconds: float | None = None,
    processes: int = MOST_PROCESSES,
    limits: Limits | None = None,
    on_event: Callable[[str], None] = lambda text: None,
    words: Sequence[str] = (),
    **fields: Any,
) -> Comparison:
    """Race the contenders on one workload, each in processes of its own; the first is the baseline.

    contenders : two or more, with settings where they are to hold, ``torch_sdpa[threads=1]``.
    workload : what is asked of all of them. Or its fields, by the names of the command line's options:
    ``length=1024, heads=8, causal=True``; 512 tokens and 8 heads where nothing is said.
    folders : hold further backends.
    seconds : for the rounds of the first five processes, 1 for each contender by default.
    processes : of each contender, at most.
    limits : all of it, instead.
    on_event : hears what is being done; a `Notice` is meant to be kept.
    words : that say the workload on the command line, where these are not its own options.

    Raises ValueError for a number of no use, fewer than two contenders, broken notation, an unknown backend, an unknown
    field, and as `Workload` does; Unavailable where the backends of fewer than two contenders load here.
    """
    workload = _workload(workload, fields)
    places = [str(folder) for folder in folders]
    within("seconds", SECONDS if seconds is None else seconds)
    within("processes", processes, UTMOST_PROCESSES)
    raced = parse_all(contenders)
    if len(raced) < 2:
        raise ValueError("compare needs at least two contenders; name the same one twice to test the machine")
    for one in raced:
        one.require(places)
    baseline = raced[0].name
    limits = limits or Limits(
        workload_seconds=seconds or SECONDS * len(raced),
        processes=min(PROCESSES, processes),
        most_processes=processes,
        further_above=0.0,
        far_behind=8.0,
    )
    started = time.monotonic()
    with Conductor(raced, folders=places, limits=limits, on_event=on_event) as conductor:
        conductor.require_two()
        results = tuple(conductor.race(workload))
        elapsed = time.monotonic() - started
        some_elsewhere = any(one.elsewhere for one in raced)
        ran_with = versions_of(conductor.facts(workload.device)) if some_elsewhere else {}
    verdicts = verdicts_against(results, baseline)
    sets = max((len(set(one.latency.visits.values())) for one in results if one.latency), default=0)
    huge = _with_huge_pages(raced, results, workload, places, limits, on_event)
    return Comparison(
        workload=workload,
        baseline=baseline,
        results=results,
        verdicts=verdicts,
        sets=sets,
        set_seconds=elapsed / max(1, sets),
        unseen=tuple(hidden()),
        huge_pages=huge,
        ran_with=ran_with,
        command=_command(contenders, words or workload.options(), places, limits),
    )


def _workload(given: Workload | None, fields: Mapping[str, Any]) -> Workload:
    """The workload itself, or the one of these fields. Raises ValueError."""
    if given is not None and fields:
        raise ValueError(
            f"give a workload or its fields, got both: {', '.join(fields)}; Workload.with_ changes some"
        )
    known = [choice.name for choice in choices(grid=False)]
    for name in fields:
        if name not in known:
            raise ValueError(f"a workload has no field {name!r}; {suggestion(name, known)}")
    return given or workloads(fields, grid=False)[0]


def versions_of(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The versions of Python and of its libraries by contender, from `Conductor.facts`; not of those that tell none."""
    return {
        name: {"Python": one["python"], **one["versions"]} for name, one in facts.items() if "python" in one
    }


def two_speeds(name: str, found: Sequence[Speed], huge: float | None) -> str:
    """What to say of a contender that has two speeds: both, how often each was met, and what huge pages give.

    No cause is named: often several contenders of the same processes are slow at once.
    """
    fast, slow = found
    said = (
        f"{name} takes {seconds_text(slow.seconds)} or {seconds_text(fast.seconds)}, by visit "
        f"({slow.visits} and {fast.visits} of {slow.visits + fast.visits} visits)"
    )
    if huge is None and ("pages=" in name or huge_pages_refused()):
        return f"{said}."
    if huge is None:
        return f"{said}; try it with huge pages: {with_huge_pages(name)}."
    settings = " ".join(f"{key}={value}" for key, value in huge_page_variables().items())
    return f"{said}; {seconds_text(huge)} with huge pages (set {settings})."


def _with_huge_pages(
    contenders: Sequence[Contender],
    results: Sequence[Result],
    workload: Workload,
    folders: Sequence[str],
    limits: Limits,
    on_event: Callable[[str], None],
) -> dict[str, float]:
    """Seconds a call with huge pages, of those contenders that have two speeds without."""
    twofold = {one.contender for one in results if one.latency and len(speeds(one.latency)) > 1}
    asked = {one.name: with_huge_pages(one.name) for one in contenders if one.name in twofold}
    if not asked or huge_pages_refused():
        return {}
    brief = replace(limits, workload_seconds=1.0, processes=3, most_processes=3)
    with Conductor(
        parse_all(list(asked.values())), folders=folders, limits=brief, memory=False, on_event=on_event
    ) as conductor:
        found = conductor.race(workload)
    return {name: one.latency.median for name, one in zip(asked, found, strict=True) if one.latency}


def _command(texts: Sequence[str], words: Sequence[str], folders: Sequence[str], limits: Limits) -> str:
    """What to type for the same again; of limits the command line has the time and the most processes."""
    further = [word for folder in folders for word in ("--implementations", folder)]
    if limits.workload_seconds != SECONDS * len(texts):
        further += ["--seconds", f"{limits.workload_seconds:g}"]
    if limits.most_processes != MOST_PROCESSES:
        further += ["--processes", str(limits.most_processes)]
    return shlex.join(["attnlab", "compare", *texts, *words, *further])


def _known(figure: float) -> float | None:
    return figure if math.isfinite(figure) and figure != 0 else None
