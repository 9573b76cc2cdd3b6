"""Whether a contender's call would fit in memory and time: predicted from smaller calls before it is made."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from attnlab.problem.result import Measurement
from attnlab.problem.workload import Workload
from attnlab.race import prediction
from attnlab.race.instruments import PEAK_MEMORY
from attnlab.race.limits import Limits
from attnlab.race.participant import Participant
from attnlab.race.prediction import History
from attnlab.race.worker_process import Refused
from attnlab.units import bytes_text

#: of the memory that is free, this share may be planned with
USABLE = 0.85
#: lengths of the calls by which memory is found out: two could not tell what it grows with
_PROBED = (256, 512, 1024)
#: lengths at which a prediction that refuses a workload is put to the test: what one small call took beyond its own,
#: as a compiler does that begins late, looks like a share of the score matrix, and thousandfold it is too much for any
#: machine; in calls of four and of sixteen times the scores such a share would show
_DOUBTED = (2048, 4096)
#: a probe whose threads had to wait for a core is taken again so often, ...
_RETAKES = 2
#: ... and if that does not help, a call may be predicted to take so many times the limit: beside a process that
#: computed, teams of two threads took up to five times as long as alone
_BUSY = 5


@dataclass(frozen=True)
class Over:
    """A workload is not to be tried; `reason` says why, `needed` how many bytes would have to be free for it."""

    reason: str
    needed: int | None = None


@dataclass(frozen=True)
class Beside:
    """The contenders that a workload was prepared for before: how many, and what they hold of it, all in bytes.

    further : what the calls of any of them take beyond that, while the others hold theirs.
    """

    count: int = 0
    held: int = 0
    further: int = 0


class Budget:
    """What calls have cost so far in a run, and what the next would."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
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

    def over(
        self, participant: Participant, contenders: int = 1, beside: Beside | None = None
    ) -> Over | None:
        """Why the participant's workload is not to be tried, or None. Raises as `Participant.ask` does.

        contenders : that race. beside : those who will hold their inputs while this one is called. Memory is told
        before time, which more patience could mend; but it is not found out by calls that are long.
        """
        free = self._free(participant)
        late = self._out_of_time(participant, int(free * USABLE), contenders)
        if late and not self._short(participant, self.limits.longest_call(contenders)):
            return late
        return self._out_of_memory(participant, free, beside or Beside()) or late

    def cramped(self, participant: Participant) -> str | None:
        """Why the participant's inputs do not fit any more, or None: others may have taken memory since."""
        if prediction.drawn_bytes(participant.workload) <= prediction.PLACED_BYTES:
            return None
        needed, free = prediction.preparing_bytes(participant.workload), self._free(participant)
        if needed <= free * USABLE:
            return None
        return f"its inputs need {bytes_text(needed)}, {bytes_text(free)} are free"

    @staticmethod
    def _free(participant: Participant) -> int:
        return int(participant.ask("free_bytes", device=participant.workload.device)["bytes"])

    def _short(self, participant: Participant, longest: float) -> bool:
        """Whether the calls that memory is found out by are known to be quick enough."""
        smaller = prediction.shortened(participant.workload, _PROBED[-1])
        seconds = self._history_of(participant).predict_seconds(smaller)
        return seconds is not None and seconds <= longest

    def _out_of_time(self, participant: Participant, free: int, contenders: int) -> Over | None:
        history, limit = self._history_of(participant), self.limits.longest_call(contenders)
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
        enough = self.limits.seconds_for(predicted, contenders)
        return Over(f"{prediction.too_long(predicted, limit)}; --seconds {enough} would allow it")

    def _out_of_memory(self, participant: Participant, free: int, beside: Beside) -> Over | None:
        workload, usable = participant.workload, int(free * USABLE)
        if workload.backward:
            # what the forward pass leaves behind is there before the call: a training call holds all of it
            workload = workload.with_(direction="training")
        held = prediction.held_bytes(workload)
        getting_ready = prediction.preparing_bytes(workload)
        if workload.backward:
            getting_ready += held  # the gradients that are checked have inputs of their own
        if workload.device == "cpu" and not beside.count:  # the right answer is worked out before, here
            getting_ready = max(getting_ready, prediction.referred_bytes(workload))
        if max(prediction.worst_peak_bytes(workload), getting_ready) + beside.further <= usable:
            return None
        call = workload.output_bytes
        if max(held + max(call, beside.further), getting_ready) <= usable:
            call = self._peak(participant, workload, usable - held) or call
        needed = max(held + max(call, beside.further), getting_ready)
        if needed <= usable:
            return None
        return Over(_too_large(workload, call, needed, free, beside), math.ceil(needed / USABLE))

    def _peak(self, participant: Participant, workload: Workload, room: int) -> int | None:
        """What a call of `workload` is predicted to take beside its inputs, by small ones of this contender.

        Where that is more than `room`, larger ones are asked too, as far as they are predicted to fit and to be quick.
        """
        history = self._history_of(participant, workload)
        for length in _PROBED if history.sizes_seen < len(_PROBED) else ():
            self._probe_peak(participant, prediction.shortened(workload, length), history)
        for length in _DOUBTED:
            larger = prediction.shortened(workload, length)
            if history.saw_size(larger) or (history.predict_peak(workload) or 0) <= room:
                continue
            peak, seconds = history.predict_peak(larger), history.predict_seconds(larger)
            if peak is None or peak > room or seconds is None or seconds > self.limits.call_seconds:
                break
            self._probe_peak(participant, larger, history)
        return history.predict_peak(workload)

    def _probe_peak(self, participant: Participant, workload: Workload, history: History) -> None:
        if self._probe(participant, workload, history) is not None:
            found = participant.measure(PEAK_MEMORY)
            history.saw_peak(workload, int(min(found["samples"])))

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
            waited = found["waited"] > self.limits.run_delay
            if not waited:
                break
        self._waited |= waited
        history.saw_seconds(workload, least)
        return least

    def _history_of(self, participant: Participant, workload: Workload | None = None) -> History:
        """What this contender's calls have cost on workloads that differ from this one in their sizes alone."""
        return self._history[participant.name, prediction.sort_of(workload or participant.workload)]


def _too_large(workload: Workload, call: int, needed: int, free: int, beside: Beside) -> str:
    """Why a workload does not fit, in words."""
    inputs = prediction.held_bytes(workload)
    said = (
        f"predicted to need {bytes_text(needed)}: inputs of {bytes_text(inputs)}, "
        f"and a call that takes {bytes_text(call)} "
        f"(one score matrix is {bytes_text(workload.score_bytes)}); {bytes_text(free)} are free, "
        f"{USABLE:.0%} of it may be used"
    )
    if beside.count:
        said += (
            f"; the {beside.count} before it in the race hold {bytes_text(beside.held)}: race fewer together"
        )
    return said
