"""A sandbox holds one candidate: bubblewrap around a process that shares a socket and memory with the judge.

The judge is outside. While it asks for no answer, it stops every process of the sandbox, so that nothing runs off the
clock. It ends a sandbox that takes too much time or memory, or too many processes or files.
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

#: most bytes of files in a temporary folder; most files there; bytes of a candidate's output that are kept
_FOLDER_BYTES, _MOST_FILES, OUTPUT_BYTES = 2**28, 20_000, 2000
#: seconds between two looks at a sandbox that works; most seconds for stopping it; the part of its memory limit at
#: which it is ended, because it may take more before the next look
_LOOK_SECONDS, _STOPPING_SECONDS, _PART = 0.05, 2.0, 0.9
#: stands for the times of a thread that runs; nanoseconds for which threads may still run while they are being stopped
_RUNS, _STILL = (-1, 0, 0), 200_000
#: seconds that the import of a library may take
START_SECONDS = 120.0
MEND = "apt-get install bubblewrap, or --trust to judge without a sandbox what you have read yourself"
#: files of /proc about the whole machine, which are hidden
_HIDDEN = "keys", "kpagecgroup", "kpagecount", "kpageflags", "slabinfo", "timer_list", "vmallocinfo"
#: by machine: its number (linux/audit.h); the numbers of fcntl and socket; the numbers of forbidden calls, which no
#: candidate needs: keyctl, add_key, request_key, mq_notify, io_uring_setup, perf_event_open, bpf, userfaultfd,
#: fanotify_init, inotify_init and inotify_init1, io_setup (the whole machine shares one limit), syslog, and
#: timerfd_create (its timers interrupt other programs while the candidate is stopped)
_CALLS = {
    "x86_64": (0xC000003E, 72, 41, (250, 248, 249, 244, 425, 298, 321, 323, 300, 253, 294, 206, 103, 283)),
    "aarch64": (0xC00000B7, 25, 198, (219, 217, 218, 184, 425, 241, 280, 282, 262, 26, 0, 116, 85)),
}
#: environment variables for finding the device and its compiler, passed on to a sandbox with the device
_OF_CUDA = ("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
#: forbidden commands of fcntl: F_SETLEASE (it delays writers outside), F_SETSIG (its signals wake stopped processes)
_COMMANDS = (1024, 10)


def _readable() -> list[str]:
    """The folders outside /usr that a sandbox may read: the interpreter, its packages and attnlab."""
    packages = [one for one in sys.path if "site-packages" in one or "dist-packages" in one]
    homes = [importlib.import_module(name).__path__ for name in ("attnlab", "attnlab.implementations")]
    found = [sys.base_prefix, sys.prefix, *packages, *(one for home in homes for one in home)]
    kept = sorted({str(Path(one).absolute()) for one in found if Path(one).is_dir()}, key=len)
    return [one for one in kept if not Path(one).is_relative_to("/usr")]


def command(trust: bool = False, denied: int | None = None, *, cuda: bool = False) -> list[str]:
    """The words of the command before the interpreter. Raises Unavailable, in one line, if no sandbox is available.

    denied : the descriptor of a file with the filter of system calls. cuda : whether the sandbox has the device.
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
    # only the owner may read these, and a judge that runs as root is the owner
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
    """A filter for seccomp(2), in instructions of linux/filter.h; empty for a machine that is not in `_CALLS`.

    0x20 loads 32 bits: the call's number, machine or an argument; 0x15 jumps if equal, 0x35 if not less; 6 returns.
    """
    if (machine := platform.machine()) not in _CALLS:
        return b""
    number, fcntl_number, socket_number, calls = _CALLS[machine]
    deny, allow = (6, 0, 0, 0x50000 | errno.EPERM), (6, 0, 0, 0x7FFF0000)
    words = [(0x20, 0, 0, 4), (0x15, 1, 0, number), deny, (0x20, 0, 0, 0), (0x35, 0, 1, 2**30), deny]
    words += [one for call in calls for one in ((0x15, 0, 1, call), deny)]
    # AF_UNIX only: the kernel sends packets for a stopped process too, and no namespace restricts AF_VSOCK
    words += [(0x15, 0, 4, socket_number), (0x20, 0, 0, 16), (0x15, 0, 1, socket.AF_UNIX), allow, deny]
    words += [(0x15, 1, 0, fcntl_number), allow, (0x20, 0, 0, 24)]
    words += [one for command in _COMMANDS for one in ((0x15, 0, 1, command), deny)]
    return b"".join(struct.pack("=HBBI", *one) for one in (*words, allow))


@cache
def refused() -> str:
    """Why bubblewrap cannot be used here; "" if it can."""
    if sys.platform != "linux" or shutil.which("bwrap") is None:
        return "it is not installed"
    tried = ["bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/"]
    found = subprocess.run([*tried, "true"], capture_output=True, text=True, check=False)
    return "" if found.returncode == 0 else f"which says: {' '.join(found.stderr.split())[:200]}"


def _variables(home: str, cuda: bool) -> dict[str, str]:
    """All environment variables of a sandbox: allocator settings as for attnlab's workers, and folders for caches."""
    named = {"HOME": home, "TMPDIR": home, "USER": "candidate", "LANG": "C.UTF-8"}
    named |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": "99"}
    named |= {name: os.environ[name] for name in _OF_CUDA if cuda and name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return {**Contender("judge", "judge").environment({}), **named, "PATH": path}


class Sandbox:
    """One sandbox. It begins to import `library` when it is made; `ready` waits for that.

    size : bytes of the memory that it shares with the judge. device : shared memory on a device, if it may use one.
    Raises Unavailable if no sandbox is available.
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
        #: as of the last stop: its processes; those that no visit started; the times of its threads
        self.family, self._own, self._threads = list[int](), set[int](), dict[int, tuple[int, int, int]]()
        #: seconds that the judge has waited for its messages, and the most that it may
        self.spent, self.most_seconds = 0.0, math.inf
        self._held, self._before = 0, _unowned_bytes()

    # -- orders

    def answer(
        self, order: Order, arrays: Sequence[Array], dtype: str, shape: tuple[int, ...], seconds: float
    ) -> Array:
        """The answer of the sandbox to an order on these arrays. Raises Failed."""
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
        """Wait until its library is imported. Raises Failed."""
        if not self._is_ready:
            self.checked(self.receive(START_SECONDS))
            self._is_ready = True
            self.stop()
            self._own = set(self.family)

    def ask(self, order: Order, seconds: float) -> Reply:
        """Send an order and wait for the reply; the sandbox goes on running. Raises Failed for any reply but "done"."""
        self.ready()
        self.go_on()
        self.send(order)
        return self.checked(self.receive(seconds))

    def end_visit(self) -> None:
        """Kill all processes that the visit started; the next order starts a new one. Raises Failed."""
        self.stop()
        self._require_still()
        system.send(signal.SIGKILL, set(self.family) - self._own)
        self.family = sorted(self._own)
        self._let_run()
        self.receive(_STOPPING_SECONDS)  # the first process reports that the visit's process has ended
        self.stop()

    def send(self, order: Order) -> None:
        """Send an order to a running sandbox. Raises Failed."""
        try:  # a sandbox that reads nothing must not block the judge
            self._socket.send(msgspec.msgpack.encode(order), socket.MSG_DONTWAIT)
        except OSError:
            raise self._ended("crashed", "its sandbox has ended, or reads nothing") from None

    def receive(self, seconds: float) -> bytes:
        """The next message, undecoded. Raises Failed if none arrives in time, or if the sandbox exceeds a limit."""
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
        """A message that has already arrived; empty if there is none, or if the sandbox has ended."""
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

    # -- limits, stopping and ending

    def look(self, deadline: float = math.inf) -> None:
        """End the sandbox and raise Failed if it takes too long, too much memory, or too many processes or files."""
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
        """Let all its processes run. If one ran while they were stopped, end the sandbox and raise Failed."""
        if self._is_stopped:
            self._require_still()
            self._let_run()

    def _let_run(self) -> None:
        system.send(signal.SIGCONT, self.family)
        self._before, self._is_stopped = _unowned_bytes(), False

    def _require_still(self) -> None:
        """End the sandbox and raise Failed if a thread has run, begun or ended since all were stopped.

        Before it is stopped, a process can arrange to be woken: by a timer, the end of its parent, or a socket.
        """
        now, then = _threads(system.started_by(self._process.pid)), self._threads
        moved = [one for one in now.keys() | then.keys() if now.get(one) != then.get(one)]
        is_still = now.keys() == then.keys() and _RUNS not in now.values()
        ran, slices = (sum(now[one][at] - then[one][at] for one in now.keys() & then.keys()) for at in (0, 2))
        # time that a hypervisor takes counts for a thread that is being stopped, but gives it no further time slice
        if not is_still or (ran > _STILL and slices):
            what = f"{len(moved)} threads ran ({ran / 1e6:.1f} ms), began or ended while it was stopped"
            raise self._ended("caught", what)

    def stop(self) -> None:
        """Stop all its processes, and return when none of their threads runs. A stopped process starts no other.

        If that fails, end the sandbox and raise Failed.
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
        """Seconds that its threads have waited for a core, summed over threads, up to the last stop."""
        return sum(waited for _, waited, _ in self._threads.values()) / 1e9

    def close(self) -> None:
        """Kill all its processes. Its shared memory is freed when nothing refers to an array there any more."""
        if not self.alive:
            return
        self.alive = False
        family = system.started_by(self._process.pid)
        system.send(signal.SIGKILL, [self._process.pid, *family])
        self._process.wait()
        until = time.monotonic() + _STOPPING_SECONDS  # until they have ended they hold memory
        while _RUNS in _threads(family).values() and time.monotonic() < until:
            time.sleep(1e-3)
        self.output = os.pread(self._said, OUTPUT_BYTES, 0)
        os.close(self._said)
        self._socket.close()
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)


def _threads(family: Sequence[int]) -> dict[int, tuple[int, int, int]]:
    """By thread number: nanoseconds that it has run, nanoseconds that it has waited for a core, and its time slices.

    `_RUNS` for a thread that is not stopped. A thread that has ended is left out.

    The states are those of proc(5), the times those of the kernel's sched-stats (0 if these are switched off).
    """
    found, tasks = {}, list[Path]()
    for number in family:
        with contextlib.suppress(OSError):
            tasks += Path(f"/proc/{number}/task").iterdir()
    for task in tasks:
        with contextlib.suppress(OSError, IndexError, ValueError):  # the thread has just ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                ran, waited, slices = map(int, (task / "schedstat").read_text().split())
                found[int(task.name)] = (ran, waited, slices) if state in "tT" else _RUNS
    return found


def _unowned_bytes() -> int:
    """Bytes of this machine's memory that are private to no process: files in memory, pipes, tables of the kernel.

    The private memory of other programs does not count. 0 if there is no /proc/meminfo.
    """
    with contextlib.suppress(OSError):
        words = map(str.split, Path("/proc/meminfo").read_text().splitlines())
        found = {word[0]: int(word[1]) for word in words}
        return 1024 * (found["MemTotal:"] - found["MemAvailable:"] - found["AnonPages:"])
    return 0


def _private_bytes(number: int) -> int:
    """Bytes of a process's private memory: its resident memory without files and shared memory."""
    with contextlib.suppress(OSError, ValueError):
        resident, shared = map(int, Path(f"/proc/{number}/statm").read_text().split()[1:3])
        return (resident - shared) * PAGE
    return 0
