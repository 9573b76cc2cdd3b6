"""Workers whose costs are set and not timed, and a clock that they move: a race of them is exact and takes no time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from attnlab.accuracy import race_check
from attnlab.contract.result import Result
from attnlab.contract.workload import Workload
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.contender import Contender
from attnlab.measuring.limits import Limits
from attnlab.measuring.worker_process import Refused

#: so that the numbers below do not follow the defaults
FIXED = {"max_rounds": 200, "workload_seconds": 6.0, "extra_seconds": 24.0, "call_seconds": 2.0}
SMALL = Workload(heads=1, queries=4, keys=4, head_dim=4)
#: of real workers: however busy the machine is, no call is predicted to take too long
QUICK = Limits(min_rounds=6, max_rounds=6, turn_seconds=1e-4, call_seconds=1e3)


class Clock:
    """Monotonic time that passes only when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class FakeWorker:
    """A worker that answers rightly at once, its calls costing `seconds` each on the fake clock.

    `noise` multiplies what is told of the n-th turn; `faults` are raised in place of the n-th answer to an
    operation, or of an instrument's n-th readings. `turns` holds what each turn was asked for: iterations and settling.
    """

    def __init__(self, name: str, clock: Clock, seconds: Any = 0.001, noise: Any = None, **more: Any) -> None:
        self.contender = Contender(name, name)
        self.library = "numpy"
        self.clock, self.noise = clock, noise or (lambda turn: 1.0)
        self.cost = seconds if callable(seconds) else (lambda workload, calls: seconds)
        self.faults: dict[tuple[str, int], Exception] = more.get("faults", {})
        self.free, self.peak = more.get("free", 2**40), more.get("peak", lambda workload: 1000)
        self.declined = more.get("declines", lambda workload: None)
        self.alive, self.starts = False, 0
        self.asked: Counter[str] = Counter()
        self.tried: list[Workload] = []
        self.turns: list[tuple[int, float | None]] = []
        self.workload = SMALL

    def start(self) -> None:
        self.starts += 1
        self.alive = True

    def finish_start(self) -> dict[str, Any]:
        self._fault("load")
        return {}

    def end(self) -> None:
        self.alive = False

    def _fault(self, op: str) -> None:
        self.asked[op] += 1
        fault = self.faults.get((op, self.asked[op]))
        if fault is not None:
            if not isinstance(fault, Refused):
                self.alive = False
            raise fault

    def _call(self) -> float:
        self.tried.append(self.workload)
        seconds = float(self.cost(self.workload, len(self.tried)))
        self.clock.now += seconds
        return seconds

    def ask_arrays(self, op: str, *, seconds: float, **arguments: Any) -> Any:
        self._fault(op)
        self._call()
        references = race_check.references(self.workload, tuple(arguments["rows"]))
        names = self.workload.results
        return {"names": list(names)}, tuple(references[name].output for name in names) * 2

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> dict[str, Any]:
        assert self.alive
        instrument = arguments.pop("instrument", "").rpartition(":")[2]
        self._fault(instrument or op)
        if op in ("declines", "prepare"):
            posed = Workload.from_dict(arguments["workload"])
            if reason := self.declined(posed):
                raise Refused("declined", reason)
            if op == "prepare":
                self.workload = posed
        if op == "calibrate":
            return {"seconds": self._call()}
        if instrument == "Latency":
            return self._turn(**arguments)
        if op == "measure":
            return {"samples": [self.peak(self.workload)], "columns": {}, "facts": {"method": "memray"}}
        return {"kernel": "fake", "bytes": self.free, "cache": "warm"}

    def _turn(self, iterations: int, settle_seconds: float | None) -> dict[str, Any]:
        self.turns.append((iterations, settle_seconds))
        seconds = self._call()
        settled = 0.0 if settle_seconds is None else max(settle_seconds, seconds)
        self.clock.now += settled + (iterations - 1) * seconds
        told = seconds * self.noise(self.asked["Latency"])
        return {"samples": [told], "columns": {"settled_s": [settled]}, "facts": {}}


def conductor_of(workers: list[FakeWorker], **limits: Any) -> Conductor:
    """The conductor of these workers, under `FIXED` limits but for those given."""
    conductor = Conductor([worker.contender for worker in workers], limits=Limits(**{**FIXED, **limits}))
    conductor.workers = workers  # type: ignore[assignment]  # all that a conductor needs of a worker
    return conductor


def race(
    workers: list[FakeWorker], workload: Workload = SMALL, **limits: Any
) -> tuple[list[Result], Conductor]:
    """One race of these workers."""
    with conductor_of(workers, **limits) as conductor:
        results = conductor.race(workload)
    assert all(not worker.alive for worker in workers)
    return results, conductor


def rounds_of(result: Result) -> int:
    """How many rounds it was measured in."""
    assert result.latency is not None, result.reason
    return len(result.latency.samples)
