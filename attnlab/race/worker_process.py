"""The conductor's side of a contender's process: start it, ask it, stop it between requests, end it.

The process may run only while it answers a request; between requests it is stopped (`attnlab.subprocesses` sends the
SIGSTOP), with its device work done, so that no idle thread pool spins beside another contender on the clock. When it
crashes or hangs, the request raises an error that says why, and the process can be started again.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar

import psutil

from attnlab import system
from attnlab.backends.contender import Contender, huge_pages_refused
from attnlab.backends.discovery import before_fork
from attnlab.backends.library import Import
from attnlab.errors import Unavailable
from attnlab.race.guard import GUARD, MARK, place_of
from attnlab.subprocesses import Closed, Garbled, Interpreter, Late, Subprocess
from attnlab.text import one_line
from attnlab.workload.result import Outcome

_START_SECONDS = 120.0
#: a forked process has imported its library already: one that does not answer within this is started afresh
_FORKED_SECONDS = 30.0
SERVE = "attnlab.race.worker:serve"
#: a process that has closed its channel has this long to end by itself and say how
_ENDING_SECONDS = 2.0
#: how much of the end of its log is read, and how many of the lines there are kept with a result
_LAST_BYTES, _LAST_LINES = 4096, 10
#: a longer log is cut when the process is stopped
_MOST_LOG_BYTES = 2**20
#: signals by which others end a process, and by which the system does
_FROM_OUTSIDE = ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
#: what a signal that ended a process tells
_CAUSES = {
    "SIGKILL": " (the system does this when memory runs out)",
    "SIGILL": " (an instruction that this processor does not have: the build is for another)",
}


class NoAnswer(Exception):
    """A request has no answer; `outcome` is what becomes of the contender on this workload.

    `tail` is the end of what its process printed, where that ended.
    """

    outcome: Outcome
    #: whether a signal has ended its process that may have come from somebody else
    from_outside = False

    def __init__(self, message: str, tail: str = "") -> None:
        super().__init__(message)
        self.tail = tail


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


class Ended(NoAnswer):
    """The race has an outcome of its own for a contender."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


class Died(NoAnswer):
    """The worker's process ended while it was asked, or answered what is no answer; the message says how."""

    outcome = Outcome.CRASHED


class Hung(NoAnswer):
    """The worker did not answer before its deadline and was killed."""

    outcome = Outcome.TIMED_OUT


class WorkerProcess:
    """One contender's process. Every request raises NoAnswer where there is none."""

    def __init__(
        self, contender: Contender, folders: Sequence[str] = (), start_seconds: float = _START_SECONDS
    ) -> None:
        self.contender = contender
        self.start_seconds = start_seconds
        self._start_deadline = self._asked = math.inf
        #: whether the answer to the first request is still to come
        self.starting = False
        #: the array library of its backend, once that is loaded
        self.library: str | None = None
        #: the operator that its backend asks for by name, the number format that it computes in, and the parts that it
        #: merges; see `Backend`
        self.asked_kernel: str | None = None
        self.computes_in: str | None = None
        self.parts = 1
        self._given = self._folders = tuple(str(Path(folder).resolve()) for folder in folders)
        self._interpreter = Interpreter()
        self._process: Subprocess | None = None
        self.log: IO[bytes] | None = None
        #: where its process is, and nothing else
        self._place: tempfile.TemporaryDirectory[str] | None = None
        #: whether its process was forked and has not been timed yet; whether it may be forked at all
        self._forked, self.forks = False, True
        #: why its process was started afresh
        self.afresh: str | None = None
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
        return None if self._process is None else self._process.number

    def resident_bytes(self) -> int:
        """Its own memory and its children's, shared libraries not counted where the system tells; 0 where none runs."""
        return (
            0 if self.number is None else sum(map(_own_bytes, (self.number, *system.started_by(self.number))))
        )

    def start(self, op: str = "load", **arguments: Any) -> None:
        """Start a fresh process with a first request, by default to load its backend.

        `finish_start` waits for the answer, so that several processes can start side by side.
        """
        try:
            environment = self.open()
            self._process = Subprocess(
                SERVE, environment=environment, output=self.log, interpreter=self._interpreter
            )
        except OSError as fault:
            self.end()
            raise Refused("unavailable", f"no process could be started for it: {fault}") from None
        except BaseException:
            self.end()
            raise
        self._forked = False
        self._first(op, arguments, self.start_seconds)

    def before_fork(self) -> tuple[str, ...] | None:
        """The modules that a process imports from which this one can be forked; None where it is to start by itself.

        Raises Refused where what it runs in is not to be had.
        """
        self._find_side()
        return before_fork(self.contender.backend, self._folders)

    @property
    def interpreter(self) -> Interpreter:
        """Of its process."""
        return self._interpreter

    def _find_side(self) -> None:
        if self.contender.elsewhere:
            from attnlab.backends.side import side_of

            try:
                side = side_of(self.contender, self._given)
            except Unavailable as fault:
                raise Refused("unavailable", str(fault)) from None
            self._interpreter, self._folders = side.interpreter, side.folders

    def open(self) -> dict[str, str]:
        """Open its log, and an empty folder; the environment that its process has to have. Raises Refused."""
        self._find_side()
        refused = huge_pages_refused() if self.contender.pages == "huge" else None
        if refused:
            raise Refused("unavailable", refused)
        # appended to from wherever its end is: it is cut between requests
        log = tempfile.TemporaryFile("a+b", prefix="attnlab-worker-")  # noqa: SIM115 (`end` closes it)
        self.log = log
        mark = GUARD.watch(self)
        self._place = tempfile.TemporaryDirectory(prefix=place_of(mark), ignore_cleanup_errors=True)
        return {**self.contender.environment(os.environ), **_padding(), MARK: mark}

    def adopt(self, process: Subprocess | str) -> None:
        """Go on with a process that was forked for it, after `open`, as after `start`; with a fresh one where that says
        why there is none.
        """
        if isinstance(process, str):
            self.end()
            self._restart(process)
            return
        self._process, self._forked = process, True
        self._first("load", {}, min(self.start_seconds, _FORKED_SECONDS))

    def _first(self, op: str, arguments: dict[str, Any], seconds: float) -> None:
        self._importing = None
        if op == "load":
            arguments = {"contender": self.contender, "folders": self._folders}
        self._start_deadline, self.starting = time.monotonic() + seconds, True
        assert self._place is not None, "open comes first"
        self._begin(op, arguments, self._start_deadline, self._place.name)

    def _restart(self, why: str) -> None:
        self.afresh = why
        self.start()

    def excuse(self, fault: NoAnswer, when: str) -> bool:
        """Whether its process may have ended by no fault of its contender's; then a fresh one is starting.

        By a signal of somebody else's, or because it was forked: what a thread had locked then stays locked for ever.
        `afresh` says why, and `when`.
        """
        if not (self._forked or fault.from_outside):
            return False
        self.forks = self.forks and fault.from_outside
        self._restart(f"{when} {fault}")
        return True

    def finish_start(self, excusing: bool = False) -> Any:
        """Wait for the answer to the first request, and return it; the process is stopped after it.

        The deadline is one for all that start side by side: those that hang do not add up. excusing : a process that
        ends and has an `excuse` is started afresh: then it is still `starting`, and to be waited for again. None then,
        and where it was waited for before.
        """
        if not self.starting:
            return None
        self.starting = False
        try:
            answer = self._answer(self._start_deadline)
        except (Died, Hung) as fault:
            if not excusing or not self.excuse(fault, "at its start"):
                raise
            return None
        if isinstance(answer, dict) and "computes_in" in answer:
            self.library, self.asked_kernel = answer["library"], answer["kernel"]
            self.computes_in = answer["computes_in"]
        return answer

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> Any:
        """Let the process run until it has answered `op`, a method of `Worker`, at most `seconds` long."""
        return self.begin(op, seconds=seconds, **arguments)()

    def begin(self, op: str, *, seconds: float, **arguments: Any) -> Callable[[], Any]:
        """Let the process run on `op`; a call of what is returned waits for the answer and stops it again."""
        deadline = time.monotonic() + seconds
        if self._process is None:
            raise Died("its process has ended before")
        self._process.go_on()
        self._begin(op, arguments, deadline)
        self._forked = self._forked and op != "measure"
        return lambda: self._answer(deadline)

    def answered(self) -> bool:
        """Whether the answer to the request that was begun starts to arrive, or cannot arrive any more."""
        assert self._process is not None
        return self._process.channel.ready()

    def end(self) -> None:
        """End the process, whatever it does, and free what it held."""
        if self._process is not None:
            self._process.end()
        if self.log is not None:
            GUARD.leave(self)
            self.log.close()
        if self._place is not None:
            self._place.cleanup()
        self._process = self.log = self._place = None

    def _begin(self, op: str, arguments: dict[str, Any], deadline: float, *before: Any) -> None:
        assert self._process is not None
        self._number, self._asked = self._number + 1, time.monotonic()
        try:
            with contextlib.suppress(Closed):  # how it ended is told when it is asked for the answer
                for message in (*before, (self._number, op, arguments)):
                    self._process.channel.send(message, deadline)
        except Late:
            raise self._ended(Hung, "it took in no request before the deadline and was killed") from None

    def _answer(self, deadline: float) -> Any:
        assert self._process is not None and self.log is not None
        number, kind, told = self._receive(deadline)
        if number != self._number:
            raise self._ended(Died, "it answered another question than it was asked, and was killed")
        self._process.stop()
        if os.fstat(self.log.fileno()).st_size > _MOST_LOG_BYTES:
            os.ftruncate(self.log.fileno(), 0)
        if kind != "answer":
            raise Refused(kind, str(told))
        return told

    def _receive(self, deadline: float) -> tuple[int, str, Any]:
        assert self._process is not None
        try:
            while True:
                number, kind, told = self._process.channel.receive(deadline)
                if kind != "importing":
                    break
                self._importing = Import(*map(str, told))
            if kind != "answer" and kind not in Refused.outcomes:
                raise Garbled(f"an answer of an unknown kind, {kind!r}")
        except Closed:
            raise self._died() from None
        except (Garbled, TypeError, ValueError) as fault:
            said = str(fault) if isinstance(fault, Garbled) else "a message that is no answer"
            raise self._ended(Died, f"its process sent {said}, and was killed") from None
        except Late:
            where, mend = self._at_import()
            said = f"no answer within {deadline - self._asked:.0f} s{where}; killed{mend}"
            raise self._ended(Hung, said) from None
        self._importing = None
        return number, kind, told

    def _died(self) -> NoAnswer:
        assert self._process is not None
        how = self._process.ended(_ENDING_SECONDS)
        if how is None:
            how = "closed its channel to the conductor, and was killed"
        where, mend = self._at_import()
        tail = self._tail()
        last = f": {tail.splitlines()[-1]}" if tail else ""
        signal = how.rpartition(" ")[2]
        died = self._ended(Died, f"its process {how}{_CAUSES.get(signal, '')}{where}{last}{mend}")
        died.from_outside = signal in _FROM_OUTSIDE
        return died

    def _ended(self, kind: type[Died] | type[Hung], why: str) -> NoAnswer:
        """End it; the error that says why."""
        tail = self._tail()
        self.end()
        return kind(why, tail)

    def _at_import(self) -> tuple[str, str]:
        """Where a process ended that was importing a library, and what mends that; nothing where it was not."""
        if self._importing is None:
            return "", ""
        module, mend = self._importing
        return f" while it imported {module}", f"; {mend}"

    def _tail(self) -> str:
        """The last lines that it printed, where most libraries say why they abort; each in one safe line."""
        assert self.log is not None
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = (one_line(line, 200) for line in self.log.read().decode(errors="replace").splitlines())
        return "\n".join(deque(filter(None, lines), maxlen=_LAST_LINES))


def _own_bytes(number: int) -> int:
    with contextlib.suppress(psutil.Error):  # it may have ended
        process = psutil.Process(number)
        try:
            return int(process.memory_full_info().uss)
        except (psutil.AccessDenied, AttributeError):
            return int(process.memory_info().rss)
    return 0


def _padding() -> dict[str, str]:
    """A variable of random length: it moves the stack, on which the speed of some loops depends.

    Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!".
    """
    return {"ATTNLAB_PADDING": "x" * random.SystemRandom().randrange(4096)}
