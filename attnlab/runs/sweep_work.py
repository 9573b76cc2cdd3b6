"""What a job does with one shard: hold the host, and run ``attnlab run`` until the shard is complete or has an outcome.

Whatever ends a job before, the next one goes on: on the same kind of machine with the same run, on another in a run of
its own over the workloads that are left. So every race is on one machine, and none is measured twice.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnlab.environment import environment, fingerprint, unchanged
from attnlab.runs import results_file
from attnlab.runs.lock import held, host_held
from attnlab.runs.store import Run, read_run
from attnlab.runs.sweep_shards import JOURNAL, PLAN_FILE, Shard, only, plan_text, read_sweep
from attnlab.system import die_with_parent, terminable
from attnlab.text import one_line

#: a shard that ends so many jobs at the same workload is not tried again
MOST_DEATHS = 3
#: exit status of a run that was asked to stop, and of one that refused to begin
_INTERRUPTED, _REFUSED = 130, 2

#: runs a command to its end with these descriptors open; its exit status and what it said last
Carry = Callable[[Sequence[str], Sequence[int]], tuple[int, str]]


def work(folder: Path | str, number: int, *, carry: Carry | None = None) -> str:
    """Do what is left of the shard `number` of the sweep in `folder`: ``complete``, ``killed``, ``refused``, ...

    Waits while another job has the shard or measures on this host. ``interrupted`` where it was asked to stop: all that
    is done is kept. Raises ValueError for another version of attnlab than the sweep was cut by, naming both.
    """
    sweep = read_sweep(folder)
    sweep.require_version()
    shard, series, here = sweep.shard(number), sweep.told.series, environment()
    refused = False  # whether the last run refused to be gone on with, for what `unchanged` does not see
    try:
        with terminable(), held(shard.folder, wait=True), host_held() as handle:
            while True:
                known = shard.outcome(series)
                if known is not None:
                    return str(known["outcome"])
                last = read_run(shard.runs()[-1]) if shard.runs() else None
                resumed = last is not None and not refused and _goes_on(last, here)
                if not shard.left() and not resumed:
                    return end(shard, series, "complete")
                if (judged := judge(shard, series)) is not None:
                    return judged
                place, words = _attempt(shard, last, resumed)
                _note_start(shard, series, place, resumed, fingerprint(here))
                command = [sys.executable, "-P", "-m", "attnlab", "run", *words]
                status, said = (carry or run_command)(command, [handle])
                _note_end(shard, status, said)
                if status == _INTERRUPTED:
                    return "interrupted"
                if status == _REFUSED and not resumed:
                    return end(shard, series, "refused", said)
                refused = refused or status == _REFUSED  # the next attempt is a run of its own
                if status > 0 and status != _REFUSED and not _is_complete(place):
                    return end(shard, series, "failed", f"exit status {status}: {said}")
    except KeyboardInterrupt:
        return "interrupted"


def _goes_on(last: Run, here: Mapping[str, Any]) -> bool:
    """Whether that run can be gone on with in this environment."""
    try:
        unchanged({name: one for name, one in last.environment.items() if name != "contenders"}, dict(here))
    except ValueError:
        return False
    return not last.complete


def _attempt(shard: Shard, last: Run | None, resumed: bool) -> tuple[Path, list[str]]:
    """The folder and the words of the next run; what was cut off in the `last` one is set aside, nothing doubled."""
    if last is not None and resumed:
        return last.folder, ["--resume", str(last.folder)]
    if last is not None and not last.complete:
        with held(last.folder, wait=True):
            results_file.set_aside(last.folder, results_file.read(last.folder), last.whole())
    number = 1
    while (place := shard.folder / f"run-{number}").exists():
        number += 1
    plan, left = shard.folder / PLAN_FILE, shard.left()
    if len(left) < len(shard.plan.workloads):
        plan = shard.folder / f"plan-{number}.toml"
        plan.write_text(plan_text(only(shard.plan, left, chapter=True)), encoding="utf-8")
    return place, ["--plan", str(plan), "--out", str(place)]


def _note_start(shard: Shard, series: int, place: Path, resumed: bool, machine: str) -> None:
    journal = shard.folder / JOURNAL
    journal.touch()
    os.utime(journal)
    now = time.time()
    shard.note(
        "started",
        series=series,
        run=place.name,
        resumed=resumed,
        host=platform.node(),
        node=os.environ.get("SLURMD_NODENAME"),
        machine=machine,
        time=now,
        clock_s=journal.stat().st_mtime - now,
        done=_done(shard),
    )


def _note_end(shard: Shard, status: int, said: str) -> None:
    shard.note("ended", status=status, said=one_line(said), done=_done(shard), time=time.time())


def _done(shard: Shard) -> int:
    return len(shard.plan.workloads) - len(shard.left())


def end(shard: Shard, series: int, outcome: str, reason: str | None = None) -> str:
    """Note the outcome of `shard`, and return it."""
    shard.note("outcome", outcome=outcome, series=series, reason=None if reason is None else one_line(reason))
    return outcome


def refuse(folder: Path | str, number: int, reason: str) -> str:
    """Note that a job could not even begin with the shard, on which host and why: the outcome ``refused``."""
    sweep = read_sweep(folder)
    return end(sweep.shard(number), sweep.told.series, "refused", f"on {platform.node()}: {reason}")


def judge(shard: Shard, series: int) -> str | None:
    """The outcome ``killed`` of a shard that has ended its last jobs at one workload, noted; None for any other."""
    if deaths(shard.journal(), series, _done(shard)) < MOST_DEATHS:
        return None
    left = shard.left()
    where = left[0].label if left else "the end"
    return end(shard, series, "killed", f"{MOST_DEATHS} jobs ended at {where}, with no result of it")


def deaths(journal: Sequence[dict[str, Any]], series: int, done: int) -> int:
    """How many attempts of this series ended without a word with as many workloads `done` as now.

    An attempt that was asked to stop, or that refused, is no death.
    """
    ends, begun = [], False
    for one in journal:
        if one["event"] == "started":
            if begun:  # the one before was killed with its job
                ends.append(one["done"])
            begun = one["series"] == series
        elif one["event"] == "ended" and begun:
            if one["status"] < 0:
                ends.append(one["done"])
            begun = False
    return (ends + [done] * begun).count(done)


#: the run that this process waits for
_running: list[subprocess.Popen[str]] = []


def run_command(command: Sequence[str], descriptors: Sequence[int]) -> tuple[int, str]:
    """Run `command` to its end: its exit status, negative for a signal, and the last line of its errors.

    It holds `descriptors` too, so that the host stays held should this process be killed, and ends when this one does.
    Asked to stop, it is asked in turn and waited for.
    """
    with subprocess.Popen(
        command,
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # it is this process that passes a request to stop on, once
        preexec_fn=die_with_parent,
    ) as process:
        _running.append(process)
        last, stopped = "", False
        assert process.stderr is not None
        while True:
            try:
                for line in process.stderr:
                    sys.stderr.write(line)
                    last = line.strip() or last
                status = process.wait()
                break
            except KeyboardInterrupt:
                if not stopped:
                    process.terminate()
                stopped = True
        _running.remove(process)
    return (_INTERRUPTED if stopped else status), last


def stop(folder: Path | str, number: int) -> None:
    """End the run that this process waits for, of that shard, in order: it writes what it holds, and that is noted.

    For a handler of signals: the process may be killed as soon as this has returned.
    """
    for process in _running:
        process.terminate()
        with contextlib.suppress(ChildProcessError):  # looked at only: `run_command` reads the status
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    shard = read_sweep(folder).shard(number)
    if [one["event"] for one in shard.journal()][-1:] == ["started"]:
        _note_end(shard, _INTERRUPTED, "")


def _is_complete(place: Path) -> bool:
    try:
        return read_run(place).complete
    except ValueError:
        return False
