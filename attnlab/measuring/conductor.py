"""The conductor: races contenders over a workload, only the one on the clock being runnable.

For each workload every contender is, in turn, predicted (over budget? never tried), prepared, judged
against float64, and calibrated; those that are left run in interleaved rounds until every verdict is decided
or the time is spent; then memory, in a pass of its own. A contender that fails leaves with its outcome and
reason, and the others go on.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np

from attnlab.ground.result import Accuracy, Measurement, Outcome, Result
from attnlab.ground.workload import Workload
from attnlab.judging import accuracy, pairing
from attnlab.measuring import prediction, rounds
from attnlab.measuring.contender import Contender
from attnlab.measuring.prediction import History
from attnlab.measuring.seat import Died, Hung, Refused, Seat
from attnlab.plan import Limits

_OUTCOMES = {
    "declined": Outcome.DECLINED,
    "unavailable": Outcome.UNAVAILABLE,
    "wrong": Outcome.WRONG,
    "memory": Outcome.OVER_BUDGET,
    "raised": Outcome.CRASHED,
}
#: of the memory that is free, this share may be planned with
_USABLE = 0.85
_WARMUP_SECONDS = 0.03


@dataclass
class Entry:
    """One contender's way through one workload, as far as it has come."""

    seat: Seat
    workload: Workload
    accuracy: Accuracy | None = None
    kernel: str | None = None
    call_seconds: float = 0.0
    iterations: int = 1
    spent: float = 0.0
    racing: bool = True
    ended: tuple[Outcome, str] | None = None
    note: str | None = None
    turns: list[dict[str, float]] = field(default_factory=list)
    memory: Measurement | None = None

    @property
    def name(self) -> str:
        """The contender's name in this run."""
        return self.seat.contender.name

    def latency(self) -> Measurement:
        """Seconds per call of its turns so far."""
        columns = {name: tuple(turn[name] for turn in self.turns) for name in self.turns[0]}
        samples = columns.pop("seconds")
        return Measurement("latency", "s", samples, columns, {"cache": self.facts_cache})

    @property
    def facts_cache(self) -> str:
        """Whether timed calls find their inputs in cache: see `Library.cache`."""
        return "cold" if self.workload.device == "cuda" else "warm"

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
        measured = [self.latency()] + ([self.memory] if self.memory else [])
        return Result(outcome=Outcome.MEASURED, reason=self.note, measurements=tuple(measured), **common)


class Conductor:
    """Keeps one seat a contender for a whole run; use as a context manager.

    `account` holds the seconds that went into each activity; over a race they add up to its time.
    `on_event` is called with short texts as work goes on.
    """

    def __init__(
        self,
        contenders: Sequence[Contender],
        *,
        baseline: str | None = None,
        folders: Sequence[str] = (),
        limits: Limits | None = None,
        memory: bool = True,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.seats = [Seat(contender, folders) for contender in contenders]
        self.baseline = baseline or contenders[0].name
        self.limits = limits or Limits()
        self.memory = memory
        self.account: dict[str, float] = defaultdict(float)
        self._on_event = on_event
        self._absent: dict[str, tuple[Outcome, str]] = {}
        self._history: dict[tuple[str, str, str], History] = defaultdict(History)

    def __enter__(self) -> Conductor:
        try:
            with self._activity("start-up"):
                self._fill([seat for seat in self.seats if not seat.filled])
        except BaseException:  # an interrupt too: nobody calls __exit__ for us
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        with contextlib.ExitStack() as leaving:  # all, even where an interrupt comes in between
            for seat in self.seats:
                leaving.callback(seat.leave)

    def race(self, workload: Workload) -> list[Result]:
        """One result a contender, in the order they were given."""
        started, before = time.monotonic(), sum(self.account.values())
        try:
            return self._race(workload)
        finally:
            named = sum(self.account.values()) - before
            self.account["conducting"] += time.monotonic() - started - named

    def _race(self, workload: Workload) -> list[Result]:
        with self._activity("start-up"):
            self._fill([seat for seat in self.seats if not seat.filled])
        entries = [Entry(seat, workload) for seat in self.seats]
        for entry in entries:
            self._on_event(f"{workload.label}: checking {entry.name}")
            self._guard(entry, self._admit)
            if entry.ended is not None:
                self._release(entry)  # the others may want the memory
        self._run_rounds([entry for entry in entries if entry.ended is None])
        for entry in entries:
            if entry.ended is None and self.memory:
                self._on_event(f"{workload.label}: memory of {entry.name}")
                self._measure_memory(entry)
            self._release(entry)
        return [entry.result() for entry in entries]

    def facts(self, device: str) -> dict[str, dict[str, Any]]:
        """Library versions, BLAS pools and device of every contender, by name, where they can be told."""
        found = {}
        for seat in self.seats:
            if seat.filled:
                try:
                    found[seat.contender.name] = seat.ask("facts", seconds=self._deadline, device=device)
                except (Refused, Died, Hung) as fault:
                    found[seat.contender.name] = {"unknown": str(fault)}
        return found

    # -- one contender at a time -------------------------------------------------------------------

    def _fill(self, seats: list[Seat]) -> None:
        """Start processes side by side: importing a library takes seconds, and nothing is on the clock.

        A contender whose backend does not load is not tried again in this run.
        """
        seats = [seat for seat in seats if seat.contender.name not in self._absent]
        started = []
        for seat in seats:
            self._on_event(f"starting {seat.contender.name}")
            try:
                seat.start()
                started.append(seat)
            except (Died, Hung, OSError) as fault:
                self._absent[seat.contender.name] = (Outcome.UNAVAILABLE, str(fault))
        for seat in started:
            try:
                seat.finish_start()
            except (Refused, Died, Hung) as fault:
                self._absent[seat.contender.name] = (_absence(fault), str(fault))
                seat.leave()

    def _guard(self, entry: Entry, step: Callable[[Entry], Any]) -> None:
        """Run `step`; what goes wrong in it ends this entry and no other."""
        try:
            step(entry)
        except Refused as refusal:
            entry.ended = entry.ended or (_OUTCOMES[refusal.kind], str(refusal))
        except Died as death:
            entry.ended = entry.ended or (Outcome.CRASHED, str(death))
        except Hung as hang:
            entry.ended = entry.ended or (Outcome.TIMED_OUT, str(hang))

    def _admit(self, entry: Entry) -> None:
        """Everything that comes before the clock."""
        seat, workload = entry.seat, entry.workload
        if entry.name in self._absent:
            entry.ended = self._absent[entry.name]
            return
        with self._activity("predicting"):
            seat.ask("declines", seconds=self._deadline, workload=workload.to_dict())
            entry.ended = self._over_budget(entry)
        if entry.ended:
            return
        with self._activity("preparing"):
            seat.ask("prepare", seconds=self._deadline, workload=workload.to_dict())
        with self._activity("checking"):
            rows = accuracy.sampled_rows(workload)
            _, (first, second) = seat.ask_arrays("output", seconds=self._deadline, rows=rows)
            entry.accuracy = accuracy.judge(workload, rows, first)
            when = ""
            if entry.accuracy.passed and not np.array_equal(first, second):
                entry.accuracy = accuracy.judge(workload, rows, second)
                when = "right at the first call, but at the second: "
            if not entry.accuracy.passed:
                entry.ended = (Outcome.WRONG, when + (entry.accuracy.reason or "failed the accuracy gate"))
                return
        with self._activity("warm-up"):
            self._calibrate(entry)
        with self._activity("attesting"):
            entry.kernel = str(seat.ask("attest", seconds=self._deadline)["kernel"])

    def _calibrate(self, entry: Entry) -> None:
        found = entry.seat.ask(
            "calibrate",
            seconds=self._deadline,
            warmup_seconds=_WARMUP_SECONDS,
            turn_seconds=self.limits.turn_seconds,
        )
        entry.call_seconds, entry.iterations = float(found["seconds"]), int(found["iterations"])
        self._history_of(entry).saw_seconds(entry.workload, entry.call_seconds)

    def _measure_memory(self, entry: Entry) -> None:
        """Of a contender whose speed is known: where this fails, that is noted and the speed stays."""
        try:
            with self._activity("memory"):
                found = entry.seat.ask("memory", seconds=self._deadline)
        except (Refused, Died, Hung) as fault:
            entry.note = f"its peak memory could not be measured: {fault}"
            return
        peaks = tuple(map(float, found["peak_bytes"]))
        entry.memory = Measurement("peak_memory", "B", peaks, facts={"method": found["method"]})
        self._history_of(entry).saw_peak(entry.workload, int(min(peaks)))

    # -- prediction ------------------------------------------------------------------------------------

    def _history_of(self, entry: Entry) -> History:
        return self._history[entry.name, entry.workload.dtype, entry.workload.device]

    def _over_budget(self, entry: Entry) -> tuple[Outcome, str] | None:
        answer = entry.seat.ask("free_bytes", seconds=self._deadline, device=entry.workload.device)
        free = int(answer["bytes"] * _USABLE)
        # time first: its probes are cheap, and those of memory would be dear for a slow contender
        return self._out_of_time(entry, free) or self._out_of_memory(entry, free)

    def _out_of_time(self, entry: Entry, free: int) -> tuple[Outcome, str] | None:
        history, limit = self._history_of(entry), self.limits.call_seconds
        predicted = history.predict_seconds(entry.workload)
        if predicted is None:
            for rung in prediction.rungs(entry.workload):
                if prediction.worst_peak_bytes(rung) > free:
                    break
                seconds = self._probe(entry, rung)
                if seconds is None:
                    continue
                if self._tells(seconds, rung, entry.workload):
                    # once more: the first call of a process starts threads and may compile
                    seconds = min(seconds, self._time_probe(entry, rung))
                predicted = seconds * entry.workload.flops / rung.flops
                if self._tells(seconds, rung, entry.workload):
                    break
        if predicted is None or predicted <= limit:
            return None
        return (
            Outcome.OVER_BUDGET,
            f"predicted {predicted:.3g} s a call from smaller sizes, over the limit of {limit:g} s",
        )

    def _tells(self, seconds: float, rung: Workload, workload: Workload) -> bool:
        """Whether a call of `rung` rules `workload` out: too long by its size, and long enough to be no overhead."""
        limit = self.limits.call_seconds
        return seconds * workload.flops / rung.flops > limit and seconds > limit / 1000

    def _out_of_memory(self, entry: Entry, free: int) -> tuple[Outcome, str] | None:
        workload, history = entry.workload, self._history_of(entry)
        if prediction.worst_peak_bytes(workload) <= free:
            return None
        needed: int | None = prediction.least_peak_bytes(workload)
        if needed is not None and needed <= free:
            if history.sizes_seen < 3:
                for length in (256, 512, 1024):
                    smaller = workload.with_(batch=1, heads=1, queries=length, keys=length)
                    if self._probe(entry, smaller) is None:
                        continue
                    found = entry.seat.ask("memory", seconds=self._deadline)
                    history.saw_peak(smaller, int(min(found["peak_bytes"])))
            peak = history.predict_peak(workload)
            needed = None if peak is None else peak + workload.input_bytes
        if needed is None or needed <= free:
            return None
        return (
            Outcome.OVER_BUDGET,
            f"predicted to need {needed / 2**30:.3g} GiB, {free / 2**30:.3g} GiB may be used",
        )

    def _probe(self, entry: Entry, workload: Workload) -> float | None:
        """Seconds of one call of a smaller workload, for the history only; None where that is declined."""
        try:
            entry.seat.ask("prepare", seconds=self._deadline, workload=workload.to_dict())
        except Refused as refusal:
            if refusal.kind == "declined":
                return None
            raise
        return self._time_probe(entry, workload)

    def _time_probe(self, entry: Entry, workload: Workload) -> float:
        found = entry.seat.ask("calibrate", seconds=self._deadline, warmup_seconds=0.0, turn_seconds=0.0)
        seconds = float(found["seconds"])
        self._history_of(entry).saw_seconds(workload, seconds)
        return seconds

    def _release(self, entry: Entry) -> None:
        """Free what the workload took. A worker that cannot even do this is replaced; its result stands."""
        if not entry.seat.filled:
            return
        with self._activity("releasing"):
            try:
                entry.seat.ask("release", seconds=self._deadline)
            except (Refused, Died, Hung):
                entry.seat.leave()

    # -- rounds ------------------------------------------------------------------------------------------

    def _run_rounds(self, entries: list[Entry]) -> None:
        if not entries:
            return
        limits, started = self.limits, time.monotonic()
        least = pairing.least_rounds(max(1, len(entries) - 1))
        share = limits.workload_seconds / len(entries)
        order = rounds.latin_square(range(len(entries)), seed=entries[0].workload.seed)
        calibration: dict[int, float] = {}
        for index in range(limits.max_rounds):
            calibration[index] = rounds.calibration_seconds()
            for place in next(order):
                entry = entries[place]
                if entry.racing and entry.ended is None:
                    self._guard(entry, partial(self._turn, index=index, calibration=calibration[index]))
            elapsed = time.monotonic() - started
            kept = index + 1 - len(pairing.disturbed_rounds(calibration))
            if kept < least:
                if elapsed > limits.workload_seconds + limits.extra_seconds:
                    break
                continue
            verdicts = self._verdicts(entries, calibration)
            for entry in entries:
                decided = verdicts.get(entry.name, False)
                if decided and entry.spent > share:
                    entry.racing = False  # its answer is known, and it costs more than its share
            waiting = [one for one in entries if one.name in verdicts and one.racing and one.ended is None]
            left = any(not one.racing for one in entries)
            if elapsed > limits.workload_seconds or (left and not waiting):
                break  # no time, or nobody to pair a further round with
            if kept >= limits.min_rounds and all(verdicts[one.name] for one in waiting):
                break
            self._on_event(f"{entries[0].workload.label}: round {index + 1}")

    def _turn(self, entry: Entry, index: int, calibration: float) -> None:
        limits = self.limits
        settle = limits.turn_seconds if entry.call_seconds < limits.settle_below_seconds else None
        stolen, started = rounds.steal_seconds(), time.monotonic()
        found = entry.seat.ask(
            "turn", seconds=self._deadline, iterations=entry.iterations, settle_seconds=settle
        )
        elapsed = time.monotonic() - started
        timed = min(elapsed, float(found["seconds"]) * entry.iterations)
        settled = min(elapsed - timed, float(found["settled_seconds"]))
        entry.spent += elapsed
        self.account["timed"] += timed
        self.account["warm-up"] += settled
        self.account["waking and stopping"] += elapsed - timed - settled
        entry.turns.append(
            {
                "seconds": float(found["seconds"]),
                "round": index,
                "iterations": entry.iterations,
                "minor_faults": found["minor_faults"],
                "involuntary_switches": found["involuntary_switches"],
                "steal_s": rounds.steal_seconds() - stolen,
                "calibration_s": calibration,
            }
        )

    def _verdicts(self, entries: list[Entry], calibration: dict[int, float]) -> dict[str, bool]:
        """Whether each contender's verdict against the baseline needs no more rounds."""
        running = [entry for entry in entries if entry.ended is None]
        base = next(
            (entry for entry in running if entry.name == self.baseline), running[0] if running else None
        )
        if base is None:
            return {}
        disturbed = pairing.disturbed_rounds(calibration)
        done = {}
        for entry in running:
            if entry is base:
                continue
            if not entry.racing:
                done[entry.name] = True  # it left because its verdict was known
                continue
            verdict = pairing.compare(
                base.latency(),
                entry.latency(),
                disturbed=disturbed,
                comparisons=max(1, len(running) - 1),
                margin=self.limits.noise_margin,
            )
            narrow = verdict.low > 0 and verdict.high / verdict.low < (1 + self.limits.noise_margin) ** 2
            done[entry.name] = narrow or verdict.kind is not pairing.Kind.UNDECIDED
        return done

    @property
    def _deadline(self) -> float:
        return self.limits.deadline_seconds

    @contextmanager
    def _activity(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.account[name] += time.monotonic() - started


def _absence(fault: Refused | Died | Hung) -> Outcome:
    """The outcome of a contender that cannot be had at all."""
    if isinstance(fault, Died):
        return Outcome.CRASHED
    return Outcome.TIMED_OUT if isinstance(fault, Hung) else Outcome.UNAVAILABLE
