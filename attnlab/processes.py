"""Child processes: `Process` starts one and sends requests; `serve` answers in the child; `Channel` carries messages.

Messages are MessagePack (by msgspec) with NumPy arrays in it: nothing is unpickled. A crash, a hang and a malformed
answer all raise `Failed`. Its message is the reason, in one line.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import msgspec
import numpy as np

from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.system import die_with_parent, send, started_by, wait_until_stopped

#: environment variables that would bring this interpreter's packages into another interpreter
_OWN = ("PYTHONPATH", "PYTHONHOME", "PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV", "VIRTUAL_ENV")
#: the header of each message: its length in bytes, big-endian
_LENGTH = struct.Struct(">Q")
#: most bytes of a message; the code of an array in a message
_MOST_BYTES, _ARRAY = 2**36, 1
#: seconds that a process has to end by itself after its channel was closed
_ENDING_SECONDS = 2.0
#: what a signal that ended a process usually means
_CAUSES = {
    "SIGKILL": " (the system does this when memory runs out)",
    "SIGILL": " (an instruction that this processor does not have: the build is for another)",
}
#: the kind of failure of each exception in the child
_KINDS: dict[type[Exception], str] = {
    Declined: "declined", Unavailable: "unavailable", Misbehaved: "wrong", MemoryError: "memory",
}  # fmt: skip


class Failed(Exception):
    """There is no answer. The message gives the reason, in one line.

    kind : as the child reports it ("declined", "unavailable", "wrong", "memory", "raised"), or what happened to the
    child ("crashed", "timed_out"; a judge's sandbox also has "processes" and "caught"). tail : the last lines that the
    child printed, if it crashed.
    """

    def __init__(self, kind: str, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.kind, self.tail = kind, tail

    def told(self) -> Exception:
        """Declined or Misbehaved if only this question failed and the child goes on, else this exception."""
        ends = {"declined": Declined} | dict.fromkeys(("wrong", "raised", "memory"), Misbehaved)
        return ends[self.kind](str(self)) if self.kind in ends else self


class Closed(Failed):
    """The other side of a channel has ended, or has sent an invalid message."""

    def __init__(self, message: str = "the other process is gone") -> None:
        super().__init__("crashed", message)


class Late(Failed):
    """No complete message arrived, or could be sent, before the deadline."""

    def __init__(self) -> None:
        super().__init__("timed_out", "no answer in time")


# -- messages ----------------------------------------------------------------------------------------


def encode(message: Any) -> bytes:
    """Plain data, dataclasses and NumPy arrays as MessagePack. Raises TypeError for anything else."""
    return msgspec.msgpack.encode(message, enc_hook=_packed)


def decode(data: bytes | bytearray, kind: Any = Any) -> Any:
    """The inverse of `encode`; tuples become lists unless `kind` says otherwise. Raises msgspec.MsgspecError."""
    return msgspec.msgpack.decode(data, type=kind, ext_hook=_array, dec_hook=lambda _, found: found)


def _packed(value: Any) -> Any:
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        head = json.dumps([value.dtype.str, value.shape]).encode()
        data = head + b"\n" + np.ascontiguousarray(value).tobytes()
        return msgspec.msgpack.Ext(_ARRAY, data)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not sent to other processes")


def _array(code: int, data: memoryview) -> Any:
    """The array in a message, as a copy, so that the receiver may write into it."""
    head, _, rest = bytes(data).partition(b"\n")
    dtype, shape = json.loads(head)
    return np.frombuffer(bytearray(rest), dtype).reshape(shape)


class Channel:
    """Messages over one socket. A deadline is a time of `time.monotonic`, None for no deadline."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, message: Any, deadline: float | None = None) -> None:
        """Send a message. Raises Closed or Late."""
        data = encode(message)
        try:
            self.socket.settimeout(_left(deadline))
            self.socket.sendall(_LENGTH.pack(len(data)) + data)
        except TimeoutError:
            raise Late from None
        except OSError:
            raise Closed from None

    def receive(self, deadline: float | None = None, kind: Any = Any) -> Any:
        """The next message, as the type `kind`. Raises Closed or Late."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > _MOST_BYTES:
            raise Closed(f"it sent a message of {length} bytes, at most {_MOST_BYTES} are expected")
        try:
            return decode(self._read(length, deadline), kind)
        except (msgspec.MsgspecError, ValueError, TypeError):
            raise Closed("it sent a message that is none") from None

    def _read(self, length: int, deadline: float | None) -> bytearray:
        data = bytearray()
        while len(data) < length:
            try:
                self.socket.settimeout(_left(deadline))
                chunk = self.socket.recv(min(length - len(data), 1 << 20))
            except TimeoutError:
                raise Late from None
            except OSError:
                raise Closed from None
            if not chunk:
                raise Closed
            data += chunk
        return data


def _left(deadline: float | None) -> float | None:
    """Seconds until the deadline, never 0: a socket with a timeout of 0 does not raise TimeoutError."""
    return None if deadline is None else max(1e-4, deadline - time.monotonic())


# -- interpreters ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter, this process's own if `executable` is None. It searches `paths` for modules first."""

    executable: str | None = None
    paths: tuple[str, ...] = ()

    def command(self, code: str) -> list[str]:
        """The command that runs `code`; arguments may follow. It does not search the working folder for modules."""
        first = f"import sys; sys.path[:] = [*{[*self.paths]!r}, *filter(None, sys.path)]; "
        return [self.executable or sys.executable, "-c", first + code]


def without_own(variables: Mapping[str, str]) -> dict[str, str]:
    """These environment variables without those that are meant for this interpreter only."""
    return {name: value for name, value in variables.items() if name not in _OWN}


# -- a process that answers many requests --------------------------------------------------------------


class Process:
    """A child process: a new interpreter that serves `target`, "module:name", on its end of the `channel`.

    target : a class whose methods answer the requests, or a function that takes the channel. The process has its own
    process group: Ctrl-C in a terminal does not reach it, and processes that it starts are stopped and ended with it.
    Its output goes to a log, and a failure quotes the last lines. Raises OSError if no process can be started.
    """

    alive = True
    _log: IO[bytes]
    _popen: subprocess.Popen[bytes] | None = None
    _status: int | None = None

    def __init__(
        self,
        target: str,
        *,
        environment: Mapping[str, str] | None = None,
        interpreter: Interpreter = Interpreter(),
    ) -> None:
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile("a+b", prefix="attnlab-")  # noqa: SIM115 (`end` closes it)
        command = interpreter.command("from attnlab.processes import main; main()")
        with theirs:
            try:
                started = subprocess.Popen(
                    [*command, str(theirs.fileno()), target],
                    pass_fds=[theirs.fileno()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                log.close()
                raise
        self._popen, self.number, self.channel, self._log = started, started.pid, Channel(ours), log

    @classmethod
    def forked(cls, number: int, channel: Channel, log: IO[bytes]) -> Process:
        """A child of this process that another process has forked."""
        one = cls.__new__(cls)
        one.number, one.channel, one._log = number, channel, log
        return one

    def ask(self, op: str, *, seconds: float | None = None, answer: Any = Any, **arguments: Any) -> Any:
        """Call the method `op` of the child's object. Returns its result, of the type `answer`. Raises Failed.

        A child that crashes, or does not answer within `seconds`, is ended.
        """
        return self.begin(op, seconds=seconds, answer=answer, **arguments)()

    def begin(
        self, op: str, *, seconds: float | None = None, answer: Any = Any, **arguments: Any
    ) -> Callable[[], Any]:
        """Begin a request and return a function that waits for the answer. The child works meanwhile."""
        if not self.alive:
            raise Failed("crashed", "its process has ended before")
        deadline = None if seconds is None else time.monotonic() + seconds
        with contextlib.suppress(Closed):  # `wait` reports how the child ended
            try:
                self.channel.send([op, arguments], deadline)
            except Late:  # the channel may hold half a request
                self.end()
                raise
        return functools.partial(self.wait, op, deadline, answer)

    def wait(self, op: str, deadline: float | None, answer: Any) -> Any:
        """Wait for the answer to the request `op` that was begun. Returns it as the type `answer`. Raises Failed."""
        try:
            kind, told = self.channel.receive(deadline, tuple[str, msgspec.Raw])
            if kind != "answer":
                raise Failed(kind, decode(told, str))
            return decode(told, answer)
        except Late:
            self.end()
            raise Failed("timed_out", f"no answer in time to {op}; its process was killed") from None
        except Closed as fault:
            raise self._crashed(op, fault) from None
        except msgspec.MsgspecError as fault:
            raise self._crashed(op, Closed(f"it sent an answer that is none ({fault})")) from None

    def _crashed(self, op: str, fault: Closed) -> Failed:
        status = self.ended(_ENDING_SECONDS)
        tail = self.tail()
        self.end()
        if status is None:
            return Failed("crashed", f"{fault} (asked to {op}); its process was killed", tail)
        number = -status  # a real-time signal has no name
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        how = f"was killed by {name}{_CAUSES.get(name, '')}" if status < 0 else f"exited with status {status}"
        last = f": {tail.splitlines()[-1]}" if tail else ""
        return Failed("crashed", f"its process {how} when it was asked to {op}{last}", tail)

    def tail(self) -> str:
        """The last ten lines that the process printed."""
        if self._log.closed:
            return ""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        lines = (line.strip() for line in self._log.read().decode(errors="replace").splitlines())
        return "\n".join([line[:200] for line in lines if line][-10:])

    def signal(self, number: int) -> None:
        """Send a signal to the process and its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.number, number)

    def stop(self) -> None:
        """Stop the process and its group. Returns when their threads have stopped: a signal does not wait for that."""
        self.signal(signal.SIGSTOP)
        wait_until_stopped(self.number)

    def go_on(self) -> None:
        """Let the process and its group run again."""
        self.signal(signal.SIGCONT)

    def ended(self, seconds: float = 0.0) -> int | None:
        """The exit status, negative for a signal; None if the process has not ended within `seconds`."""
        until = time.monotonic() + seconds
        while self._status is None:
            if self._popen is not None:
                self._status = self._popen.poll()
            else:
                try:
                    number, status = os.waitpid(self.number, os.WNOHANG)
                    self._status = os.waitstatus_to_exitcode(status) if number else None
                except ChildProcessError:
                    self._status = 0
            if self._status is None:
                if time.monotonic() >= until:
                    return None
                time.sleep(2e-4)
        return self._status

    def kill(self) -> None:
        """Kill the process and all processes that it has started. `end` also waits until it has ended."""
        family = started_by(self.number)  # some may have left its group
        self.signal(signal.SIGKILL)
        send(signal.SIGKILL, family)

    def end(self) -> None:
        """End the process and all processes that it has started, and close the channel and the log."""
        if not self.alive:
            return
        self.alive = False
        self.kill()
        self.ended(_ENDING_SECONDS)
        self.channel.socket.close()
        self._log.close()


def serve(
    channel: Channel, holder: object, refused: Callable[[Exception], tuple[str, str]] | None = None
) -> None:
    """In the child: answer requests by calling the methods of `holder`, until the channel closes.

    Arguments are converted to the methods' type hints. refused : turns an exception into the kind and the text of a
    `Failed`; by default `refusal`.
    """
    hints_of = functools.cache(typing.get_type_hints)  # uncached: a tenth of the time of a short request
    with contextlib.suppress(Closed):
        while True:
            op, arguments = channel.receive()
            try:
                method = getattr(holder, op)
                hints = hints_of(method)
                given = {
                    name: msgspec.convert(one, hints.get(name, Any), dec_hook=lambda _, found: found)
                    for name, one in arguments.items()
                }
                channel.send(("answer", method(**given)))
            except Closed:
                return
            except Exception as fault:
                channel.send((refused or refusal)(fault))


def refusal(fault: Exception) -> tuple[str, str]:
    """The kind of failure of an exception, and its reason in one line."""
    text, name = " ".join(str(fault).split())[:400], type(fault).__name__
    kind = next((kind for known, kind in _KINDS.items() if isinstance(fault, known)), "raised")
    return kind, text if kind != "raised" and text else f"raised {name}: {text}"


def main() -> None:
    """In the child of a `Process`: call the target. Its own children do not keep the channel open."""
    die_with_parent()
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    os.register_at_fork(after_in_child=end.close)
    module, _, name = sys.argv[2].partition(":")
    target, channel = getattr(importlib.import_module(module), name), Channel(end)
    if isinstance(target, type):
        serve(channel, target())
    else:
        target(channel)
