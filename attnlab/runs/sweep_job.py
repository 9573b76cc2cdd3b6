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
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attnlab.environment import environment, fingerprint, unchanged
from attnlab.runs.lock import held, host_held
from attnlab.runs.plan import plan_text
from attnlab.runs.store import Run, read_run
from attnlab.runs.sweep_cutting import only
from attnlab.runs.sweep_folder import PLAN_FILE, Shard, Status, Sweep, read_sweep, status
from attnlab.system import die_with_parent, terminable
from attnlab.text import one_line

#: a shard that ends so many jobs at the same workload is not tried again
MOST_DEATHS = 3
#: exit status of a run that was asked to stop, and of one that refused to begin
_INTERRUPTED, _REFUSED = 130, 2

#: runs a command to its end with these descriptors open; its exit status and what it said last
Carry = Callable[[Sequence[str], Sequence[int]], tuple[int, str]]


def on_this_host(sweep: Sweep, tell: Callable[[Status], None]) -> None:
    """Do one shard after the other, because one measures at a time; `tell` is given the status before each and after.

    An interrupt, SIGTERM too, ends the run in order: what it has done is kept. Raises KeyboardInterrupt then.
    """
    with terminable():
        for shard in sweep.shards:
            tell(status(sweep))
            if worked(sweep.folder, shard.number) == "interrupted":
                raise KeyboardInterrupt
        tell(status(sweep))


def worked(folder: Path | str, number: int) -> str:
    """As `work`; what a person must mend, another version of attnlab before all, is the shard's outcome at once."""
    try:
        return work(folder, number)
    except ValueError as fault:
        return read_sweep(folder).shard(number).end("refused", f"on {platform.node()}: {fault}")


def work(folder: Path | str, number: int, *, carry: Carry | None = None) -> str:
    """Do what is left of the shard `number` of the sweep in `folder`: ``complete``, ``killed``, ``refused``, ...

    Waits while another job has the shard or measures on this host. ``interrupted`` where it was asked to stop: all that
    is done is kept. Raises ValueError for another version of attnlab than the sweep was cut by, naming both; NotStored
    where the disk is full, which leaves the shard to be gone on with.
    """
    sweep = read_sweep(folder)
    sweep.require_version()
    shard, here = sweep.shard(number), environment()
    refused = False  # whether the last run refused to be gone on with, for what `unchanged` does not see
    try:
        with terminable(), held(shard.folder, wait=True), host_held() as handle:
            while True:
                if known := shard.outcome():
                    return str(known["outcome"])
                last = read_run(shard.runs()[-1]) if shard.runs() else None
                resumed = last is not None and not refused and _goes_on(last, here)
                if not shard.left() and not resumed:
                    return shard.end("complete")
                if end_in_vain(shard):
                    return "killed"
                place, words = _attempt(shard, last, resumed)
                shard.note(
                    "started",
                    run=place.name,
                    resumed=resumed,
                    host=platform.node(),
                    node=os.environ.get("SLURMD_NODENAME"),
                    machine=fingerprint(here),
                    done=shard.done(),
                )
                command = [sys.executable, "-P", "-m", "attnlab", "run", *words]
                code, said = (carry or run_command)(command, [handle])
                _note_end(shard, code, said)
                if code == _INTERRUPTED:
                    return "interrupted"
                if code == _REFUSED and not resumed:
                    return shard.end("refused", said)
                refused = refused or code == _REFUSED  # the next attempt is a run of its own
                if code > 0 and code != _REFUSED and not _is_complete(place):
                    return shard.end("failed", f"exit status {code}: {said}")
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
            last.set_aside()
    number = 1 + len(list(shard.folder.glob("run-*")))
    place, plan, left = shard.folder / f"run-{number}", shard.folder / PLAN_FILE, shard.left()
    if len(left) < shard.size:
        plan = shard.folder / f"plan-{number}.toml"
        plan.write_text(plan_text(only(shard.plan, left, chapter=True)), encoding="utf-8")
    return place, ["--plan", str(plan), "--out", str(place)]


def _note_end(shard: Shard, status: int, said: str) -> None:
    shard.note("ended", status=status, said=one_line(said), done=shard.done())


def end_in_vain(shard: Shard) -> bool:
    """Whether a shard has ended its last jobs at one workload, which is noted then as the outcome ``killed``.

    A job counts that ended without a word, with as many workloads done as now: not one that was asked to stop, or that
    refused.
    """
    journal, done, deaths = shard.journal(), shard.done(), 0
    last: dict[str, Any] = {"event": "", "done": done}
    for one, after in zip_longest(journal, journal[1:], fillvalue=last):
        silent = after["event"] != "ended" or after["status"] < 0
        if one["event"] == "started" and one["series"] == shard.series and silent:
            deaths += after.get("done", done) == done
    if deaths < MOST_DEATHS:
        return False
    where = next((one.label for one in shard.left()), "the end")
    shard.end("killed", f"{MOST_DEATHS} jobs ended at {where}, with no result of it")
    return True


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
                code = process.wait()
                break
            except KeyboardInterrupt:
                if not stopped:
                    process.terminate()
                stopped = True
        _running.remove(process)
    return (_INTERRUPTED if stopped else code), last


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
