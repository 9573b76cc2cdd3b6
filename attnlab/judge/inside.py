"""What runs in the sandbox: it loads a candidate and calls it on what lies in shared memory.

All of this belongs to the candidate as soon as it is loaded: it may replace any of it. So nothing that this process
says is believed. The judge reads answers from the shared memory, and has its own clock.

The first process imports the array library and then forks one for each visit, so that a visit starts afresh. The judge
ends that one from outside.
"""

from __future__ import annotations

import importlib
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
from attnlab.errors import Misbehaved
from attnlab.judge.candidates import Candidate
from attnlab.libraries.library import is_there, libraries
from attnlab.processes import refusal
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.number_formats import FORMATS
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

#: bytes of one message, at most: of a candidate's text to the sandbox, and of what comes back. Arrays go through memory
ORDER_BYTES, REPLY_BYTES = 2**17, 2**16
#: the candidate's file in the sandbox
_FILE = Path("candidate") / "candidate.py"
#: where an array lies in the shared memory: dtype, shape, and the byte at which it begins
Place = tuple[str, tuple[int, ...], int]
Array = NDArray[Any]


class Limits(msgspec.Struct):
    """Of each process in the sandbox, by the names of getrlimit(2): bytes of memory and of a file, processor seconds.

    nproc and data hold also for all processes of a sandbox together, what the kernel keeps for them included.
    sigpending : without queued signals there are no POSIX timers, which would wake a process that is stopped.
    """

    data: int = 2**32
    fsize: int = 2**28
    cpu: int = 600
    nproc: int = 256
    nofile: int = 256
    core: int = 0
    sigpending: int = 0


class Order(msgspec.Struct, omit_defaults=True):
    """What a visit's process is told; `op` names a method of `Guest`.

    places : the inputs of some calls, stacked, and last their outputs; none for a call that computes nothing. Of a
    question, its arrays and its output. plain : what `unpack` takes. dtype : of a module's inputs. init : a module's
    constructor arguments. seed : of its parameters.
    """

    op: Literal["load", "call", "ask", "profile", "describe"]
    places: list[Place] = []
    workload: Workload | None = None
    candidate: Candidate = Candidate("", "", "", "")
    plain: dict[str, Any] = {}
    dtype: str = ""
    init: list[Any] = []
    seed: int = 0


class Reply(msgspec.Struct):
    """What the sandbox says; it is shown, never believed."""

    kind: Literal["done", "declined", "wrong", "raised", "memory", "unavailable", "crashed"]
    text: str = ""
    plain: dict[str, Any] = {}


DONE = msgspec.msgpack.encode(Reply("done"))


class Guest:
    """The candidate in a process of its own, for one visit. Orders name its methods."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._views: dict[Place, Any] = {}

    def array(self, place: Place) -> Array:
        """The array that lies there."""
        dtype, shape, start = place
        return np.frombuffer(self._memory, dtype, int(np.prod(shape)), start).reshape(shape)

    def load(self, order: Order) -> None:
        """Load the candidate and get its call ready."""
        one, workload, self._dtype = order.candidate, order.workload, order.dtype
        if one.form == "backend":
            self._written(one)
            self._backend = load(_FILE.stem, [_FILE.parent])
        else:
            module, options = self._imported(one), frozenset[str]()
            attend, declines = getattr(module, one.entry), getattr(module, "declines", None)
            if one.form == "function":
                options = options_of(one.entry, attend, 3)
            else:
                torch: Any = importlib.import_module("torch")
                torch.set_grad_enabled(False)
                torch.manual_seed(order.seed)
                attend = attend(*order.init)
                attend = attend.double() if order.dtype == "float64" else attend
            self._backend = Backend(one.entry, one.library, attend, options=options, own_reason=declines)
        self._library = self._backend.open("cpu")
        if workload is None:
            self._call: Callable[..., Array] = lambda *arrays: self._of_module(self._backend.attend(*arrays))
            return
        self._backend.require(workload)
        query, key, value = (np.broadcast_to(np.float32(0), workload.shape_of(one)) for one in GRADIENTS)
        asked: dict[str, Any] = {"mask": workload.masked, "softcap": workload.softcap}
        inputs = Inputs(query, key, value, workload.dtype, workload.scale, **asked)
        attending = Calling(self._backend, workload, inputs, self._library).function()
        self._call = lambda *arrays: self._backend.named(workload, attending(*arrays))[OUTPUT]

    def call(self, order: Order) -> None:
        """Answer all calls of the message."""
        if not order.places:
            return
        *inputs, outputs = order.places
        for *arrays, output in zip(*map(self._taken, inputs), self.array(outputs), strict=True):
            if self._library.name not in ("torch", "numpy"):  # these compute where the numbers lie
                arrays = [self._library.from_numpy(one, self._dtype) for one in arrays]
            self._put(output, self._call(*arrays))

    def ask(self, order: Order) -> None:
        """Answer a question of another shape."""
        assert order.workload is not None
        *places, output = order.places
        inputs = unpack(order.plain, [self.array(one).copy() for one in places])
        found = self._backend.bind(order.workload, inputs)()
        self._put(self.array(output), self._backend.named(order.workload, found)[OUTPUT])

    def describe(self, order: Order) -> dict[str, Any]:
        """What KernelBench's functions of a reference say, computed without numbers."""
        module, torch = self._imported(order.candidate), importlib.import_module("torch")
        with torch.device("meta"):
            init, inputs = list(module.get_init_inputs()), list(module.get_inputs())
            output = module.Model(*init)(*inputs)
        dtypes = [str(one.dtype).partition(".")[2] for one in (*inputs, output)]
        shapes = [list(one.shape) for one in inputs]
        return {"init": init, "shapes": shapes, "output": list(output.shape), "dtypes": dtypes}

    def profile(self, order: Order) -> dict[str, Any]:
        """The operators that ran in one call; none where the library tells none."""
        if self._library.name != "torch":
            return {}
        from attnlab.libraries.torch_library import recorded

        with recorded("cpu") as record:
            self.call(order)
        return {"ran": sorted({str(event.key) for event in record.key_averages()})[:500]}

    def _taken(self, place: Place) -> Any:
        """The arrays of all calls, for PyTorch as a tensor; made once, since that takes time."""
        if place not in self._views:
            array = self.array(place)
            if self._library.name == "torch":
                torch = self._library.module
                self._views[place] = torch.from_numpy(array).view(getattr(torch, self._dtype))
            else:
                self._views[place] = array.view(FORMATS[self._dtype])
        return self._views[place]

    def _of_module(self, found: Any) -> Array:
        """As an array. Raises Misbehaved for what may compute when it is read, after the clock has stopped."""
        torch = self._library.module
        if type(found) is not torch.Tensor or found.dtype is not getattr(torch, self._dtype):
            raise Misbehaved(f"it returned a {type(found).__name__}, expected a Tensor of {self._dtype}")
        array: Array = found.numpy()
        return array

    def _written(self, candidate: Candidate) -> None:
        _FILE.parent.mkdir(exist_ok=True)
        _FILE.write_text(candidate.source, encoding="utf-8")

    def _imported(self, candidate: Candidate) -> Any:
        self._written(candidate)
        sys.path.insert(0, str(_FILE.parent.absolute()))
        return importlib.import_module(_FILE.stem)

    def _put(self, target: Array, found: Array) -> None:
        if target.itemsize != found.itemsize:  # bfloat16 comes in float32, and every value of it is exact
            found = found.astype(FORMATS["bfloat16"])
        target[...] = np.ascontiguousarray(found).view(target.dtype)


def _told(fault: Exception) -> Reply:
    kind, text = refusal(fault)
    if kind != "declined":
        traceback.print_exc()
    kind = "memory" if "can't allocate memory" in text else kind
    return msgspec.convert({"kind": kind, "text": text.encode("utf-8", "replace").decode()}, Reply)


def _serve(channel: socket.socket, memory: mmap.mmap, data: bytes) -> None:
    """The process of one visit: do what is ordered, in order."""
    guest, decoder = Guest(memory), msgspec.msgpack.Decoder(Order)
    while data:
        order, reply = decoder.decode(data), DONE
        try:
            if plain := getattr(guest, order.op)(order):
                reply = msgspec.msgpack.encode(Reply("done", plain=plain))
        except Exception as fault:
            reply = msgspec.msgpack.encode(_told(fault))
        channel.send(reply)
        data = channel.recv(ORDER_BYTES)


def main() -> None:
    """The first process: import the library, then fork a process for each visit.

    Its arguments are the numbers of a socket and of the shared memory, the library, and the limits.
    """
    channel, shared = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    memory, limits = mmap.mmap(shared, 0), msgspec.json.decode(sys.argv[4], type=Limits)
    os.close(shared)
    for name, most in msgspec.structs.asdict(limits).items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        _, hard = resource.getrlimit(kind)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))
    for module in filter(is_there, libraries()[sys.argv[3]].before_fork or ()):
        importlib.import_module(module)
    channel.send(DONE)
    while data := channel.recv(ORDER_BYTES):
        if not (child := os.fork()):
            try:
                _serve(channel, memory, data)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.send(msgspec.msgpack.encode(Reply("crashed", f"its process ended with status {status}")))


if __name__ == "__main__":
    main()
