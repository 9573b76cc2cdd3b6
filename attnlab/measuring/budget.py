"""Whether a contender's call would fit in memory and time: told from smaller calls, before it is tried."""

from __future__ import annotations

from collections import defaultdict

from attnlab.contract.result import Measurement, Outcome
from attnlab.contract.workload import Workload
from attnlab.measuring import prediction
from attnlab.measuring.instruments import PEAK_MEMORY
from attnlab.measuring.limits import Limits
from attnlab.measuring.participant import Participant
from attnlab.measuring.prediction import History
from attnlab.measuring.worker_process import Refused

#: of the memory that is free, this share may be planned with
_USABLE = 0.85


class Budget:
    """What calls have cost so far in a run, and what the next would."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._history: dict[tuple[str, Workload], History] = defaultdict(History)

    def history_of(self, participant: Participant) -> History:
        """What this contender's calls have cost on workloads that differ from this one in their sizes alone."""
        return self._history[participant.name, prediction.sort_of(participant.workload)]

    def saw(self, participant: Participant, measurement: Measurement) -> None:
        """Learn from what was measured, where it is memory."""
        if measurement.quantity == PEAK_MEMORY.quantity:
            self.history_of(participant).saw_peak(participant.workload, int(measurement.least))

    def over(self, participant: Participant) -> tuple[Outcome, str] | None:
        """Why the participant's workload is not to be tried, or None. Raises as `WorkerProcess.ask` does."""
        answer = participant.worker.ask(
            "free_bytes", seconds=self._limits.deadline_seconds, device=participant.workload.device
        )
        free = int(answer["bytes"] * _USABLE)
        # time first: its probes are cheap, and those of memory would be dear for a slow contender
        return self._out_of_time(participant, free) or self._out_of_memory(participant, free)

    def _out_of_time(self, participant: Participant, free: int) -> tuple[Outcome, str] | None:
        history, limit = self.history_of(participant), self._limits.call_seconds
        predicted = history.predict_seconds(participant.workload)
        if predicted is None:
            for rung in prediction.rungs(participant.workload):
                if prediction.worst_peak_bytes(rung) > free:
                    break
                seconds = self._probe(participant, rung)
                if seconds is None:
                    continue
                if self._tells(seconds, rung, participant.workload):
                    # once more: the first call of a process starts threads and may compile
                    seconds = min(seconds, self._time_probe(participant, rung))
                predicted = seconds * participant.workload.flops / rung.flops
                if self._tells(seconds, rung, participant.workload):
                    break
        if predicted is None or predicted <= limit:
            return None
        return (
            Outcome.OVER_BUDGET,
            f"predicted {predicted:.3g} s a call from smaller sizes, over the limit of {limit:g} s",
        )

    def _tells(self, seconds: float, rung: Workload, workload: Workload) -> bool:
        """Whether a call of `rung` rules `workload` out: too long by its size, and the next rung may not be tried.

        Short of that the ladder is climbed on: on a busy machine a call of 20 µs was seen to take 36 ms, which by
        its size would be 18 s at 512 positions.
        """
        limit = self._limits.call_seconds
        return seconds * workload.flops / rung.flops > limit and seconds * prediction.REACH > limit

    def _out_of_memory(self, participant: Participant, free: int) -> tuple[Outcome, str] | None:
        workload, history = participant.workload, self.history_of(participant)
        if prediction.worst_peak_bytes(workload) <= free:
            return None
        needed: int | None = prediction.least_peak_bytes(workload)
        if needed is not None and needed <= free:
            if history.sizes_seen < 3:
                for length in (256, 512, 1024):
                    queries = 1 if workload.queries == 1 else length
                    smaller = prediction.smaller(workload, queries, length)
                    if self._probe(participant, smaller) is None:
                        continue
                    found = participant.worker.ask(
                        "measure", seconds=self._limits.deadline_seconds, instrument=PEAK_MEMORY.path
                    )
                    history.saw_peak(smaller, int(min(found["samples"])))
            peak = history.predict_peak(workload)
            needed = None if peak is None else peak + workload.input_bytes
        if needed is None or needed <= free:
            return None
        return (
            Outcome.OVER_BUDGET,
            f"predicted to need {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB may be used",
        )

    def _probe(self, participant: Participant, workload: Workload) -> float | None:
        """Seconds of one call of a smaller workload, for the history only; None where that is declined."""
        try:
            participant.worker.ask(
                "prepare", seconds=self._limits.deadline_seconds, workload=workload.to_dict()
            )
        except Refused as refusal:
            if refusal.kind == "declined":
                return None
            raise
        return self._time_probe(participant, workload)

    def _time_probe(self, participant: Participant, workload: Workload) -> float:
        found = participant.worker.ask("calibrate", seconds=self._limits.deadline_seconds, warmup_seconds=0.0)
        seconds = float(found["seconds"])
        self.history_of(participant).saw_seconds(workload, seconds)
        return seconds
