"""What runs in the sandbox: it loads a candidate and calls it on what lies in shared memory.

All of this belongs to the candidate as soon as it is loaded: it may replace any of it. So nothing that this process
says is believed. The judge reads answers from the shared memory, and has its own clock.

The first process imports the array library and then forks one for each visit, so that a visit starts afresh.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import mmap
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend, Calling
from attnlab.backends.discovery import load, options_of
from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.libraries.library import libraries
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.number_formats import FORMATS
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

#: bytes of one message, at most, in both directions: arrays and the candidate's text go through shared memory
MOST_BYTES = 2**16
#: the candidate's file in the sandbox
_FILE = Path("candidate") / "candidate.py"
#: how a process says that it ended because it was told to
_ORDERLY = 77
#: where an array lies in the shared memory: dtype, shape, and the byte at which it begins
Place = tuple[str, tuple[int, ...], int]
Array = NDArray[Any]


class Limits(msgspec.Struct):
    """Of each process in the sandbox: bytes of its memory and of a file, processor seconds, and two numbers."""

    memory: int = 2**32
    file: int = 2**28
    processor_seconds: int = 600
    processes: int = 256
    open_files: int = 256


class Start(msgspec.Struct):
    """What the first process is told: the size of the shared memory, and which library to import."""

    size: int
    library: str
    limits: Limits


class Load(msgspec.Struct, tag=True):
    """Load a candidate, whose text lies in the shared memory, for a workload."""

    form: str
    entry: str
    library: str
    text: Place
    workload: Workload


class Call(msgspec.Struct, tag=True):
    """Answer the loaded workload from the arrays of these slots: query, key, value, output each."""

    slots: list[tuple[Place, ...]]


class Ask(msgspec.Struct, tag=True):
    """Answer another question, whose arrays lie there, into `output`."""

    workload: Workload
    plain: dict[str, Any]
    arrays: list[Place]
    output: Place


class Profile(msgspec.Struct, tag=True):
    """Answer from these arrays and tell which operators ran."""

    slot: tuple[Place, ...]


class End(msgspec.Struct, tag=True):
    """The visit is over."""


Order = Load | Call | Ask | Profile | End


class Reply(msgspec.Struct):
    """What the sandbox says; it is shown, never believed."""

    kind: Literal["done", "declined", "wrong", "raised", "memory", "unavailable", "crashed"]
    text: str = ""
    names: list[str] = []


DONE = msgspec.msgpack.encode(Reply("done"))


class Guest:
    """The candidate in a process of its own, for one visit."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._backend: Backend | None = None
        self._views: dict[Place, Any] = {}

    def array(self, place: Place) -> Array:
        """The array that lies there."""
        dtype, shape, start = place
        return np.frombuffer(self._memory, dtype, int(np.prod(shape)), start).reshape(shape)

    def load(self, order: Load) -> None:
        """Load the candidate and get its call ready."""
        name = order.entry
        if order.form != "known":
            _FILE.parent.mkdir(exist_ok=True)
            _FILE.write_bytes(self.array(order.text).tobytes())
            name = _FILE.stem
        if order.form in ("known", "backend"):
            self._backend = load(name, () if order.form == "known" else (_FILE.parent,))
        else:
            module = _imported(_FILE)
            function, declines = getattr(module, order.entry), getattr(module, "declines", None)
            if order.form == "model":
                function, options = function(), frozenset[str]()
            else:
                options = options_of(order.entry, function, 3)
            self._backend = Backend(
                name=order.entry,
                library=order.library,
                attend=function,
                options=options,
                own_reason=declines,
            )
        backend, workload = self._backend, order.workload
        backend.require(workload)
        self._library = backend.open(workload.device)
        self._workload, self._dtype = workload, workload.dtype
        inputs = _without_arrays(workload)
        self._call = Calling(backend, workload, inputs, self._library).function()
        self._named: Callable[..., dict[str, Array]] = backend.named

    def call(self, order: Call) -> None:
        """Answer from every slot."""
        for *inputs, output in order.slots:
            found = self._call(*map(self._taken, inputs))
            self._written(output, self._named(self._workload, found)[OUTPUT], self._dtype)

    def ask(self, order: Ask) -> None:
        """Answer a question of another shape."""
        backend = self._backend
        assert backend is not None
        inputs = unpack(order.plain, [self.array(one).copy() for one in order.arrays])
        found = backend.named(order.workload, backend.bind(order.workload, inputs)())
        self._written(order.output, found[OUTPUT], order.workload.dtype)

    def profile(self, order: Profile) -> list[str]:
        """The operators that ran in one call; none where the library tells none."""
        if self._library.name != "torch":
            self.call(Call([order.slot]))
            return []
        from attnlab.libraries.torch_kernels_that_ran import recorded

        with recorded("cpu") as record:
            self.call(Call([order.slot]))
        return sorted({str(event.key) for event in record.key_averages()})[:500]

    def _taken(self, place: Place) -> Any:
        """The library's array: PyTorch and NumPy compute where it lies, other libraries take a copy."""
        if place not in self._views:
            array = self.array(place)
            if self._library.name == "torch":
                torch = self._library.module
                bits = torch.from_numpy(array.view(f"i{array.itemsize}"))
                self._views[place] = bits.view(getattr(torch, self._dtype))
            elif self._library.name == "numpy":
                self._views[place] = array
            else:
                return self._library.from_numpy(array.view(FORMATS[self._dtype]), self._dtype)
        return self._views[place]

    def _written(self, place: Place, found: Array, dtype: str) -> None:
        target = self.array(place)
        if target.itemsize != found.itemsize:  # bfloat16 comes in float32, and every value of it is exact
            found = found.astype(FORMATS[dtype])
        target[...] = np.ascontiguousarray(found).view(target.dtype)


def _without_arrays(workload: Workload) -> Inputs:
    """The workload's inputs with arrays of one number each: a call reads their shapes and what is asked beside them."""
    query, key, value = (
        np.broadcast_to(np.zeros(1, np.float32), workload.shape_of(one)) for one in GRADIENTS
    )
    asked: dict[str, Any] = {"mask": workload.masked, "softcap": workload.softcap}
    return Inputs(query, key, value, workload.dtype, workload.scale, **asked)


def _imported(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as fault:
        text = " ".join(str(fault).split())
        raise Misbehaved(f"it fails on import: {type(fault).__name__}: {text}") from None
    return module


def _told(fault: BaseException) -> Reply:
    kinds: dict[type[BaseException], Any] = {
        Declined: "declined", Misbehaved: "wrong", Unavailable: "unavailable", MemoryError: "memory",
    }  # fmt: skip
    kind: Any = next((one for known, one in kinds.items() if isinstance(fault, known)), "raised")
    if "can't allocate memory" in str(fault):
        kind = "memory"
    text = " ".join(str(fault).split())[:400].encode("utf-8", "replace").decode()
    return Reply(kind, text if kind in ("declined", "wrong") else f"{type(fault).__name__}: {text}")


def _serve(channel: socket.socket, memory: mmap.mmap, first: bytes) -> None:
    """The process of one visit: do what is ordered, in order."""
    guest, data = Guest(memory), first
    decoder = msgspec.msgpack.Decoder(Order)
    while data:
        order = decoder.decode(data)
        reply = DONE
        try:
            if isinstance(order, Call):
                guest.call(order)
            elif isinstance(order, Ask):
                guest.ask(order)
            elif isinstance(order, Profile):
                reply = msgspec.msgpack.encode(Reply("done", names=guest.profile(order)))
            elif isinstance(order, Load):
                guest.load(order)
            else:
                return
        except (Exception, SystemExit) as fault:
            if not isinstance(fault, Declined):
                traceback.print_exc()
            reply = msgspec.msgpack.encode(_told(fault))
        channel.send(reply)
        data = channel.recv(MOST_BYTES)


def _confine(limits: Limits) -> None:
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_CPU, limits.processor_seconds),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main() -> None:
    """The first process: import the library, then fork a process for each visit."""
    channel, shared = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    start = msgspec.msgpack.decode(channel.recv(MOST_BYTES), type=Start)
    memory = mmap.mmap(shared, start.size)
    os.close(shared)
    _confine(start.limits)
    kind = libraries()[start.library]
    for module in kind.before_fork or ():
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    channel.send(DONE)
    while data := channel.recv(MOST_BYTES):
        child = os.fork()
        if not child:
            status = 1
            try:
                _serve(channel, memory, data)
                status = _ORDERLY
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != _ORDERLY:
            told = f"its process ended with status {os.waitstatus_to_exitcode(status)}"
            channel.send(msgspec.msgpack.encode(Reply("crashed", told)))


if __name__ == "__main__":
    main()
