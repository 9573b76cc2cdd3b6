"""Races contenders over workloads; while one of them is timed, the processes of all others are stopped.

For each workload every contender is, in turn, predicted (what would exceed time or memory is not tried), prepared,
checked against float64 and calibrated. Those that are left run in interleaved rounds, in one crew of processes after
the other, until every verdict is decided or the time is spent; the other instruments measure in the first crew, each in
a pass of its own. A contender that fails gets its outcome and a reason, and the others go on.
"""

from __future__ import annotations

import os
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
from attnlab.measuring.crews import Crews
from attnlab.measuring.disturbance import Watch
from attnlab.measuring.instruments import PEAK_MEMORY, STANDARD, Instrument
from attnlab.measuring.limits import Limits
from attnlab.measuring.participant import Participant
from attnlab.measuring.race import Race
from attnlab.measuring.worker_process import NoAnswer
from attnlab.statistics.ranking import is_second_entry

_WARMUP_SECONDS = 0.015


class Conductor:
    """Keeps the crews of worker processes for a whole run; use as a context manager.

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
        self.crews = Crews(contenders, folders, on_event)
        self.baseline = baseline or contenders[0].name
        self.limits = limits or Limits()
        self.memory, self.instruments = memory, tuple(instruments)
        self.account: dict[str, float] = defaultdict(float)
        self._on_event = on_event
        self._budget = Budget(self.limits)

    def __enter__(self) -> Conductor:
        try:
            with self._activity("start-up"):
                self.crews.crew(0)
        except BaseException:  # an interrupt too: nobody calls __exit__ for us
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.crews.end()

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
            first = self.crews.crew(0)
        watch = Watch()
        deadline = self.limits.deadline_seconds
        participants = [Participant(worker, workload, deadline) for worker in first.values()]
        race = Race(
            participants=participants,
            baseline=self.baseline,
            limits=self.limits,
            account=self.account,
            on_event=self._on_event,
        )
        crew = 0
        while True:
            started, entered = time.monotonic(), race.racing
            for participant in entered:
                self._on_event(f"{workload.label}: checking {participant.name}")
                participant.attempt(self._rejoin if crew else self._admit)
                if participant.ended is not None:
                    self._release(participant)  # the others may want the memory
            race.ready_seconds = time.monotonic() - started
            race.run(crew)
            for participant in entered:
                if participant.ended is None and participant.present:
                    if crew == 0:
                        self._budget.saw_seconds(participant)
                    self._measure(participant, crew)
                self._release(participant)
            crew += 1
            if race.over(crew):
                break
            self._enter(crew, race.racing)
        self._note_others(watch, participants)
        self.crews.dismiss()
        return [participant.result() for participant in participants]

    def facts(self, device: str) -> dict[str, dict[str, Any]]:
        """Library versions, BLAS pools and device of every contender, by name, where they can be read."""
        found = {}
        for name, worker in self.crews.crew(0).items():
            if worker.alive:
                try:
                    deadline = self.limits.deadline_seconds
                    found[name] = worker.ask("facts", seconds=deadline, device=device)
                except NoAnswer as fault:
                    found[name] = {"unknown": str(fault)}
        return found

    def _enter(self, crew: int, racing: Sequence[Participant]) -> None:
        """Give those who still race their processes of the next crew."""
        with self._activity("start-up"):
            workers = self.crews.crew(crew, [one.name for one in racing])
        for one in racing:
            one.worker = workers[one.name]
            one.present = one.worker.alive

    def _note_others(self, watch: Watch, participants: Sequence[Participant]) -> None:
        """What others took of the machine while these raced, beside every result."""
        ours = [worker.number for worker in self.crews.workers if worker.number is not None]
        others = watch.others([os.getpid(), *ours])
        if others.notable:
            for participant in participants:
                participant.facts["others"] = str(others)

    # -- one contender at a time -------------------------------------------------------------------

    def _admit(self, participant: Participant) -> None:
        """Everything that comes before the clock."""
        workload = participant.workload.to_dict()
        if participant.name in self.crews.absent:
            participant.ended = self.crews.absent[participant.name]
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

    def _rejoin(self, participant: Participant) -> None:
        """Everything that comes before the clock in a later crew: its answer must be as right as in the first."""
        if not participant.present:
            return
        with self._activity("preparing"):
            participant.ask("prepare", workload=participant.workload.to_dict())
        with self._activity("checking"):
            self._check(participant)

    def _check(self, participant: Participant) -> None:
        """Judge what the call that will be timed returns, the first time and the second.

        In a later crew the first time alone, and only where it is not, bit for bit, what the first crew returned.
        """
        rows, first_crew = race_check.sampled_rows(participant.workload), not participant.answers
        reply, arrays = participant.worker.ask_arrays(
            "check", seconds=participant.deadline_seconds, rows=rows, calls=2 if first_crew else 1
        )
        names = reply["names"]
        if not first_crew and all(map(np.array_equal, arrays, participant.answers)):
            return
        participant.answers = participant.answers or arrays[: len(names)]
        first, second = (
            dict(zip(names, arrays[at : at + len(names)], strict=True))
            for at in (0, len(arrays) - len(names))
        )
        found, when = race_check.judge(participant.workload, rows, first), ""
        same = all(np.array_equal(first[name], second[name]) for name in names)
        if found.passed and not same:
            found = race_check.judge(participant.workload, rows, second)
            when = "right at the first call, but at the second: "
        if first_crew or not found.passed:
            participant.accuracy = found
        if not found.passed:
            in_one = "" if first_crew else "right in one process, but in another: "
            participant.ended = (Outcome.WRONG, in_one + when + (found.reason or "failed the accuracy gate"))

    def _measure(self, participant: Participant, crew: int) -> None:
        """By every other instrument, now that the speed is known: where one fails, that is noted and the rest stays.

        In a later crew by those that measure every crew.
        """
        for instrument in self.instruments:
            if instrument.in_race or (instrument.quantity == PEAK_MEMORY.quantity and not self.memory):
                continue
            if not instrument.applies(participant.workload) or (crew and not instrument.in_every_crew):
                continue
            if is_second_entry(participant.name):  # only its time is asked for
                continue
            self._on_event(f"{participant.workload.label}: {instrument.title} of {participant.name}")
            try:
                with self._activity(instrument.activity):
                    found = participant.measure(instrument)
            except NoAnswer as fault:
                if not crew:
                    participant.notes.append(f"its {instrument.title} could not be measured: {fault}")
                if not participant.worker.alive:
                    return
                continue
            participant.keep(instrument.measurement(found), crew if instrument.in_every_crew else None)
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
