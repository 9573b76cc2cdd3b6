"""What is measured of a prepared call: one class an instrument.

An instrument names its quantity and its base unit, and its `measure` does the work: in the worker process, on the
call that is prepared there, output included and inputs not. Latency is measured in the race, a sample a turn; every
other instrument has a pass of its own after the race, because none may disturb another.

A new instrument is a class, anywhere the worker process can import it from: listed in `STANDARD` or given to a
conductor, its readings are a further measurement of each result.
"""

from __future__ import annotations

import gc
import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from attnlab import system
from attnlab.backends.library import Call, Library
from attnlab.errors import Declined
from attnlab.libraries.host import tracer
from attnlab.workload.result import Measurement
from attnlab.workload.workload import Workload

Column = tuple[float, ...]
#: as it was before any backend was imported
_clock = time.perf_counter


@dataclass(frozen=True)
class Readings:
    """What one `measure` read: samples, what was noted beside each, and what holds for all; see `Measurement`."""

    samples: Column
    columns: Mapping[str, Column] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Instrument(ABC):
    """Measures one quantity of a call."""

    #: the name of the quantity in results
    quantity: ClassVar[str]
    #: its base unit: s, B, J, ...
    unit: ClassVar[str]
    #: whether its samples are taken in the race, turn by turn, or in a pass of its own after it
    in_race: ClassVar[bool] = False
    #: whether every set of processes is measured, and not the first alone: each is a further "process" of the samples
    in_every_set: ClassVar[bool] = False
    #: whether it reads a clock: then nothing else may run meanwhile
    timed: ClassVar[bool] = True
    #: the activity that its seconds are accounted under
    activity: ClassVar[str] = "instruments"

    def applies(self, workload: Workload) -> bool:
        """Whether there is anything to measure on `workload`."""
        return True

    @abstractmethod
    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        """Read it on `call`, whose arrays are those of `library`.

        What it raises ends this measurement, and is noted beside the result: the others stay.
        """

    @property
    def title(self) -> str:
        """The quantity, in words."""
        return self.quantity.replace("_", " ")

    def measurement(self, readings: Readings) -> Measurement:
        """The readings as they are written: numbers are floats, whatever the instrument made of them."""
        columns = {name: tuple(map(float, column)) for name, column in readings.columns.items()}
        samples = tuple(map(float, readings.samples))
        return Measurement(self.quantity, self.unit, samples, columns, dict(readings.facts))


#: what a turn notes beside its time, each the growth of a count of this process since it started (nan: not told)
COUNTERS: Mapping[str, Callable[[], float]] = {
    "minor_faults": system.minor_faults,
    "involuntary_switches": system.involuntary_switches,
    "run_delay_s": system.run_delay_seconds,
}


#: after arrays were placed: so many calls in a row with at most so many page faults (one, where it is long), within so
#: many calls, and fewer once they have taken so many seconds
_RESIDE_QUIET, _RESIDE_FAULTS, _RESIDE_CALLS, _RESIDE_SECONDS, _RESIDE_LEAST = 2, 16, 20, 0.25, 3

#: the part of its time for which a single call may wait: it tells of factors
_ALONE_WAITED = 0.2


class Latency(Instrument):
    """Seconds per call, by the device's own clock."""

    quantity = "latency"
    unit = "s"
    in_race = True
    activity = "timed"

    def measure(
        self,
        library: Library,
        call: Call,
        *,
        iterations: int = 1,
        groups: int = 1,
        run_delay: float = math.inf,
        settle_seconds: float | None = None,
        placed: bool = False,
        change: Callable[[], None] | None = None,
        read: Callable[[], None] = lambda: None,
        **options: Any,
    ) -> Readings:
        """One turn of the race: the mean over `iterations` calls, after untimed calls for `settle_seconds`.

        They are timed in so many `groups`. Of one whose threads waited for a core for more than the part `run_delay` of
        its time nothing counts, unless all did: ``iterations`` notes how many calls count, ``least_s`` the fastest
        group's mean, and ``whole_s`` and ``waited`` the mean and the part waited of all.

        Before its turn the process was stopped while the other contenders computed: the untimed calls bring the
        caches back (None: no such calls). Where its arrays were `placed` since the turn before, they go on until calls
        take no more fresh pages from the system: that is paid once and not by every call. `change` then gives it other
        inputs: ``first_s`` notes the seconds of a call on these by itself, nan where that waited or is the one timed;
        `read` then reads what it returned. ``settled_s`` notes the seconds of all of this. Garbage is not collected.
        """
        gc.disable()
        try:
            first, last, start = math.nan, 0.0, _clock()
            if settle_seconds is not None:
                if placed:
                    self._reside(library, call)
                elif change is None:
                    library.time_calls(call, 1)
                # the call on changed inputs is one of them
                while _clock() - start + last < settle_seconds:
                    seconds = library.time_calls(call, 1)
                    last = 0.0 if change is None else seconds
            if change is not None:
                change()
            if change is not None and settle_seconds is not None:
                alone = self._group(library, call, 1)
                waited = alone["run_delay_s"] > max(run_delay, _ALONE_WAITED) * alone["seconds"]
                first = math.nan if waited else alone["seconds"]
                read()
            settled = _clock() - start
            timed = [
                self._group(library, call, iterations // groups + (number < iterations % groups))
                for number in range(groups)
            ]
        finally:
            gc.enable()
        whole = sum(one["seconds"] for one in timed)
        kept = [one for one in timed if not one["run_delay_s"] > run_delay * one["seconds"]] or timed
        noted = {name: sum(one[name] for one in kept) for name in ("iterations", *COUNTERS)}
        noted |= {"settled_s": settled, "whole_s": whole / iterations}
        noted["first_s"] = first
        noted["least_s"] = min(one["seconds"] / one["iterations"] for one in timed)
        noted["waited"] = sum(one["run_delay_s"] for one in timed) / whole
        seconds = sum(one["seconds"] for one in kept) / noted["iterations"]
        return Readings((seconds,), {name: (value,) for name, value in noted.items()})

    @staticmethod
    def _group(library: Library, call: Call, iterations: int) -> dict[str, float]:
        """Calls in a row: their seconds in all, and the growth of the counters."""
        before = {name: count() for name, count in COUNTERS.items()}
        seconds = library.time_calls(call, iterations) * iterations
        grown = {name: float(count() - before[name]) for name, count in COUNTERS.items()}
        return {"iterations": iterations, "seconds": seconds, **grown}

    @staticmethod
    def _reside(library: Library, call: Call) -> None:
        """Call until calls in a row took no fresh pages to speak of; a backend whose every call does is left at it."""
        faults, quiet, start = COUNTERS["minor_faults"], 0, _clock()
        for count in range(_RESIDE_CALLS):
            before = faults()
            library.time_calls(call, 1)
            quiet = quiet + 1 if faults() - before <= _RESIDE_FAULTS else 0
            elapsed = _clock() - start
            resident = quiet == _RESIDE_QUIET or (quiet and elapsed > _RESIDE_SECONDS / 10)
            if resident or (elapsed > _RESIDE_SECONDS and count >= _RESIDE_LEAST - 1):
                return


class PeakMemory(Instrument):
    """Peak memory of one warm call in bytes: output included, inputs not.

    On the CPU memray traces every allocation of the process, whatever library makes it: within 0.01 % of the analytic
    value, where the kernel's count of pages was off by 30 %.
    """

    quantity = "peak_memory"
    unit = "B"
    timed = False
    activity = "memory"
    _repeats = 2
    #: a call this long (seconds) is traced once: tracing the naive loop twice cost more than racing it
    _long = 0.2

    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        """The peak of a call, twice where it is short; the least of the samples counts.

        It is asked of a call that was raced: a cold one carries workspaces that are kept (33 MB for one BLAS).
        """
        peaks: list[float] = []
        started = _clock()
        while not peaks or (len(peaks) < self._repeats and _clock() - started < self._long):
            peak, method = self._peak(library, call)
            peaks.append(float(peak))
        return Readings(tuple(peaks), facts={"method": method})

    @staticmethod
    def _peak(library: Library, call: Call) -> tuple[int, str]:
        on_device = library.peak_bytes(call)
        if on_device is not None:
            return on_device, getattr(library, "peak_method", "device allocator")
        memray = tracer()
        with tempfile.TemporaryDirectory(prefix="attnlab-") as folder:
            trace = Path(folder) / "trace.bin"
            with memray.Tracker(trace):
                output = call()
            del output
            return int(memray.FileReader(trace).metadata.peak_memory), "memray"


class BlockParts(Instrument):
    """Seconds of a multi-head block's three parts, each called alone: projection, attention, output.

    A sample is the sum of the three, the columns ``projection_s``, ``attention_s`` and ``output_s`` are the parts, and
    ``waited`` is the share of the round for which threads waited for a core (nan: not told). The attention finds query,
    key and value where the projection left them, the output projection its heads likewise.
    """

    quantity = "block_parts"
    unit = "s"
    in_every_set = True
    _rounds = 9
    #: a part is called for so long in a round, and once where it is longer; so long altogether at most, but two rounds
    _turn_seconds, _seconds = 1e-3, 0.5

    def applies(self, workload: Workload) -> bool:
        return workload.d_model is not None

    def measure(self, library: Library, call: Call, **options: Any) -> Readings:
        """Rounds over the parts, one after the other. Raises Declined for a call that has no parts."""
        parts: Mapping[str, Call] | None = getattr(call, "parts", None)
        if parts is None:
            raise Declined("it computes the block in one piece")
        iterations = {}
        for name, part in parts.items():
            library.time_calls(part, 1)
            iterations[name] = max(1, round(self._turn_seconds / max(library.time_calls(part, 1), 1e-9)))
        columns: dict[str, list[float]] = {f"{name}_s": [] for name in parts}
        waited: list[float] = []
        start = _clock()
        for count in range(self._rounds):
            began, delay = _clock(), system.run_delay_seconds()
            if count > 1 and began - start > self._seconds:
                break
            for name, part in parts.items():
                columns[f"{name}_s"].append(library.time_calls(part, iterations[name]))
            waited.append((system.run_delay_seconds() - delay) / max(_clock() - began, 1e-9))
        samples = tuple(map(sum, zip(*columns.values(), strict=True)))
        return Readings(samples, {name: tuple(one) for name, one in (*columns.items(), ("waited", waited))})


LATENCY, PEAK_MEMORY, BLOCK_PARTS = Latency(), PeakMemory(), BlockParts()
#: what a conductor measures unless it is given others
STANDARD: tuple[Instrument, ...] = (LATENCY, PEAK_MEMORY, BLOCK_PARTS)
