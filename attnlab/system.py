"""What the operating system does for the measuring: stopping processes, counting, limits. Linux first.

Whatever a system lacks is done otherwise or left out, here and nowhere else: macOS has no ``/proc`` and tells less.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

#: of what is free, this part may be taken by a process that is confined
_SHARE = 0.9
#: no file that a worker writes grows beyond this; memory traces take some 10 MB
_FILE_BYTES = 2**31
#: a process that does not come to rest when it is stopped is waited for so long
_STOPPING_SECONDS = 2.0
_STATUS = Path("/proc/self/status")
_TASKS = Path("/proc/self/task")
_PRESSURE = Path("/proc/pressure/cpu")
#: which control group this process is in, and where the groups are shown
_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM and a terminal that is closed raise KeyboardInterrupt within, as Ctrl-C does.

    Only the main thread receives signals: elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    # a process that was told to ignore a signal (nohup) goes on ignoring it
    before = {one: handler for one, handler in handlers.items() if handler is not signal.SIG_IGN}
    try:
        for one in before:
            signal.signal(one, signal.default_int_handler)
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


# -- other processes, and cores --------------------------------------------------------------------


def wait_until_stopped(number: int) -> None:
    """Return when a child is stopped with what it has started in its group, or has ended; its status stays to be read.

    A child is stopped when all of its threads are.
    """
    polled = started_by(number)
    if hasattr(os, "waitid"):  # waits without polling (20 µs), for own children alone
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
    """The numbers of the processes that a process has started, and of theirs; Linux, else none.

    As proc(5) tells under ``children``: a look at all processes of the machine would take a thousand times as long.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):  # another system, or it has ended
        for task in Path(f"/proc/{number}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return [one for child in found for one in (child, *started_by(child))]


def cores() -> int:
    """The cores on which this process may run; all of the machine where the system does not tell."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- counts of this process ------------------------------------------------------------------------


def processor_seconds() -> float:
    """Of this process, all its threads together, and of those that it has waited for."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def run_delay_seconds() -> float:
    """Seconds that threads of this process and its children have waited for a core so far, summed; nan if unknown.

    The second figure of ``/proc/self/task/*/schedstat`` (Linux, Documentation/scheduler/sched-stats). A kernel that has
    these figures switched off shows zeros, also for the time that a thread ran.
    """
    folders = (_TASKS, *(Path(f"/proc/{number}/task") for number in started_by(os.getpid())))
    total, seen = 0, False
    try:
        for task in (task for folder in folders if folder.is_dir() for task in folder.iterdir()):
            try:
                figures = (task / "schedstat").read_text().split()
            except (FileNotFoundError, ProcessLookupError):  # a thread that has just ended, or no such figure
                continue
            total, seen = total + int(figures[1]), seen or int(figures[0]) > 0
    except (OSError, ValueError, IndexError):
        return math.nan
    return total / 1e9 if seen else math.nan


#: counts of this process that grow: what each call adds is noted beside its time (nan: not told). Pages that it got
#: without reading a disk, how often it was made to leave a core, and how long its threads waited for one
COUNTERS: Mapping[str, Callable[[], float]] = {
    "minor_faults": lambda: float(resource.getrusage(resource.RUSAGE_SELF).ru_minflt),
    "involuntary_switches": lambda: float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw),
    "run_delay_s": run_delay_seconds,
}


def pressure_seconds() -> float:
    """Seconds in which any task of the system waited for a core, since it started; nan if unknown."""
    try:
        return int(_PRESSURE.read_text().split("total=")[1].split()[0]) / 1e6
    except (OSError, ValueError, IndexError):
        return math.nan


def hidden() -> list[str]:
    """What this system does not tell, in words. Each is a disturbance that would not be seen."""
    found = {
        "run delay of threads (no schedstat)": run_delay_seconds(),
        "pressure of tasks on the cores (no /proc/pressure)": pressure_seconds(),
    }
    return [name for name, seconds in found.items() if math.isnan(seconds)]


# -- limits of this process ------------------------------------------------------------------------


def die_with_parent() -> None:
    """End this process when its parent ends (Linux). A stopped worker would otherwise stay."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def adopt_orphans(on: bool = True) -> bool:
    """Let grandchildren whose parent ends become children of this process (Linux, prctl(2)); whether it can."""
    pr_set_child_subreaper = 36
    return sys.platform == "linux" and not ctypes.CDLL(None).prctl(pr_set_child_subreaper, int(on))


def confine(device: str = "cpu") -> bool:
    """Let this process take no more than what is free now, beyond what it holds; whether that could be done.

    A file that it writes without end, as a backend does that prints in a loop, ends it (SIGXFSZ) and not the disk.
    So that a wrong prediction ends a worker and not the machine: without it one that took 40 GiB on a machine of 23
    stalled everything for a minute. The system counts private writable memory (Linux: RLIMIT_DATA, since 4.7) and
    refuses what goes beyond: an array library raises then, and what cannot raise aborts. A process that computes on a
    GPU maps far more than it takes, and is not confined.
    """
    _limit(resource.RLIMIT_FSIZE, _FILE_BYTES)
    if device != "cpu":
        return _limit(resource.RLIMIT_DATA, None)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return False  # the prediction alone stands between a worker and the machine
    held = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData")), None)
    return held is not None and _limit(resource.RLIMIT_DATA, held + int(_SHARE * free_bytes()))


def _limit(kind: int, most: int | None) -> bool:
    """Set a limit of this process, None for no limit, as far as it is allowed to. Returns whether it was set."""
    infinite = resource.RLIM_INFINITY
    try:
        _, hard = resource.getrlimit(kind)
        wanted = infinite if most is None else most
        if hard != infinite:
            wanted = hard if wanted == infinite else min(wanted, hard)
        resource.setrlimit(kind, (wanted, hard))
    except (OSError, ValueError):
        return False
    return True


# -- main memory ------------------------------------------------------------------------------------


def free_bytes() -> int:
    """Bytes that can still be taken before the system would have to end a process."""
    return max(0, min([int(psutil.virtual_memory().available), *_rooms()]))


def _rooms() -> Iterator[int]:
    """Bytes left of each limit that holds for this process: its group's, and those of the groups around it.

    Files that were read and can be dropped count as free. Version 2 of the groups has one tree, version 1 one
    for memory (https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html). In a container a
    group may be shown as the root, whatever its name.
    """
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # no control groups here
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if not kinds:
            root, files = _GROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            root = _GROUPS / "memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        own = root / name.strip("/")
        for folder in (own, *own.parents):
            # a group without a limit says "max"; one that is not shown has no files
            with contextlib.suppress(OSError, ValueError):
                limit, used = (int((folder / file).read_text(encoding="utf-8")) for file in files[:2])
                yield limit - used + _counted(folder / "memory.stat", files[2])
            if folder == root:
                break


def _counted(file: Path, name: str) -> int:
    """The number behind `name` in a file of names and numbers, 0 where it is not told."""
    try:
        found = dict(line.split() for line in file.read_text(encoding="utf-8").splitlines())
        return int(found.get(name, 0))
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def without_garbage_collection(*, last: bool = False) -> Iterator[None]:
    """As a context or around a function: Python does not look for objects that only refer to each other.

    last : the process ends after it, so that what is there by then is not looked through at all.

    A run goes when it is done with, as nothing in it refers back; to look through its millions of parts again and again
    takes a sixth of the time of a large one.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if last:
            gc.freeze()
        if enabled:
            gc.enable()
