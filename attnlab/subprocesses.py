"""Processes of this program, and messages to and from them.

A `Subprocess` is a fresh interpreter that calls one function with its end of a `Channel`; `Siblings` are several that
are forked from one fresh interpreter, which imports for all of them. This process itself is never forked. An `Aside`
is one call of a function elsewhere, while the caller does something else; `work_side_by_side` does one piece of work on
several parts.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder
from multiprocessing.connection import wait
from typing import IO, Any, Generic, TypeVar

import psutil

from attnlab.system import die_with_parent, wait_until_stopped

#: before each message: its length in bytes, big-endian
_LENGTH = struct.Struct(">Q")
#: variables that would bring this interpreter's packages, or its versions of them, into another one
_OWN = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PIP_CONSTRAINT",
    "PIP_REQUIRE_VIRTUALENV",
    "VIRTUAL_ENV",
)
#: a message that claims to be longer is none
_MOST_BYTES = 2**36
#: what is told to end has this long to end what it started
_ENDING_SECONDS = 5.0

Part = TypeVar("Part")
Found = TypeVar("Found")
Tell = Callable[[Any], None]
#: works on a part and tells what it finds. In another process all of it is pickled: function, part and what is told
Work = Callable[[Part, Tell], None]


class Closed(Exception):
    """The other side is gone."""


class Late(Exception):
    """No complete message came, or was taken, before the deadline."""


class Garbled(Exception):
    """What came is no message; the text says why."""


class Broken(RuntimeError):
    """The work in another process raised, or that process ended before the work did; the message says how."""


class Channel:
    """Messages over one socket, each of them pickled. A deadline is a `time.monotonic` instant, None for never."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`."""
        return self._end.fileno()

    def send(self, message: Any, deadline: float | None = None) -> None:
        """Raises Closed or Late."""
        data = pickle.dumps(message, protocol=5)
        try:
            self._end.settimeout(_left(deadline))
            self._end.sendall(_LENGTH.pack(len(data)))
            self._end.sendall(data)
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Closed from None

    def receive(self, deadline: float | None = None) -> Any:
        """The next message. Raises Closed, Late or Garbled."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > _MOST_BYTES:
            raise Garbled(f"a message of {length} bytes, at most {_MOST_BYTES} are expected")
        data = self._read(length, deadline)
        try:
            return pickle.loads(data)
        except Exception as fault:
            raise Garbled(f"a message that is none ({type(fault).__name__})") from None

    def send_files(self, numbers: Sequence[int]) -> None:
        """Open files of these numbers, for `receive_files`, which is called when all messages before are received."""
        socket.send_fds(self._end, [b"."], list(numbers))

    def receive_files(self, most: int) -> list[int]:
        """The numbers here of the files that were sent, of which there are `most`."""
        return socket.recv_fds(self._end, 1, most)[1]

    def ready(self) -> bool:
        """Whether a message has begun to come, or the other side is gone."""
        return bool(ready([self], 0))

    def close(self) -> None:
        """The other side finds it `Closed`."""
        self._end.close()

    def _read(self, length: int, deadline: float | None) -> bytearray:
        data = bytearray()
        while len(data) < length:
            try:
                self._end.settimeout(_left(deadline))
                chunk = self._end.recv(min(length - len(data), 1 << 20))
            except TimeoutError:
                raise Late from None
            except OSError:
                raise Closed from None
            if not chunk:
                raise Closed
            data += chunk
        return data


def ready(channels: Sequence[Channel], seconds: float | None = None) -> list[Channel]:
    """Those on which a message begins to come, or whose other side is gone; waits for one, at most so many seconds."""
    waiting: list[Any] = list(channels)
    return wait(waiting, seconds)  # type: ignore[return-value]


def _left(deadline: float | None) -> float | None:
    """Seconds until then, a moment at least: 0 would mean not to wait for what is there."""
    return None if deadline is None else max(1e-4, deadline - time.monotonic())


@dataclass(frozen=True)
class Interpreter:
    """A Python: that of this process where `executable` is None. It searches `paths` for modules before all others, and
    then `own`: processes that differ in these alone may be forked from one.
    """

    executable: str | None = None
    paths: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def command(self, code: str) -> list[str]:
        """That runs `code`; words that follow are its arguments. The folder it is started in is not searched."""
        first = f"import sys; sys.path[:] = [*{[*self.paths, *self.own]!r}, *filter(None, sys.path)]; "
        return [self.executable or sys.executable, "-c", first + code]


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """These environment variables for another interpreter: without those that are meant for this one."""
    return {name: value for name, value in variables.items() if name not in _OWN}


class Subprocess:
    """A fresh interpreter that calls `target`, "module:function", with its end of the `channel`.

    Of this Python, or another `interpreter`. In a group of processes of its own, unless `own_group` is False: Ctrl-C in
    a terminal does not reach it, and what it starts is stopped and ended with it. `output` takes what it prints, None
    for where this process prints; what goes to standard output is dropped where there is none. Raises OSError where no
    process can be started.
    """

    def __init__(
        self,
        target: str,
        *,
        environment: Mapping[str, str] | None = None,
        output: Any = None,
        own_group: bool = True,
        interpreter: Interpreter = Interpreter(),
    ) -> None:
        ours, theirs = socket.socketpair()
        self.channel, self._own_group = Channel(ours), own_group
        self.process: subprocess.Popen[bytes] | _Forked
        try:
            with theirs:
                start = interpreter.command("from attnlab.subprocesses import main; main()")
                self.process = subprocess.Popen(
                    [*start, str(theirs.fileno()), target],
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if output is None else output,
                    stderr=output,
                    start_new_session=own_group,
                )
        except BaseException:
            ours.close()
            raise

    @classmethod
    def forked(cls, number: int, channel: Channel) -> Subprocess:
        """A child of this process that another process has forked."""
        one = cls.__new__(cls)
        one.channel, one._own_group, one.process = channel, True, _Forked(number)
        return one

    @property
    def number(self) -> int:
        """Of the process."""
        return self.process.pid

    def signal(self, number: int) -> None:
        """To its whole group, where it has one of its own."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if self._own_group else os.kill)(self.number, number)

    def stop(self) -> None:
        """Stop it and what is in its group, and return when its threads are stopped: a signal alone only asks."""
        self.signal(signal.SIGSTOP)
        wait_until_stopped(self.number)

    def go_on(self) -> None:
        """Let it run again."""
        self.signal(signal.SIGCONT)

    def ended(self, seconds: float) -> str | None:
        """How it ended, in words; None where it has not within so many seconds."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return f"was killed by {signal_name(-status)}" if status < 0 else f"exited with status {status}"

    def end(self, patience: float = 0.0) -> None:
        """End it, whatever it does: after so many seconds in which it may end what it started, at once where 0."""
        if patience and self.process.poll() is None:
            self.process.terminate()
            self.ended(patience)
        if self._own_group or self.process.returncode is None:
            self.signal(signal.SIGKILL)  # what it started may still be there
        self.process.wait()
        self.channel.close()


class _Forked:
    """What `Subprocess` needs of a `subprocess.Popen`, of a child that somebody else has started."""

    def __init__(self, number: int) -> None:
        self.pid, self._process = number, psutil.Process(number)
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._process.wait(timeout)
            except psutil.TimeoutExpired:
                raise subprocess.TimeoutExpired([], timeout or 0.0) from None
        return self.returncode or 0

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def terminate(self) -> None:
        self._process.terminate()


class Siblings:
    """Processes that are forked, one for each of `outputs`, from a fresh interpreter that has imported `modules`.

    That interpreter computes nothing, and ends when all are `born`. Each of them calls `target` as a `Subprocess` does,
    in a group of its own, prints to its output, and is a child of this process; one of `interpreters` is for each of
    them, which differ in their `own` paths at most. To be made and `born` within `attnlab.system.adopting`;
    `environment` is as of a `Subprocess`.
    """

    def __init__(
        self,
        target: str,
        modules: Sequence[str],
        outputs: Sequence[IO[bytes]],
        environment: Mapping[str, str],
        interpreters: Sequence[Interpreter] = (),
    ) -> None:
        interpreters = interpreters or [Interpreter()] * len(outputs)
        self._channels: list[Channel] = []
        self._parent: Subprocess | None = None
        self._count, self._how = len(outputs), ""
        ends: list[socket.socket] = []
        try:
            for _ in outputs:
                ours, theirs = socket.socketpair()
                self._channels.append(Channel(ours))
                ends.append(theirs)
            self._parent = Subprocess(
                "attnlab.subprocesses:_fork",
                environment=environment,
                output=subprocess.DEVNULL,
                interpreter=replace(interpreters[0], own=()),
            )
            own = [one.own for one in interpreters]
            self._parent.channel.send((os.getpid(), target, tuple(modules), own))
            # they wait until it has imported: what starts meanwhile would hold them open
            files = [one.fileno() for both in zip(ends, outputs, strict=True) for one in both]
            self._parent.channel.send_files(files)
        except (OSError, Closed) as fault:
            self._how = f"could not be started: {fault}"
        for theirs in ends:
            theirs.close()

    def born(self, deadline: float) -> list[Subprocess | str]:
        """The processes, in the order of the outputs; why there is none for one that could not be forked.

        Where the interpreter itself fails, or is not ready at the deadline, none could.
        """
        found: list[Subprocess | str | None] = [None] * self._count
        for at, channel in enumerate(self._channels):
            try:
                told = channel.receive(deadline)
                if isinstance(told, str):
                    channel.close()
                found[at] = told if isinstance(told, str) else Subprocess.forked(told, channel)
            except (Closed, Garbled, Late, psutil.Error):
                channel.close()
        if self._parent is not None:
            # it waits for the processes in between, which this process would inherit
            patience = _ENDING_SECONDS if time.monotonic() < deadline else 0.0
            self._how = self._parent.ended(patience) or "gave no answer in time"
            with contextlib.suppress(Closed, Garbled, Late):
                said = self._parent.channel.receive(time.monotonic())
                self._how = said if isinstance(said, str) else self._how
            self._parent.end()
            with contextlib.suppress(ChildProcessError):
                while True:  # those of its group are children of this process now
                    os.waitpid(-self._parent.number, 0)
        return [one or f"the process that was to fork it {self._how}" for one in found]


def signal_name(number: int) -> str:
    """As the manual calls it."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def main() -> None:
    """In the new process: call what was asked for."""
    _function(sys.argv[2])(_own_channel(int(sys.argv[1])))


def _own_channel(number: int) -> Channel:
    """This process's channel: what it starts does not hold it open, or its end would not be seen."""
    end = socket.socket(fileno=number)
    end.set_inheritable(False)
    os.register_at_fork(after_in_child=end.close)
    return Channel(end)


def _function(target: str) -> Callable[..., None]:
    module, _, name = target.partition(":")
    found: Callable[..., None] = getattr(importlib.import_module(module), name)
    return found


def _fork(channel: Channel) -> None:
    """In the interpreter of `Siblings`: import, and fork. What hinders it is told, in words."""
    die_with_parent()
    guardian, target, modules, own = channel.receive()
    try:
        function = _function(target)
        for module in modules:
            importlib.import_module(module)
        files = channel.receive_files(2 * len(own))
        gc.collect()
        gc.freeze()  # collecting would copy the pages that all share
        at = next((at for at in range(len(own)) if _forked()), None)
    except Exception as fault:
        channel.send(f"raised {type(fault).__name__}: {fault}")
        os._exit(1)
    if at is None:
        os._exit(0)  # at once: this is waited for
    _run_forked(guardian, function, files, 2 * at, own[at])


def _forked() -> bool:
    """Fork a process that is no child of this one; whether this is in it. Raises OSError where there can be none."""
    between = os.fork()
    if between:
        with contextlib.suppress(ChildProcessError):  # what was imported may have it that nobody waits
            if number := os.waitstatus_to_exitcode(os.waitpid(between, 0)[1]):
                raise OSError(number, os.strerror(number))
        return False
    try:
        if os.fork():  # the parent of a process ends at once, so that the guardian becomes its parent
            os._exit(0)
    except OSError as fault:
        os._exit(fault.errno or 1)
    return True


def _run_forked(
    guardian: int, function: Callable[[Channel], None], files: Sequence[int], at: int, paths: Sequence[str]
) -> None:
    """In a forked process: call `function`, which finds modules in `paths` too; not where one of those is imported
    already from elsewhere. What it raises ends the process as it ends a fresh one.
    """
    sys.path[:0] = paths
    elsewhere = _imported_elsewhere(paths)
    if not elsewhere:
        os.setsid()  # else it ends at once, with the group of the process that forked it
    own, output = files[at : at + 2]
    sys.argv[1] = str(own)
    for number in (1, 2):
        os.dup2(output, number)
    for number in set(files) - {own}:
        os.close(number)
    until = time.monotonic() + _ENDING_SECONDS
    while os.getppid() != guardian and time.monotonic() < until:
        time.sleep(1e-3)
    die_with_parent()
    if os.getppid() == guardian:  # else it has gone meanwhile
        channel = _own_channel(own)
        channel.send(elsewhere or os.getpid())
        if not elsewhere:
            function(channel)


def _imported_elsewhere(paths: Sequence[str]) -> str | None:
    """What a fresh interpreter would have imported from `paths`, and this one has from another place, in words."""
    for name in sys.modules.keys() - {"__main__", "attnlab"} if paths else ():
        if "." not in name and (found := PathFinder.find_spec(name, list(paths))) and found.loader:
            return f"its module {name} is {found.origin}"
    return None


class Aside(Generic[Found]):
    """``function(*arguments)`` in a process of its own, from now on, while the caller does something else.

    All of it, and what comes of it, is pickled. With `tell` the function has one more argument, with which it tells
    what it finds; `tell` hears that in `step`. The process ends with this object at the latest, also where nobody asks
    for the result. environment, output : as of a `Subprocess`.
    """

    def __init__(
        self,
        function: Callable[..., Found],
        *arguments: Any,
        tell: Tell | None = None,
        environment: Mapping[str, str] | None = None,
        output: Any = None,
    ) -> None:
        self._process = Subprocess("attnlab.subprocesses:_do", environment=environment, output=output)
        self.channel, self._tell, self.done = self._process.channel, tell, False
        self._found: list[Found] = []
        self._end = weakref.finalize(self, Subprocess.end, self._process, _ENDING_SECONDS)
        asked = (function, arguments, tell is not None)
        # it reads when it has started: nobody need wait for that
        threading.Thread(target=_send, args=(self.channel, asked), daemon=True).start()

    def step(self, deadline: float | None = None) -> None:
        """Wait for what it tells next, or until it is `done`. Raises Broken, and Late at the deadline."""
        try:
            kind, message = self.channel.receive(deadline)
        except (Closed, Garbled):
            how = self._process.ended(_ENDING_SECONDS)
            raise Broken(f"a process that was to do a part of the work {how}") from None
        if kind == "raised":
            raise Broken(f"a process that was to do a part of the work raised:\n{message}")
        self.done = kind == "done"
        if self.done:
            self._found.append(message)
        elif self._tell:
            self._tell(message)

    def result(self, seconds: float | None = None) -> Found:
        """What came of it, to be asked for once. Raises Broken, and Late where it is not there in so many seconds."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while not self.done:
                self.step(deadline)
        finally:
            self.end()
        return self._found[0]

    def ask_to_end(self) -> None:
        """Let it end what it started, and itself."""
        self._process.process.terminate()

    def end(self) -> None:
        """End it, with or without a result."""
        self._end()


def work_side_by_side(work: Work[Part], parts: Sequence[Part], tell: Tell) -> None:
    """`work` on all of `parts` at once, on the first here, until it is done or `tell` raises; no process is left.

    What is told elsewhere is told here, in this thread: whenever the work in this process tells something, and after
    it. What `tell` raises comes through. Raises Broken.
    """
    asides: list[Aside[None]] = []

    def step(seconds: float | None) -> bool:
        working = {one.channel: one for one in asides if not one.done}
        found = ready(list(working), seconds) if working else []
        for channel in found:
            working[channel].step()
        return bool(found)

    def told_here(message: Any) -> None:
        while step(0):
            pass
        tell(message)

    try:
        for part in parts[1:]:
            asides.append(Aside(work, part, tell=tell))
        work(parts[0], told_here)
        while step(None):
            pass
    finally:
        for one in asides:
            one.ask_to_end()
        for one in asides:
            one.end()


def _send(channel: Channel, asked: Any) -> None:
    with contextlib.suppress(Closed):  # how it ended is told when its result is asked for
        channel.send(asked)


def _do(channel: Channel) -> None:
    """In the new process: the call that comes, and its end. SIGTERM leaves it by an exception."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    die_with_parent()
    try:
        function, arguments, telling = channel.receive()
        tell = (lambda message: channel.send(("told", message)),) if telling else ()
        channel.send(("done", function(*arguments, *tell)))
    except Closed:
        pass  # who started it has gone
    except Exception:
        channel.send(("raised", traceback.format_exc()))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to be ended
