"""What is measured of a prepared call beside its time: one class an instrument.

An instrument names its quantity and its base unit, and its `measure` does the work, in the worker process, on the call
that is prepared there. It has a visit of its own, in which nothing was called before, or a pass after the rounds of
each visit, because none may disturb another.

A new instrument is a class that is listed in `INSTRUMENTS`: its readings are a further measurement of each result.

What else uses the machine while contenders are timed is watched too. The kernel counts how long each thread was ready
to run and did not (`attnlab.system.run_delay_seconds`): the one figure that sees a neighbour on another core, on which
a team of threads waits for its last member. A hypervisor tells what it took, two clocks tell whether the machine slept.
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

#: other programs that take more cores than this are told
NOTABLE = 0.25
#: two clocks that differ by more seconds: the machine was suspended
_SLEPT = 0.1
#: seconds that may pass until a worker that was sent for is awake, and the conductor again after its answer
_WAKING = 3e-3
#: of the rounds of a visit, at most this part is left out
_LEFT_OUT = 0.5


class Notice(str):
    """An event that is to be kept before a person's eyes, where others pass."""


class Watch:
    """Looks at the machine now, to tell later what happened since."""

    def __init__(self) -> None:
        # a thread of the kernel is no program, and what it computes is neither of these two
        self._since, self._busy, self._own = time.monotonic(), core_seconds("user", "nice"), _own_seconds()
        self._asleep = _asleep_seconds()

    def others(self) -> float:
        """How many of our cores other programs took since, as far as the children of this process have ended."""
        elapsed = max(1e-3, time.monotonic() - self._since)
        spent = core_seconds("user", "nice") - self._busy - (_own_seconds() - self._own)
        return min(max(0.0, spent / elapsed), float(cores()))

    def slept(self) -> bool:
        """Whether the machine was suspended since."""
        return abs(_asleep_seconds() - self._asleep) > _SLEPT


def steal_seconds() -> float:
    """CPU seconds that a hypervisor has taken from our cores since the machine started; 0 where it does not say."""
    return core_seconds("steal")


def core_seconds(*kinds: str) -> float:
    """Seconds of these kinds that the cores have spent on which this process may run, since the machine started."""
    every = psutil.cpu_times(percpu=True)
    ours = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
    return math.fsum(getattr(every[at], one, 0.0) for at in ours if at < len(every) for one in kinds)


def disturbed(turns: Sequence[Mapping[str, float]], most: float) -> list[bool]:
    """Which turns of a contender's visit do not count: those that were disturbed for more than this part of their time.

    A turn whose two clocks contradict each other does not count. Of the others at least half do: where the machine is
    busy throughout, the calmer half counts.
    """
    parts = [turn["waited"] for turn in turns]
    middle = sorted(parts)[int((len(parts) - 1) * _LEFT_OUT)] if parts else 0.0
    return [one > max(most, middle) or one == float("inf") for one in parts]


def waited(turn: Mapping[str, float], bracket: float, stolen: float) -> float:
    """The part of a turn that was lost to others; infinite where the worker's clock contradicts the conductor's.

    bracket : seconds that the turn took by the conductor's clock. stolen : by the hypervisor meanwhile. The worker may
    claim less by what waking it takes, and more by what its clock is off.
    """
    timed = turn["seconds"] * turn["iterations"]
    claimed = turn["opening_s"] + timed + turn["between_s"]
    if claimed > 1.01 * bracket + 1e-4 or bracket - stolen > 1.1 * claimed + _WAKING:
        return float("inf")
    delay = turn["run_delay_s"] if turn["run_delay_s"] == turn["run_delay_s"] else 0.0  # nan: not told
    return (delay + stolen) / max(timed, 1e-9)


def _own_seconds() -> float:
    """The same of this process and of its children that have ended, theirs included."""
    return os.times().user + os.times().children_user


def _asleep_seconds() -> float:
    """Seconds that the machine was suspended since it started, up to a constant."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


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
    #: whether it is measured after the rounds of every visit, and not in one of its own
    every_visit: ClassVar[bool] = False

    def applies(self, workload: Workload) -> bool:
        """Whether there is anything to measure on `workload`."""
        return True

    @abstractmethod
    def measure(self, library: Library, call: Call) -> Readings:
        """Read it on `call`, whose arrays are those of `library`.

        What it raises ends this measurement, and is noted beside the result: the others stay.
        """

    def measurement(self, readings: Readings, visit: int) -> Measurement:
        """The readings as they are stored: numbers are floats, whatever the instrument made of them."""
        columns = {name: tuple(map(float, column)) for name, column in readings.columns.items()}
        samples = tuple(map(float, readings.samples))
        columns["visit"] = (float(visit),) * len(samples)
        return Measurement(self.quantity, self.unit, samples, columns, dict(readings.facts))


class PeakMemory(Instrument):
    """Peak memory of one warm call in bytes: output included, inputs not.

    On the CPU memray traces every allocation of the process, whatever library makes it: within 0.01 % of the analytic
    value, where the kernel's count of pages was off by 30 %.
    """

    quantity = "peak_memory"
    unit = "B"

    def measure(self, library: Library, call: Call) -> Readings:
        """The peak of a second call: a first one carries workspaces that are kept (33 MB for one BLAS)."""
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
    """Seconds of a multi-head block's three parts, each called alone: projection, attention, output.

    A sample is the sum of the three, the columns ``projection_s``, ``attention_s`` and ``output_s`` are the parts, and
    ``waited`` is the share of the pass for which threads waited for a core (nan: not told). The attention finds query,
    key and value where the projection left them, the output projection its heads likewise.
    """

    quantity = "block_parts"
    unit = "s"
    every_visit = True
    _passes = 9
    #: a part is called for so long in a pass, and once where it is longer; so long altogether at most, but two rounds
    _part_seconds, _seconds = 1e-3, 0.5

    def applies(self, workload: Workload) -> bool:
        return workload.d_model is not None

    def measure(self, library: Library, call: Call) -> Readings:
        """Passes over the parts, one after the other. Raises Declined for a call that has no parts."""
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
#: by their quantities
INSTRUMENTS: dict[str, Instrument] = {one.quantity: one for one in (PEAK_MEMORY, BLOCK_PARTS)}
