"""Workers with given times and faults: the conductor's own code runs, independent of the machine's speed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.contender import Contender, parse_all
from attnlab.correctness.expected import expect
from attnlab.processes import Failed
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.race.instruments import Readings
from attnlab.race.pages import Form, Pages
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.workload import LOG_SUM, Workload

SMALL = Workload(heads=2, queries=8, keys=8, head_dim=4)
QUICK = Limits(visits=2, most_visits=2, rounds=8)
#: limits for real processes: nothing is too slow, however busy the machine is
REAL = Limits(
    visits=2, most_visits=2, rounds=2, turn_seconds=1e-3, warm_seconds=1e-3, workload_seconds=300, call_seconds=300,
    deadline_seconds=300, start_seconds=300,
)  # fmt: skip
#: the beginning of a right backend's file
RIGHT = """
import numpy as np
def right(query, key, value, *, causal, scale):
    scores = query @ key.swapaxes(-1, -2) * query.dtype.type(scale)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value
LIBRARY = "numpy"
"""


class Clock:
    """The conductor's clock: it advances when a scripted worker computes."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """A worker that answers right. A call takes `seconds`, a number or a function of the visit and of the turn.

    fails : by request, the failure; of a turn by its number, as ("turn", 2). stale : it keeps using its first inputs.
    waits : the part of a turn for which its threads wait. claims : the seconds that it reports, divided by those that
    it takes. spoils : changes a copy of its answers before they are read.
    """

    def __init__(
        self,
        seconds: Callable[[int, int], float] | float = 1e-3,
        *,
        fails: dict[Any, Failed] | None = None,
        stale: bool = False,
        waits: Callable[[int], float] = lambda turn: 0.0,
        claims: float = 1.0,
        spoils: Callable[[str, NDArray[Any]], NDArray[Any]] = lambda name, array: array,
        memory: dict[str, float] | None = None,
    ) -> None:
        self._seconds = seconds if callable(seconds) else lambda visit, turn, each=seconds: each
        self.fails, self._stale, self._waits, self._claims = fails or {}, stale, waits, claims
        self._spoils, self._memory = spoils, memory
        self.visits, self.asked = 0, list[str]()

    def process(self, name: str, clock: Clock, log: list[tuple[str, str]]) -> _Process:
        """The worker's process in the next visit."""
        self.visits += 1
        return _Process(self, name, clock, log, self.visits - 1)


class _Process:
    """Answers the requests of a visit in place of a `Process`."""

    def __init__(
        self, script: Scripted, name: str, clock: Clock, log: list[tuple[str, str]], visit: int
    ) -> None:
        self.script, self.name, self.clock, self.log, self.visit = script, name, clock, log, visit
        self.turns, self.running, self.alive = 0, True, True

    def go_on(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False

    kill = stop

    def end(self) -> None:
        self.running = self.alive = False
        self.log.append((self.name, "end"))

    def begin(self, op: str, **arguments: Any) -> Callable[[], Any]:
        return lambda: self.ask(op, **arguments)

    def ask(self, op: str, *, seconds: float = 0.0, answer: Any = None, **arguments: Any) -> Any:
        assert self.running, f"{self.name} is stopped and asked to {op}"
        self.log.append((self.name, op))
        self.script.asked.append(op)
        number = (op, self.turns) if op == "turn" else op
        if number in self.script.fails:
            raise self.script.fails[number]
        return getattr(self, f"_{op}")(**arguments)

    def _load(self, contender: Contender, folders: Sequence[str]) -> dict[str, Any]:
        return {"library": "numpy", "memory": self.script._memory}

    def _declines(self, workload: Workload) -> None:
        """The worker declines nothing."""

    def _free_bytes(self, device: str) -> int:
        return 2**30

    def _trial(self, workload: Workload) -> float:
        return self.script._seconds(self.visit, 0) * workload.flops / SMALL.flops

    def _prepare(
        self,
        workload: Workload,
        plain: dict[str, Any],
        inputs: tuple[list[Form], str],
        answers: tuple[list[Form], str],
    ) -> dict[str, Any]:
        self.workload, self._plain, self._pages = workload, plain, Pages(*inputs)
        self._answers, self._inputs = Pages(*answers), self._seen()
        return {"bind_s": 0.25, "refreshes": True, "cache": "warm"}

    def _seen(self) -> Inputs:
        return unpack(self._plain, [one.copy() for one in self._pages.arrays])

    def _refresh(self) -> None:
        if not self.script._stale:
            self._inputs = self._seen()

    def _answer(self) -> dict[str, float]:
        self._reveal()
        return {"first_call_s": 0.75}

    def _reveal(self) -> None:
        exact = expect(self._inputs, log_sum=LOG_SUM in self.workload.results)
        for array, name in zip(self._answers.arrays, self.workload.results, strict=True):
            found = exact[name].output.reshape(array.shape).astype(array.dtype)
            array[...] = self.script._spoils(name, found)

    def _warm(self, least_seconds: float) -> dict[str, float]:
        seconds = self.script._seconds(self.visit, 0)
        return {"seconds": seconds, "processor_s": seconds, "between_s": 0.0}

    def _facts(self, device: str) -> dict[str, Any]:
        return {"python": "3", "versions": {"numpy": "2"}}

    def _turn(self, calls: int, opening: bool) -> dict[str, float]:
        seconds = self.script._seconds(self.visit, self.turns)
        self.clock.now += (calls + opening) * seconds
        told = {"seconds": seconds * self.script._claims, "iterations": float(calls)}
        told["between_s"] = 0.0
        told["opening_s"] = opening * seconds
        told["run_delay_s"] = self.script._waits(self.turns) * calls * seconds
        self.turns += 1
        return told

    def _attest(self) -> str:
        return "scripted"

    def _measure(self, quantity: str) -> Readings:
        return Readings((4096.0,), {}, {"method": "scripted"})


def conducted(
    scripts: dict[str, Scripted],
    *,
    limits: Limits = QUICK,
    log: list[tuple[str, str]] | None = None,
    **how: Any,
) -> Conductor:
    """A conductor of scripted workers, by the contender's text. `log` takes pairs of contender and request."""
    clock, heard = Clock(), [] if log is None else log
    contenders = parse_all(list(scripts))
    texts = dict(zip((one.name for one in contenders), scripts, strict=True))

    def start(contender: Contender) -> Any:
        return scripts[texts[contender.name]].process(contender.name, clock, heard), ()

    return Conductor(contenders, limits=limits, start=start, clock=clock, **how)


def noisy(
    seconds: float, seed: int, *, visits: float = 0.002, turns: float = 0.01
) -> Callable[[int, int], float]:
    """Times that scatter between visits and between turns, and are the same in every call."""

    def at(visit: int, turn: int) -> float:
        of_visit = np.random.default_rng([seed, visit]).standard_normal()
        of_turn = np.random.default_rng([seed, visit, turn]).standard_normal()
        return float(seconds * np.exp(visits * of_visit + turns * of_turn))

    return at
