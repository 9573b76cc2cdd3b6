"""The stored runs of each machine in the order of time: what every contender took, and where that changed.

Machines are told apart by `attnlab.environment.fingerprint` and never mixed. A run's figure for a contender at a
workload is the logarithm of its median seconds. Change points (`attnlab.stats.change_points`) are looked for, by
default, in that figure less what the machine's other libraries did in the same run: one day everything takes 15 %
longer than on another, and all contenders of one workload raced in turns, so that this cancels in their ratio.

Of each library that contenders measured in every run of the workload belong to, the median over these contenders is
taken, each less its own median over the runs. What the machine did in a run is the median over three libraries or more:
one that became faster does not make the others seem slower, but for a part of their scatter, which is why changes
below `SMALLEST` are not told. Where there are two, it is what the other one did, and a
step of either shows in both, with opposite signs: nobody can tell from ratios which of two moved, but the versions and
the seconds, which stand beside each change point, may. Where there is one library, the seconds are looked at as they
are, and the machine's drift is in them. One vote a library, not one a contender: an upgrade moves most contenders of
its library at once, and a mean over all contenders would move with them. The calibration loop that a race times beside
its contenders is no yardstick: it varied by 80 % between runs in which calls varied by 25 %.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from attnlab.environment import fingerprint, versions
from attnlab.runs import dataset
from attnlab.runs.store import RUN_FILE, Run, read_run
from attnlab.stats.analysis import Analysis
from attnlab.stats.change_points import change_points
from attnlab.workload.workload import Workload

UNSET = "unset"
#: changes below this are not told: as much of what one library did may be seen in the others
SMALLEST = 0.02


@dataclass(frozen=True)
class Change:
    """A level that begins with the run `run`, of `History.runs`.

    ratio : of the figures that were looked at, the median of this level by that of the one before. seconds_ratio : the
    same of the seconds as they were measured. software : what else changed there, or one of its runs away, as text.
    """

    run: int
    ratio: float
    seconds_ratio: float
    software: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """One contender at one workload: `seconds` of a call, the median of each of `runs`, places in the history.

    relative : whether changes were looked for in its ratio to what other libraries did, or in the seconds.
    """

    workload: Workload
    contender: str
    runs: tuple[int, ...]
    seconds: tuple[float, ...]
    relative: bool
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Seen:
    """What is kept of a run: its folder, when it began, in UTC, and its software."""

    folder: str
    started: datetime
    software: Mapping[str, str]


@dataclass(frozen=True)
class History:
    """The runs of one machine, in the order in which they began, and the series that they make.

    A run's software is that which was last known: a library that is not in a run has the version of the run before.
    """

    machine: str
    runs: tuple[Seen, ...]
    series: tuple[Series, ...]

    @cached_property
    def news(self) -> list[tuple[str, ...]]:
        """By run, what of its software is not that of the run before, as ``torch 2.12.0 → 2.13.0``."""
        return [_news(self.runs, max(0, at - 1), at) for at in range(len(self.runs))]


#: of a run, the median seconds and the library of each contender at each workload
_Measured = Mapping[tuple[Workload, str], tuple[float, str]]


def found_runs(places: Iterable[Path], fault: Callable[[str], None] = lambda text: None) -> Iterator[Run]:
    """Every run in or below the folders `places`, and of every dataset among them; those that cannot be read are told.

    Raises ValueError for a place without any.
    """
    for place in places:
        if dataset.is_dataset(place):
            yield from dataset.runs(place)
            continue
        files = sorted(place.rglob(RUN_FILE))
        if not files:
            raise ValueError(f"{place} holds no run: there is no {RUN_FILE} in it, nor in a folder below it")
        for file in files:
            try:
                yield read_run(file.parent)
            except ValueError as found:
                fault(str(found))


def histories(
    runs: Iterable[Run],
    backends: Collection[str] = (),
    words: Collection[str] = (),
    *,
    in_seconds: bool = False,
    judged: Callable[[Run], Analysis] = Run.judged,
) -> list[History]:
    """The history of each machine, by name; a run that comes twice counts once.

    One that does not tell when it began has no place and is left out.

    backends : those to show, by default all; the others still say what the machine did. words : each stands in the
    labels of the workloads that are shown. in_seconds : changes are looked for in the seconds alone. judged :
    gives the analysis of a run.
    """
    by_machine: dict[str, dict[str, tuple[Seen, _Measured]]] = {}
    for run in runs:
        with contextlib.suppress(ValueError):  # of a date
            began = datetime.fromisoformat(run.started)
            began = began if began.tzinfo else began.replace(tzinfo=UTC)
            measured = {
                (cell.workload, name): (one.latency.median, one.library or one.backend)
                for cell in judged(run).cells
                for name, one in cell.measured.items()
                if one.latency is not None
            }
            seen = Seen(str(run.folder), began, versions(run.environment))
            mine = by_machine.setdefault(fingerprint(run.environment), {})
            mine.setdefault(run.id or run.started, (seen, measured))
    found = []
    for machine, each in sorted(by_machine.items()):
        ordered = sorted(each.values(), key=lambda one: one[0].started)
        known = _known([one for one, _ in ordered])
        series = [
            one
            for workload in dict.fromkeys(key[0] for _, measured in ordered for key in measured)
            if all(word in workload.label.split() for word in words)
            for one in _series(known, [measured for _, measured in ordered], workload, in_seconds)
            if not backends or one.contender.partition("[")[0] in backends
        ]
        found.append(History(machine, tuple(known), tuple(series)))
    return found


def _known(runs: Sequence[Seen]) -> list[Seen]:
    """With the software that was last known; a variable that a run does not name is not set there."""
    variables = {name for one in runs for name in one.software if name.isupper()}
    last: dict[str, str] = {}
    known = []
    for one in runs:
        last = {**last, **dict.fromkeys(variables, UNSET), **one.software}
        known.append(replace(one, software=last))
    return known


def _news(runs: Sequence[Seen], before: int, after: int) -> tuple[str, ...]:
    was, is_ = runs[before].software, runs[after].software
    return tuple(f"{name} {was[name]} → {is_[name]}" for name in sorted(was) if is_[name] != was[name])


def _series(
    runs: Sequence[Seen], measured: Sequence[_Measured], workload: Workload, in_seconds: bool
) -> Iterator[Series]:
    """The series of each contender that was measured at the workload."""
    logs: dict[str, dict[int, float]] = {}
    libraries: dict[str, str] = {}
    for run, found in enumerate(measured):
        for (asked, name), (seconds, library) in found.items():
            if asked == workload:
                logs.setdefault(name, {})[run] = math.log(seconds)
                libraries[name] = library
    there = sorted({run for one in logs.values() for run in one})
    votes: dict[str, list[list[float]]] = {}
    for name, one in logs.items():
        if len(one) == len(there):
            middle = statistics.median(one.values())
            votes.setdefault(libraries[name], []).append([one[run] - middle for run in there])
    moved = {library: [*map(statistics.median, zip(*rows, strict=True))] for library, rows in votes.items()}
    for name, values in logs.items():
        others = [each for library, each in moved.items() if len(moved) > 2 or library != libraries[name]]
        relative = bool(others) and not in_seconds
        drift = [*map(statistics.median, zip(*others, strict=True))] if relative else [0.0] * len(there)
        taken = dict(zip(there, drift, strict=True))
        raw, figures = list(values.values()), [one - taken[run] for run, one in values.items()]
        at, cuts = list(values), change_points(figures)
        ends = zip([0, *cuts], cuts, [*cuts[1:], len(raw)], strict=False)
        cuts = [cut for low, cut, high in ends if abs(_step(figures, low, cut, high)) >= SMALLEST]
        changes = [
            Change(
                at[cut],
                math.exp(_step(figures, low, cut, high)),
                math.exp(_step(raw, low, cut, high)),
                _news(runs, at[cut - 2], at[cut + 1]),
            )
            for low, cut, high in zip([0, *cuts], cuts, [*cuts[1:], len(raw)], strict=False)
        ]
        yield Series(workload, name, tuple(at), tuple(map(math.exp, raw)), relative, tuple(changes))


def _step(figures: Sequence[float], low: int, cut: int, high: int) -> float:
    return statistics.median(figures[cut:high]) - statistics.median(figures[low:cut])
