"""One contender's way through one workload: what is known of it so far, and what is filed in the end."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from attnlab.race.instruments import LATENCY, Readings
from attnlab.race.worker_process import NoAnswer, WorkerProcess
from attnlab.workload.result import Accuracy, Measurement, Outcome, Result
from attnlab.workload.vocabulary import OUTPUT, lower
from attnlab.workload.workload import Workload


def _raise(fault: Exception) -> None:
    raise fault


@dataclass
class Participant:
    """One contender's way through one workload, as far as it has come.

    `workers` are its processes, by the number of their set, as far as they are ready for the workload; `worker` is that
    of the first set, and `answers` what the call that is timed returned there. `call_seconds` is the least seconds a
    call so far. It has left the race where `racing` is False, and has an outcome other than measured, with a reason,
    where it has `ended`. Its calls take many times as long as the fastest's where it is `far`.
    """

    worker: WorkerProcess
    workload: Workload
    deadline_seconds: float
    accuracy: Accuracy | None = None
    kernel: str | None = None
    cache: str = "warm"
    call_seconds: float = 0.0
    racing: bool = True
    far: bool = False
    workers: dict[int, WorkerProcess] = field(default_factory=dict)
    #: it computes in more threads or processes than there are cores, which wait for each other
    crowded: bool = False
    answers: dict[str, NDArray[Any]] = field(default_factory=dict)
    #: whether its arrays can be placed anew within a process
    placeable: bool = True
    #: what a turn's call answers: `answers`, or of gradients those of the whole problem
    timed: dict[str, NDArray[Any]] = field(default_factory=dict)
    #: by set and seed of the inputs, the last answer on the clock that was judged because its bits were not known
    known: dict[tuple[int, int], dict[str, NDArray[Any]]] = field(default_factory=dict)
    #: by set, what its inputs were changed by last, and whether that was in its last turn
    changes: dict[int, tuple[int, bool]] = field(default_factory=dict)
    #: seconds of single calls on inputs that were just written, by whether they were changed
    singles: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    #: the least that a turn took by the conductor's clock, over what it told
    clocks: float = math.inf
    ended: tuple[Outcome, str] | None = None
    #: the end of what its process printed, where that ended
    tail: str = ""
    notes: list[str] = field(default_factory=list)
    #: whether it goes on without a process that somebody else has ended
    bereft: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    turns: list[dict[str, float]] = field(default_factory=list)
    #: by process: seconds of binding and of the first call, and whether the process was a fresh one
    set_up: dict[int, dict[str, float]] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The contender's name in this run."""
        return self.worker.contender.name

    @property
    def computes_in(self) -> str | None:
        """The number format that it computes in, where that is lower than the workload's."""
        return lower(self.workload.dtype, self.worker.computes_in)

    def enter(self, number: int, worker: WorkerProcess) -> None:
        """Take part in that set, by this process."""
        self.workers[number] = worker
        if worker.afresh:
            self.notes.append(f"a process of it was started afresh: {worker.afresh}")
            worker.afresh = None

    def ask(self, op: str, number: int = 0, **arguments: Any) -> Any:
        """The answer of its worker in that set. Raises NoAnswer, also where there is none within the deadline."""
        worker = self.workers.get(number, self.worker)
        return worker.ask(op, seconds=self.deadline_seconds, **arguments)

    def begin(self, op: str, number: int, **arguments: Any) -> Callable[[], Any]:
        """As `ask`, but the answer is waited for, and raises, when what is returned is called."""
        try:
            return self.workers[number].begin(op, seconds=self.deadline_seconds, **arguments)
        except NoAnswer as fault:
            return partial(_raise, fault)

    def turn(self, number: int, seed: int, rows: Sequence[int], **options: Any) -> dict[str, Any]:
        """A turn in that set, on inputs changed by `seed`: see `Worker.turn`. Raises as `ask`."""
        found: dict[str, Any] = self.ask("turn", number, seed=seed, rows=rows, **options)
        return found

    def keep(self, measurement: Measurement, process: int | None = None) -> None:
        """File a measurement; with the number of its process, beside the samples of the same quantity from others."""
        if process is not None:
            columns = {**measurement.columns, "process": (float(process),) * len(measurement.samples)}
            before = next((one for one in self.measurements if one.quantity == measurement.quantity), None)
            samples = measurement.samples
            if before is not None:
                self.measurements.remove(before)
                samples = before.samples + samples
                columns = {name: before.columns[name] + column for name, column in columns.items()}
            measurement = replace(measurement, samples=samples, columns=columns)
        self.measurements.append(measurement)

    def latency(self) -> Measurement:
        """Seconds per call of its turns so far."""
        columns = {name: tuple(float(turn[name]) for turn in self.turns) for name in self.turns[0]}
        samples = columns.pop("seconds")
        return LATENCY.measurement(Readings(samples, columns, {"cache": self.cache, **self.facts}))

    def setup(self) -> Measurement | None:
        """Seconds of each process before its calls were as fast as they became: binding, and more for the first call.

        Not where binding computes the forward pass, of which the timed call is the way back.
        """
        if not self.set_up or OUTPUT not in self.workload.results:
            return None
        every = [turn["seconds"] for turn in self.turns]
        samples = []
        for process, one in self.set_up.items():
            typical = [turn["seconds"] for turn in self.turns if turn["process"] == process] or every
            samples.append(one["bind_s"] + max(0.0, one["first_call_s"] - statistics.median(typical)))
        columns = {name: tuple(one[name] for one in self.set_up.values()) for name in ("bind_s", "fresh")}
        columns["process"] = tuple(map(float, self.set_up))
        return Measurement("setup", "s", tuple(samples), columns)

    def attempt(self, step: Callable[[Participant], Any]) -> None:
        """Take `step` with this participant; what goes wrong in it ends this participant and no other.

        Where a signal of somebody else's ends a process of it, for the first time, it goes on with the others that it
        has; what that one was timed for counts.
        """
        try:
            step(self)
        except NoAnswer as fault:
            left = {number: worker for number, worker in self.workers.items() if worker.alive}
            if fault.from_outside and left and not self.bereft:
                self.bereft, self.workers, self.worker = True, left, next(iter(left.values()))
                self.notes.append(f"it went on without a process: {fault}")
                return
            self.ended = self.ended or (fault.outcome, str(fault))
            self.tail = self.tail or fault.tail

    def result(self) -> Result:
        """What is filed for it."""
        common: dict[str, Any] = {
            "contender": self.name,
            "workload": self.workload,
            "accuracy": self.accuracy,
            "kernel": self.kernel,
            "library": self.worker.library,
            "asked_kernel": self.worker.asked_kernel,
            "computes_in": self.computes_in,
        }
        if self.ended is not None:
            outcome, reason = self.ended
            return Result(outcome=outcome, reason=reason, tail=self.tail or None, **common)
        setup = self.setup()
        measured = (self.latency(), *((setup,) if setup else ()), *self.measurements)
        counts = Counter(self.notes).items()
        notes = "; ".join(note + (f" ({count} times)" if count > 1 else "") for note, count in counts) or None
        return Result(outcome=Outcome.MEASURED, reason=notes, measurements=measured, **common)
