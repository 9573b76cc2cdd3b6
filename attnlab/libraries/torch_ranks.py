"""Ranks: processes of PyTorch that hold parts of arrays and compute on them together, connected by gloo.

`team` starts them. Whole arrays come and go through shared memory: `Team.put` gives every rank its positions of an
array, and in `Team.call` every rank runs a function of a backend's file and writes its part of the results. Ranks
exchange data among themselves by `Ranks.pass_on`. They share the threads of the process that started them, and belong
to its process group: they are stopped, resumed and killed with it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import math
import os
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from attnlab.processes import Channel, Failed, Process, ready
from attnlab.processes import serve as answer

#: for each rank the stretches (start, stop) of a length that it holds, in its order
Cut = Sequence[Sequence[tuple[int, int]]]
#: axis of the length in (batch, heads, length, dim)
_LENGTH = 2
#: seconds that a rank has for one answer; whoever asks this process ends it sooner
_SECONDS = 3600.0


def even(length: int, count: int) -> Cut:
    """One stretch for each rank; the first ones take one position more where `count` does not divide `length`."""
    ends = [0, *itertools.accumulate(length // count + (rank < length % count) for rank in range(count))]
    return [[one] for one in itertools.pairwise(ends)]


class Held:
    """An array, or what a call keeps, on the ranks under `key`: freed there when nothing refers to it here."""

    def __init__(self, key: int) -> None:
        self.key = key


class Team:
    """`count` ranks with `threads` threads each. They end with this object, and when one of them fails."""

    def __init__(self, count: int, threads: int) -> None:
        self.count, self.ended = count, False
        self._keys, self._freed = itertools.count(), list[int]()
        self._ranks: list[Process] = []
        self._end = weakref.finalize(self, _end, self._ranks)
        with tempfile.TemporaryDirectory(prefix="attnlab-ranks-") as folder:
            for _ in range(count):
                # the ranks meet on the loopback device, whatever the name of this host stands for
                environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
                target = "attnlab.libraries.torch_ranks:serve"
                self._ranks.append(Process(target, environment=environment, own_group=False))
            each = [{"rank": rank} for rank in range(count)]
            self.ask("join", each, count=count, store=f"{folder}/store", threads=threads)

    def ask(self, op: str, each: Sequence[dict[str, Any]] = (), **arguments: Any) -> list[Any]:
        """What the method `op` of `Rank` answers on every rank, which has arguments of its own in `each`.

        Raises RuntimeError, and ends all ranks, where one fails.
        """
        if self.ended:
            raise RuntimeError("the ranks have ended: an earlier call of theirs failed")
        answers: list[Any] = [None] * self.count
        waiting: dict[Channel, tuple[int, Callable[[], Any]]] = {}
        rank = 0
        try:
            for rank, one in enumerate(self._ranks):
                own = each[rank] if each else {}
                waiting[one.channel] = rank, one.begin(op, seconds=_SECONDS, **arguments, **own)
            while waiting:
                for channel in ready(list(waiting)):  # a rank that fails leaves others waiting for it
                    rank, answered = waiting.pop(channel)
                    answers[rank] = answered()
        except Failed as fault:
            self.end()
            raise RuntimeError(f"rank {rank} of {self.count}: {fault}") from None
        except BaseException:
            self.end()
            raise
        return answers

    def end(self) -> None:
        """End all ranks."""
        self.ended = True
        self._end()

    def put(self, tensor: Tensor, cut: Cut) -> Held:
        """A copy of the tensor's positions on every rank."""
        held = self._held()
        with _shared(tensor.shape, tensor.dtype) as (whole, place):
            whole.copy_(tensor.detach())
            self.ask("put", [{"stretches": at} for at in cut], key=held.key, place=place)
        return held

    def call(
        self,
        function: Callable[..., Any],
        given: Sequence[Held],
        results: Sequence[tuple[Sequence[int], torch.dtype, Cut]],
        **options: Any,
    ) -> tuple[list[Tensor], Held]:
        """Run ``function(ranks, *given, **options)`` on every rank: it returns its parts, and what to keep.

        function : of a file that the ranks import, by name. results : shape, dtype and cut of each.
        """
        where, kept = (function.__code__.co_filename, function.__name__), self._held()
        freed, self._freed[:] = list(self._freed), []
        with contextlib.ExitStack() as stack:
            wholes = [stack.enter_context(_shared(shape, dtype)) for shape, dtype, _ in results]
            each = [
                {"into": [(place, cut[rank]) for (_, place), (*_, cut) in zip(wholes, results, strict=True)]}
                for rank in range(self.count)
            ]
            keys = [one.key for one in given]
            self.ask("call", each, where=where, given=keys, kept=kept.key, options=options, freed=freed)
        return [whole for whole, _ in wholes], kept

    def _held(self) -> Held:
        held = Held(next(self._keys))
        weakref.finalize(held, self._freed.append, held.key).atexit = False
        return held


def _end(ranks: Sequence[Process]) -> None:
    for one in ranks:
        one.end()


Place = tuple[str, tuple[int, ...], str]


@contextlib.contextmanager
def _shared(shape: Sequence[int], dtype: torch.dtype) -> Iterator[tuple[Tensor, Place]]:
    """A new tensor in shared memory, and where other processes find it until this ends."""
    number = os.memfd_create("attnlab")
    try:
        place = f"/proc/{os.getpid()}/fd/{number}", tuple(shape), str(dtype).removeprefix("torch.")
        yield _mapped(place), place
    finally:
        os.close(number)


def _mapped(place: Place) -> Tensor:
    path, shape, dtype = place
    return torch.from_file(path, shared=True, size=math.prod(shape), dtype=getattr(torch, dtype)).reshape(
        shape
    )


_TEAMS: dict[tuple[int, int], Team] = {}


def team(count: int) -> Team:
    """`count` ranks that share the threads of this process; the ranks before are ended if they were others."""
    asked = count, max(1, torch.get_num_threads() // count)
    if asked not in _TEAMS or _TEAMS[asked].ended:
        for one in _TEAMS.values():
            one.end()
        _TEAMS.clear()
        _TEAMS[asked] = Team(*asked)
    return _TEAMS[asked]


# -- on a rank ------------------------------------------------------------------------------------------


class Rank:
    """One rank: what it holds, and its answers. Its `Team` asks for all methods but `pass_on`."""

    def __init__(self) -> None:
        self.rank, self.count = 0, 1
        self._held: dict[int, Any] = {}

    def join(self, rank: int, count: int, store: str, threads: int) -> None:
        """Meet the others."""
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.rank, self.count = rank, count
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)

    def put(self, key: int, place: Place, stretches: Sequence[tuple[int, int]]) -> None:
        """Keep a copy of these stretches of an array."""
        whole = _mapped(place)
        self._held[key] = torch.cat([whole[:, :, start:stop] for start, stop in stretches], dim=_LENGTH)

    def call(
        self,
        where: tuple[str, str],
        given: Sequence[int],
        kept: int,
        into: Sequence[tuple[Place, Sequence[tuple[int, int]]]],
        options: dict[str, Any],
        freed: Sequence[int],
    ) -> None:
        """Run a function of a backend's file, and write its results where they belong."""
        for key in freed:
            self._held.pop(key, None)
        results, self._held[kept] = _function(*where)(self, *(self._held[one] for one in given), **options)
        for result, (place, stretches) in zip(results, into, strict=True):
            whole = _mapped(place)
            parts = result.split([stop - start for start, stop in stretches], dim=_LENGTH)
            for part, (start, stop) in zip(parts, stretches, strict=True):
                whole[:, :, start:stop] = part

    def pass_on(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Send a tensor to the next rank; returned waits for the one that comes from the rank before."""
        if self.count == 1:
            return lambda: tensor
        tensor, found = tensor.contiguous(), torch.empty_like(tensor, memory_format=torch.contiguous_format)
        to_next = distributed.P2POp(distributed.isend, tensor, (self.rank + 1) % self.count)
        from_last = distributed.P2POp(distributed.irecv, found, (self.rank - 1) % self.count)
        waiting = distributed.batch_isend_irecv([to_next, from_last])

        def arrived() -> Tensor:
            for one in waiting:
                one.wait()
            return found

        return arrived


@functools.cache
def _function(file: str, name: str) -> Callable[..., Any]:
    """A function of a backend's file."""
    spec = importlib.util.spec_from_file_location(f"attnlab_on_ranks.{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Any] = getattr(module, name)
    return found


def serve(channel: Channel) -> None:
    """Answer requests until the channel closes."""
    answer(channel, Rank())
    os._exit(0)  # at once: other ranks, for which gloo would wait, may have ended
