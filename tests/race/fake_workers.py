"""Workers whose costs are set and not timed, and a clock that they move: a race of them is exact and takes no time."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.correctness import race_check
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import Readings
from attnlab.race.limits import Limits
from attnlab.race.worker_process import Hung, Refused
from attnlab.workload.result import Result
from attnlab.workload.vocabulary import LOG_SUM, lower
from attnlab.workload.workload import Workload

#: so that the numbers below do not follow the defaults: six rounds a process, in five processes or ten
FIXED = {
    "processes": 5,
    "most_processes": 10,
    "further_above": 0.0,
    "far_behind": 8.0,
    "min_rounds": 30,
    "max_rounds": 30,
    "workload_seconds": 6.0,
    "extra_seconds": 24.0,
    "call_seconds": 2.0,
    "turn_seconds": 0.005,
    "settle_seconds": 0.005,
    "settle_below_seconds": 0.1,
    "run_delay": 0.02,
    "noise_margin": 0.01,
}
SMALL = Workload(heads=1, queries=4, keys=4, head_dim=4)
#: of real workers: two processes of three rounds; however busy the machine is, no call is predicted to take too long,
#: and no turn is taken again
QUICK = Limits(
    processes=2,
    most_processes=2,
    min_rounds=6,
    max_rounds=6,
    turn_seconds=1e-4,
    call_seconds=1e3,
    run_delay=1e6,
)
#: a backend that is right, and of whose output or gradient each of so many `turns` differs by less than its roundings
MOVING = """
import itertools
from attnlab.implementations.torch_eager import attend as right
LIBRARY = "torch"
calls = itertools.count(1)
def moved(array):
    return array * (1 + 2.0**-22 * (next(calls) % {turns} == 0))
def attend(query, key, value, *, causal, scale):
    output = right(query, key, value, causal=causal, scale=scale)
    {how}
    return output
"""


class Clock:
    """Monotonic time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


#: seconds until one that hangs is given up
HANGS = 60.0


class FakeWorker:
    """A contender whose workers answer rightly at once, its calls costing `seconds` each on the fake clock.

    It is the worker of the first set itself, and `in_set` makes those of the later ones. What is counted is counted
    over all its workers: `noise` of (turn, process) multiplies what is told of the n-th turn, and `delay` of the turn
    is the part of it that its threads waited for a core; `faults` are raised in
    place of the n-th answer to an operation, or of an instrument's n-th readings. `spoils` of the process multiplies
    its answers, `ready` is what preparing and `placing` what placing costs. `binding` and `first_call` are what a
    process tells of them. `free` are the bytes that it finds free.
    """

    def __init__(self, name: str, clock: Clock, seconds: Any = 0.001, noise: Any = None, **more: Any) -> None:
        self.contender = Contender(name, name)
        self.library, self.number = "numpy", None
        self.afresh: str | None = None
        self.start_seconds, self.starting, self.forks = 60.0, False, True
        self.asked_kernel, self.computes_in = more.get("asked_kernel"), more.get("computes_in")
        self.clock, self.noise = clock, noise or (lambda turn, process: 1.0)
        self.cost = seconds if callable(seconds) else (lambda workload, calls: seconds)
        self.faults: dict[tuple[str, int], Exception] = more.get("faults", {})
        self.waited = more.get("waited", 0.0)
        self.free, self.peak = more.get("free", 2**40), more.get("peak", lambda workload: 1000)
        self.delay = more.get("delay", lambda turn: 0.0)
        self.spoils = more.get("spoils", lambda process: 1.0)
        self.ready, self.placing = more.get("ready", 0.0), more.get("placing", 0.0)
        self.binding = more.get("binding", lambda process: 0.0)
        self.first_call = more.get("first_call", lambda process: 0.0)
        self.kernel = more.get("kernel", "fake")
        self.asked: Counter[str] = Counter()
        self.tried: list[Workload] = []
        self.processes: list[FakeWorker] = [self]
        self.process, self.alive, self.workload = 0, False, SMALL

    @property
    def starts(self) -> int:
        """How many processes were started."""
        return self.asked["start"]

    def in_set(self, number: int) -> FakeWorker:
        """Its worker in that set: another process with the same costs, counted together."""
        if number == 0:
            return self
        one = copy.copy(self)
        one.process, one.alive = number, False
        self.processes.append(one)
        return one

    def before_fork(self) -> None:
        return None

    def start(self) -> None:
        self.asked["start"] += 1
        self.alive = True

    def finish_start(self, excusing: bool) -> dict[str, Any]:
        self._fault("load")
        return {}

    def end(self) -> None:
        self.alive = False

    def excuse(self, fault: Exception, when: str) -> bool:
        return False

    def resident_bytes(self) -> int:
        return 0

    def _fault(self, op: str) -> None:
        self.asked[op] += 1
        fault = self.faults.get((op, self.asked[op]))
        if fault is not None:
            if not isinstance(fault, Refused):
                self.alive = False
            if isinstance(fault, Hung):
                self.clock.now += HANGS
            raise fault

    def _call(self) -> float:
        self.tried.append(self.workload)
        seconds = float(self.cost(self.workload, len(self.tried)))
        self.clock.now += seconds
        return seconds

    def _check(self, rows: Sequence[int], calls: int) -> dict[str, Any]:
        seconds = self._call()
        format = lower(self.workload.dtype, self.computes_in)
        references = race_check.references(self.workload, tuple(rows), format)
        names, factor = self.workload.results, self.spoils(self.process)
        shaped = {name: references[name].output for name in names}
        if LOG_SUM in shaped:  # without the axis that its reference has for components
            shaped[LOG_SUM] = shaped[LOG_SUM][..., 0]
        answers = {name: factor * shaped[name] for name in names}
        first = self.first_call(self.process)
        return {"answers": [answers] * calls, "first_call_s": first, "last_call_s": seconds}

    def begin(self, op: str, **arguments: Any) -> Callable[[], Any]:
        return lambda: self.ask(op, **arguments)

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> Any:
        assert self.alive
        instrument = type(arguments.pop("instrument")).__name__ if op == "measure" else ""
        instrument = "Latency" if op == "turn" else instrument
        self._fault(instrument or op)
        if op == "check":
            return self._check(**arguments)
        if op == "turn":
            return {"readings": self._turn(**arguments), "seed": None, "changed": None, "answers": []}
        if op == "prepare":
            self.workload = arguments["workload"]
            self.clock.now += self.ready
        if op == "place":
            self.clock.now += self.placing
            return None
        if op == "calibrate":
            return {"seconds": self._call(), "waited": self.waited}
        if op == "measure":
            return Readings((self.peak(self.workload),), {}, {"method": "memray"})
        if op == "attest":
            return self.kernel
        if op == "free_bytes":
            return self.free
        return {"bind_s": self.binding(self.process), "fresh": float(self.process > 0), "cache": "warm"}

    def _turn(self, iterations: int, settle_seconds: float | None, **options: Any) -> Readings:
        seconds, turn = self._call(), self.asked["Latency"]
        settled = 0.0 if settle_seconds is None else max(settle_seconds, seconds)
        self.clock.now += settled + (iterations - 1) * seconds
        told = seconds * self.noise(turn, self.process)
        delay = self.delay(turn) * told * iterations
        noted = {"settled_s": settled, "run_delay_s": delay, "minor_faults": 0, "iterations": iterations}
        noted |= {
            "whole_s": told,
            "least_s": told,
            "first_s": math.nan,
            "waited": delay / (told * iterations),
        }
        return Readings((told,), {name: (value,) for name, value in noted.items()})


def conductor_of(workers: Sequence[FakeWorker], **limits: Any) -> Conductor:
    """The conductor of these workers, under `FIXED` limits but for those given."""
    on_event = limits.pop("on_event", lambda text: None)
    contenders = [worker.contender for worker in workers]
    conductor = Conductor(contenders, limits=Limits(**{**FIXED, **limits}), on_event=on_event)
    made: Counter[str] = Counter()
    by_name = {worker.contender.name: worker for worker in workers}

    def make(contender: Contender, folders: Sequence[str]) -> Any:
        made[contender.name] += 1
        return by_name[contender.name].in_set(made[contender.name] - 1)

    conductor.sets._make = make
    return conductor


def race(
    workers: Sequence[FakeWorker], workload: Workload = SMALL, **limits: Any
) -> tuple[list[Result], Conductor]:
    """One race of these workers."""
    with conductor_of(workers, **limits) as conductor:
        results = conductor.race(workload)
    assert not any(process.alive for worker in workers for process in worker.processes)
    return results, conductor


def processes_of(result: Result) -> dict[int, int]:
    """How many rounds it was measured in, by process."""
    assert result.latency is not None, result.reason
    return dict(Counter(result.latency.visits.values()))
