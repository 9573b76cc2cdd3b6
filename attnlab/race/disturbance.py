"""What else uses the machine while contenders are timed.

The kernel counts how long each thread was ready to run and did not (`attnlab.system.run_delay_seconds`): the one figure
that sees a neighbour on another core, on which a team of threads waits for its last member. A hypervisor tells what it
took, two clocks tell whether the machine slept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

import psutil

from attnlab.system import cores

#: other programs that take more cores than this are told
NOTABLE = 0.25
#: two clocks that differ by more seconds: the machine was suspended
_SLEPT = 0.1
#: of the rounds of a visit, at most this part is left out
_LEFT_OUT = 0.5


class Notice(str):
    """An event that is to be kept before a person's eyes, where others pass."""


class Watch:
    """Looks at the machine now, to tell later what happened since."""

    def __init__(self) -> None:
        self._since, self._busy, self._own = time.monotonic(), _busy_seconds(), _own_seconds()
        self._asleep = _asleep_seconds()

    def others(self) -> float:
        """Cores that other programs took since, as far as the children of this process have ended."""
        elapsed = max(1e-3, time.monotonic() - self._since)
        spent = _busy_seconds() - self._busy - (_own_seconds() - self._own)
        return min(max(0.0, spent / elapsed), float(cores()))

    def slept(self) -> bool:
        """Whether the machine was suspended since."""
        return abs(_asleep_seconds() - self._asleep) > _SLEPT


def steal_seconds() -> float:
    """CPU seconds that a hypervisor has taken from this machine since it started; 0 where it does not say."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def disturbed(turns: Sequence[Mapping[str, float]], most: float) -> list[bool]:
    """Which turns of a contender's visit do not count: those that were disturbed for more than this part of their time.

    Never more than half of them: where the machine is busy throughout, the calmer half counts. Only a turn whose two
    clocks contradict each other never counts.
    """
    parts = [turn["waited"] for turn in turns]
    middle = sorted(parts)[int(len(parts) * _LEFT_OUT)] if parts else 0.0
    return [one > max(most, middle) or one == float("inf") for one in parts]


def waited(turn: Mapping[str, float], bracket: float, stolen: float) -> float:
    """The part of a turn that was lost to others; infinite where the worker claims more time than passed.

    bracket : seconds that the turn took by the conductor's clock. stolen : by the hypervisor meanwhile.
    """
    timed = turn["seconds"] * turn["iterations"]
    if turn["opening_s"] + timed > 1.01 * bracket + 1e-4:
        return float("inf")
    delay = turn["run_delay_s"] if turn["run_delay_s"] == turn["run_delay_s"] else 0.0  # nan: not told
    return (delay + stolen) / max(timed, 1e-9)


def _busy_seconds() -> float:
    """CPU seconds that this machine's cores have worked: neither idle, nor waiting, nor taken away."""
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(seconds for name, seconds in times.items() if name not in idle))


def _own_seconds() -> float:
    """CPU seconds of this process and of its children that have ended, theirs included."""
    return sum(os.times()[:4])


def _asleep_seconds() -> float:
    """Seconds that the machine was suspended since it started, up to a constant."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
