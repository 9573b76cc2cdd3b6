"""A contender's seat in a run: its process, and the wall between it and the conductor.

The process is runnable only while it answers a request; between requests it is stopped, with its device
work done, so that no idle thread pool spins beside another contender on the clock. It may crash or hang: then
the seat is empty, says why, and can be filled again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

import psutil
from numpy.typing import NDArray

from attnlab.measuring import protocol
from attnlab.measuring.contender import Contender

_START_SECONDS = 120.0


class Refused(Exception):
    """The worker answered that it cannot. `kind` is declined, unavailable, wrong, memory or raised."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Died(Exception):
    """The worker's process ended while it was asked; the message says how."""


class Hung(Exception):
    """The worker did not answer before its deadline and was killed."""


class Seat:
    """One contender's process. Raises Refused, Died or Hung from every request."""

    def __init__(self, contender: Contender, folders: Sequence[str] = ()) -> None:
        self.contender = contender
        self._folders = list(folders)
        self._process: subprocess.Popen[bytes] | None = None
        self._handle: psutil.Process | None = None
        self._log: IO[bytes] | None = None
        self._requests = self._replies = -1

    @property
    def filled(self) -> bool:
        """Whether its process is there."""
        return self._process is not None

    def start(self, op: str = "load", **arguments: Any) -> None:
        """Start the process with a first request, by default to load its backend.

        `finish_start` waits for the answer, so that several processes can start side by side.
        """
        to_worker, self._requests = os.pipe()
        self._replies, from_worker = os.pipe()
        os.set_blocking(self._requests, False)
        self._log = tempfile.TemporaryFile(prefix="attnlab-worker-")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "attnlab.measuring.worker", str(to_worker), str(from_worker)],
            pass_fds=(to_worker, from_worker),
            env=self.contender.environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C in a terminal goes to a whole process group: only the conductor is to hear it
            start_new_session=True,
        )
        os.close(to_worker)
        os.close(from_worker)
        self._handle = psutil.Process(self._process.pid)
        if op == "load":
            arguments = {
                "backend": self.contender.backend,
                "folders": self._folders,
                "threads": self.contender.threads,
            }
        self._begin({"op": op, **arguments}, (), time.monotonic() + _START_SECONDS)

    def finish_start(self) -> protocol.Message:
        """The answer to the first request; the process is stopped after it."""
        deadline = time.monotonic() + _START_SECONDS
        hello, _ = self._receive(deadline)
        if hello.get("protocol") != protocol.VERSION:
            self.leave()
            raise Refused(
                "unavailable",
                f"its worker speaks protocol {hello.get('protocol')}, this conductor {protocol.VERSION}",
            )
        return self._answer(deadline)[0]

    def ask(
        self, op: str, *, seconds: float, arrays: tuple[NDArray[Any], ...] = (), **arguments: Any
    ) -> protocol.Message:
        """Let the process run until it has answered `op`, at most `seconds` long."""
        return self.ask_arrays(op, seconds=seconds, arrays=arrays, **arguments)[0]

    def ask_arrays(
        self, op: str, *, seconds: float, arrays: tuple[NDArray[Any], ...] = (), **arguments: Any
    ) -> tuple[protocol.Message, tuple[NDArray[Any], ...]]:
        """As `ask`, with the arrays that came with the answer."""
        deadline = time.monotonic() + seconds
        self._wake()
        self._begin({"op": op, **arguments}, arrays, deadline)
        return self._answer(deadline)

    def leave(self) -> None:
        """End the process, whatever it does, and free what it held."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()  # reaches a stopped process too
        self._process.wait()
        for pipe in (self._requests, self._replies):
            os.close(pipe)
        if self._log is not None:
            self._log.close()
        self._process = self._handle = self._log = None

    def _begin(self, message: protocol.Message, arrays: tuple[NDArray[Any], ...], deadline: float) -> None:
        try:
            protocol.send(self._requests, message, arrays, deadline)
        except protocol.Closed:
            raise self._died() from None
        except protocol.Late:
            self.leave()
            raise Hung("it took in no request before the deadline and was killed") from None

    def _answer(self, deadline: float) -> tuple[protocol.Message, tuple[NDArray[Any], ...]]:
        reply, arrays = self._receive(deadline)
        self._stop()
        if "error" in reply:
            raise Refused(reply["error"], reply["message"])
        return reply, arrays

    def _receive(self, deadline: float) -> tuple[protocol.Message, tuple[NDArray[Any], ...]]:
        started = time.monotonic()
        try:
            return protocol.receive(self._replies, deadline)
        except protocol.Closed:
            raise self._died() from None
        except protocol.Late:
            self.leave()
            raise Hung(f"no answer within {deadline - started:.0f} s; killed") from None

    def _wake(self) -> None:
        assert self._handle is not None, "start comes first"
        with contextlib.suppress(psutil.NoSuchProcess):
            self._handle.resume()

    def _stop(self) -> None:
        assert self._handle is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            self._handle.suspend()

    def _died(self) -> Died:
        assert self._process is not None and self._log is not None
        code = self._process.wait()
        last = self._last_words()
        self.leave()
        if code < 0:
            how = f"its process was killed by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                how += " (the system does this when memory runs out)"
        else:
            how = f"its process exited with status {code}"
        return Died(f"{how}: {last}" if last else how)

    def _last_words(self) -> str:
        """The last line it printed: most libraries say there why they abort."""
        assert self._log is not None
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines()]
        return next((line[:200] for line in reversed(lines) if line), "")
