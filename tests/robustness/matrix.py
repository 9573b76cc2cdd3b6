"""Every fault of a worker process, in every phase: its expected outcome, and a race that tries it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
_SHORT = Limits(visits=1, most_visits=1, rounds=2, turn_seconds=1e-4, warm_seconds=1e-3)
QUICK = replace(_SHORT, deadline_seconds=DEADLINE)
#: for faults that end by themselves: nothing is too slow, however busy the machine is
PATIENT = replace(_SHORT, call_seconds=300.0, deadline_seconds=300.0, start_seconds=300.0)
GOOD = ("numpy_vectorized", "numpy_blocked")
CRASHED, TIMED_OUT, MEASURED = Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.MEASURED


#: the outcome of each fault, and a part of the reason
FAULTS: Mapping[str, tuple[Outcome, str]] = {
    "exception": (CRASHED, "raised ValueError: faulty was here"),
    "segfault": (CRASHED, "killed by SIGSEGV when it was asked to"),
    "abort": (CRASHED, "killed by SIGABRT when it was asked to"),
    "exit_at_once": (CRASHED, "exited with status 7"),
    "leave": (CRASHED, "exited with status 1"),
    "killed": (CRASHED, "killed by SIGKILL"),
    "exhausted": (Outcome.OVER_BUDGET, "ran out of memory"),
    **dict.fromkeys(("hang", "hang_with_gil", "stopped", "half_a_frame"), (TIMED_OUT, "no answer in time")),
    "garbage": (CRASHED, "it sent a message"),
    "huge_frame": (CRASHED, "it sent a message of"),
    "closed_pipe": (CRASHED, "the other process is gone"),
    **dict.fromkeys(("threads", "flood_stdout", "flood_stderr", "children", "elsewhere"), (MEASURED, "")),
    **dict.fromkeys(("deaf", "forks", "returns_twice", "other_locale"), (MEASURED, "")),
}
#: outcomes that differ in one phase
ELSE: Mapping[tuple[str, str], tuple[Outcome, str]] = {
    ("exception", "start"): (CRASHED, "fails on import"),
    ("leave", "start"): (CRASHED, "SystemExit: enough"),
    ("exhausted", "start"): (CRASHED, "MemoryError"),
    # the file of its memory trace is closed too
    ("closed_pipe", "memory"): (MEASURED, "could not be measured"),
}


@dataclass(frozen=True)
class Trial:
    """The results of a race of good and faulty contenders, and the number of processes that were left."""

    results: Mapping[str, Result]
    left: int


def contender(fault: str, phase: str) -> str:
    """The faulty contender as text."""
    return f"faulty[FAULT={fault},WHEN={phase}]"


def race_all(phases: Mapping[str, str], limits: Limits = QUICK) -> Trial:
    """Race faults, each in its phase, beside good contenders, in one run."""
    contenders = parse_all([*GOOD, *(contender(fault, phase) for fault, phase in phases.items())])
    before = {one.pid for one in psutil.process_iter()}
    with (
        mock.patch.dict(os.environ, PYTHONPATH=str(BACKENDS)),
        Conductor(contenders, folders=[str(BACKENDS)], limits=limits) as conductor,
    ):
        results = {one.contender: one for one in conductor.race(WORKLOAD)}
    return Trial(results, len(_left(before)))


def _left(before: set[int]) -> list[psutil.Process]:
    """New processes with a fault in their environment, and new children of this process."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid not in before and ("FAULT" in one.environ() or one.ppid() == os.getpid()):
                found.append(one)
    return found


def expected(fault: str, phase: str) -> tuple[Outcome, str]:
    """The outcome, and a part of the reason. A contender that fails in the memory phase has been timed already."""
    outcome, words = ELSE.get((fault, phase), FAULTS[fault])
    if phase == "memory":
        return MEASURED, "" if outcome is MEASURED and (fault, phase) not in ELSE else words
    return outcome, words
