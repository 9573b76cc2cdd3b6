"""The seat of one contender in a visit: its process, what is known of it, its turns, and the result they make."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from attnlab.backends.contender import Contender
from attnlab.correctness import weighing
from attnlab.errors import Declined
from attnlab.processes import Failed, Process
from attnlab.race.admission import Predicted
from attnlab.race.instruments import disturbed
from attnlab.race.pages import Pages
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import lower
from attnlab.workload.result import Accuracy, Measurement, Outcome, Result
from attnlab.workload.workload import OUTPUT, Workload

_OUTCOMES = {
    "declined": Outcome.DECLINED,
    "unavailable": Outcome.UNAVAILABLE,
    "wrong": Outcome.WRONG,
    "memory": Outcome.OVER_BUDGET,
    "raised": Outcome.CRASHED,
    "crashed": Outcome.CRASHED,
    "timed_out": Outcome.TIMED_OUT,
}


class Ended(Exception):
    """The contender leaves the visit with this outcome; the message is the reason."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass
class Seat:
    """One contender in a visit to `workload`."""

    contender: Contender
    workload: Workload
    process: Process | None = None
    #: what its process reported when it loaded the backend
    known: dict[str, Any] = field(default_factory=dict)
    #: the memory that its answers are written to
    pages: Pages | None = None
    #: its own copy of the inputs, if they are not overwritten between turns: its library cannot, or only the backward
    #: pass is timed
    inputs: Inputs | None = None
    refreshes: bool = True
    cache: str = "warm"
    #: whether it has computed a smaller call, which may have compiled what all calls need
    tried: bool = False
    setup: dict[str, float] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    kernel: str | None = None
    #: the predicted time of a call
    predicted: Predicted = field(default_factory=Predicted)
    #: the shortest call seen in warm-up; `own`: its processor time, if that is less; `between`: time between two calls
    seconds: float = 0.0
    own: float = 0.0
    between: float = 0.0
    #: calls per turn, and rounds per turn
    calls: int = 1
    step: int = 1
    turns: list[dict[str, float]] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    #: outcome, reason and last output, if it has left the visit
    ended: tuple[Outcome, str, str] | None = None

    @property
    def name(self) -> str:
        """The contender's name in this run."""
        return self.contender.name

    @property
    def answers(self) -> weighing.Answers:
        """The arrays of its last answer, by name."""
        assert self.pages is not None
        return dict(zip(self.workload.results, self.pages.arrays, strict=True))

    @property
    def computes_in(self) -> str | None:
        """The number format that it computes in, if that is lower than the workload's."""
        return lower(self.workload.dtype, self.known.get("computes_in"))

    def attempt(self, step: Callable[[Seat], None]) -> None:
        """Take a step of the visit. If it fails, the contender leaves the visit."""
        try:
            step(self)
        except Failed as fault:
            self.ended = _OUTCOMES[fault.kind], str(fault), fault.tail
        except Ended as end:
            self.ended = end.outcome, str(end), ""
        except Declined as refused:
            self.ended = Outcome.DECLINED, str(refused), ""
        except OSError as fault:
            self.ended = Outcome.CRASHED, f"the system refused it a process or memory: {fault}", ""
        if self.ended is not None and self.process is not None:
            self.process.end()  # the others may need the memory

    def result(
        self,
        visit: int,
        instruments: Collection[str],
        seconds: float,
        facts: dict[str, str],
        *,
        run_delay: float,
    ) -> Result:
        """What came of the visit with the number `visit`, which took `seconds`.

        instruments : what was measured instead of times. facts : further facts of the latency, true of all its samples.
        run_delay : see `Limits`.
        """
        if self.ended is None and not (self.turns or instruments):
            self.ended = Outcome.CRASHED, "no turn of it was timed", ""
        if self.ended is not None and instruments:  # its times from other visits remain valid
            self.notes.append(f"its {', '.join(instruments)} could not be measured: {self.ended[1]}")
            self.ended = None
        timed = [] if self.ended or instruments else self._timed(visit, facts, run_delay)
        outcome, reason, tail = self.ended or (Outcome.MEASURED, "; ".join(self.notes), "")
        return Result(
            contender=self.name,
            workload=self.workload,
            outcome=outcome,
            reason=reason or None,
            tail=tail or None,
            measurements=() if self.ended else (*timed, *self.measurements),
            accuracy=self.accuracy,
            kernel=self.kernel,
            library=self.known.get("library"),
            asked_kernel=self.known.get("kernel"),
            computes_in=self.computes_in,
            race_seconds=None if instruments else seconds,
        )

    def _timed(self, visit: int, facts: dict[str, str], run_delay: float) -> list[Measurement]:
        """The latency, and the set-up.

        There is no set-up if the process was warm before, or if binding computes the forward pass.
        """
        flags = disturbed(self.turns, run_delay)
        turns = [{**turn, "disturbed": float(flag)} for turn, flag in zip(self.turns, flags, strict=True)]
        columns = {name: tuple(turn[name] for turn in turns) for name in turns[0]}
        latency = Measurement("latency", "s", columns.pop("seconds"), columns, {"cache": self.cache, **facts})
        if OUTPUT not in self.workload.results or self.tried:
            return [latency]
        typical = statistics.median(latency.samples)
        seconds = self.setup["bind_s"] + max(0.0, self.setup["first_call_s"] - typical)
        columns = {"bind_s": (self.setup["bind_s"],), "visit": (float(visit),)}
        return [latency, Measurement("setup", "s", (seconds,), columns)]
