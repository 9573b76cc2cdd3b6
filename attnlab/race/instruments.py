"""What is measured of a prepared call besides its time: each instrument is a class.

An instrument names its quantity and its base unit. Its `measure` runs in the worker process, on the call that is
prepared there. No instrument may disturb another one. So it has either a separate visit, in which nothing was called
before, or a pass after the rounds of each visit.

To add an instrument, write a class and list it in `INSTRUMENTS`: its readings become a further measurement of each
result.

This module also watches what else uses the machine while contenders are timed. The kernel counts how long each thread
was ready to run but did not run (`attnlab.system.run_delay_seconds`). No other figure shows that another program delays
one thread of a team, for which the whole team then waits. A hypervisor reports the time that it took, and two clocks
show whether the machine was suspended.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil

from attnlab import system
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.library import Call, Library
from attnlab.system import cores
from attnlab.workload.result import Measurement
from attnlab.workload.workload import Workload

#: report other programs that use more cores than this
NOTABLE = 0.25
#: the machine was suspended if two clocks have moved apart by more seconds than this
_SLEPT = 0.1
#: seconds that may pass until a worker wakes up for a request, and the conductor for the answer
_WAKING = 3e-3
#: at most this fraction of a visit's rounds is left out as disturbed
_LEFT_OUT = 0.5


class Notice(str):
    """An event that should stay visible to the user; other events may be overwritten by the next one."""


class Watch:
    """Records the state of the machine now, to report later what has happened since."""

    def __init__(self) -> None:
        # threads of the kernel are no programs; their time is of other kinds than these two
        self._since, self._busy, self._own = time.monotonic(), core_seconds("user", "nice"), _own_seconds()
        self._asleep = _asleep_seconds()

    def others(self) -> float:
        """The number of our cores that other programs used since then. Children of ours count until they end."""
        elapsed = max(1e-3, time.monotonic() - self._since)
        spent = core_seconds("user", "nice") - self._busy - (_own_seconds() - self._own)
        return min(max(0.0, spent / elapsed), float(cores()))

    def slept(self) -> bool:
        """Whether the machine was suspended since then."""
        return abs(_asleep_seconds() - self._asleep) > _SLEPT


def core_seconds(*kinds: str) -> float:
    """Seconds of these kinds since the machine started, over our cores; "steal" is what a hypervisor took."""
    every = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
    return math.fsum(getattr(every[at], one, 0.0) for at in ours if at < len(every) for one in kinds)


def disturbed(turns: Sequence[Mapping[str, float]], most: float) -> list[bool]:
    """For each turn of a contender in a visit, whether it is left out because it was disturbed.

    most : the largest fraction of a turn that may be lost. At least half of the turns count, except those with
    contradictory clocks, which never do: if the machine is busy all the time, this is the calmer half.
    """
    parts = [turn["waited"] for turn in turns]
    middle = sorted(parts)[int((len(parts) - 1) * _LEFT_OUT)] if parts else 0.0
    return [one > max(most, middle) or one == float("inf") for one in parts]


def waited(turn: Mapping[str, float], bracket: float, stolen: float) -> float:
    """The fraction of a turn that was lost to other programs; infinite if two clocks contradict each other.

    bracket : seconds of the turn by the conductor's clock. stolen : seconds that the hypervisor took meanwhile. By its
    own clock, the worker may report less time, because waking it takes time, or slightly more, because clocks are
    inexact.
    """
    timed = turn["seconds"] * turn["iterations"]
    claimed = turn["opening_s"] + timed + turn["between_s"]
    if claimed > 1.01 * bracket + 1e-4 or bracket - stolen > 1.1 * claimed + _WAKING:
        return float("inf")
    delay = turn["run_delay_s"] if turn["run_delay_s"] == turn["run_delay_s"] else 0.0  # nan: unknown
    return (delay + stolen) / max(timed, 1e-9)


def _own_seconds() -> float:
    """User seconds of this process and of its children that have ended, with all their children."""
    return os.times().user + os.times().children_user


def _asleep_seconds() -> float:
    """Seconds for which the machine has been suspended since it started, up to a constant."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


Column = tuple[float, ...]
#: the clock as it was before any backend was imported
_clock = time.perf_counter


@dataclass(frozen=True)
class Readings:
    """What one `measure` read: samples, columns of notes on each, and facts about all; see `Measurement`."""

    samples: Column
    columns: Mapping[str, Column] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


class Instrument(ABC):
    """Measures one quantity of a call."""

    #: the name of the quantity in results
    quantity: ClassVar[str]
    #: its base unit: s, B, J, ...
    unit: ClassVar[str]
    #: whether it is measured after the rounds of every visit, and not in a separate visit
    every_visit: ClassVar[bool] = False

    def applies(self, workload: Workload) -> bool:
        """Whether there is anything to measure on `workload`."""
        return True

    @abstractmethod
    def measure(self, library: Library, call: Call) -> Readings:
        """Measure `call`, whose arrays are those of `library`.

        An exception ends this measurement and is noted in the result; the other measurements stay.
        """

    def measurement(self, readings: Readings, visit: int) -> Measurement:
        """The readings as they are stored: all numbers are floats, whatever type the instrument used."""
        columns = {name: tuple(map(float, column)) for name, column in readings.columns.items()}
        samples = tuple(map(float, readings.samples))
        columns["visit"] = (float(visit),) * len(samples)
        return Measurement(self.quantity, self.unit, samples, columns, dict(readings.facts))


class PeakMemory(Instrument):
    """Peak memory of one warm call in bytes: output included, inputs not.

    On the CPU, memray traces every allocation of the process, by any library. It is within 0.01 % of the analytic
    value; the kernel's count of pages was wrong by 30 %.
    """

    quantity = "peak_memory"
    unit = "B"

    def measure(self, library: Library, call: Call) -> Readings:
        """The peak of the second call: the first also allocates workspaces that are kept (33 MB for one BLAS)."""
        call()
        peak, method = self._peak(library, call)
        return Readings((float(peak),), facts={"method": method})

    @staticmethod
    def _peak(library: Library, call: Call) -> tuple[int, str]:
        on_device = library.peak_bytes(call)
        if on_device is not None:
            return on_device, "device allocator"
        try:
            import memray
        except ImportError:
            raise Unavailable("peak memory is not measured: it takes memray (pip install memray)") from None
        with tempfile.TemporaryDirectory(prefix="attnlab-") as folder:
            trace = Path(folder) / "trace.bin"
            with memray.Tracker(trace):
                output = call()
            del output
            return int(memray.FileReader(trace).metadata.peak_memory), "memray"


class BlockParts(Instrument):
    """Seconds of the three parts of a multi-head block, each called alone: projection, attention, output.

    A sample is the sum of the three. The columns ``projection_s``, ``attention_s`` and ``output_s`` are the parts.
    ``waited`` is how long threads waited for a core, as a fraction of the pass (nan: unknown). Attention reads query,
    key and value where the projection wrote them; the output projection likewise reads the heads where attention wrote
    them.
    """

    quantity = "block_parts"
    unit = "s"
    every_visit = True
    _passes = 9
    #: seconds of calls of a part in a pass, at least one call; seconds of all passes, at least two passes
    _part_seconds, _seconds = 1e-3, 0.5

    def applies(self, workload: Workload) -> bool:
        return workload.d_model is not None

    def measure(self, library: Library, call: Call) -> Readings:
        """Time the parts in several passes. Raises Declined for a call that has no parts."""
        parts: Mapping[str, Call] | None = getattr(call, "parts", None)
        if parts is None:
            raise Declined("it computes the block in one piece")
        iterations = {}
        for name, part in parts.items():
            library.time_calls(part, 1)
            iterations[name] = max(1, round(self._part_seconds / max(library.time_calls(part, 1), 1e-9)))
        columns: dict[str, list[float]] = {f"{name}_s": [] for name in parts}
        waited: list[float] = []
        start = _clock()
        for count in range(self._passes):
            began, delay = _clock(), system.run_delay_seconds()
            if count > 1 and began - start > self._seconds:
                break
            for name, part in parts.items():
                columns[f"{name}_s"].append(library.time_calls(part, iterations[name]))
            waited.append((system.run_delay_seconds() - delay) / max(_clock() - began, 1e-9))
        samples = tuple(map(sum, zip(*columns.values(), strict=True)))
        return Readings(samples, {name: tuple(one) for name, one in (*columns.items(), ("waited", waited))})


PEAK_MEMORY, BLOCK_PARTS = PeakMemory(), BlockParts()
#: all instruments, by quantity
INSTRUMENTS: dict[str, Instrument] = {one.quantity: one for one in (PEAK_MEMORY, BLOCK_PARTS)}
