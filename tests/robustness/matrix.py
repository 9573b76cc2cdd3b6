"""Every way in which a worker process fails, in every phase, and what becomes of it: the expectation, and the trial."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import psutil

from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import before_fork
from attnlab.race import worker_process
from attnlab.race.conductor import Conductor
from attnlab.race.guard import GUARD, marked
from attnlab.race.limits import Limits
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

BACKENDS = Path(__file__).parent / "backends"
PHASES = ("parent", "start", "prepare", "check", "time", "memory")
WORKLOAD = Workload(heads=2, queries=16, keys=16, head_dim=8)
DEADLINE = 4.0
QUICK = Limits(
    processes=2, most_processes=2, min_rounds=4, max_rounds=6, workload_seconds=2, turn_seconds=1e-4,
    deadline_seconds=DEADLINE, start_seconds=30,
)  # fmt: skip
#: for faults that end by themselves: nobody is too slow, however busy the machine is
PATIENT = replace(QUICK, deadline_seconds=300, start_seconds=300, workload_seconds=300)
GOOD = ("numpy_vectorized", "numpy_blocked")
CRASHED, TIMED_OUT, MEASURED = Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.MEASURED
OVER, UNAVAILABLE, WRONG = Outcome.OVER_BUDGET, Outcome.UNAVAILABLE, Outcome.WRONG
#: said where a process was to be forked
UNBORN = "started afresh: the process that was to fork it"


@dataclass(frozen=True)
class Expected:
    """The outcome of a fault, and words of the reason; `phases` holds those that differ in a phase."""

    outcome: Outcome
    words: str
    phases: Mapping[str, tuple[Outcome, str]] = field(default_factory=dict)


#: at the start a file that fails on import is not there; what answers wrongly cannot be told from another's program
FAULTS: Mapping[str, Expected] = {
    "exception": Expected(
        CRASHED, "raised ValueError: faulty was here", {"start": (UNAVAILABLE, "fails on import")}
    ),
    "segfault": Expected(CRASHED, "killed by SIGSEGV: faulty was here"),
    "abort": Expected(CRASHED, "killed by SIGABRT: faulty was here"),
    "exit_at_once": Expected(CRASHED, "exited with status 7: faulty was here"),
    "leave": Expected(
        CRASHED, "exited with status 1: enough", {"start": (UNAVAILABLE, "SystemExit: enough")}
    ),
    "interrupt": Expected(CRASHED, "killed by SIGINT"),
    "killed": Expected(CRASHED, "killed by SIGKILL"),
    "exhausted": Expected(OVER, "ran out of memory", {"start": (UNAVAILABLE, "MemoryError")}),
    "hang": Expected(TIMED_OUT, "no answer within"),
    "hang_with_gil": Expected(TIMED_OUT, "no answer within"),
    "stopped": Expected(TIMED_OUT, "no answer within"),
    "late": Expected(TIMED_OUT, "no answer within"),
    "garbage": Expected(CRASHED, "its process sent"),
    "half_a_frame": Expected(TIMED_OUT, "no answer within"),
    "huge_frame": Expected(CRASHED, "its process sent a message of"),
    "nonsense": Expected(CRASHED, "it answered another question"),
    "wrong_shapes": Expected(CRASHED, "its process sent"),
    "twice": Expected(CRASHED, "it answered another question"),
    # the file of the trace of its memory is closed with it
    "closed_pipe": Expected(CRASHED, "closed its channel", {"memory": (MEASURED, "could not be measured")}),
    "threads": Expected(MEASURED, ""),
    "flood_stdout": Expected(MEASURED, ""),
    "flood_stderr": Expected(MEASURED, ""),
    "children": Expected(MEASURED, ""),
    "elsewhere": Expected(MEASURED, ""),
    "deaf": Expected(MEASURED, ""),
    "forks": Expected(MEASURED, ""),
    "returns_twice": Expected(MEASURED, ""),
    "killed_between": Expected(MEASURED, "", {"parent": (MEASURED, f"{UNBORN} was killed by SIGKILL")}),
    "no_processes": Expected(MEASURED, "", {"parent": (MEASURED, f"{UNBORN} raised BlockingIOError")}),
    "no_memory": Expected(MEASURED, "", {"parent": (MEASURED, f"{UNBORN} raised OSError: [Errno 12]")}),
    "locked": Expected(MEASURED, "", {"parent": (MEASURED, "before it was timed no answer within")}),
    "other_locale": Expected(MEASURED, ""),
    # what is timed was checked before: an error that begins on the clock is not seen
    "rounding": Expected(WRONG, "relative error"),
}
#: what a parent does not come back from
HANGING_PARENTS = [
    "hang",
    "hang_with_gil",
    "stopped",
    "late",
    "garbage",
    "half_a_frame",
    "huge_frame",
    "nonsense",
    "wrong_shapes",
    "closed_pipe",
]


@dataclass(frozen=True)
class Trial:
    """A race of good contenders and faulty ones."""

    results: Mapping[str, Result]
    seconds: float
    #: processes that were left
    left: int


def contender(fault: str, phase: str) -> str:
    """The faulty contender in the notation."""
    return f"faulty[FAULT={fault},WHEN={phase}]"


def race(phase: str, faults: Sequence[str]) -> Trial:
    """Race the faults of a phase beside good contenders, in one run."""
    return race_all(dict.fromkeys(faults, phase))


def race_all(phases: Mapping[str, str], limits: Limits = QUICK) -> Trial:
    """Race faults, each in its phase, beside good contenders, in one run; twice where a parent is to fork twice."""
    names = [contender(fault, phase) for fault, phase in phases.items()]
    return race_of([*names, *(one for one in names if one.endswith("WHEN=parent]"))], limits)


def race_killed(folder: Path, limits: Limits) -> tuple[dict[str, Result], int]:
    """The result, by phase, of who is killed there once (a file in `folder` tells that it was), and what is left."""
    names = {phase: f"faulty[FAULT=killed,ONCE={folder / phase},WHEN={phase}]" for phase in PHASES}
    trial = race_of(list(names.values()), limits)
    return {phase: trial.results[name] for phase, name in names.items()}, trial.left


def race_of(names: Sequence[str], limits: Limits) -> Trial:
    """Race these contenders beside good ones; the parents of faulty ones import what may strike there."""
    started, all_of_it = time.monotonic(), parse_all([*GOOD, *names])

    def imported(name: str, folders: Sequence[str]) -> tuple[str, ...] | None:
        return ("_parent",) if name == "faulty" else before_fork(name, folders)

    with (
        mock.patch.object(worker_process, "before_fork", imported),
        mock.patch.dict(os.environ, PYTHONPATH=str(BACKENDS)),
        Conductor(all_of_it, folders=[str(BACKENDS)], limits=limits) as conductor,
    ):
        results = conductor.race(WORKLOAD)
    seconds, zombies = time.monotonic() - started, psutil.Process().children()
    # of a contender that races twice the second result, of the process that is forked last
    last = {one.contender.partition("#")[0]: one for one in results}
    return Trial(last, seconds, len(marked(GUARD.mark)) + len(zombies))


def expected(fault: str, phase: str) -> tuple[Outcome, str]:
    """The outcome, and words of the reason. What fails while its memory is measured has its speed already."""
    told = FAULTS[fault]
    if phase in told.phases:
        return told.phases[phase]
    if phase == "parent" and told.outcome is not WRONG:
        harmless = told.outcome is MEASURED or fault == "twice"
        return (
            MEASURED,
            "" if harmless else f"{UNBORN} gave no answer" if fault in HANGING_PARENTS else UNBORN,
        )
    if phase == "memory":
        return MEASURED, "" if told.outcome in (MEASURED, WRONG) else told.words
    return told.outcome, told.words
