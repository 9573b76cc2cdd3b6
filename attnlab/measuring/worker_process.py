"""The conductor's side of a contender's child process: start it, ask it, stop it between requests, end it.

The process may run only while it answers a request; between requests it is stopped (SIGSTOP), with its device
work done, so that no idle thread pool spins beside another contender on the clock. When it crashes or hangs,
the request raises an error that says why, and the process can be started again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, ClassVar

import psutil
from numpy.typing import NDArray

from attnlab.contract.result import Outcome
from attnlab.measuring import protocol
from attnlab.measuring.contender import Contender, huge_pages_refused

Arrays = tuple[NDArray[Any], ...]
Answer = tuple[protocol.Message, Arrays]
_START_SECONDS = 120.0
_PIPE_BYTES = 1 << 20
#: a process that has closed its pipe has this long to end by itself and say how
_ENDING_SECONDS = 2.0
#: how much of the end of its log is read for the last line
_LAST_BYTES = 4096
_AT_REST = (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class NoAnswer(Exception):
    """A request has no answer; `outcome` is what becomes of the contender on this workload."""

    outcome: Outcome


class Refused(NoAnswer):
    """The worker says that it cannot. `kind` is declined, unavailable, wrong, memory or raised."""

    _outcomes: ClassVar[dict[str, Outcome]] = {
        "declined": Outcome.DECLINED,
        "unavailable": Outcome.UNAVAILABLE,
        "wrong": Outcome.WRONG,
        "memory": Outcome.OVER_BUDGET,
        "raised": Outcome.CRASHED,
    }

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.outcome = kind, self._outcomes[kind]


class Died(NoAnswer):
    """The worker's process ended while it was asked; the message says how."""

    outcome = Outcome.CRASHED


class Hung(NoAnswer):
    """The worker did not answer before its deadline and was killed."""

    outcome = Outcome.TIMED_OUT


class WorkerProcess:
    """One contender's process. Every request raises NoAnswer where there is none."""

    def __init__(self, contender: Contender, folders: Sequence[str] = ()) -> None:
        self.contender = contender
        #: the array library of its backend, once that is loaded
        self.library: str | None = None
        self._folders = list(folders)
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: psutil.Process | None = None
        self._log: IO[bytes] | None = None
        self._requests = self._replies = -1

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self._process is not None

    @property
    def number(self) -> int | None:
        """Its process's number, while it is there."""
        return None if self._process is None else self._process.pid

    def resident_bytes(self) -> int:
        """Memory that is its own, shared libraries not counted where the system tells; 0 where it is not running."""
        if self._handle is None:
            return 0
        try:
            return int(self._handle.memory_full_info().uss)
        except (psutil.Error, AttributeError):
            return int(self._handle.memory_info().rss)

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
            replies, from_worker = os.pipe()
            theirs.append(from_worker)
            undo.callback(os.close, replies)
            os.set_blocking(requests, False)
            for pipe in (requests, from_worker):
                _widen(pipe)
            log = undo.enter_context(tempfile.TemporaryFile(prefix="attnlab-worker-"))
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab.measuring.worker", str(to_worker), str(from_worker)],
                pass_fds=(to_worker, from_worker),
                env={**self.contender.environment(os.environ), **_padding()},
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
        self._handle = psutil.Process(process.pid)
        if op == "load":
            one = self.contender
            arguments = {
                "backend": one.backend,
                "folders": self._folders,
                "threads": one.threads,
                "slowed": one.slowed,
                "projection": one.projection,
            }
        self._begin({"op": op, **arguments}, (), time.monotonic() + _START_SECONDS)

    def finish_start(self) -> protocol.Message:
        """Wait for the answer to the first request; the process is stopped after it."""
        deadline = time.monotonic() + _START_SECONDS
        hello, _ = self._receive(deadline)
        if (spoken := hello.get("protocol")) != protocol.VERSION:
            self.end()
            said = f"its worker speaks protocol {spoken}, this conductor {protocol.VERSION}"
            raise Refused("unavailable", said)
        answer, _ = self._answer(deadline)
        self.library = answer.get("library")
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
        self._signal(signal.SIGCONT)
        self._begin({"op": op, **arguments}, arrays, deadline)
        return lambda: self._answer(deadline)

    def answered(self) -> bool:
        """Whether the answer to the request that was begun starts to arrive, or cannot arrive any more."""
        return protocol.ready(self._replies)

    def end(self) -> None:
        """End the process, whatever it does, and free what it held."""
        if self._process is None:
            return
        self._signal(signal.SIGKILL)  # reaches a stopped process too
        self._process.wait()
        for pipe in (self._requests, self._replies):
            os.close(pipe)
        if self._log is not None:
            self._log.close()
        self._process = self._handle = self._log = None

    def _begin(self, message: protocol.Message, arrays: Arrays, deadline: float) -> None:
        try:
            protocol.send(self._requests, message, arrays, deadline)
        except protocol.Closed:
            raise self._died() from None
        except protocol.Late:
            self.end()
            raise Hung("it took in no request before the deadline and was killed") from None

    def _answer(self, deadline: float) -> Answer:
        reply, arrays = self._receive(deadline)
        self._suspend()
        if "error" in reply:
            raise Refused(reply["error"], reply["message"])
        return reply, arrays

    def _receive(self, deadline: float) -> Answer:
        started = time.monotonic()
        try:
            return protocol.receive(self._replies, deadline)
        except protocol.Closed:
            raise self._died() from None
        except protocol.Late:
            self.end()
            raise Hung(f"no answer within {deadline - started:.0f} s; killed") from None

    def _suspend(self) -> None:
        """Stop it, and return when all its threads are stopped: the signal alone only asks."""
        assert self._process is not None and self._handle is not None
        self._signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # waits without polling (20 µs), and leaves an exit status to be read
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            return
        until = time.monotonic() + _ENDING_SECONDS
        while self._handle.status() not in _AT_REST and time.monotonic() < until:
            time.sleep(1e-4)

    def _signal(self, number: signal.Signals) -> None:
        """To the worker and all that it started, which share its process group.

        Until it has been waited for, its number cannot be another's.
        """
        assert self._process is not None, "start comes first"
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _died(self) -> Died:
        assert self._process is not None and self._handle is not None
        until = time.monotonic() + _ENDING_SECONDS
        while (alive := self._handle.status() != psutil.STATUS_ZOMBIE) and time.monotonic() < until:
            time.sleep(0.001)
        last, process = self._last_line(), self._process
        self.end()
        code = process.returncode
        if alive:
            how = "its process closed its pipe to the conductor, and was killed"
        elif code < 0:
            how = f"its process was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (the system does this when memory runs out)"
        else:
            how = f"its process exited with status {code}"
        return Died(f"{how}: {last}" if last else how)

    def _last_line(self) -> str:
        """The last line that it printed, where most libraries say why they abort."""
        assert self._log is not None
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "")


def _padding() -> dict[str, str]:
    """A variable of random length: it moves the stack, on which the speed of some loops depends.

    Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!".
    """
    return {"ATTNLAB_PADDING": "x" * random.SystemRandom().randrange(4096)}


def _widen(pipe: int) -> None:
    """Let a pipe hold arrays of a megabyte, where the system can: the two sides take turns less often."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _close_all(pipes: list[int]) -> None:
    for pipe in pipes:
        os.close(pipe)
