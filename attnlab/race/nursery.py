"""A nursery is a process that has imported an array library and forks workers, so that no visit imports it again.

A nursery starts no thread and opens no device. A worker becomes a child of the conductor, with its own process group.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence

from attnlab.libraries.library import libraries
from attnlab.processes import Channel, Closed, Failed, Process
from attnlab.system import adopt_orphans, die_with_parent

WORK = "attnlab.race.worker:work"
#: seconds in which a forked process must become a child of the conductor
_ADOPTING_SECONDS = 10.0


class Nursery:
    """The conductor's side. Raises Failed and OSError if there can be none; then workers are started without it."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], seconds: float) -> None:
        if sys.platform != "linux":
            raise Failed("unavailable", "only Linux lets a process adopt another's child")
        self._process = Process("attnlab.race.nursery:tend", environment=environment)
        self._begun, self._until = (modules, os.getpid()), time.monotonic() + seconds
        self._process.channel.send(self._begun)
        self._ready = False

    def wait(self) -> None:
        """Return when the nursery has imported its library. Raises Failed."""
        if not self._ready:
            self._process.channel.receive(self._until)
            self._ready = True

    def fork(self) -> Process:
        """Fork a worker. If that fails, raises Failed and ends the nursery."""
        channel, (ours, theirs) = self._process.channel, socket.socketpair()
        log = tempfile.TemporaryFile("a+b", prefix="attnlab-")  # noqa: SIM115 (the process closes it)
        adopt_orphans()
        try:
            self.wait()
            socket.send_fds(channel.socket, [b"."], [theirs.fileno(), log.fileno()])
            channel.receive(time.monotonic() + _ADOPTING_SECONDS)
            theirs.close()
            number = Channel(ours).receive(time.monotonic() + _ADOPTING_SECONDS, int)
        except (Failed, OSError) as fault:
            for one in (ours, log, self):
                one.close()
            raise Failed("crashed", f"it could not be forked: {fault}") from None
        finally:
            theirs.close()
            adopt_orphans(False)
        return Process.forked(number, Channel(ours), log)

    def close(self) -> None:
        """End the nursery. Workers that it has forked go on."""
        self._process.end()


def tend(channel: Channel) -> None:
    """In the nursery: import, then fork a worker for each pair of open files that arrives: its channel and its log."""
    modules, guardian = channel.receive()
    for module in (*modules, WORK.partition(":")[0]):
        importlib.import_module(module)
    libraries()  # else each worker would import them; memray too
    with contextlib.suppress(ImportError):
        importlib.import_module("memray")
    gc.collect()
    gc.freeze()  # else a collection would copy the pages that all share
    channel.send("ready")
    with contextlib.suppress(Closed, OSError):
        while files := socket.recv_fds(channel.socket, 1, 2)[1]:
            between = os.fork()
            if not between:
                _born(guardian, *files)
            for number in files:
                os.close(number)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(between, 0)
            channel.send("forked")


def _born(guardian: int, own: int, log: int) -> None:
    """In the process between nursery and worker: fork the worker and end, so that the conductor becomes its parent."""
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
        for number in (1, 2):
            os.dup2(log, number)
        until = time.monotonic() + _ADOPTING_SECONDS
        while os.getppid() != guardian and time.monotonic() < until:
            time.sleep(2e-4)
        die_with_parent()
        if os.getppid() == guardian:  # else the conductor has ended
            channel = Channel(socket.socket(fileno=own))
            channel.socket.set_inheritable(False)
            os.register_at_fork(after_in_child=channel.socket.close)
            channel.send(os.getpid())
            module, _, name = WORK.partition(":")
            getattr(importlib.import_module(module), name)(channel)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    finally:
        os._exit(0)
