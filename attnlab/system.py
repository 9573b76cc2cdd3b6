"""The operating system: stop processes, count disturbances of this process, limit its memory, read the free memory.

Written for Linux. If another system lacks a feature (macOS has no ``/proc``), it is replaced or left out here.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

#: the part of the free memory that a confined process may take
_SHARE = 0.9
#: most bytes of a file that a confined process writes; memory traces take about 10 MB
_FILE_BYTES = 2**31
#: most seconds to wait until a process has stopped
_STOPPING_SECONDS = 2.0
_TASKS = Path("/proc/self/task")
#: the control group of this process, and the folder of all groups
_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """In this context, SIGTERM and a closed terminal raise KeyboardInterrupt, as Ctrl-C does.

    Only the main thread can handle signals: in other threads nothing changes.
    """
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    # a signal that the process ignores (nohup) stays ignored
    before = {one: handler for one, handler in handlers.items() if handler is not signal.SIG_IGN}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    try:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# -- other processes, and cores --------------------------------------------------------------------


def wait_until_stopped(number: int) -> None:
    """Wait until a child and the processes of its group have stopped or ended. Their exit status can still be read.

    A process has stopped when all of its threads have.
    """
    polled = started_by(number)
    if hasattr(os, "waitid"):  # waits without polling (20 µs), but only for children of this process
        os.waitid(os.P_PID, number, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    else:
        polled = [number, *polled]
    until = time.monotonic() + _STOPPING_SECONDS
    for one in polled:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            stops = one == number or os.getpgid(one) == number
            while stops and psutil.Process(one).status() not in _AT_REST and time.monotonic() < until:
                time.sleep(1e-4)


def started_by(number: int) -> list[int]:
    """The numbers of all processes that a process has started, directly or indirectly. On Linux; elsewhere none.

    Read from ``children`` of proc(5): a search of all processes of the machine would take a thousand times as long.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):  # another system, or the process has ended
        for task in Path(f"/proc/{number}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [one for child in found for one in (child, *started_by(child))]


def send(what: signal.Signals, numbers: Iterable[int]) -> None:
    """Send a signal to the processes with these numbers. Skip those that have ended or belong to another user."""
    for number in numbers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, what)


def cores() -> int:
    """The number of cores on which this process may run; all cores if that is unknown."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- counts of this process ------------------------------------------------------------------------


def processor_seconds() -> float:
    """Processor seconds of this process, over all its threads, and of its children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def run_delay_seconds() -> float:
    """Seconds that threads of this process and its children have waited for a core, summed; nan if unknown.

    The second figure of ``/proc/self/task/*/schedstat`` (Linux, Documentation/scheduler/sched-stats). A kernel that
    does not count these figures shows zeros, also for the time that a thread ran.
    """
    folders = (_TASKS, *(Path(f"/proc/{number}/task") for number in started_by(os.getpid())))
    total, seen = 0, False
    try:
        for task in (task for folder in folders if folder.is_dir() for task in folder.iterdir()):
            try:
                figures = (task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):  # the thread has just ended, or no such file
                continue
            total, seen = total + int(figures[1]), seen or int(figures[0]) > 0
    except (OSError, ValueError, IndexError):
        return math.nan
    return total / 1e9 if seen else math.nan


def hidden() -> list[str]:
    """The disturbances, in words, that this system does not report, so that they would go unnoticed."""
    return ["run delay of threads (no schedstat)"] if math.isnan(run_delay_seconds()) else []


# -- limits of this process ------------------------------------------------------------------------


def die_with_parent() -> None:
    """End this process when its parent ends (Linux). A stopped worker would otherwise remain."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def adopt_orphans(on: bool = True) -> bool:
    """Let grandchildren whose parent ends become children of this process (Linux, prctl(2)). Returns whether it can."""
    pr_set_child_subreaper = 36
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(pr_set_child_subreaper, int(on))


def confine(device: str = "cpu") -> None:
    """Limit this process to the memory that it holds plus 90 % of the memory that is free now, if the system can.

    A wrong prediction of memory then ends a worker and does not stall the machine: without the limit, a worker that
    took 40 GiB on a machine with 23 GiB stalled everything for a minute. The system counts private writable memory
    (Linux: RLIMIT_DATA, since 4.7) and refuses more. An array library then raises; code that cannot raise aborts. A
    process that computes on a GPU maps far more memory than it uses, so its memory is not limited. Files are limited
    too: a backend that prints in an endless loop is ended (SIGXFSZ) before the disk is full.
    """
    _limit(resource.RLIMIT_FSIZE, _FILE_BYTES)
    # if this is unknown (macOS), only the prediction protects the machine
    held = getattr(psutil.Process().memory_info(), "data", None) if device == "cpu" else None
    _limit(resource.RLIMIT_DATA, None if held is None else held + int(_SHARE * free_bytes()))


def _limit(kind: int, most: int | None) -> None:
    """Set a limit of this process, None for no limit, as far as the hard limit and the system allow."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(kind)
        known = [one for one in (most, hard) if one not in (None, resource.RLIM_INFINITY)]
        resource.setrlimit(kind, (min(known, default=resource.RLIM_INFINITY), hard))


# -- main memory ------------------------------------------------------------------------------------


def free_bytes() -> int:
    """Bytes of memory that can still be taken before the system would have to end a process."""
    return max(0, min([int(psutil.virtual_memory().available), *_rooms()]))


def _rooms() -> Iterator[int]:
    """Bytes left below each limit of the control groups (version 2) that this process is in, from the inside out.

    File caches that the kernel can drop count as free. In a container the group may be shown as the root, whatever its
    name (https://docs.kernel.org/admin-guide/cgroup-v2.html).
    """
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # no control groups here
    own = _GROUPS / next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    for folder in (own, *own.parents):
        # a group without a limit has "max" here; the root, and a group that is not shown, have no such files
        with contextlib.suppress(OSError, ValueError):
            limit, used = (int((folder / f"memory.{one}").read_text()) for one in ("max", "current"))
            told = folder / "memory.stat"
            counts = dict(line.split() for line in told.read_text().splitlines()) if told.exists() else {}
            yield limit - used + int(counts.get("inactive_file", 0))
        if folder == _GROUPS:
            break
