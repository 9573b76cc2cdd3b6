"""One rank of a team: it holds its parts of arrays and does what it is told, together with the others.

Started by `attnlab.libraries.torch_ranks_library`; ends when its channel is closed. A function of a backend's file gets
a `Ranks` and the parts, and what it returns is kept here.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode

from attnlab.libraries.host import tracer
from attnlab.libraries.torch_library import kernels_of, recorded
from attnlab.subprocesses import Channel, Closed
from attnlab.text import one_line

Told = tuple[tuple[int, ...], str]
_NOTHING_SENT = ("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd", "c10d::barrier")


def to_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The tensor's numbers, in the order of its axes, as plain bytes: NumPy has no bfloat16."""
    if not tensor.numel():
        return np.empty(0, np.uint8)
    found: NDArray[np.uint8] = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return found


def of_bytes(data: NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor of `shape` that has these numbers in its own memory."""
    found = torch.empty(shape, dtype=getattr(torch, dtype))
    if found.numel():
        found.reshape(-1).view(torch.uint8).copy_(torch.from_numpy(data.copy()))
    return found


class Ranks:
    """What a function on a rank knows of the team: which rank it is, of how many, and how they exchange data."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count

    def shares(self, length: int) -> list[int]:
        """How many of so many positions each rank holds: the first take one more where they cannot be even."""
        return [length // self.count + (rank < length % self.count) for rank in range(self.count)]

    def exchange(self, numbers: Tensor, given: Sequence[int], taken: Sequence[int]) -> Tensor:
        """All-to-all of a flat tensor: its first ``given[0]`` numbers to rank 0, and so on; ``taken[s]`` come from s.

        Gradients take the way back.
        """
        exchange: Callable[..., Tensor] = _Exchange.apply
        return exchange(numbers, self, list(given), list(taken))


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, numbers: Tensor, ranks: Ranks, given: list[int], taken: list[int]) -> Tensor:
        ctx.ranks, ctx.given, ctx.taken = ranks, given, taken
        found = numbers.new_empty(sum(taken))
        distributed.all_to_all_single(found, numbers.contiguous(), taken, given)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.ranks.exchange(gradients[0], ctx.taken, ctx.given), None, None, None


class Sent(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, counts the bytes that a rank sends to others, whoever calls PyTorch's exchanges.

    Raises NotImplementedError at an exchange of which it does not know how much is sent.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rank = rank
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kind = func.name().partition(".")[0]
        if kind == "c10d::alltoall_base_":  # (into, from, group, how many of each, how many to each, ...)
            self._count(args[1], args[4])
        elif kind == "_c10d_functional::all_to_all_single":  # (from, of each, to each, group)
            self._count(args[0], args[2])
        elif kind.startswith(("c10d::", "_c10d_functional::")) and kind not in _NOTHING_SENT:
            raise NotImplementedError(f"how many bytes {kind} sends is not known")
        return func(*args, **(kwargs or {}))

    def _count(self, numbers: Tensor, given: Sequence[int]) -> None:
        self.bytes += (sum(given) - given[self._rank]) * numbers.element_size()


class Rank:
    """What one rank holds, and its answers: each method is a word."""

    def __init__(self) -> None:
        self.ranks: Any = None
        self.device = torch.device("cpu")
        self.held: dict[int, Tensor] = {}
        self._watching: Iterator[Any] = iter(())

    def join(self, rank: int, count: int, device: str, store: str, threads: int) -> None:
        """Meet the others."""
        torch.set_num_threads(threads)
        if device == "cuda":
            torch.cuda.set_device(rank)
            self.device = torch.device("cuda", rank)
        between = "nccl" if device == "cuda" else "gloo"
        distributed.init_process_group(between, init_method=f"file://{store}", rank=rank, world_size=count)
        self.ranks = Ranks(rank, count)

    def threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def put(self, key: int, data: NDArray[np.uint8], shape: tuple[int, ...], dtype: str) -> None:
        """Keep these bytes as a tensor."""
        self.held[key] = of_bytes(data, shape, dtype).to(self.device)

    def get(self, key: int) -> tuple[NDArray[np.uint8], tuple[int, ...]]:
        return to_bytes(self.held[key]), tuple(self.held[key].shape)

    def drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.held.pop(key, None)

    def meet(self) -> None:
        """Wait until all others have come here."""
        distributed.barrier()

    def trim(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def call(
        self, key: int, where: tuple[str, str], given: Sequence[int], options: dict[str, Any], remembers: bool
    ) -> Told:
        """Run a backend's function on what is held; with `remembers`, so that gradients can be asked for."""
        function = _function(*where)
        parts = [self.held[one] for one in given]
        if remembers:
            parts = [part.detach().requires_grad_() for part in parts]
            self.held |= zip(given, parts, strict=True)
        with torch.set_grad_enabled(remembers):
            found = function(self.ranks, *parts, **options)
        self._finish()
        return self._keep(key, found)

    def gradients(
        self, keys: Sequence[int], output: int, leaves: Sequence[int], upstream: int, keep: bool
    ) -> list[Told]:
        """The gradients of what a call that remembers was given."""
        found = torch.autograd.grad(
            self.held[output], [self.held[one] for one in leaves], self.held[upstream], retain_graph=keep
        )
        self._finish()
        return [self._keep(key, one) for key, one in zip(keys, found, strict=True)]

    def _keep(self, key: int, found: Tensor) -> Told:
        self.held[key] = found
        return tuple(found.shape), str(found.dtype).removeprefix("torch.")

    def _finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def watch(self, what: str) -> None:
        """Begin to watch: "memory" (and messages) or "operators"."""
        self._watching = self._memory() if what == "memory" else self._operators()
        next(self._watching)

    def watched(self) -> Any:
        """End it: the peak of memory beyond what was held and the bytes sent, or the kernels that ran."""
        return next(self._watching)

    def _memory(self) -> Iterator[tuple[int, int] | None]:
        with Sent(self.ranks.rank) as sent:
            self.meet()  # what PyTorch imports for the first call that is watched is none of the call's memory
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                yield None
                peak = torch.cuda.max_memory_allocated() - before
            else:
                memray = tracer()
                with tempfile.TemporaryDirectory(prefix="attnlab-") as folder:
                    file = Path(folder, "trace.bin")
                    with memray.Tracker(file):
                        yield None
                    peak = memray.FileReader(file).metadata.peak_memory
        yield int(peak), sent.bytes

    def _operators(self) -> Iterator[str | None]:
        with recorded(self.device.type) as record:
            yield None
        yield kernels_of([event.key for event in record.key_averages()])


@functools.cache
def _function(file: str, name: str) -> Callable[..., Tensor]:
    """A function of a backend's file."""
    spec = importlib.util.spec_from_file_location(f"attnlab_on_ranks.{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Tensor] = getattr(module, name)
    return found


def serve(channel: Channel) -> None:
    """Do words, (method, arguments ...), and answer each but "drop", until the channel closes."""
    rank = Rank()
    with contextlib.suppress(Closed):
        while True:
            name, *arguments = channel.receive()
            try:
                answer: Any = "answer", getattr(rank, name)(*arguments)
            except Exception as fault:
                answer = type(fault).__name__, one_line(str(fault), 400)
            if name != "drop":
                channel.send(answer)
    os._exit(0)  # not waiting for others, who may have ended
