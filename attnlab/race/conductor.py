"""Races contenders over workloads; while one of them is timed, the processes of all others are stopped.

For each workload every contender is, in turn, admitted (what would clearly exceed time or memory is not tried),
prepared, checked against float64 and calibrated in the first set of processes, and then prepared and checked in the
others, as many as memory allows at once. Those that are left run in interleaved rounds over these sets, until it is
decided or the time is spent; the other instruments measure in the first set, each in a pass of its own. A contender
that fails gets its outcome and a reason, and the others go on.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import require
from attnlab.correctness import race_check
from attnlab.errors import Declined, Unavailable
from attnlab.race.admission import (
    USABLE,
    Admission,
    drawing_seconds,
    held_bytes,
    needed_bytes,
    preparing_bytes,
)
from attnlab.race.disturbance import Lookout, Others, Watch
from attnlab.race.instruments import PEAK_MEMORY, STANDARD, Instrument
from attnlab.race.invariance import invariance_of, with_other_threads
from attnlab.race.limits import Limits
from attnlab.race.participant import Participant
from attnlab.race.plausibility import plausible
from attnlab.race.process_sets import ProcessSets
from attnlab.race.race import FAR_SETS, Race
from attnlab.race.worker_process import Died, Ended, Hung, NoAnswer, Refused, WorkerProcess
from attnlab.remembered import Remembered, digest
from attnlab.stats.ranking import is_second_entry
from attnlab.text import listed
from attnlab.workload.result import SAME_BITS, Invariance, Outcome, Result
from attnlab.workload.workload import Workload

_WARMUP_SECONDS = 0.015
#: a second call that is no faster than this part of the first tells what a long call takes: nothing grows warm
_STEADY = 0.8
#: who gave no answer on so many workloads is not asked again for one that is no smaller: each costs a whole deadline
_HANGS = 2


class Conductor:
    """Keeps the sets of worker processes for a whole run; use as a context manager.

    `instruments` measure what is raced: latency in the race, which is always measured, and each other in a pass of
    its own after it; `memory` False leaves out peak memory. `account` holds the seconds that went into each activity;
    over a race they add up to its time. `on_event` is called with short texts as work goes on, and early with a
    `Notice` where others take the cores.
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
        self._on_event = Lookout(on_event, self._numbers, Watch)
        self.sets = ProcessSets(contenders, folders, self._on_event, make)
        self._contenders, self.baseline = tuple(contenders), baseline or contenders[0].name
        self.memory, self.instruments = memory, tuple(instruments)
        self.account: dict[str, float] = defaultdict(float)
        self._folders = tuple(folders)
        self._admission = Admission()
        #: FLOPs of the workloads on which each contender gave no answer in time
        self._hung: dict[str, list[int]] = defaultdict(list)
        #: of the present workload: how many race, and how many of them were admitted so far
        self._there, self._prepared = len(contenders), 0

    def __enter__(self) -> Conductor:
        try:
            with self._activity("start-up"):
                self.sets.start(range(min(system.cores(), self.limits.processes)))
        except BaseException:  # an interrupt too: nobody calls __exit__ for us
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.sets.end()

    def require_two(self) -> None:
        """Raises Unavailable where the backends of fewer than two contenders load: there is nothing to compare."""
        absent = self.sets.absent
        if absent and len(self.sets.running(0)) - len(absent) < 2:
            said = "; ".join(f"{name} is {outcome}: {why}" for name, (outcome, why) in absent.items())
            raise Unavailable(f"nothing to compare: {said}")

    def race(self, workload: Workload, names: Sequence[str] | None = None) -> list[Result]:
        """One result a contender, in the order they were given: of those called `names`, where only some are to race.

        The baseline is then the first of them, where it is not one of them.
        """
        started, before = time.monotonic(), sum(self.account.values())
        try:
            results = self._race(workload, names or [one.name for one in self._contenders])
        finally:
            seconds = time.monotonic() - started
            self.account["conducting"] += seconds - (sum(self.account.values()) - before)
        return [replace(one, race_seconds=seconds) for one in results]

    def _race(self, workload: Workload, names: Sequence[str]) -> list[Result]:
        with self._activity("start-up"):
            first = self.sets.running(0, names)
        watch = Watch()
        there = max(1, len(set(names) - set(self.sets.absent)))
        deadline = max(self.limits.deadline(there), drawing_seconds(workload))
        self._there, self._prepared = there, 0
        participants = [
            Participant(worker, workload, deadline) for name, worker in first.items() if name in names
        ]
        baseline = self.baseline if self.baseline in names else names[0]
        race = Race(
            participants=participants,
            baseline=baseline,
            limits=self.limits,
            account=self.account,
            others=partial(self._others, watch),
            on_event=self._on_event,
        )
        # whose memory counts first: the baseline's, and that of a second entry last
        for one in sorted(participants, key=lambda one: (is_second_entry(one.name), one.name != baseline)):
            self._on_event(f"{workload.label}: checking {one.name}")
            self._attempt(one, self._admit, 0)
        race.see_who_is_far()
        planned, sets, ready = self.limits.processes, 0, [0]
        while True:
            wanted = max(planned, self.limits.most_processes) if sets >= planned else planned
            fitting = self._fitting(race.racing)
            numbers = list(range(sets, min(wanted, max(sets + 1, sets + len(ready) + fitting))))
            self._join(race.racing, [number for number in numbers if number not in ready])
            race.run(numbers, last=numbers[-1] + 1 >= planned)
            self._measure([one for one in participants if one.ended is None], numbers)
            sets, ready = numbers[-1] + 1, []
            if race.over(sets):
                break
            for one in participants:
                self._release(one)
        for one in participants:
            self._release(one)
        noted, others = {"cut short": race.cut_short(sets)}, self._others(watch)
        if others.notable:
            noted["others"] = str(others)
        for participant in participants:
            participant.facts.update({name: text for name, text in noted.items() if text})
            if participant.ended and participant.ended[0] is Outcome.TIMED_OUT:
                self._hung[participant.name].append(workload.flops)
        self.sets.dismiss()
        with self._activity("ceilings"):
            return [plausible(participant.result()) for participant in participants]

    def _attempt(self, participant: Participant, step: Callable[[Participant], None], number: int) -> None:
        """Take the step in that set; who ends in it gives back what it held, as the others may want the memory.

        Where its process ends and has an excuse, the step is taken once more, in a fresh one.
        """
        worker = participant.workers.get(number, participant.worker)

        def excused(participant: Participant) -> None:
            try:
                step(participant)
            except (Died, Hung) as fault:
                if not worker.excuse(fault, "before it was timed"):
                    raise
                worker.finish_start()
                participant.enter(number, worker)
                step(participant)

        participant.attempt(excused)
        if participant.ended is not None:
            self._release(participant)

    def _fitting(self, racing: Sequence[Participant]) -> int:
        """In how many further sets the workload can be prepared beside what is there."""
        if not racing:
            return 0
        workload = racing[0].workload
        each = sum(held_bytes(workload) + one.worker.resident_bytes() for one in racing)
        if workload.device == "cpu":
            room = system.free_bytes()
        else:
            try:
                room = int(racing[0].ask("free_bytes", device=workload.device))
            except NoAnswer:
                return 0
        spare = max(needed_bytes(workload, 1), preparing_bytes(workload))
        return max(0, int((room * USABLE - spare) / max(1, each)))

    def _join(self, racing: Sequence[Participant], numbers: Sequence[int]) -> None:
        """Prepare and check those who race in their processes of these sets, which are started where they are not."""
        if not racing or not numbers:
            return
        with self._activity("start-up"):
            self.sets.start(numbers, [one.name for one in racing])
        for number in numbers:
            workers = self.sets.running(number, [])
            for one in racing:
                if one.ended is None and workers[one.name].alive and not (one.far and number >= FAR_SETS):
                    one.enter(number, workers[one.name])
                    self._attempt(one, partial(self._rejoin, number), number)

    def facts(self, device: str) -> dict[str, dict[str, Any]]:
        """Library versions, BLAS pools and device of every contender, by name, where they can be read."""
        found = {}
        for name, worker in self.sets.running(0).items():
            if worker.alive:
                try:
                    deadline = self.limits.deadline_seconds
                    found[name] = worker.ask("facts", seconds=deadline, device=device)
                except NoAnswer as fault:
                    found[name] = {"unknown": str(fault)}
        return found

    def invariance(
        self, names: Collection[str], dtypes: Sequence[str], device: str, afresh: bool = False
    ) -> list[Invariance]:
        """Which of the contenders `names` give the same bits again, in each of `dtypes`; see `Invariance`.

        Asked after the races: it takes a process of each with another number of threads. What was found of a contender
        before is remembered, where nothing kept it from a full answer; `afresh` asks everyone.
        """
        with self._activity("same bits"):
            remembered = Remembered(afresh=afresh)
            running = {
                name: worker
                for name, worker in self.sets.running(0, names).items()
                if name in names and worker.alive and not is_second_entry(name)
            }
            asked = {"asked": SAME_BITS, "dtypes": dtypes, "device": device}
            questions = {}
            for name, worker in running.items():
                beside = require(worker.contender.backend, self._folders).parent.glob("*.py")
                questions[name] = {**asked, **asdict(worker.contender), "source": digest(beside)}
            # elsewhere there may be other libraries by the next time
            here = [name for name, worker in running.items() if not worker.contender.elsewhere]
            found = {
                name: remembered.recall(one, Invariance) if name in here else None
                for name, one in questions.items()
            }
            cores = system.cores()
            unknown = {name: worker for name, worker in running.items() if found[name] is None}
            other_threads = [with_other_threads(one.contender, cores) for one in unknown.values()]
            others = ProcessSets(other_threads, self._folders, self._on_event)
            try:
                by_threads = others.running(0)
                for name, worker in unknown.items():
                    self._on_event(f"same bits again: {name}")
                    seconds = self.limits.deadline_seconds
                    other = by_threads[name]
                    now = invariance_of(worker.contender, worker, other, dtypes, device, seconds)
                    found[name] = now
                    if name in here and not any(one.reason for one in now):
                        remembered.keep(questions[name], now)
            finally:
                others.end()
        return [one for known in found.values() for one in known or ()]

    def _others(self, watch: Watch) -> Others:
        """What others have taken of the machine since `watch` was made."""
        return watch.others(self._numbers())

    def _numbers(self) -> list[int]:
        """Of the processes that race."""
        return [worker.number for worker in self.sets.workers if worker.number is not None]

    # -- one contender at a time -------------------------------------------------------------------

    def _admit(self, participant: Participant) -> None:
        """Everything that comes before the clock. Raises NoAnswer."""
        workload = participant.workload
        if participant.name in self.sets.absent:
            raise Ended(*self.sets.absent[participant.name])
        participant.enter(0, participant.worker)
        hung = self._hung[participant.name]
        if len(hung) >= _HANGS and workload.flops >= min(hung):
            said = "not tried: on earlier workloads, which were no larger, it did not answer"
            raise Ended(Outcome.TIMED_OUT, said)
        with self._activity("predicting"):
            participant.ask("declines", workload=workload)
            if workload.device == "cpu":
                needed = needed_bytes(workload, self._prepared)
                self.sets.make_room(math.ceil(needed / USABLE), keep=[0])
            self._admission.require(participant, self.limits, self._there, self._prepared)
        with self._activity("checking"):  # before it has its inputs: there may be room for one of them alone
            try:
                race_check.references(workload, tuple(race_check.sampled_rows(workload)))
            except Declined as refused:  # nobody can have such inputs
                raise Ended(Outcome.DECLINED, str(refused)) from None
        with self._activity("preparing"):
            prepared = participant.ask("prepare", workload=workload, digested=True)
            participant.cache = prepared["cache"]
            participant.facts["inputs"] = prepared.get("inputs", "too large for a digest")
        with self._activity("checking"):
            self._check(participant, 0, prepared)
        with self._activity("warm-up"):
            if participant.call_seconds < self.limits.settle_below_seconds or workload.backward:
                told = participant.ask("calibrate", warmup_seconds=_WARMUP_SECONDS)
                participant.call_seconds = told["seconds"]
            self._admission.saw(participant)
        with self._activity("attesting"):
            participant.kernel = participant.ask("attest")
            asked = participant.worker.asked_kernel
            if asked is not None and asked not in participant.kernel:
                participant.notes.append(f"it asked for {asked}, but {participant.kernel} ran")
        self._prepared += 1

    def _rejoin(self, number: int, participant: Participant) -> None:
        """Everything that comes before the clock in a later set: its answer must be as right as in the first."""
        with self._activity("preparing"):
            try:
                prepared = participant.ask("prepare", number, workload=participant.workload)
            except Refused as refused:
                if refused.kind != "memory":
                    raise
                del participant.workers[number]  # others may have taken memory since
                participant.notes.append(f"left out of one process: {refused}")
                return
        with self._activity("checking"):
            self._check(participant, number, prepared)

    def _check(self, participant: Participant, number: int, prepared: dict[str, Any]) -> None:
        """Judge what the call that will be timed returns, the first time and the second, and note what came before it.

        In a later set the first time alone, and only where it is not, bit for bit, what the first set returned.
        """
        rows, in_first = race_check.sampled_rows(participant.workload), not participant.answers
        told = participant.ask("check", number, rows=rows, calls=2 if in_first else 1)
        first, second = told["answers"][0], told["answers"][-1]
        set_up = {
            "bind_s": prepared["bind_s"],
            "fresh": prepared["fresh"],
            "first_call_s": told["first_call_s"],
        }
        participant.set_up[number] = set_up
        if in_first and told["last_call_s"] > _STEADY * told["first_call_s"]:
            participant.call_seconds = told["last_call_s"]
        if not in_first and _equal(first, participant.answers):
            return
        participant.answers = participant.answers or first
        participant.timed = timed = participant.timed or told.get("timed", first)
        computes_in = participant.computes_in
        found, when = race_check.judge(participant.workload, rows, first, computes_in), ""
        if found.passed and not _equal(first, second):
            found = race_check.judge(participant.workload, rows, second, computes_in)
            when = "right at the first call, but at the second: "
        if in_first or not found.passed:
            participant.accuracy = found
        reason = None if found.passed else found.reason or "failed the accuracy gate"
        if reason is None and "timed" in told:
            reason = race_check.strayed(participant.workload, rows, timed, timed, computes_in)
            when = "right where an output gradient is 0 but on the rows that are checked, but else: "
        if reason:
            in_one = "" if in_first else "right in one process, but in another: "
            raise Ended(Outcome.WRONG, in_one + when + reason)

    def _measure(self, participants: Sequence[Participant], numbers: Sequence[int]) -> None:
        """By every other instrument, now that the speed is known: where one fails, that is noted and the rest stays.

        In the first set, in later ones by those that measure every set; a second entry is asked for its time alone.
        What reads no clock is measured side by side, where there is as much memory again as those hold.
        """
        for instrument in self.instruments:
            if instrument.in_race or (instrument.quantity == PEAK_MEMORY.quantity and not self.memory):
                continue
            wanted = numbers if instrument.in_every_set else numbers[:1] if 0 in numbers else ()
            places = [
                (one, number)
                for number in wanted
                for one in participants
                if number in one.workers
                and instrument.applies(one.workload)
                and not is_second_entry(one.name)
            ]
            together = 1
            if not instrument.timed and system.free_bytes() > sum(
                one.worker.resident_bytes() for one, _ in places
            ):
                together = system.cores()
            for at in range(0, len(places), together):
                some = places[at : at + together]
                names = listed([one.name for one, _ in some])
                self._on_event(f"{some[0][0].workload.label}: {instrument.title} of {names}")
                with self._activity(instrument.activity):
                    self._read(instrument, some)

    @staticmethod
    def _read(instrument: Instrument, places: Sequence[tuple[Participant, int]]) -> None:
        """The instrument's readings of these participants in these sets, taken at the same time."""
        begun = [one.begin("measure", number, instrument=instrument) for one, number in places]
        for (one, number), answer in zip(places, begun, strict=True):
            try:
                found = answer()
            except NoAnswer as fault:
                if not number:
                    one.notes.append(f"its {instrument.title} could not be measured: {fault}")
                continue
            one.keep(instrument.measurement(found), number if instrument.in_every_set else None)

    def _release(self, participant: Participant) -> None:
        """Free what the workload took. A worker that cannot even do this is replaced; its result stands."""
        for number, worker in participant.workers.items():
            if worker.alive:
                with self._activity("releasing"):
                    try:
                        participant.ask("release", number)
                    except NoAnswer:
                        worker.end()
        participant.workers = {}

    @contextmanager
    def _activity(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.account[name] += time.monotonic() - started


def _equal(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> bool:
    """Whether both hold the same numbers under the same names."""
    return all(np.array_equal(array, other[name]) for name, array in one.items())
