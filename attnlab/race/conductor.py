"""Races contenders over workloads; while one of them is timed, the processes of all others are stopped.

For each workload every contender is, in turn, predicted (what would exceed time or memory is not tried), prepared,
checked against float64 and calibrated. Those that are left run in interleaved rounds, in one crew of processes after
the other, until every verdict is decided or the time is spent; the other instruments measure in the first crew, each in
a pass of its own. A contender that fails gets its outcome and a reason, and the others go on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnlab import system
from attnlab.backends.contender import Contender
from attnlab.errors import Declined
from attnlab.gate import race_check
from attnlab.judge.ranking import is_second_entry
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race import prediction
from attnlab.race.budget import USABLE, Beside, Budget, Over
from attnlab.race.crews import Crews
from attnlab.race.disturbance import Others, Watch
from attnlab.race.instruments import PEAK_MEMORY, STANDARD, Instrument
from attnlab.race.invariance import Invariance, invariance_of, with_other_threads
from attnlab.race.limits import Limits
from attnlab.race.participant import Participant
from attnlab.race.protocol import Message
from attnlab.race.race import Race
from attnlab.race.worker_process import NoAnswer, WorkerProcess

_WARMUP_SECONDS = 0.015
#: who gave no answer on so many workloads is not asked again for one that is no smaller: each costs a whole deadline
_HANGS = 2


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
        self.limits = limits or Limits()
        make = partial(WorkerProcess, start_seconds=self.limits.start_seconds)
        self.crews = Crews(contenders, folders, on_event, make)
        self.baseline = baseline or contenders[0].name
        self.memory, self.instruments = memory, tuple(instruments)
        self.account: dict[str, float] = defaultdict(float)
        self._on_event, self._folders = on_event, tuple(folders)
        self._budget = Budget(self.limits)
        #: FLOPs of the workloads on which each contender gave no answer in time
        self._hung: dict[str, list[int]] = defaultdict(list)
        #: of the present workload: who was admitted so far, and how many race
        self._beside, self._there = Beside(), len(contenders)

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
            results = self._race(workload)
        finally:
            seconds = time.monotonic() - started
            self.account["conducting"] += seconds - (sum(self.account.values()) - before)
        return [replace(one, race_seconds=seconds) for one in results]

    def _race(self, workload: Workload) -> list[Result]:
        with self._activity("start-up"):
            first = self.crews.crew(0)
        watch = Watch()
        there = max(1, len(first) - len(self.crews.absent))
        deadline = max(self.limits.deadline(there), prediction.drawing_seconds(workload))
        self._there, self._budget.limits = there, self.limits
        participants = [Participant(worker, workload, deadline) for worker in first.values()]
        race = Race(
            participants=participants,
            baseline=self.baseline,
            limits=self.limits,
            account=self.account,
            others=partial(self._others, watch),
            on_event=self._on_event,
        )
        crew, self._beside = 0, Beside()
        while True:
            started, entered = time.monotonic(), sorted(race.racing, key=self._place)
            for participant in entered:
                self._on_event(f"{workload.label}: checking {participant.name}")
                participant.attempt(partial(self._rejoin, crew) if crew else self._admit)
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
        self._note(race.cut_short(crew), watch, participants)
        for participant in participants:
            if participant.ended and participant.ended[0] is Outcome.TIMED_OUT:
                self._hung[participant.name].append(workload.flops)
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

    def invariance(self, names: Collection[str], dtypes: Sequence[str], device: str) -> list[Invariance]:
        """Which of the contenders `names` give the same bits again, in each of `dtypes`; see `Invariance`.

        Asked after the races: it takes a process of each with another number of threads.
        """
        found: list[Invariance] = []
        with self._activity("same bits"):
            for name, worker in self.crews.crew(0, list(names)).items():
                if name in names and worker.alive and not is_second_entry(name):
                    self._on_event(f"same bits again: {name}")
                    other = with_other_threads(worker.contender, system.cores(), self._folders)
                    seconds = self.limits.deadline_seconds
                    found += invariance_of(worker.contender, worker, other, dtypes, device, seconds)
        return found

    def _enter(self, crew: int, racing: Sequence[Participant]) -> None:
        """Give those who still race their processes of the next crew, where there is room beside the idle ones."""
        names, room = [one.name for one in racing], self._beside.further
        with self._activity("start-up"):
            room += sum(prediction.held_bytes(one.workload) for one in racing)
            room += max((prediction.preparing_bytes(one.workload) for one in racing), default=0)
            self.crews.make_room(int((room + self.crews.size(names, crew)) / USABLE), keep=crew)
            workers = self.crews.crew(crew, names)
        for one in racing:
            one.worker = workers[one.name]
            one.present = one.worker.alive

    def _place(self, participant: Participant) -> tuple[bool, bool]:
        """Whose memory counts first: the baseline's, and that of a second entry last."""
        return is_second_entry(participant.name), participant.name != self.baseline

    def _note(self, cut_short: str | None, watch: Watch, participants: Sequence[Participant]) -> None:
        """What others took of the machine while these raced, and what there was no time for, beside every result."""
        if cut_short:
            for participant in participants:
                participant.facts["cut short"] = cut_short
        others = self._others(watch)
        if others.notable:
            for participant in participants:
                participant.facts["others"] = str(others)

    def _others(self, watch: Watch) -> Others:
        """What others have taken of the machine since `watch` was made."""
        ours = [worker.number for worker in self.crews.workers if worker.number is not None]
        return watch.others(ours)

    # -- one contender at a time -------------------------------------------------------------------

    def _admit(self, participant: Participant) -> None:
        """Everything that comes before the clock."""
        workload = participant.workload.to_dict()
        if participant.name in self.crews.absent:
            participant.ended = self.crews.absent[participant.name]
            return
        hung = self._hung[participant.name]
        if len(hung) >= _HANGS and participant.workload.flops >= min(hung):
            participant.ended = (
                Outcome.TIMED_OUT,
                "not tried: on earlier workloads, which were no larger, it did not answer",
            )
            return
        with self._activity("predicting"):
            participant.ask("declines", workload=workload)
            over = self._over(participant)
        if over:
            participant.ended = Outcome.OVER_BUDGET, over.reason
            return
        with self._activity("checking"):
            participant.ended = self._refer(participant.workload)
        if participant.ended:
            return
        participant.worker.forget_peak()
        with self._activity("preparing"):
            prepared = participant.ask("prepare", workload=workload, digested=True)
            participant.cache = prepared["cache"]
            participant.facts["inputs"] = prepared.get("inputs", "too large for a digest")
        with self._activity("checking"):
            self._check(participant, 0, prepared)
        if participant.ended:
            return
        with self._activity("warm-up"):
            found = participant.ask("calibrate", warmup_seconds=_WARMUP_SECONDS)
            participant.call_seconds = float(found["seconds"])
            self._budget.saw_seconds(participant)
        with self._activity("attesting"):
            participant.kernel = str(participant.ask("attest")["kernel"])
            asked = participant.worker.asked_kernel
            if asked is not None and asked not in participant.kernel:
                participant.notes.append(f"it asked for {asked}, but {participant.kernel} ran")
        before, held = self._beside, prediction.held_bytes(participant.workload)
        further = max(before.further, participant.worker.further_bytes())
        self._beside = Beside(before.count + 1, before.held + held, further)

    def _over(self, participant: Participant) -> Over | None:
        """Why the workload is not to be tried; idle processes are ended where that makes room for it."""
        over = self._budget.over(participant, self._there, self._beside)
        if over and over.needed and self.crews.make_room(over.needed, keep=0):
            participant.ask("release")  # of what was tried
            over = self._budget.over(participant, self._there, self._beside)
        return over

    @staticmethod
    def _refer(workload: Workload) -> tuple[Outcome, str] | None:
        """Work out the right answer, before a contender has its inputs: there may be room for one of them alone.

        Returns the outcome where nobody can have such inputs.
        """
        try:
            race_check.references(workload, tuple(race_check.sampled_rows(workload)))
        except Declined as refused:
            return Outcome.DECLINED, str(refused)
        return None

    def _rejoin(self, crew: int, participant: Participant) -> None:
        """Everything that comes before the clock in a later crew: its answer must be as right as in the first."""
        if not participant.present:
            return
        cramped = self._budget.cramped(participant)
        if cramped:
            participant.present = False
            participant.notes.append(f"left out of one process: {cramped}")
            return
        with self._activity("preparing"):
            prepared = participant.ask("prepare", workload=participant.workload.to_dict())
        with self._activity("checking"):
            self._check(participant, crew, prepared)

    def _check(self, participant: Participant, crew: int, prepared: Message) -> None:
        """Judge what the call that will be timed returns, the first time and the second, and note what came before it.

        In a later crew the first time alone, and only where it is not, bit for bit, what the first crew returned.
        """
        rows, first_crew = race_check.sampled_rows(participant.workload), not participant.answers
        reply, arrays = participant.worker.ask_arrays(
            "check", seconds=participant.deadline_seconds, rows=rows, calls=2 if first_crew else 1
        )
        names = reply["names"]
        noted = {"first_call_s": float(reply["first_call_s"])}
        participant.set_up[crew] = noted | {name: float(prepared[name]) for name in ("bind_s", "fresh")}
        if not first_crew and all(map(np.array_equal, arrays, participant.answers)):
            return
        participant.answers = participant.answers or arrays[: len(names)]
        first, second = (
            dict(zip(names, arrays[at : at + len(names)], strict=True))
            for at in (0, len(arrays) - len(names))
        )
        computes_in = participant.computes_in
        found, when = race_check.judge(participant.workload, rows, first, computes_in), ""
        same = all(np.array_equal(first[name], second[name]) for name in names)
        if found.passed and not same:
            found = race_check.judge(participant.workload, rows, second, computes_in)
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
