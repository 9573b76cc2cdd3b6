"""Who else uses the machine while contenders race: what a process, and the system, can tell of it.

The kernel counts how long each thread was ready to run and did not (`run_delay_seconds`): the one figure that sees a
neighbour on *another* core than the conductor's, on which a team of threads waits for its last member. What a kernel
or a container hides is nan here, and named by `hidden`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from attnlab.system import cores
from attnlab.text import counted, listed, one_line

#: turns of the calibration loop
_LOOPS = 100_000
#: others who take less than this part of a core are not worth a word
_NOTABLE = 0.05
#: those who take more are told at once: looked for so many seconds after the start, and after twice as many each time,
#: up to so many (a look takes some 0.02 s, more on a machine with many processes)
_TOLD, _LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.25, 2.0, 16.0


def calibration_seconds() -> float:
    """Seconds that a fixed pure-Python loop takes now: about a millisecond, undisturbed."""
    start = time.perf_counter()
    for _ in range(_LOOPS):
        pass
    return time.perf_counter() - start


def steal_seconds() -> float:
    """CPU seconds that a hypervisor has taken from this machine since it started; 0 where it does not say."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


@dataclass(frozen=True)
class Others:
    """What others took of the machine over some time: cores, and the names of those that took most of it."""

    cores: float
    names: tuple[str, ...] = ()
    #: of each name, the number of the process that took most
    numbers: tuple[int, ...] = ()

    @property
    def notable(self) -> bool:
        """Whether it is worth a word."""
        return self.cores > _NOTABLE

    def __str__(self) -> str:
        named = f", most of it {' and '.join(self.names)}" if self.names else ""
        return f"{self.cores:.2g} cores{named}"


class Watch:
    """Looks at the machine now, so that `others` can tell what happened since."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._busy = _busy_seconds()
        self._ended = _ended_seconds()
        self._seen = _seen()

    def others(self, ours: Iterable[int]) -> Others:
        """What everybody but this process, and the processes `ours` (by number) with their children, took since then.

        Another child of this process is not ours: whoever calls attnlab may let one compute.
        """
        elapsed = time.monotonic() - self._since
        if elapsed <= 0:
            return Others(0.0)
        seen = _seen()
        own = {os.getpid(), *_family(ours, {number: one.parent for (number, _), one in seen.items()})}
        # of children that have ended meanwhile, what they took before does not count
        before = [
            one.seconds for key, one in self._seen.items() if key not in seen and one.parent == os.getpid()
        ]
        spent = max(0.0, _ended_seconds() - self._ended - sum(before))
        by_name: dict[str, float] = {}
        largest: dict[str, tuple[float, int]] = {}
        for key, one in seen.items():
            grown = one.seconds - (self._seen[key].seconds if key in self._seen else 0.0)
            if key[0] in own:
                spent += grown
            else:
                by_name[one.name] = by_name.get(one.name, 0.0) + grown
                largest[one.name] = max(largest.get(one.name, (0.0, 0)), (grown, key[0]))
        taken = max(0.0, (_busy_seconds() - self._busy - spent) / elapsed)
        most = sorted(by_name, key=lambda name: -by_name[name])[:2]
        named = tuple(name for name in most if by_name[name] / elapsed > _NOTABLE)
        return Others(taken, named, tuple(largest[name][1] for name in named))


class Notice(str):
    """An event that is to be kept before a person's eyes, where others pass."""


class Lookout:
    """Passes events on; at one of them it tells, once, that others take the cores, who they are and what comes of it.

    Events come between turns, so that nothing is looked at while one is on the clock. ours : the numbers of the
    processes that race.
    """

    def __init__(
        self, on_event: Callable[[str], None], ours: Callable[[], Iterable[int]], watch: Callable[[], Watch]
    ) -> None:
        self._on_event, self._ours, self._make = on_event, ours, watch
        self._watch, self._patience = watch(), _LOOK_SECONDS
        self._next = time.monotonic() + self._patience

    def __call__(self, text: str) -> None:
        self._on_event(text)
        if time.monotonic() < self._next:
            return
        found = self._watch.others(self._ours())
        if found.cores > _TOLD:
            self._next = math.inf
            self._on_event(Notice(_warning(found)))
            return
        self._watch, self._patience = self._make(), min(2 * self._patience, _MOST_LOOK_SECONDS)
        self._next = time.monotonic() + self._patience


def _warning(found: Others) -> str:
    named = zip(found.names, found.numbers, strict=True)
    who = listed([f"{one_line(name, 40)} (process {number})" for name, number in named])
    taken = f"{found.cores:.1f} of {counted(cores(), 'core')}{', most of it ' if who else ''}{who}"
    return f"Other programs take {taken}: short calls may stay undecided. Repeat it when nothing else runs."


def _busy_seconds() -> float:
    """CPU seconds that this machine's cores have worked: neither idle, nor waiting, nor taken away."""
    times = psutil.cpu_times()._asdict()
    idle = ("idle", "iowait", "steal", "guest", "guest_nice")
    return float(sum(seconds for name, seconds in times.items() if name not in idle))


def _ended_seconds() -> float:
    """CPU seconds of this process's children that have ended, theirs included."""
    times = os.times()
    return times.children_user + times.children_system


class _Process(NamedTuple):
    name: str
    parent: int
    seconds: float


def _seen() -> dict[tuple[int, float], _Process]:
    """By (number, start) of each process that can be seen, its name, its parent's number and its CPU seconds.

    The name does not identify it: threads of the kernel change theirs with their work.
    """
    found = {}
    for one in psutil.process_iter(["name", "cpu_times", "create_time", "ppid"]):
        times = one.info["cpu_times"]
        if times is not None:
            found[one.pid, one.info["create_time"]] = _Process(
                str(one.info["name"]), one.info["ppid"], times.user + times.system
            )
    return found


def _family(numbers: Iterable[int], parents: Mapping[int, int]) -> set[int]:
    """Processes of these numbers, their children, and theirs."""
    found = set(numbers)
    while further := {one for one, parent in parents.items() if parent in found and one not in found}:
        found |= further
    return found
