"""Whether a contender's call would fit in memory and time: predicted from smaller calls before it is made."""

from __future__ import annotations

import math
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
#: a probe whose threads had to wait for a core is taken again so often, ...
_RETAKES = 2
#: ... and if that does not help, a call may be predicted to take so many times the limit: beside a process that
#: computed, teams of two threads took up to five times as long as alone
_BUSY = 5


class Budget:
    """What calls have cost so far in a run, and what the next would."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        #: whether a probe of the present workload was disturbed
        self._waited = False
        self._history: dict[tuple[str, Workload], History] = defaultdict(History)

    def saw_seconds(self, participant: Participant) -> None:
        """Learn from the seconds of the participant's calls so far."""
        self._history_of(participant).saw_seconds(participant.workload, participant.call_seconds)

    def saw(self, participant: Participant, measurement: Measurement) -> None:
        """Learn from what was measured, where it is memory."""
        if measurement.quantity == PEAK_MEMORY.quantity:
            self._history_of(participant).saw_peak(participant.workload, int(measurement.least))

    def over(self, participant: Participant) -> tuple[Outcome, str] | None:
        """Why the participant's workload is not to be tried, or None. Raises as `Participant.ask` does."""
        answer = participant.ask("free_bytes", device=participant.workload.device)
        free = int(answer["bytes"] * _USABLE)
        # time first: its probes take little, and those of memory much where a contender is slow
        return self._out_of_time(participant, free) or self._out_of_memory(participant, free)

    def _out_of_time(self, participant: Participant, free: int) -> tuple[Outcome, str] | None:
        history, limit = self._history_of(participant), self._limits.call_seconds
        self._waited = False
        predicted = history.predict_seconds(participant.workload)
        first: tuple[int, float] | None = None
        for rung in prediction.rungs(participant.workload) if predicted is None else ():
            if prediction.worst_peak_bytes(rung) > free:
                break
            seconds = self._probe(participant, rung, history)
            if seconds is None:
                continue
            # of the first rung a long call may be all overhead: the next one tells
            affordable = limit / prediction.REACH if first else limit
            if seconds > affordable:
                # once more: the first call of a process starts threads and may compile
                seconds = min(seconds, self._time_probe(participant, rung, history))
            first = first or (rung.flops, seconds)
            predicted = prediction.extrapolated(first, (rung.flops, seconds), participant.workload.flops)
            if predicted > limit and seconds > affordable:
                break
        if predicted is None or predicted <= limit * (_BUSY if self._waited else 1):
            return None
        return Outcome.OVER_BUDGET, prediction.too_long(predicted, limit)

    def _out_of_memory(self, participant: Participant, free: int) -> tuple[Outcome, str] | None:
        workload = participant.workload
        if workload.backward:
            # what the forward pass leaves behind is there before the call: a training call holds all of it
            workload = workload.with_(direction="training")
        if prediction.worst_peak_bytes(workload) <= free:
            return None
        needed: int | None = prediction.least_peak_bytes(workload)
        if needed is not None and needed <= free:
            history = self._history_of(participant, workload)
            for length in (256, 512, 1024) if history.sizes_seen < 3 else ():
                queries = 1 if workload.queries == 1 else length
                smaller = prediction.smaller(workload, queries, length)
                if self._probe(participant, smaller, history) is not None:
                    found = participant.measure(PEAK_MEMORY)
                    history.saw_peak(smaller, int(min(found["samples"])))
            peak = history.predict_peak(workload)
            inputs = prediction.least_peak_bytes(workload) - workload.output_bytes
            needed = None if peak is None else peak + inputs
        if needed is None or needed <= free:
            return None
        said = f"predicted to need {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB may be used"
        return Outcome.OVER_BUDGET, said

    def _probe(self, participant: Participant, workload: Workload, history: History) -> float | None:
        """Seconds of one call of a smaller workload, for the history only; None where that is declined."""
        try:
            participant.ask("prepare", workload=workload.to_dict())
        except Refused as refusal:
            if refusal.kind == "declined":
                return None
            raise
        return self._time_probe(participant, workload, history)

    def _time_probe(self, participant: Participant, workload: Workload, history: History) -> float:
        least = math.inf
        for _ in range(_RETAKES + 1):
            found = participant.ask("calibrate", warmup_seconds=0.0)
            least = min(least, float(found["seconds"]))
            waited = found["waited"] > self._limits.run_delay
            if not waited:
                break
        self._waited |= waited
        history.saw_seconds(workload, least)
        return least

    def _history_of(self, participant: Participant, workload: Workload | None = None) -> History:
        """What this contender's calls have cost on workloads that differ from this one in their sizes alone."""
        return self._history[participant.name, prediction.sort_of(workload or participant.workload)]
