"""Every way in which a worker process fails, in every phase, and what becomes of it: the expectation, and the trial."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import psutil

from attnlab.backends.contender import parse_all
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

BACKENDS = Path(__file__).parent / "backends"
PHASES = ("start", "prepare", "check", "time", "memory")
WORKLOAD = Workload(heads=2, queries=16, keys=16, head_dim=8)
DEADLINE = 4.0
QUICK = Limits(
    visits=1, most_visits=1, rounds=2, turn_seconds=1e-4, warm_seconds=1e-3, deadline_seconds=DEADLINE
)
#: for faults that end by themselves: nothing is too slow, however busy the machine is
PATIENT = Limits(
    visits=1, most_visits=1, rounds=2, turn_seconds=1e-4, warm_seconds=1e-3, call_seconds=300,
    deadline_seconds=300, start_seconds=300,
)  # fmt: skip
GOOD = ("numpy_vectorized", "numpy_blocked")
CRASHED, TIMED_OUT, MEASURED = Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.MEASURED
OVER, UNAVAILABLE, WRONG = Outcome.OVER_BUDGET, Outcome.UNAVAILABLE, Outcome.WRONG


@dataclass(frozen=True)
class Expected:
    """The outcome of a fault, and words of the reason; `phases` holds those that differ in a phase."""

    outcome: Outcome
    words: str
    phases: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)


#: at the start a file that fails on import is not there
FAULTS: Mapping[str, Expected] = {
    "exception": Expected(
        CRASHED, "raised ValueError: faulty was here", {"start": (UNAVAILABLE, "fails on import")}
    ),
    "segfault": Expected(CRASHED, "killed by SIGSEGV when it was asked to"),
    "abort": Expected(CRASHED, "killed by SIGABRT when it was asked to"),
    "exit_at_once": Expected(CRASHED, "exited with status 7"),
    "leave": Expected(CRASHED, "exited with status 1", {"start": (UNAVAILABLE, "SystemExit: enough")}),
    "killed": Expected(CRASHED, "killed by SIGKILL"),
    "exhausted": Expected(OVER, "ran out of memory", {"start": (UNAVAILABLE, "MemoryError")}),
    "hang": Expected(TIMED_OUT, "no answer in time"),
    "hang_with_gil": Expected(TIMED_OUT, "no answer in time"),
    "stopped": Expected(TIMED_OUT, "no answer in time"),
    "late": Expected(TIMED_OUT, "no answer in time"),
    "garbage": Expected(CRASHED, "it sent a message"),
    "half_a_frame": Expected(TIMED_OUT, "no answer in time"),
    "huge_frame": Expected(CRASHED, "it sent a message of"),
    # the file of the trace of its memory is closed with it
    "closed_pipe": Expected(
        CRASHED, "the other process is gone", {"memory": (MEASURED, "could not be measured")}
    ),
    "threads": Expected(MEASURED, ""),
    "flood_stdout": Expected(MEASURED, ""),
    "flood_stderr": Expected(MEASURED, ""),
    "children": Expected(MEASURED, ""),
    "elsewhere": Expected(MEASURED, ""),
    "deaf": Expected(MEASURED, ""),
    "forks": Expected(MEASURED, ""),
    "returns_twice": Expected(MEASURED, ""),
    "other_locale": Expected(MEASURED, ""),
}


@dataclass(frozen=True)
class Trial:
    """A race of good contenders and faulty ones, and how many processes were left."""

    results: Mapping[str, Result]
    seconds: float
    left: int


def contender(fault: str, phase: str) -> str:
    """The faulty contender in the notation."""
    return f"faulty[FAULT={fault},WHEN={phase}]"


def race_all(phases: Mapping[str, str], limits: Limits = QUICK) -> Trial:
    """Race faults, each in its phase, beside good contenders, in one run."""
    started = time.monotonic()
    contenders = parse_all([*GOOD, *(contender(fault, phase) for fault, phase in phases.items())])
    before = {one.pid for one in psutil.process_iter()}
    with (
        mock.patch.dict(os.environ, PYTHONPATH=str(BACKENDS)),
        Conductor(contenders, folders=[str(BACKENDS)], limits=limits) as conductor,
    ):
        results = {one.contender: one for one in conductor.race(WORKLOAD)}
    return Trial(results, time.monotonic() - started, len(_left(before)))


def _left(before: set[int]) -> list[psutil.Process]:
    """Processes with a fault in their environment, and children of this one."""
    found = []
    for one in psutil.process_iter():
        try:
            ours = "FAULT" in one.environ() or one.ppid() == os.getpid()
        except psutil.Error:
            continue
        if one.pid not in before and ours:
            found.append(one)
    return found


def expected(fault: str, phase: str) -> tuple[Outcome, str]:
    """The outcome, and words of the reason. What fails while its memory is measured has its speed already."""
    told = FAULTS[fault]
    if phase in told.phases:
        return told.phases[phase]
    if phase == "memory":
        return MEASURED, "" if told.outcome is MEASURED else told.words
    return told.outcome, told.words
