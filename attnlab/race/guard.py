"""Nobody outlives the conductor: a process that waits for its end and then ends what its workers left running."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from attnlab.subprocesses import Channel, Closed, Subprocess

#: the environment variable that tells whose worker a process comes from
MARK = "ATTNLAB_CONDUCTOR"
#: how often `sweep` looks at most, and how long it waits each time until the killed are gone
_LOOKS, _GOING_SECONDS = 10, 1.0


class Guard:
    """A process that waits for this one's end and then ends what its workers left running.

    A worker dies with its conductor, but what a backend has started does not, and a worker's children may have left its
    process group. All of them carry the conductor's mark in their environment. The guard is there while workers are,
    and takes no processor time.
    """

    def __init__(self) -> None:
        self.mark = ""
        self._owner = 0
        self._watched: set[int] = set()
        self._process: Subprocess | None = None

    def watch(self, owner: object) -> str:
        """Guard what `owner` will start; the mark that its environment must carry."""
        if self._owner != os.getpid():  # a forked process has workers and a mark of its own
            self.mark, self._owner, self._process = secrets.token_hex(8), os.getpid(), None
            self._watched = set()
        if self._process is None:
            self._process = Subprocess("attnlab.race.guard:guard", output=subprocess.DEVNULL)
            self._process.channel.send(self.mark)
        self._watched.add(id(owner))
        return self.mark

    def leave(self, owner: object) -> None:
        """`owner` has ended; with the last one goes whatever it left running, and the guard."""
        self._watched.discard(id(owner))
        if self._watched or self._process is None or self._owner != os.getpid():
            return
        sweep(self.mark)
        self._process.end()
        self._process = None


GUARD = Guard()


def guard(channel: Channel) -> None:
    """In the guard's process: sweep when the conductor is gone, and remove the folders of its workers."""
    mark = channel.receive()
    with contextlib.suppress(Closed):
        channel.receive()
    sweep(mark)
    for left in Path(tempfile.gettempdir()).glob(f"{place_of(mark)}*"):
        shutil.rmtree(left, ignore_errors=True)


def place_of(mark: str) -> str:
    """How the names of the folders begin, among the temporary ones, in which processes with this mark are."""
    return f"attnlab-{mark}-"


def sweep(mark: str) -> None:
    """Kill every process with this mark in its environment, this one aside, and see them go.

    Looks again until none is found, as one may have started another meanwhile.
    """
    for _ in range(_LOOKS):
        found = marked(mark)
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error, OSError):
                process.kill()
        psutil.wait_procs(found, timeout=_GOING_SECONDS)


def marked(mark: str) -> list[psutil.Process]:
    """The processes with this mark in their environment that have not ended, this one aside."""
    found = []
    for process in psutil.process_iter():
        # of another user's process the environment is not to be read: it is none of ours
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found
