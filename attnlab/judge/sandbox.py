"""A sandbox holds one candidate: bubblewrap around a process that shares one socket and one stretch of memory with us.

The judge is outside. It stops every process of the sandbox whenever it is not asked for an answer, so that nothing runs
off the clock, and ends it when it takes too much time, memory or processes.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import math
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from attnlab import system
from attnlab.backends.contender import Contender
from attnlab.errors import Unavailable
from attnlab.judge.inside import REPLY_BYTES, Limits, Order, Reply
from attnlab.judge.memory import PAGE, Array, DeviceMemory, HostMemory
from attnlab.processes import Failed

#: bytes of files in its temporary folder, files there, and bytes of its own output that are kept
_FOLDER_BYTES, _MOST_FILES, OUTPUT_BYTES = 2**28, 20_000, 2000
#: how often a sandbox that works is looked at, in seconds, and the longest that stopping it may take; it is ended at
#: this part of its memory, since it takes more until that is seen
_LOOK_SECONDS, _STOPPING_SECONDS, _PART = 0.05, 2.0, 0.9
#: stands for the times of a thread that runs; nanoseconds that threads may need to come to rest when they are stopped
_RUNS, _STILL = (-1, 0, 0), 200_000
#: seconds in which a library is imported
START_SECONDS = 120.0
MEND = "apt-get install bubblewrap, or --trust to judge without a sandbox what you have read yourself"
#: what the kernel tells of the whole machine
_HIDDEN = "keys", "kpagecgroup", "kpagecount", "kpageflags", "slabinfo", "timer_list", "vmallocinfo"
#: by machine: its number (linux/audit.h), those of fcntl and socket, and those of keyctl, add_key, request_key,
#: mq_notify, io_uring_setup, perf_event_open, bpf, userfaultfd, fanotify_init, inotify's, io_setup (the machine has so
#: many requests), syslog, and timerfd_create (it interrupts others while we are stopped): no candidate needs them
_CALLS = {
    "x86_64": (0xC000003E, 72, 41, (250, 248, 249, 244, 425, 298, 321, 323, 300, 253, 294, 206, 103, 283)),
    "aarch64": (0xC00000B7, 25, 198, (219, 217, 218, 184, 425, 241, 280, 282, 262, 26, 0, 116, 85)),
}
#: what finds the device and its compiler, handed on to a sandbox that has the device
_OF_CUDA = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: of fcntl: leases, which hold up writers outside, and signals of one's choice from sockets, which wake what is stopped
_COMMANDS = (1024, 10)


def _readable() -> list[str]:
    """What a sandbox may read of this machine beside /usr: the interpreter, its packages and attnlab."""
    packages = [one for one in sys.path if "site-packages" in one or "dist-packages" in one]
    homes = [importlib.import_module(name).__path__ for name in ("attnlab", "attnlab.implementations")]
    found = [sys.base_prefix, sys.prefix, *packages, *(one for home in homes for one in home)]
    kept = sorted({str(Path(one).absolute()) for one in found if Path(one).is_dir()}, key=len)
    return [one for one in kept if not Path(one).is_relative_to("/usr")]


def command(trust: bool = False, denied: int | None = None, *, cuda: bool = False) -> list[str]:
    """What comes before the interpreter. Raises Unavailable, in one line, where no sandbox can be had.

    denied : a file with the system calls that are forbidden. cuda : whether it has the device.
    """
    if trust:
        return []
    if reason := refused():
        raise Unavailable(f"no sandbox: expected bubblewrap, {reason}; {MEND}")
    bwrap = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"]
    bwrap += ["--new-session", "--die-with-parent", "--clearenv", "--hostname", "sandbox"]
    bwrap += ["--uid", "65534", "--gid", "65534", "--size", str(_FOLDER_BYTES), "--tmpfs", "/tmp"]
    system_wide = "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/alternatives"
    hardware = ("/sys/bus/pci", "/sys/devices") if cuda else ("/sys/devices/system/cpu",)
    for name in (*system_wide, *hardware, *_readable()):
        bwrap += ["--ro-bind-try", name, name]
    bwrap += ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]
    # these are open to the owner, and a judge that is root owns them
    for name in (f"/proc/{one}" for one in _HIDDEN):
        bwrap += ["--ro-bind", "/dev/null", name] if Path(name).exists() else []
    for device in sorted(Path("/dev").glob("nvidia*")) if cuda else ():
        bwrap += ["--dev-bind", str(device), str(device)]
    bwrap += ["--size", str(2**26), "--tmpfs", "/dev/shm", "--tmpfs", "/dev/pts"]
    for name in ("/dev/pts", "/dev", "/"):
        bwrap += ["--remount-ro", name]
    bwrap += ["--seccomp", str(denied)] if denied is not None and _denied() else []
    for name, value in _variables("/tmp", cuda).items():
        bwrap += ["--setenv", name, value]
    return [*bwrap, "--chdir", "/tmp", "--"]


@cache
def _denied() -> bytes:
    """A filter for seccomp(2), in the words of linux/filter.h; none for another machine.

    It loads 32 bits (0x20) of the call's number, of its machine or of an argument, jumps if equal (0x15), returns (6).
    """
    if (machine := platform.machine()) not in _CALLS:
        return b""
    number, fcntl_number, socket_number, calls = _CALLS[machine]
    deny, allow = (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)
    words = [(0x20, 0, 0, 4), (0x15, 1, 0, number), deny, (0x20, 0, 0, 0), (0x35, 0, 1, 2**30), deny]
    words += [one for call in calls for one in ((0x15, 0, 1, call), deny)]
    # the kernel sends packets for a process that is stopped, and no namespace holds AF_VSOCK back
    words += [(0x15, 0, 4, socket_number), (0x20, 0, 0, 16), (0x15, 0, 1, socket.AF_UNIX), allow, deny]
    words += [(0x15, 1, 0, fcntl_number), allow, (0x20, 0, 0, 24)]
    words += [one for command in _COMMANDS for one in ((0x15, 0, 1, command), deny)]
    return b"".join(struct.pack("=HBBI", *one) for one in (*words, allow))


@cache
def refused() -> str:
    """Why bubblewrap cannot be used here, or nothing."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return "it is not installed"
    tried = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/"]
    found = subprocess.run([*tried, "true"], capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else f"which says: {' '.join(found.stderr.split())[:200]}"


def _variables(home: str, cuda: bool) -> dict[str, str]:
    """The whole environment: what allocators are told elsewhere in attnlab, and where caches go."""
    named = {"HOME": home, "TMPDIR": home, "USER": "candidate", "LANG": "C.UTF-8"}
    named |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "99"}
    named |= {name: os.environ[name] for name in _OF_CUDA if cuda and name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return {**Contender("judge", "judge").environment({}), **named, "PATH": path}


class Sandbox:
    """One sandbox, which imports `library` from now on; `ready` waits for that.

    size : bytes of the memory that it shares with the judge. device : memory of the device that it may use too. Raises
    Unavailable where no sandbox can be had.
    """

    def __init__(
        self, library: str, size: int, limits: Limits, trust: bool = False, device: DeviceMemory | None = None
    ) -> None:
        self.limits, self.library, self.output = limits, library, b""
        self.memory = HostMemory(size)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        look = struct.pack("ll", 0, int(_LOOK_SECONDS * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, look)
        self._said = os.memfd_create("attnlab")
        denied = os.memfd_create("attnlab", 0)
        os.pwrite(denied, _denied(), 0)
        self._home = tempfile.mkdtemp(prefix="attnlab-judge-") if trust else None
        cuda, shared = device is not None, [] if device is None else [device.size, device.number]
        passed = [theirs.fileno(), self.memory.number, denied, *shared[1:]]
        variables = {"PATH": os.environ.get("PATH", "/usr/bin")}
        variables = _variables(self._home, cuda) if self._home else variables
        given = msgspec.json.encode(limits).decode()
        told = map(str, (theirs.fileno(), self.memory.number, library, given, *shared))
        how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": self._said}
        how |= {"pass_fds": passed, "env": variables, "cwd": self._home or "/"}
        words = [*command(trust, denied, cuda=cuda), sys.executable, "-Pm", "attnlab.judge.inside", *told]
        try:
            self._process = subprocess.Popen(words, start_new_session=True, **how)
        finally:
            theirs.close()
            for number in (self.memory.number, denied):
                os.close(number)
        self.alive, self._is_ready, self._is_stopped = True, False, False
        #: its processes, as they were when it was stopped last
        self.family, self._own, self._threads = list[int](), set[int](), dict[int, tuple[int, int, int]]()
        #: seconds in which it was asked for something, and how many it may have
        self.spent, self.most_seconds = 0.0, math.inf
        self._held, self._before = 0, _unowned_bytes()

    # -- orders

    def answer(
        self, order: Order, arrays: Sequence[Array], dtype: str, shape: tuple[int, ...], seconds: float
    ) -> Array:
        """What it answers to the order on these arrays. Raises Failed."""
        self.memory.used = 0
        places = []
        for array in arrays:
            view, place = self.memory.lay(array.dtype.str, array.shape)
            view[...] = array
            places.append(place)
        output: Array
        output, place = self.memory.lay(dtype, shape)
        self.ask(msgspec.structs.replace(order, places=[*places, place]), seconds)
        return output

    def ready(self) -> None:
        """Return when its library is imported. Raises Failed."""
        if not self._is_ready:
            self.checked(self.receive(START_SECONDS))
            self._is_ready = True
            self.stop()
            self._own = set(self.family)

    def ask(self, order: Order, seconds: float) -> Reply:
        """Let it run until it has replied, and on. Raises Failed for any reply but "done"."""
        self.ready()
        self.go_on()
        self.send(order)
        return self.checked(self.receive(seconds))

    def end_visit(self) -> None:
        """End all that the visit started; the next order starts a process of its own. Raises Failed."""
        self.stop()
        self._require_still()
        system.send(signal.SIGKILL, set(self.family) - self._own)
        self.family = sorted(self._own)
        self._let_run()
        self.receive(_STOPPING_SECONDS)  # its first process says so
        self.stop()

    def send(self, order: Order) -> None:
        """Send an order to a sandbox that runs. Raises Failed."""
        try:  # one that reads nothing must not hold us up
            self._socket.send(msgspec.msgpack.encode(order), socket.MSG_DONTWAIT)
        except OSError:
            raise self._ended("crashed", "its sandbox has ended, or reads nothing") from None

    def receive(self, seconds: float) -> bytes:
        """The next message, undecoded. Raises Failed where none comes in time, and where it takes too much."""
        started = time.monotonic()
        deadline = started + min(seconds, self.most_seconds - self.spent)
        try:
            while self.alive:
                try:
                    data = self._socket.recv(REPLY_BYTES)
                except BlockingIOError:
                    self.look(deadline)
                    continue
                except OSError:
                    data = b""
                if data:
                    return data
                size = os.fstat(self._said).st_size
                said = os.pread(self._said, 300, max(0, size - 300)).decode("utf-8", "replace").splitlines()
                raise self._ended("crashed", ": ".join(["its sandbox has ended", *said[-1:]]))
            raise Failed("crashed", "its sandbox has ended before")
        finally:
            self.spent += time.monotonic() - started

    def message(self) -> bytes:
        """What has come; empty where nothing has, and where nobody is there."""
        try:
            return self._socket.recv(REPLY_BYTES, socket.MSG_DONTWAIT)
        except OSError:
            return b""

    def checked(self, data: bytes) -> Reply:
        """The reply in a message. Raises Failed for any but "done"."""
        try:
            reply = msgspec.msgpack.decode(data, type=Reply)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._ended("crashed", "it sent a message that is none") from None
        if reply.kind == "crashed":
            raise self._ended(reply.kind, reply.text[:400])
        if reply.kind != "done":
            self.stop()
            raise Failed(reply.kind, reply.text[:400])
        return reply

    # -- watching over it

    def look(self, deadline: float = math.inf) -> None:
        """Raises Failed, and ends it, where it takes too long, too much memory, too many processes or files."""
        family = system.started_by(self._process.pid)
        if time.monotonic() > deadline:
            raise self._ended("timed_out", "it gave no answer in time")
        if len(family) > self.limits.nproc:
            raise self._ended("processes", f"it started more than {self.limits.nproc} processes")
        taken = sum(map(_private_bytes, family)) + max(0, self._held + _unowned_bytes() - self._before)
        if self._is_ready and taken > _PART * self.limits.data:
            raise self._ended("memory", f"it took over {_PART:.0%} of its {self.limits.data} bytes of memory")
        for folder in ("tmp", "dev/shm") if self._home is None else ():
            with contextlib.suppress(OSError, IndexError):
                found = os.statvfs(f"/proc/{family[0]}/root/{folder}")
                if found.f_files - found.f_ffree > _MOST_FILES:
                    raise self._ended("memory", f"it made more than {_MOST_FILES} files")

    def _ended(self, kind: str, why: str) -> Failed:
        self.close()
        return Failed(kind, why)

    def go_on(self) -> None:
        """Let all its processes run. Raises Failed, and ends it, where one was not still while they were stopped."""
        if self._is_stopped:
            self._require_still()
            self._let_run()

    def _let_run(self) -> None:
        system.send(signal.SIGCONT, self.family)
        self._before, self._is_stopped = _unowned_bytes(), False

    def _require_still(self) -> None:
        """Raises Failed, and ends it, where a thread ran, began or ended since all were stopped.

        What a process has arranged before may wake it: a timer, the end of its parent, a socket.
        """
        now, then = _threads(system.started_by(self._process.pid)), self._threads
        moved = [one for one in now.keys() | then.keys() if now.get(one) != then.get(one)]
        is_still = now.keys() == then.keys() and _RUNS not in now.values()
        ran, slices = (sum(now[one][at] - then[one][at] for one in now.keys() & then.keys()) for at in (0, 2))
        # a thread that comes to rest is charged for what a hypervisor takes meanwhile, but gets no further slice
        if not is_still or (ran > _STILL and slices):
            what = f"{len(moved)} threads ran ({ran / 1e6:.1f} ms), began or ended while it was stopped"
            raise self._ended("caught", what)

    def stop(self) -> None:
        """Stop all its processes and return when no thread of them runs: a stopped process starts no other.

        Raises Failed, and ends it, where that cannot be done.
        """
        until = time.monotonic() + _STOPPING_SECONDS
        if self._is_stopped or not self.alive:
            return
        while not self._is_stopped:
            system.send(signal.SIGSTOP, self.family)
            before = self.family, self._threads
            self.family = sorted(system.started_by(self._process.pid))
            self._threads = _threads(self.family)
            same = (self.family, self._threads) == before
            self._is_stopped = same and _RUNS not in self._threads.values()
            if time.monotonic() > until:
                raise self._ended("processes", "its processes could not be stopped")
        self.look()
        self._held += _unowned_bytes() - self._before

    @property
    def waited(self) -> float:
        """Seconds that its threads had waited for a core, all together, when it was stopped last."""
        return sum(waited for _, waited, _ in self._threads.values()) / 1e9

    def close(self) -> None:
        """End all its processes and give up its memory, as soon as nothing refers to an array of it."""
        if not self.alive:
            return
        self.alive = False
        family = system.started_by(self._process.pid)
        system.send(signal.SIGKILL, [self._process.pid, *family])
        self._process.wait()
        until = time.monotonic() + _STOPPING_SECONDS  # their memory may still be there
        while _RUNS in _threads(family).values() and time.monotonic() < until:
            time.sleep(1e-3)
        self.output = os.pread(self._said, OUTPUT_BYTES, 0)
        os.close(self._said)
        self._socket.close()
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)


def _threads(family: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """Nanoseconds that each stopped thread has run, and has waited for a core, and its slices of time, by its number.

    `_RUNS` for one that is neither stopped nor gone.

    As proc(5) has its state, and the kernel's sched-stats its times (0 where they are switched off).
    """
    found, tasks = {}, list[Path]()
    for number in family:
        with contextlib.suppress(OSError):
            tasks += Path(f"/proc/{number}/task").iterdir()
    for task in tasks:
        with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                ran, waited, slices = map(int, (task / "schedstat").read_text().split())
                found[int(task.name)] = (ran, waited, slices) if state in "tT" else _RUNS
    return found


def _unowned_bytes() -> int:
    """Bytes of this machine's memory that belong to no process: files in memory, pipes, tables of the kernel.

    What other programs take for themselves is not in it. 0 where proc(5) has no meminfo.
    """
    with contextlib.suppress(OSError):
        words = map(str.split, Path("/proc/meminfo").read_text().splitlines())
        found = {word[0]: int(word[1]) for word in words}
        return 1024 * (found["MemTotal:"] - found["MemAvailable:"] - found["AnonPages:"])
    return 0


def _private_bytes(number: int) -> int:
    """Memory that a process has for itself: what is resident without files and shared memory."""
    with contextlib.suppress(OSError, ValueError):
        resident, shared = map(int, Path(f"/proc/{number}/statm").read_text().split()[1:3])
        return (resident - shared) * PAGE
    return 0
