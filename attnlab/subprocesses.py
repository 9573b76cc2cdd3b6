"""Work in lanes: processes of their own, beside the one that asked for it.

`work_in_lanes` does one piece of work on several parts side by side, the first part here, each other in a lane.
`Aside` is a piece of work in a lane while the caller goes on with another. What is told in any lane arrives here, in
the thread that asked for it. A lane ends with the process that started it, and ends what it started itself. Its
interpreter is a fresh one, as a worker's is: nothing is forked.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import IO, Any, Generic, TypeVar

from attnlab.system import die_with_parent

#: a lane that is told to end has this long to end what it started
_ENDING_SECONDS = 5.0

Part = TypeVar("Part")
Found = TypeVar("Found")
Tell = Callable[[Any], None]
#: works on a part and tells what it finds. In a lane all of it is pickled: the function, the part and what is told
Work = Callable[[Part, Tell], None]


class Enough(Exception):
    """Raised by who is told: the rest need not be known."""


class Broken(RuntimeError):
    """The work in a lane raised, or its process ended before the work did; the message says how."""


def work_in_lanes(work: Work[Part], parts: Sequence[Part], tell: Tell) -> None:
    """`work` on all of `parts` at once, until it is done or `tell` raises; no process is left behind.

    What other lanes tell is passed on whenever the work in this process tells something, and after it. What `tell`
    raises comes through, but for `Enough`. Raises Broken for a lane that broke.
    """
    lanes: list[_Lane] = []

    def told_here(message: Any) -> None:
        for lane in lanes:
            while lane.working and lane.reports.poll():
                lane.pass_on(tell)
        tell(message)

    try:
        for part in parts[1:]:
            lanes.append(_Lane(work, part))
        work(parts[0], told_here)
        while working := {lane.reports: lane for lane in lanes if lane.working}:
            for reports in wait(list(working)):
                working[reports].pass_on(tell)  # type: ignore[index]
    except Enough:
        pass
    finally:
        for lane in lanes:
            lane.ask_to_end()
        for lane in lanes:
            lane.end()


class Aside(Generic[Part, Found]):
    """``function(part)`` in a lane, from now on, while the caller does something else.

    The function, the part and what comes of it are pickled. The lane ends with this object at the latest, also where
    nobody asks for the result.
    """

    def __init__(self, function: Callable[[Part], Found], part: Part) -> None:
        self._lane = _Lane(_tell_result, (function, part))
        self._end = weakref.finalize(self, _Lane.end, self._lane)

    def result(self) -> Found:
        """What came of it, once it is there; to be asked for once. Raises Broken."""
        told: list[Found] = []
        try:
            while self._lane.working:
                self._lane.pass_on(told.append)
        finally:
            self._end()
        return told[0]


def _tell_result(asked: tuple[Callable[[Part], Any], Part], tell: Tell) -> None:
    function, part = asked
    tell(function(part))


class _Lane:
    """A process that works on one part; `reports` is what it tells, until it is no longer `working`."""

    def __init__(self, work: Work[Part], part: Part) -> None:
        self.working = True
        self.reports, theirs = Pipe(duplex=False)
        asked = pickle.dumps((work, part))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab.subprocesses", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches the caller alone, which ends its lanes
            )
        # it reads when it has started, which nobody need wait for
        threading.Thread(target=_write, args=(self._process.stdin, asked), daemon=True).start()

    def pass_on(self, tell: Tell) -> None:
        """Wait for what it tells next, and tell it."""
        try:
            kind, message = self.reports.recv()
        except (EOFError, OSError):
            status = self._process.wait()
            how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"
            raise Broken(f"a process that was to do a part of the work {how}") from None
        if kind == "raised":
            raise Broken(f"a process that was to do a part of the work raised:\n{message}")
        if kind == "done":
            self.working = False
        else:
            tell(message)

    def ask_to_end(self) -> None:
        """Let it end what it started, and itself."""
        self._process.terminate()

    def end(self) -> None:
        """Ask it to end, where it was not asked, and wait until it has; one that does not is killed."""
        self.ask_to_end()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # what it started dies with it, where the system can
            self._process.wait()
        self.reports.close()


def _write(to_lane: IO[bytes], asked: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), to_lane:
        to_lane.write(asked)


def main(reports: Connection) -> None:
    """In a lane: do what standard input says and report it; to be told to end is to leave the work by an exception."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    die_with_parent()
    try:
        work, part = pickle.load(sys.stdin.buffer)
        work(part, lambda message: reports.send(("told", message)))
        reports.send(("done", None))
    except BrokenPipeError:
        pass  # who started it has gone
    except Exception:
        reports.send(("raised", traceback.format_exc()))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is left to be ended


if __name__ == "__main__":
    main(Connection(int(sys.argv[1]), readable=False))
