"""A team of ranks, as the process that started them sees it: processes of this machine, at the end of channels."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import weakref
from collections.abc import Sequence
from typing import Any

from attnlab.errors import Declined
from attnlab.subprocesses import Channel, Closed, Subprocess, ready

#: the ranks meet on this machine alone, whatever the name of its host stands for
_WHERE = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
#: a rank that has closed its channel has this long to end by itself and say how
_ENDING_SECONDS = 2.0


def threads_of(count: int, threads: int | None) -> int:
    """Threads of each of `count` ranks that share so many, by default those that PyTorch would take here."""
    import torch

    return max(1, (torch.get_num_threads() if threads is None else threads) // count)


class Team:
    """So many ranks on `device`, with so many threads each. They end with this object, or when one fails at a word."""

    def __init__(self, count: int, device: str, threads: int) -> None:
        self.count, self.ended = count, False
        self._ranks: list[Subprocess] = []
        self._end = weakref.finalize(self, _end, self._ranks)
        with tempfile.TemporaryDirectory(prefix="attnlab-ranks-") as folder:
            for _ in range(count):
                # in the group of this process: stopped and ended with it
                target, where = "attnlab.libraries.torch_rank:serve", {**os.environ, **_WHERE}
                self._ranks.append(Subprocess(target, environment=where, own_group=False))
            store = f"{folder}/store"
            self.each([("join", rank, count, device, store, threads) for rank in range(count)])

    def all(self, *word: Any) -> list[Any]:
        """What each rank answers to one word, by rank. Raises RuntimeError where one fails, and Declined."""
        return self.each([word] * self.count)

    def each(self, words: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The same with a word for each."""
        if self.ended:
            raise RuntimeError("its ranks have ended: another call of theirs failed")
        answers: list[Any] = [None] * self.count
        asked: dict[Channel, int] = {one.channel: rank for rank, one in enumerate(self._ranks)}
        rank = 0
        try:
            for rank, word in enumerate(words):
                self._ranks[rank].channel.send(word)
            while asked:
                # whoever is ready: a rank that fails leaves others waiting for it
                for channel in ready(list(asked)):
                    rank = asked.pop(channel)
                    kind, answers[rank] = channel.receive()
                    if kind != "answer":
                        raise _fault(kind, f"rank {rank} of {self.count}: {answers[rank]}")
        except Closed:
            how = self._ranks[rank].ended(_ENDING_SECONDS) or "closed its channel"
            self.end()
            raise RuntimeError(f"rank {rank} of {self.count} {how}") from None
        except BaseException:
            self.end()
            raise
        return answers

    def tell(self, *word: Any) -> None:
        """One word to every rank, which does not answer it. One that has ended is found by the next."""
        for one in self._ranks:
            with contextlib.suppress(Closed):
                one.channel.send(word)

    def end(self) -> None:
        """End all ranks, whatever they do."""
        self.ended = True
        self._end()


def _fault(kind: str, text: str) -> Exception:
    """A rank's exception, here."""
    return {"Declined": Declined, "MemoryError": MemoryError}.get(kind, RuntimeError)(text)


def _end(ranks: list[Subprocess]) -> None:
    for one in ranks:
        one.end()
