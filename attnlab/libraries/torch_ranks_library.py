"""PyTorch in several processes: arrays that are cut along their length, a part a rank, and calls that all ranks join.

The process that opens this library starts the ranks (`attnlab.libraries.torch_rank`), as many as `use` says, and tells
them what to do; they exchange data among themselves, by gloo on the CPU and by NCCL on CUDA. An array begins as a whole
one here. A backend's ``prepare`` spreads it, ``spread(query, key, value)``, and its ``attend`` lets a function of its
file run on every rank, ``on_ranks(function, query, key, value, **options)``; what that returns stays on the ranks until
somebody asks for its numbers.

So the clock covers one word to every rank, the attention with its communication, and their words that they are done;
neither the cutting of the inputs nor the gathering of the output, which lies cut as a next layer would want it.
The ranks share the threads of this process. They are in its process group: stopped, resumed and killed with it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from attnlab.backends.library import Arrays, Call
from attnlab.errors import Declined, Unavailable
from attnlab.libraries.host import HostLibrary, tracer
from attnlab.libraries.torch_library import Torch
from attnlab.subprocesses import Channel, Closed, Subprocess, ready

#: the positions of a length in the order in which so many ranks are to hold them
Order = Callable[[int, int], Sequence[int]]
_LENGTH = 2
_COUNT = [2]
#: the ranks meet on this machine alone, whatever the name of its host stands for
_WHERE = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0"}
#: a rank that has closed its channel has this long to end by itself and say how
_ENDING_SECONDS = 2.0
#: a rank's exceptions that are the same here
_FAULTS: dict[str, type[Exception]] = {"Declined": Declined, "MemoryError": MemoryError}


def use(processes: int) -> None:
    """Let the next team have so many ranks."""
    _COUNT[0] = processes


class Sharded:
    """An array, (batch, heads, length, dim): whole in this process, or cut along its length over a team's ranks."""

    def __init__(
        self, library: TorchRanks, whole: Any = None, shape: tuple[int, ...] = (), dtype: str = ""
    ) -> None:
        self.library, self.whole = library, whole
        self.shape = shape if whole is None else tuple(whole.shape)
        self.dtype = dtype if whole is None else str(whole.dtype).removeprefix("torch.")
        #: under which the ranks hold it, and whether they are to remember the way to it
        self.key = -1
        self.remembers = False
        #: the positions in the order in which the ranks hold them, None where as they are
        self.order: Sequence[int] | None = None
        #: the same array cut, once somebody has asked for it
        self.cut: Sharded | None = None

    def swapaxes(self, one: int, other: int) -> Sharded:
        """A view with two axes exchanged; of a whole array."""
        return Sharded(self.library, self.tensor().swapaxes(one, other))

    def __getitem__(self, at: Any) -> Sharded:
        return Sharded(self.library, self.tensor()[at])

    def tensor(self) -> Any:
        """The whole of it, in this process."""
        return self.library.gathered(self) if self.whole is None else self.whole


def spread(*arrays: Sharded, order: Order | None = None) -> tuple[Sharded, ...]:
    """The same arrays, cut over the ranks; their positions in another order first, where one is given."""
    return tuple(one.library.spread(one, order) for one in arrays)


def on_ranks(function: Callable[..., Any], *arrays: Sharded, **options: Any) -> Sharded:
    """What ``function(ranks, *parts, **options)`` returns on every rank: the parts of one array, cut as the first is.

    function : of a module's top level, in a file that the ranks import. ranks : `attnlab.libraries.torch_rank.Ranks`.
    """
    return arrays[0].library.run(function, arrays, options)


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
                        fault = _FAULTS.get(kind, RuntimeError)
                        raise fault(f"rank {rank} of {self.count}: {answers[rank]}")
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


def _end(ranks: list[Subprocess]) -> None:
    for one in ranks:
        one.end()


class TorchRanks(HostLibrary):
    """See `attnlab.backends.library.Library`."""

    #: why no block is made around its attention
    no_projections = "what is cut over processes is the attention alone, without projections"

    name = "torch_ranks"
    thread_variables = Torch.thread_variables
    without_gradients = None
    arrays_of = "torch"
    in_place = False
    refill = None
    peak_method = "sum of the ranks' own peaks"

    @classmethod
    def open_on(cls, device: str) -> TorchRanks:
        """It on `device`, with a GPU for each process on CUDA. Raises Unavailable where these are missing."""
        return cls(device)

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device
        self._torch = Torch("cpu")
        self._threads: int | None = None
        self._team: Team | None = None
        self._keys = itertools.count()
        self._forgotten: list[int] = []
        self._beside: dict[str, float] = {}
        import torch

        if not torch.distributed.is_available():
            raise Unavailable("this PyTorch is built without torch.distributed")
        if device == "cuda" and torch.cuda.device_count() < _COUNT[0]:
            found = torch.cuda.device_count()
            raise Unavailable(f"{_COUNT[0]} processes need a CUDA device each, there are {found}")

    @property
    def team(self) -> Team:
        """The ranks; started now where there are none, other than were asked for since, or where a call failed."""
        if self._team is not None and self._team.count != _COUNT[0]:
            self._team.end()
        if self._team is None or self._team.ended:
            self._team = Team(_COUNT[0], self.device, threads_of(_COUNT[0], self._threads))
        return self._team

    # -- arrays in and out -------------------------------------------------------------------------

    def from_numpy(self, array: NDArray[Any], dtype: str) -> Sharded:
        return Sharded(self, self._torch.from_numpy(array, dtype))

    def to_numpy(self, array: Sharded) -> NDArray[Any]:
        return self._torch.to_numpy(array.tensor())

    def dtype_of(self, array: Sharded) -> str:
        return array.dtype

    def expanded(self, array: Sharded, shape: tuple[int, ...]) -> Sharded:
        return Sharded(self, array.whole.expand(shape))

    def fill(self, array: Sharded, where: Sharded, number: float) -> Sharded:
        return Sharded(self, array.tensor().masked_fill(where.whole, number))

    def shares_memory(self, one: Sharded, other: Sharded) -> bool:
        if one.whole is None or other.whole is None:
            return one.key == other.key >= 0
        return self._torch.shares_memory(one.whole, other.whole)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        raise Declined(self.no_projections)

    # -- what the ranks hold and do ----------------------------------------------------------------

    def spread(self, array: Sharded, order: Order | None = None) -> Sharded:
        """A whole array cut over the ranks, one that is cut already as it is."""
        if array.whole is None:
            return array
        if array.cut is None:
            array.cut = self._cut(array, order and order(array.shape[_LENGTH], self.team.count))
            array.cut.remembers = array.remembers
        return array.cut

    def _cut(self, array: Sharded, order: Sequence[int] | None) -> Sharded:
        """A copy of a whole array: the first ranks take one position more where they do not divide its length."""
        from attnlab.libraries.torch_rank import to_bytes

        whole = array.whole if order is None else array.whole[:, :, order]
        parts = whole.tensor_split(self.team.count, dim=_LENGTH)
        found = self._held(array.shape, array.dtype)
        found.order = order
        self.team.each([("put", found.key, to_bytes(one), tuple(one.shape), array.dtype) for one in parts])
        return found

    def gathered(self, array: Sharded) -> Any:
        """The whole of it as a tensor of this process."""
        import torch

        from attnlab.libraries.torch_rank import of_bytes

        parts = [of_bytes(data, shape, array.dtype) for data, shape in self.team.all("get", array.key)]
        whole = torch.cat(parts, dim=_LENGTH)
        return whole if array.order is None else whole[:, :, torch.tensor(array.order).argsort()]

    def run(self, function: Callable[..., Any], arrays: Arrays, options: dict[str, Any]) -> Sharded:
        """See `on_ranks`."""
        given = spread(*arrays)
        remembers = any(one.remembers for one in given)
        where = (function.__code__.co_filename, function.__name__)
        key = next(self._keys)
        self._forget()
        told = self.team.all("call", key, where, [one.key for one in given], options, remembers)
        found = self._result(key, told, given[0])
        found.remembers = remembers
        return found

    def _held(self, shape: tuple[int, ...], dtype: str, key: int | None = None) -> Sharded:
        found = Sharded(self, None, shape, dtype)
        found.key = next(self._keys) if key is None else key
        weakref.finalize(found, self._forgotten.append, found.key).atexit = False
        return found

    def _result(self, key: int, told: list[Any], like: Sharded) -> Sharded:
        """The array whose parts have these shapes and dtypes, cut as another is."""
        shapes = [shape for shape, _ in told]
        length = sum(shape[_LENGTH] for shape in shapes)
        found = self._held((*shapes[0][:_LENGTH], length, *shapes[0][_LENGTH + 1 :]), told[0][1], key)
        found.order = like.order
        return found

    def _forget(self) -> None:
        """Let the ranks free what nobody refers to any more; not answered, so that it takes no time of a call."""
        if self._forgotten:
            gone, self._forgotten[:] = list(self._forgotten), []
            self.team.tell("drop", gone)

    # -- gradients ---------------------------------------------------------------------------------

    def backward_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        output, leaves, upstream = self._remembered(attend, arrays, output_gradient)
        return lambda: self._gradients(output, leaves, upstream, keep=True)

    def training_call(self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Any) -> Call:
        _, leaves, upstream = self._remembered(attend, arrays, output_gradient)

        def call() -> tuple[Any, ...]:
            output = attend(*leaves)
            return output, *self._gradients(output, leaves, upstream, keep=False)

        return call

    def _remembered(
        self, attend: Callable[..., Any], arrays: Arrays, output_gradient: Sharded
    ) -> tuple[Sharded, tuple[Sharded, ...], Sharded]:
        """Output, leaves and the output's gradient, cut as `attend` cuts them: it alone knows how."""
        wholes = [Sharded(self, one.whole) for one in arrays]
        for one in wholes:
            one.remembers = True
        output = attend(*wholes)
        return output, spread(*wholes), self._cut(output_gradient, output.order)

    def _gradients(
        self, output: Sharded, leaves: tuple[Sharded, ...], upstream: Sharded, keep: bool
    ) -> tuple[Sharded, ...]:
        keys = [next(self._keys) for _ in leaves]
        told = self.team.all("gradients", keys, output.key, [one.key for one in leaves], upstream.key, keep)
        each = zip(keys, zip(*told, strict=True), leaves, strict=True)
        return tuple(self._result(key, list(of_all), leaf) for key, of_all, leaf in each)

    # -- instruments -------------------------------------------------------------------------------

    def peak_bytes(self, call: Call) -> int | None:
        if self.device == "cpu":
            tracer()  # where it is missing, the ranks need not fail to tell it
        self._forget()
        self.team.all("watch", "memory")
        output = call()
        told = self.team.all("watched")
        del output
        self._beside = {
            f"rank_{rank}_{what}": float(number)
            for rank, found in enumerate(told)
            for what, number in zip(("peak_bytes", "sent_bytes"), found, strict=True)
        }
        return sum(int(peak) for peak, _ in told)

    def beside_peak(self) -> dict[str, float]:
        """Of the last call whose peak was measured: each rank's own peak, and the bytes that it sent to others."""
        return self._beside

    def attest(self, call: Call) -> str:
        self.team.all("watch", "operators")
        call()
        return " + ".join(dict.fromkeys(self.team.all("watched")))

    def trim(self) -> None:
        if self._team is not None and not self._team.ended:
            self._forget()
            self._team.all("trim")

    def set_threads(self, count: int) -> None:
        self._threads = count
        self._torch.set_threads(count)
        if self._team is not None and not self._team.ended:
            self._team.all("threads", threads_of(self._team.count, count))

    def modes(self) -> dict[str, str]:
        count = _COUNT[0]
        between = "NCCL" if self.device == "cuda" else "gloo on the loopback device"
        threads = threads_of(count, self._threads)
        return {"processes": str(count), "threads of each": str(threads), "between them": between}

    def versions(self) -> dict[str, str]:
        return self._torch.versions()


LIBRARIES = (TorchRanks,)
