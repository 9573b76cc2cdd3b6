"""One contender's way through one workload: what is known of it so far, and what is filed in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from attnlab.contract.result import Accuracy, Measurement, Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.measuring.instruments import LATENCY
from attnlab.measuring.worker_process import Died, Hung, Refused, WorkerProcess

_OUTCOMES = {
    "declined": Outcome.DECLINED,
    "unavailable": Outcome.UNAVAILABLE,
    "wrong": Outcome.WRONG,
    "memory": Outcome.OVER_BUDGET,
    "raised": Outcome.CRASHED,
}


@dataclass
class Participant:
    """One contender's way through one workload, as far as it has come."""

    worker: WorkerProcess
    workload: Workload
    accuracy: Accuracy | None = None
    kernel: str | None = None
    cache: str = "warm"
    call_seconds: float = 0.0
    spent: float = 0.0
    racing: bool = True
    ended: tuple[Outcome, str] | None = None
    notes: list[str] = field(default_factory=list)
    turns: list[dict[str, float]] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The contender's name in this run."""
        return self.worker.contender.name

    def latency(self) -> Measurement:
        """Seconds per call of its turns so far."""
        columns = {name: tuple(turn[name] for turn in self.turns) for name in self.turns[0]}
        samples = columns.pop("seconds")
        return LATENCY.measurement({"samples": samples, "columns": columns, "facts": {"cache": self.cache}})

    def attempt(self, step: Callable[[Participant], Any]) -> None:
        """Take `step` with this participant; what goes wrong in it ends this participant and no other."""
        try:
            step(self)
        except Refused as refusal:
            self.ended = self.ended or (_OUTCOMES[refusal.kind], str(refusal))
        except Died as death:
            self.ended = self.ended or (Outcome.CRASHED, str(death))
        except Hung as hang:
            self.ended = self.ended or (Outcome.TIMED_OUT, str(hang))

    def result(self) -> Result:
        """What is filed for it."""
        common: dict[str, Any] = {
            "contender": self.name,
            "workload": self.workload,
            "accuracy": self.accuracy,
            "kernel": self.kernel,
        }
        if self.ended is not None:
            outcome, reason = self.ended
            return Result(outcome=outcome, reason=reason, **common)
        measured = (self.latency(), *self.measurements)
        notes = "; ".join(self.notes) or None
        return Result(outcome=Outcome.MEASURED, reason=notes, measurements=measured, **common)
