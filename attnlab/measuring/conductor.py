"""Races contenders over workloads; while one of them is timed, the processes of all others are stopped.

For each workload every contender is, in turn, predicted (what would exceed time or memory is not tried), prepared,
checked against float64 and calibrated. Those that are left run in interleaved rounds until every verdict is decided or
the time is spent; then the other instruments measure, each in a pass of its own. A contender that fails gets its
outcome and a reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from attnlab.accuracy import race_check
from attnlab.contract.result import Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.measuring.budget import Budget
from attnlab.measuring.contender import Contender
from attnlab.measuring.instruments import PEAK_MEMORY, STANDARD, Instrument
from attnlab.measuring.limits import Limits
from attnlab.measuring.participant import Participant
from attnlab.measuring.race import Race
from attnlab.measuring.worker_process import NoAnswer, Refused, WorkerProcess

_WARMUP_SECONDS = 0.03


class Conductor:
    """Keeps one worker process a contender for a whole run; use as a context manager.

    `instruments` measure what is raced: latency in the race, which is always measured, and each other in a pass of
    its own after it; `memory` False leaves out peak memory. `account` holds the seconds that went into each activity;
    over a race they add up to its time. `on_event` is called with short texts as work goes on.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        *,
        baseline: str | None = None,
        folders: Sequence[str] = (),
        limits: Limits | None = None,
        memory: bool = True,
        instruments: Sequence[Instrument] = STANDARD,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.workers = [WorkerProcess(contender, folders) for contender in contenders]
        self.baseline = baseline or contenders[0].name
        self.limits = limits or Limits()
        self.memory, self.instruments = memory, tuple(instruments)
        self.account: dict[str, float] = defaultdict(float)
        self._on_event = on_event
        self._absent: dict[str, tuple[Outcome, str]] = {}
        self._budget = Budget(self.limits)

    def __enter__(self) -> Conductor:
        try:
            with self._activity("start-up"):
                self._start()
        except BaseException:  # an interrupt too: nobody calls __exit__ for us
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as leaving:  # all of them, also where an interrupt comes in between
            for worker in self.workers:
                leaving.callback(worker.end)

    def race(self, workload: Workload) -> list[Result]:
        """One result a contender, in the order they were given."""
        started, before = time.monotonic(), sum(self.account.values())
        try:
            return self._race(workload)
        finally:
            named = sum(self.account.values()) - before
            self.account["conducting"] += time.monotonic() - started - named

    def _race(self, workload: Workload) -> list[Result]:
        with self._activity("start-up"):
            self._start()
        deadline = self.limits.deadline_seconds
        participants = [Participant(worker, workload, deadline) for worker in self.workers]
        for participant in participants:
            self._on_event(f"{workload.label}: checking {participant.name}")
            participant.attempt(self._admit)
            if participant.ended is not None:
                self._release(participant)  # the others may want the memory
        Race(
            participants=[one for one in participants if one.ended is None],
            baseline=self.baseline,
            limits=self.limits,
            account=self.account,
            on_event=self._on_event,
        ).run()
        for participant in participants:
            if participant.ended is None:
                self._budget.saw_seconds(participant)
                self._measure(participant)
            self._release(participant)
        return [participant.result() for participant in participants]

    def facts(self, device: str) -> dict[str, dict[str, Any]]:
        """Library versions, BLAS pools and device of every contender, by name, where they can be read."""
        found = {}
        for worker in self.workers:
            if worker.alive:
                try:
                    deadline = self.limits.deadline_seconds
                    found[worker.contender.name] = worker.ask("facts", seconds=deadline, device=device)
                except NoAnswer as fault:
                    found[worker.contender.name] = {"unknown": str(fault)}
        return found

    # -- one contender at a time -------------------------------------------------------------------

    def _start(self) -> None:
        """Start the processes that do not run, side by side: importing a library takes seconds.

        A contender whose backend does not load is not tried again in this run.
        """
        started = []
        for worker in self.workers:
            if worker.alive or worker.contender.name in self._absent:
                continue
            self._on_event(f"starting {worker.contender.name}")
            try:
                worker.start()
                started.append(worker)
            except (NoAnswer, OSError) as fault:
                self._absent[worker.contender.name] = (Outcome.UNAVAILABLE, str(fault))
        for worker in started:
            try:
                worker.finish_start()
            except NoAnswer as fault:
                outcome = Outcome.UNAVAILABLE if isinstance(fault, Refused) else fault.outcome
                self._absent[worker.contender.name] = (outcome, str(fault))
                worker.end()

    def _admit(self, participant: Participant) -> None:
        """Everything that comes before the clock."""
        workload = participant.workload.to_dict()
        if participant.name in self._absent:
            participant.ended = self._absent[participant.name]
            return
        with self._activity("predicting"):
            participant.ask("declines", workload=workload)
            participant.ended = self._budget.over(participant)
        if participant.ended:
            return
        with self._activity("preparing"):
            participant.cache = participant.ask("prepare", workload=workload)["cache"]
        with self._activity("checking"):
            self._check(participant)
        if participant.ended:
            return
        with self._activity("warm-up"):
            found = participant.ask("calibrate", warmup_seconds=_WARMUP_SECONDS)
            participant.call_seconds = float(found["seconds"])
            self._budget.saw_seconds(participant)
        with self._activity("attesting"):
            participant.kernel = str(participant.ask("attest")["kernel"])

    def _check(self, participant: Participant) -> None:
        """Judge what the call that will be timed returns, the first time and the second."""
        rows = race_check.sampled_rows(participant.workload)
        deadline = participant.deadline_seconds
        reply, arrays = participant.worker.ask_arrays("check", seconds=deadline, rows=rows)
        names = reply["names"]
        first, second = (
            dict(zip(names, arrays[at : at + len(names)], strict=True)) for at in (0, len(names))
        )
        participant.accuracy = race_check.judge(participant.workload, rows, first)
        when = ""
        same = all(np.array_equal(first[name], second[name]) for name in names)
        if participant.accuracy.passed and not same:
            participant.accuracy = race_check.judge(participant.workload, rows, second)
            when = "right at the first call, but at the second: "
        if not participant.accuracy.passed:
            reason = participant.accuracy.reason or "failed the accuracy gate"
            participant.ended = (Outcome.WRONG, when + reason)

    def _measure(self, participant: Participant) -> None:
        """By every other instrument, now that the speed is known: where one fails, that is noted and the rest stays."""
        for instrument in self.instruments:
            if instrument.in_race or (instrument.quantity == PEAK_MEMORY.quantity and not self.memory):
                continue
            self._on_event(f"{participant.workload.label}: {instrument.title} of {participant.name}")
            try:
                with self._activity(instrument.activity):
                    found = participant.measure(instrument)
            except NoAnswer as fault:
                participant.notes.append(f"its {instrument.title} could not be measured: {fault}")
                if not participant.worker.alive:
                    return
                continue
            participant.measurements.append(instrument.measurement(found))
            self._budget.saw(participant, participant.measurements[-1])

    def _release(self, participant: Participant) -> None:
        """Free what the workload took. A worker that cannot even do this is replaced; its result stands."""
        if not participant.worker.alive:
            return
        with self._activity("releasing"):
            try:
                participant.ask("release")
            except NoAnswer:
                participant.worker.end()

    @contextmanager
    def _activity(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.account[name] += time.monotonic() - started
