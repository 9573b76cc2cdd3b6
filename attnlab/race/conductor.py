"""Visits to workloads. `run`, `compare`, `gate` and pytest measure in this way only.

    with Conductor(contenders) as conductor:
        for results in conductor.visits(workload):    # a result for each contender and visit
            ...

Nurseries live as long as the conductor; the processes of a visit end with the visit. A contender that fails on a
workload (declined, too slow, wrong, crashed) does not take part there again.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from attnlab.backends.contender import Contender, huge_pages_refused, side_of
from attnlab.backends.discovery import library_of
from attnlab.errors import Unavailable
from attnlab.libraries.library import is_there
from attnlab.processes import Failed, Interpreter, Process
from attnlab.race.admission import Limits
from attnlab.race.instruments import INSTRUMENTS, NOTABLE, Notice, Watch
from attnlab.race.nursery import WORK, Nursery
from attnlab.race.visit import Start, Suspended, Visit
from attnlab.stats.intervals import EARLY_ALPHA, EARLY_MARGIN, verdicts_against
from attnlab.stats.ranking import entered_once, implementation_of, is_second_entry
from attnlab.workload.result import Outcome, Result, merged
from attnlab.workload.workload import Workload

#: a contender that hung on this many workloads skips all that are not smaller: each hang costs a whole deadline
_HANGS = 2


class Conductor:
    """Makes visits; use as a context manager. `account` holds the seconds that each activity took.

    baseline : the contender that the others are compared with, by default the first. folders : folders with further
    backends. memory : whether a race ends with a visit for peak memory. on_event : called with a text about each step;
    a `Notice` should stay visible. start : starts a worker. clock : what a worker's clock is checked against.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        *,
        baseline: str | None = None,
        folders: Sequence[Path | str] = (),
        limits: Limits | None = None,
        memory: bool = True,
        on_event: Callable[[str], None] = lambda text: None,
        start: Start | None = None,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.contenders, self.baseline = tuple(contenders), baseline or contenders[0].name
        self.limits, self.memory = limits or Limits(), memory
        self.account: dict[str, float] = {}
        #: by contender, after its first visit: versions, thread pools and interpreter of its process
        self.facts: dict[str, dict[str, Any]] = {}
        self._folders = tuple(str(Path(folder).resolve()) for folder in folders)
        self._on_event, self._start, self._clock = on_event, start or self._begin, clock
        self._nurseries: dict[Any, Nursery | None] = {}
        #: by workload: contenders that were measured there, and contenders that take no further part
        self._measured: dict[Workload, set[str]] = defaultdict(set)
        self._excluded: dict[Workload, set[str]] = defaultdict(set)
        self._hung: dict[str, list[int]] = defaultdict(list)
        #: by contender and device: why it is unavailable for every workload
        self._absent: dict[tuple[str, str], str] = {}
        #: by contender and workload: seconds of calls that were tried or measured, to predict larger calls
        self._trials: dict[tuple[str, Workload], float | None] = {}
        self._watch: Watch | None = None
        self._ready = False
        #: whether an interruptible `race` was interrupted before all its timed visits
        self.interrupted = False

    def __enter__(self) -> Conductor:
        try:
            for contender in self.contenders if self._start == self._begin else ():  # all start at once
                with contextlib.suppress(Failed, OSError):
                    self._nursery(contender)
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait(self) -> None:
        """Return when the nurseries have imported their libraries. Time limits of measurements begin after it."""
        if self._ready:
            return
        started, self._ready = monotonic(), True
        for nursery in filter(None, self._nurseries.values()):
            with contextlib.suppress(Failed):  # then its workers are started without it
                nursery.wait()
        self.account["importing"] = self.account.get("importing", 0.0) + monotonic() - started
        self._watch = Watch()  # from now on: the imports would count as other programs

    def __exit__(self, *_: object) -> None:
        for nursery in self._nurseries.values():
            if nursery is not None:
                nursery.close()
        self._nurseries.clear()

    def visit(
        self, workload: Workload, names: Sequence[str] | None = None, *, number: int = 0, timed: bool = True
    ) -> list[Result]:
        """One visit: a result for each contender (or each of `names`) that has not failed on this workload.

        number : different for each timed visit to this workload; 0 forgets what earlier visits found. timed : if False,
        no times are measured, but what needs one visit only (peak memory), of each contender that was timed. The list
        is empty if the machine was suspended.
        """
        self.wait()
        if number == 0:
            self._excluded[workload], self._measured[workload] = set(), set()
        excluded, measured = self._excluded[workload], self._measured[workload]
        named = (one for one in self.contenders if names is None or one.name in names)
        racing = [one for one in named if one.name not in excluded]
        if not timed:
            racing = [one for one in racing if one.name in measured and not is_second_entry(one.name)]
            if not racing:
                return []
        absent = [one for one in racing if (one.name, workload.device) in self._absent]
        asked = [one for one in racing if one not in absent and len(self._hung[one.name]) >= _HANGS]
        hung = [one for one in asked if workload.flops >= max(self._hung[one.name])]
        visit = Visit(
            workload,
            number,
            self.limits,
            newcomers={one.name for one in racing} - measured,
            instruments=[] if timed else [name for name, one in INSTRUMENTS.items() if not one.every_visit],
            account=self.account,
            facts=self.facts,
            trials=self._trials,
            on_event=self._on_event,
            clock=self._clock,
        )
        try:
            found = visit.run([one for one in racing if one not in (*hung, *absent)], self._start)
        except Suspended as fault:
            self._on_event(Notice(f"{workload.label}: {fault}"))
            return []
        said = "not tried: it did not answer in time on earlier workloads, which were no larger"
        found += [Result(one.name, workload, Outcome.TIMED_OUT, said) for one in hung]
        for missing in absent:
            reason = self._absent[missing.name, workload.device]
            found.append(Result(missing.name, workload, Outcome.UNAVAILABLE, reason))
        for one in found:
            (measured if one.outcome is Outcome.MEASURED else excluded).add(one.contender)
            if one.outcome is Outcome.UNAVAILABLE and one.reason:
                self._absent[one.contender, workload.device] = one.reason
            if one.outcome is Outcome.TIMED_OUT and one.contender not in {each.name for each in hung}:
                self._hung[one.contender].append(workload.flops)
        self._warn()
        return found

    def remember(self, results: Sequence[Result]) -> None:
        """Take over the results of earlier visits, so that nothing that is settled is measured again."""
        for one in results:
            where = self._measured if one.outcome is Outcome.MEASURED else self._excluded
            where[one.workload].add(one.contender)

    def visits(
        self,
        workload: Workload,
        names: Sequence[str] | None = None,
        *,
        enough: Callable[[list[Result]], bool] = lambda results: False,
    ) -> Iterator[list[Result]]:
        """Visit one workload until the limits are reached or no rival is left; yields the results of each visit.

        enough : called with all results so far, merged, once there are enough visits; True ends the visits. By default
        only the time decides: if visits end as soon as an interval looks good, the interval is too narrow.
        """
        self.wait()
        started, limits, so_far = monotonic(), self.limits, list[Result]()
        for number in range(limits.most_visits):
            found = self.visit(workload, names, number=number)
            yield found
            so_far += found
            measured = sum(one.outcome is Outcome.MEASURED for one in found)
            if found and not measured:
                return
            with_next = (monotonic() - started) * (number + 2) / (number + 1)
            over = with_next > limits.workload_seconds or measured == 1 < len(self.contenders)
            if number + 1 >= limits.visits and (over or (so_far and enough(merged(so_far)))):
                return

    def race(
        self,
        workload: Workload,
        names: Sequence[str] | None = None,
        *,
        each: Callable[[list[Result]], None] = lambda results: None,
        interruptible: bool = False,
        **how: Any,
    ) -> list[Result]:
        """Make all `visits` to a workload and measure its memory: one result for each contender, in their order.

        each : called after each visit with all results so far, merged. interruptible : an interrupt ends the race, and
        the results of the visits before it are returned.
        """
        found, timed = list[Result](), False
        try:
            for results in self.visits(workload, names, **how):
                found += results
                each(merged(found))
            timed = True
            if found and self.memory:
                found += self.visit(workload, names, number=len(found), timed=False)
        except KeyboardInterrupt:
            if not interruptible:
                raise
            self.interrupted = not timed
        place = {one.name: at for at, one in enumerate(self.contenders)}
        return sorted(merged(found), key=lambda one: place[one.contender])

    def asked(self, results: Sequence[Result]) -> list[str]:
        """The contenders for the next visit to a workload, by its results over all visits; none if nothing is open.

        These are the fastest, and each that is neither surely much slower nor surely close. Up to the least number of
        visits, the baseline and its A/A control take part too. So a naive loop that is clearly slower is not timed
        again and again.
        """
        able = (one for one in results if one.contender not in self._excluded[one.workload])
        times = {one.contender: one.latency for one in able if one.latency and not one.uncounted}
        count = max((len(set(one.visits.values())) for one in times.values()), default=0)
        if not count or count >= self.limits.most_visits:
            return []
        best = min(times, key=lambda name: (is_second_entry(name), times[name].median))
        kernels = {one.contender: implementation_of(one) for one in results if one.contender in times}
        same = [one.name for one in self.contenders if kernels.get(one.name) == kernels[best]]
        best = same[0]  # two names of one kernel are no rivals: the first goes on, whichever is faster
        found = verdicts_against(results, best, comparisons=1, margin=EARLY_MARGIN, alpha=EARLY_ALPHA)
        decided = {name for name, one in found.items() if one.settled}
        decided |= {name for name in times if kernels[name] == kernels[best] and not is_second_entry(name)}
        names = [name for name in times if name == best or name not in decided]
        if count >= self.limits.visits:
            names = [name for name in names if name == best or not is_second_entry(name)]
            return names if len(names) > 1 else []
        return list(dict.fromkeys([*names, *(one for one in times if entered_once(one) == self.baseline)]))

    def _warn(self) -> None:
        """Report once that other programs use the cores."""
        if self._watch is not None and (taken := self._watch.others()) > NOTABLE:
            self._watch = None
            self._on_event(
                Notice(
                    f"Other programs take {taken:.1f} cores: intervals will be wide. Repeat it when nothing else runs."
                )
            )

    def _begin(self, contender: Contender) -> tuple[Process, Sequence[str]]:
        """A worker for a contender, and the folders in which it finds its backend. Raises Failed and OSError."""
        if contender.pages == "huge" and (refused := huge_pages_refused()):
            raise Failed("unavailable", refused)
        kind = None if contender.elsewhere else library_of(contender.backend, self._folders)
        if kind and (missing := next((one for one in kind.modules if not is_there(one)), None)):
            mend = getattr(kind, "mend", "") or f"pip install 'attnlab[{kind.name}]'"
            raise Failed("unavailable", f"{missing.partition('.')[0]} is not installed; {mend}")
        try:
            if nursery := self._nursery(contender):
                return nursery.fork(), self._folders
        except (Failed, OSError):
            self._nurseries[self._family(contender)] = None
        interpreter, folders = Interpreter(), self._folders
        if contender.elsewhere:
            try:
                side = side_of(contender, self._folders)
            except Unavailable as fault:
                raise Failed("unavailable", str(fault)) from None
            interpreter, folders = side.interpreter, side.folders
        return Process(WORK, environment=contender.environment(os.environ), interpreter=interpreter), folders

    def _nursery(self, contender: Contender) -> Nursery | None:
        """The nursery for its library and environment, or None: then its workers start without one. Raises Failed."""
        family = self._family(contender)
        if family not in self._nurseries:
            self._nurseries[family] = None
            if family[0]:
                environment = contender.environment(os.environ)
                self._nurseries[family] = Nursery(family[0], environment, self.limits.start_seconds)
        return self._nurseries[family]

    def _family(self, contender: Contender) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        kind = None if contender.elsewhere else library_of(contender.backend, self._folders)
        modules = kind.before_fork or () if kind else ()
        return modules, tuple(sorted(contender.environment({}).items()))
