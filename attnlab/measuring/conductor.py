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
from types import TracebackType
from typing import Any

import numpy as np

from attnlab.accuracy import race_check
from attnlab.contract.result import Measurement, Outcome, Result
from attnlab.contract.workload import Workload
from attnlab.measuring.budget import Budget
from attnlab.measuring.contender import Contender
from attnlab.measuring.limits import Limits
from attnlab.measuring.participant import Entry
from attnlab.measuring.race import Race
from attnlab.measuring.worker_process import Died, Hung, Refused, Seat

_WARMUP_SECONDS = 0.03


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
        self._budget = Budget(self.limits)

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
            entry.attempt(self._admit)
            if entry.ended is not None:
                self._release(entry)  # the others may want the memory
        Race(
            [entry for entry in entries if entry.ended is None],
            baseline=self.baseline,
            limits=self.limits,
            account=self.account,
            on_event=self._on_event,
        ).run()
        for entry in entries:
            if entry.ended is None:
                self._budget.history_of(entry).saw_seconds(workload, entry.call_seconds)
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

    def _admit(self, entry: Entry) -> None:
        """Everything that comes before the clock."""
        seat, workload = entry.seat, entry.workload
        if entry.name in self._absent:
            entry.ended = self._absent[entry.name]
            return
        with self._activity("predicting"):
            seat.ask("declines", seconds=self._deadline, workload=workload.to_dict())
            entry.ended = self._budget.over(entry)
        if entry.ended:
            return
        with self._activity("preparing"):
            prepared = seat.ask("prepare", seconds=self._deadline, workload=workload.to_dict())
            entry.cache = prepared["cache"]
        with self._activity("checking"):
            rows = race_check.sampled_rows(workload)
            reply, arrays = seat.ask_arrays("check", seconds=self._deadline, rows=rows)
            names = reply["names"]
            first, second = (arrays[: len(names)][0], arrays[len(names) :][0])
            entry.accuracy = race_check.judge(workload, rows, first)
            when = ""
            if entry.accuracy.passed and not np.array_equal(first, second):
                entry.accuracy = race_check.judge(workload, rows, second)
                when = "right at the first call, but at the second: "
            if not entry.accuracy.passed:
                entry.ended = (Outcome.WRONG, when + (entry.accuracy.reason or "failed the accuracy gate"))
                return
        with self._activity("warm-up"):
            self._calibrate(entry)
        with self._activity("attesting"):
            entry.kernel = str(seat.ask("attest", seconds=self._deadline)["kernel"])

    def _calibrate(self, entry: Entry) -> None:
        found = entry.seat.ask("calibrate", seconds=self._deadline, warmup_seconds=_WARMUP_SECONDS)
        entry.call_seconds = float(found["seconds"])
        self._budget.history_of(entry).saw_seconds(entry.workload, entry.call_seconds)

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
        self._budget.history_of(entry).saw_peak(entry.workload, int(min(peaks)))

    def _release(self, entry: Entry) -> None:
        """Free what the workload took. A worker that cannot even do this is replaced; its result stands."""
        if not entry.seat.filled:
            return
        with self._activity("releasing"):
            try:
                entry.seat.ask("release", seconds=self._deadline)
            except (Refused, Died, Hung):
                entry.seat.leave()

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
