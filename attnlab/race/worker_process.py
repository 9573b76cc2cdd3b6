"""The conductor's side of a contender's child process: start it, ask it, stop it between requests, end it.

The process may run only while it answers a request; between requests it is stopped (SIGSTOP), with its device
work done, so that no idle thread pool spins beside another contender on the clock. When it crashes or hangs,
the request raises an error that says why, and the process can be started again.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil
from numpy.typing import NDArray

from attnlab import system
from attnlab.backends.contender import Contender, huge_pages_refused
from attnlab.backends.importing import Import
from attnlab.problem.result import Outcome
from attnlab.race import protocol
from attnlab.race.guard import GUARD, MARK
from attnlab.text import one_line

Arrays = tuple[NDArray[Any], ...]
Answer = tuple[protocol.Message, Arrays]
_START_SECONDS = 120.0
_PIPE_BYTES = 1 << 20
#: a process that has closed its pipe has this long to end by itself and say how
_ENDING_SECONDS = 2.0
#: how much of the end of its log is read, and how many of the lines there are kept with a result
_LAST_BYTES, _LAST_LINES = 4096, 10
#: a longer log is cut when the process is stopped
_MOST_LOG_BYTES = 2**20
#: what a signal that ended a process tells
_CAUSES: dict[int, str] = {
    signal.SIGKILL: " (the system does this when memory runs out)",
    signal.SIGILL: " (an instruction that this processor does not have: the build is for another)",
}


class NoAnswer(Exception):
    """A request has no answer; `outcome` is what becomes of the contender on this workload.

    `tail` is the end of what its process printed, where that ended.
    """

    outcome: Outcome
    tail: str = ""


class Refused(NoAnswer):
    """The worker says that it cannot. `kind` is declined, unavailable, wrong, memory or raised."""

    outcomes: ClassVar[dict[str, Outcome]] = {
        "declined": Outcome.DECLINED,
        "unavailable": Outcome.UNAVAILABLE,
        "wrong": Outcome.WRONG,
        "memory": Outcome.OVER_BUDGET,
        "raised": Outcome.CRASHED,
    }

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.outcome = kind, self.outcomes[kind]


class Died(NoAnswer):
    """The worker's process ended while it was asked, or answered what is no answer; the message says how."""

    outcome = Outcome.CRASHED

    def __init__(self, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


class Hung(NoAnswer):
    """The worker did not answer before its deadline and was killed."""

    outcome = Outcome.TIMED_OUT

    def __init__(self, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


class WorkerProcess:
    """One contender's process. Every request raises NoAnswer where there is none."""

    def __init__(
        self, contender: Contender, folders: Sequence[str] = (), start_seconds: float = _START_SECONDS
    ) -> None:
        self.contender = contender
        self._start_seconds = start_seconds
        self._start_deadline = self._asked = math.inf
        #: the array library of its backend, once that is loaded
        self.library: str | None = None
        #: the operator that its backend asks for by name, the number format that it computes in, and the parts that it
        #: merges; see `Backend`
        self.asked_kernel: str | None = None
        self.computes_in: str | None = None
        self.parts = 1
        self._folders = [str(Path(folder).resolve()) for folder in folders]
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: psutil.Process | None = None
        self._log: IO[bytes] | None = None
        self._requests = self._replies = -1
        #: of requests so far
        self._number = 0
        #: what it imports just now
        self._importing: Import | None = None

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None

    @property
    def number(self) -> int | None:
        """Its process's number, while it is there."""
        return None if self._process is None else self._process.pid

    def resident_bytes(self) -> int:
        """Its own memory and its children's, shared libraries not counted where the system tells; 0 where none runs."""
        if self._handle is None:
            return 0
        return _own_bytes(self._handle) + sum(map(_own_bytes_of, system.started_by(self._handle.pid)))

    def forget_peak(self) -> None:
        """Count `further_bytes` from now on; nothing happens where the system cannot."""
        for number in self._family():
            with contextlib.suppress(OSError):
                Path(f"/proc/{number}/clear_refs").write_text("5")  # see proc(5)

    def further_bytes(self) -> int:
        """Memory that it and its children have held, since `forget_peak`, beyond what they hold now; 0 where untold."""
        return sum(map(_further_bytes, self._family()))

    def _family(self) -> list[int]:
        """The numbers of its process and of those that it has started."""
        return [] if self._handle is None else [self._handle.pid, *system.started_by(self._handle.pid)]

    def start(self, op: str = "load", **arguments: Any) -> None:
        """Start the process with a first request, by default to load its backend.

        `finish_start` waits for the answer, so that several processes can start side by side.
        """
        refused = huge_pages_refused() if self.contender.pages == "huge" else None
        if refused:
            raise Refused("unavailable", refused)
        with contextlib.ExitStack() as undo:  # of what is opened here, only what `end` closes may stay
            to_worker, requests = os.pipe()
            theirs = [to_worker]
            undo.callback(os.close, requests)
            undo.callback(_close_all, theirs)
            undo.callback(GUARD.leave, self)
            replies, from_worker = os.pipe()
            theirs.append(from_worker)
            undo.callback(os.close, replies)
            os.set_blocking(requests, False)
            for pipe in (requests, from_worker):
                system.widen(pipe, _PIPE_BYTES)
            # appended to from wherever its end is: it is cut between requests
            log = undo.enter_context(tempfile.TemporaryFile("a+b", prefix="attnlab-worker-"))
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab.race.worker", str(to_worker), str(from_worker)],
                pass_fds=(to_worker, from_worker),
                env={**self.contender.environment(os.environ), **_padding(), MARK: GUARD.watch(self)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # a group of its own: Ctrl-C in a terminal reaches the conductor alone, and what the worker starts
                # is stopped and ended with it
                start_new_session=True,
            )
            undo.pop_all()
        _close_all(theirs)
        self._requests, self._replies, self._log, self._process = requests, replies, log, process
        self._importing = None
        self._handle = psutil.Process(process.pid)
        if op == "load":
            one = self.contender
            arguments = {
                "backend": one.backend,
                "folders": self._folders,
                "threads": one.threads,
                "slowed": one.slowed,
                "settings": dict(one.settings),
                "projection": one.projection,
            }
        self._start_deadline = time.monotonic() + self._start_seconds
        self._begin({"op": op, **arguments}, (), self._start_deadline)

    def finish_start(self) -> protocol.Message:
        """Wait for the answer to the first request; the process is stopped after it.

        The deadline is one for all that start side by side: those that hang do not add up.
        """
        deadline = self._start_deadline
        hello, _ = self._receive(deadline)
        if (spoken := hello.get("protocol")) != protocol.VERSION:
            self.end()
            said = f"its worker speaks protocol {spoken}, this conductor {protocol.VERSION}"
            raise Refused("unavailable", said)
        answer, _ = self._answer(deadline)
        self.library = answer.get("library")
        self.asked_kernel, self.computes_in = answer.get("kernel"), answer.get("computes_in")
        self.parts = answer.get("parts", 1)
        return answer

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> protocol.Message:
        """Let the process run until it has answered `op`, at most `seconds` long."""
        return self.begin(op, seconds=seconds, **arguments)()[0]

    def ask_arrays(self, op: str, *, seconds: float, **arguments: Any) -> Answer:
        """As `ask`, with the arrays that came with the answer."""
        return self.begin(op, seconds=seconds, **arguments)()

    def begin(
        self, op: str, *, seconds: float, arrays: Arrays = (), **arguments: Any
    ) -> Callable[[], Answer]:
        """Let the process run on `op`; a call of what is returned waits for the answer and stops it again."""
        deadline = time.monotonic() + seconds
        assert self._handle is not None, "start comes first"
        system.go_on(self._handle)
        self._begin({"op": op, **arguments}, arrays, deadline)
        return lambda: self._answer(deadline)

    def answered(self) -> bool:
        """Whether the answer to the request that was begun starts to arrive, or cannot arrive any more."""
        return protocol.ready(self._replies)

    def end(self) -> None:
        """End the process, whatever it does, and free what it held."""
        if self._process is None:
            return
        assert self._handle is not None
        system.kill(self._handle)
        self._process.wait()
        GUARD.leave(self)
        for pipe in (self._requests, self._replies):
            os.close(pipe)
        if self._log is not None:
            self._log.close()
        self._process = self._handle = self._log = None

    def _begin(self, message: protocol.Message, arrays: Arrays, deadline: float) -> None:
        self._number, self._asked = self._number + 1, time.monotonic()
        try:
            protocol.send(self._requests, {**message, "number": self._number}, arrays, deadline)
        except protocol.Closed:
            raise self._died() from None
        except protocol.Late:
            raise self._hung("it took in no request before the deadline and was killed") from None

    def _answer(self, deadline: float) -> Answer:
        reply, arrays = self._receive(deadline)
        if reply.pop("number", None) != self._number:
            raise self._killed("it answered another question than it was asked, and was killed")
        self._suspend()
        if "error" in reply:
            if reply["error"] not in Refused.outcomes:
                raise self._killed(f"it answered with an unknown error, {reply['error']!r}, and was killed")
            raise Refused(reply["error"], str(reply.get("message")))
        return reply, arrays

    def _receive(self, deadline: float) -> Answer:
        try:
            while "importing" in (frame := protocol.receive(self._replies, deadline))[0]:
                self._importing = Import(*map(str, frame[0]["importing"]))
        except protocol.Closed:
            raise self._died() from None
        except (protocol.Garbled, TypeError) as fault:
            raise self._killed(f"its process sent {fault}, and was killed") from None
        except protocol.Late:
            where, mend = self._at_import()
            raise self._hung(
                f"no answer within {deadline - self._asked:.0f} s{where}; killed{mend}"
            ) from None
        self._importing = None
        return frame

    def _suspend(self) -> None:
        """Stop it, and return when all its threads are stopped: the signal alone only asks."""
        assert self._process is not None and self._handle is not None and self._log is not None
        system.stop(self._handle)
        if os.fstat(self._log.fileno()).st_size > _MOST_LOG_BYTES:
            os.ftruncate(self._log.fileno(), 0)

    def _died(self) -> Died:
        assert self._process is not None and self._handle is not None
        until = time.monotonic() + _ENDING_SECONDS
        while (alive := self._handle.status() != psutil.STATUS_ZOMBIE) and time.monotonic() < until:
            time.sleep(0.001)
        tail, process = self._tail(), self._process
        self.end()
        code = process.returncode
        if alive:
            how = "its process closed its pipe to the conductor, and was killed"
        elif code < 0:
            how = f"its process was killed by {_signal_name(-code)}{_CAUSES.get(-code, '')}"
        else:
            how = f"its process exited with status {code}"
        where, mend = self._at_import()
        return Died(f"{how}{where}: {_last(tail)}{mend}" if tail else f"{how}{where}{mend}", tail)

    def _at_import(self) -> tuple[str, str]:
        """Where a process ended that was importing a library, and what mends that; nothing where it was not."""
        if self._importing is None:
            return "", ""
        module, mend = self._importing
        return f" while it imported {module}", f"; {mend}"

    def _killed(self, why: str) -> Died:
        tail = self._tail()
        self.end()
        return Died(why, tail)

    def _hung(self, why: str) -> Hung:
        tail = self._tail()
        self.end()
        return Hung(why, tail)

    def _tail(self) -> str:
        """The last lines that it printed, where most libraries say why they abort; each in one safe line."""
        assert self._log is not None
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = (one_line(line, 200) for line in self._log.read().decode(errors="replace").splitlines())
        return "\n".join(deque(filter(None, lines), maxlen=_LAST_LINES))


def _own_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().uss)
    except (psutil.Error, AttributeError):
        return int(process.memory_info().rss)


def _own_bytes_of(number: int) -> int:
    with contextlib.suppress(psutil.Error):  # it may have ended
        return _own_bytes(psutil.Process(number))
    return 0


def _further_bytes(number: int) -> int:
    try:
        lines = Path(f"/proc/{number}/status").read_text().splitlines()
    except OSError:
        return 0
    told = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmHWM", "VmRSS"))}
    return 1024 * (int(told.get("VmHWM", 0)) - int(told.get("VmRSS", 0)))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _last(tail: str) -> str:
    return tail.splitlines()[-1]


def _padding() -> dict[str, str]:
    """A variable of random length: it moves the stack, on which the speed of some loops depends.

    Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!".
    """
    return {"ATTNLAB_PADDING": "x" * random.SystemRandom().randrange(4096)}


def _close_all(pipes: list[int]) -> None:
    for pipe in pipes:
        os.close(pipe)
