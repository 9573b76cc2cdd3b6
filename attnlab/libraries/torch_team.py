"""A team of ranks, as the process that started them sees it: processes of this machine, each at the end of a socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from attnlab.errors import Declined

#: the ranks meet on this machine alone, whatever the name of its host stands for
_WHERE = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}


def threads_of(count: int, threads: int | None) -> int:
    """Threads of each of `count` ranks that share so many, by default those that PyTorch would take here."""
    import torch

    return max(1, (torch.get_num_threads() if threads is None else threads) // count)


class Team:
    """So many ranks on `device`, with so many threads each. They end with this object, or when one fails at a word."""

    def __init__(self, count: int, device: str, threads: int) -> None:
        self.count, self.ended = count, False
        self._pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._end = weakref.finalize(self, _end, self._pipes, self._processes)
        with tempfile.TemporaryDirectory(prefix="attnlab-ranks-") as folder:
            for _ in range(count):
                self._start()
            store = f"{folder}/store"
            self.each([("join", rank, count, device, store, threads) for rank in range(count)])

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            module = [sys.executable, "-P", "-m", "attnlab.libraries.torch_rank", str(theirs.fileno())]
            where = {**os.environ, **_WHERE}
            self._processes.append(
                subprocess.Popen(module, pass_fds=(theirs.fileno(),), env=where, stdin=subprocess.DEVNULL)
            )
        self._pipes.append(Connection(ours.detach()))

    def all(self, *word: Any) -> list[Any]:
        """What each rank answers to one word, by rank. Raises RuntimeError where one fails, and Declined."""
        return self.each([word] * self.count)

    def each(self, words: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The same with a word for each."""
        if self.ended:
            raise RuntimeError("its ranks have ended: another call of theirs failed")
        answers: list[Any] = [None] * self.count
        asked: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        rank = 0
        try:
            for rank, word in enumerate(words):
                self._pipes[rank].send(word)
            while asked:
                for pipe in wait(
                    list(asked)
                ):  # whoever is ready: a rank that fails leaves others waiting for it
                    assert isinstance(pipe, Connection)
                    rank = asked.pop(pipe)
                    kind, answers[rank] = pipe.recv()
                    if kind != "answer":
                        raise _fault(kind, f"rank {rank} of {self.count}: {answers[rank]}")
        except (EOFError, OSError):
            self.end()
            status = self._processes[rank].returncode
            raise RuntimeError(f"rank {rank} of {self.count} ended, with status {status}") from None
        except BaseException:
            self.end()
            raise
        return answers

    def tell(self, *word: Any) -> None:
        """One word to every rank, which does not answer it. One that has ended is found by the next."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(word)

    def end(self) -> None:
        """End all ranks, whatever they do."""
        self.ended = True
        self._end()


def _fault(kind: str, text: str) -> Exception:
    """A rank's exception, here."""
    return {"Declined": Declined, "MemoryError": MemoryError}.get(kind, RuntimeError)(text)


def _end(pipes: list[Connection], processes: list[subprocess.Popen[bytes]]) -> None:
    for process, pipe in zip(processes, pipes, strict=False):
        pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that has failed by itself tells its status
            process.wait(0.05)
        process.kill()
        process.wait()
