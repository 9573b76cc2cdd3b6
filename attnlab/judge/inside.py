"""What runs in the sandbox: it loads a candidate and calls it on what lies in shared memory.

All of this belongs to the candidate as soon as it is loaded: it may replace any of it. So nothing that this process
says is believed. The judge reads answers from the shared memory, and has its own clock.

The first process imports the array library and then forks one for each visit, so that a visit starts afresh. The judge
ends that one from outside.
"""

from __future__ import annotations

import importlib
import os
import resource
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from attnlab.backends.backend import Backend, Calling
from attnlab.backends.discovery import load, options_of
from attnlab.errors import Misbehaved
from attnlab.judge.candidates import Candidate
from attnlab.judge.memory import DeviceMemory, HostMemory, Place
from attnlab.libraries.library import is_there, libraries
from attnlab.processes import refusal
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.number_formats import FORMATS
from attnlab.workload.workload import GRADIENTS, OUTPUT, Workload

#: bytes of one message, at most: of a candidate's text to the sandbox, and of what comes back. Arrays go through memory
ORDER_BYTES, REPLY_BYTES = 2**17, 2**16
#: the candidate's file in the sandbox
_FILE = Path("candidate") / "candidate.py"


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


Op = Literal["load", "call", "rest", "ask", "profile", "describe"]


class Order(msgspec.Struct, omit_defaults=True):
    """What a visit's process is told; `op` names a method of `Guest`.

    places : the inputs of some calls, stacked, and last their outputs. Of a question, its arrays and its output.
    plain : what `unpack` takes. dtype : of a module's inputs. init : a module's constructor arguments. seed : of its
    parameters. device : where it computes, and where the arrays of calls lie.
    """

    op: Op
    places: list[Place] = []
    workload: Workload | None = None
    candidate: Candidate = Candidate("", "", "", "")
    plain: dict[str, Any] = {}
    dtype: str = ""
    init: list[Any] = []
    seed: int = 0
    device: str = "cpu"


class Reply(msgspec.Struct):
    """What the sandbox says; it is shown, never believed. ran : operators. plain : what `describe` found."""

    kind: Literal["done", "declined", "wrong", "raised", "memory", "unavailable", "crashed"]
    text: str = ""
    plain: dict[str, Any] = {}
    ran: list[str] = []


DONE = msgspec.msgpack.encode(Reply("done"))


class Guest:
    """The candidate in a process of its own, for one visit. Orders name its methods.

    device : size and descriptor of the memory on the device.
    """

    def __init__(self, host: HostMemory, device: Sequence[int]) -> None:
        self._host = self._memory = host
        self._device, self._views = device, dict[Place, Any]()

    def load(self, order: Order) -> None:
        """Load the candidate and get its call ready."""
        one, workload, self._dtype = order.candidate, order.workload, order.dtype
        if order.device == "cuda":
            self._memory = DeviceMemory(*self._device)
        if one.form == "backend":
            self._backend = load(_FILE.stem, [_FILE.parent])
        else:
            module, options = self._imported(), frozenset[str]()
            attend, declines = getattr(module, one.entry), getattr(module, "declines", None)
            if one.form == "function":
                options = options_of(one.entry, attend, 3)
            else:
                torch: Any = importlib.import_module("torch")
                torch.set_grad_enabled(False)
                torch.manual_seed(order.seed)
                attend = attend(*order.init).to(order.device)
                attend = attend.double() if order.dtype == "float64" else attend
            self._backend = Backend(one.entry, one.library, attend, options=options, own_reason=declines)
        self._library = self._backend.open(order.device)
        attend = self._backend.attend
        self._call: Callable[..., Any] = lambda *arrays: self._tensor(attend(*arrays))
        if workload is not None:
            self._backend.require(workload)
            query, key, value = (np.broadcast_to(np.float32(0), workload.shape_of(one)) for one in GRADIENTS)
            asked: dict[str, Any] = {"mask": workload.masked, "softcap": workload.softcap}
            inputs = Inputs(query, key, value, workload.dtype, workload.scale, **asked)
            attend = Calling(self._backend, workload, inputs, self._library).function()
            if order.device == "cpu":
                self._call = lambda *arrays: self._backend.named(workload, attend(*arrays))[OUTPUT]

    def call(self, order: Order) -> None:
        """Answer all calls of the message."""
        *inputs, outputs = order.places
        for *arrays, output in zip(*map(self._taken, inputs), self._memory.array(outputs), strict=True):
            if self._library.name not in ("torch", "numpy"):  # these compute where the numbers lie
                arrays = [self._library.from_numpy(one, self._dtype) for one in arrays]
            self._put(output, self._call(*arrays))
        self._memory.finish()

    def rest(self, order: Order) -> None:
        """Compute nothing."""

    def ask(self, order: Order) -> None:
        """Answer a question of another shape."""
        assert order.workload is not None
        *places, output = order.places
        inputs = unpack(order.plain, [self._host.array(one).copy() for one in places])
        found = self._backend.bind(order.workload, inputs)()
        self._put(self._host.array(output), self._backend.named(order.workload, found)[OUTPUT])

    def describe(self, order: Order) -> dict[str, Any]:
        """What KernelBench's functions of a reference say, computed without numbers."""
        module, torch = self._imported(), importlib.import_module("torch")
        with torch.device("meta"):
            init, inputs = list(module.get_init_inputs()), list(module.get_inputs())
            output = module.Model(*init)(*inputs)
        dtypes = [str(one.dtype).partition(".")[2] for one in (*inputs, output)]
        shapes = [list(one.shape) for one in inputs]
        return {"plain": {"init": init, "shapes": shapes, "output": list(output.shape), "dtypes": dtypes}}

    def profile(self, order: Order) -> dict[str, Any]:
        """The operators that ran in one call; none where the library tells none."""
        if self._library.name != "torch":
            return {}
        from attnlab.libraries.torch_library import recorded

        with recorded(self._library.device) as record:
            self.call(order)
        return {"ran": sorted({str(event.key) for event in record.key_averages()})[:500]}

    def _taken(self, place: Place) -> Any:
        """The arrays of all calls, for PyTorch as a tensor; made once, since that takes time."""
        if place not in self._views:
            array = self._memory.array(place)
            if self._library.name == "torch":
                torch = self._library.module
                self._views[place] = torch.as_tensor(array).view(getattr(torch, self._dtype))
            else:
                self._views[place] = array.view(FORMATS[self._dtype])
        return self._views[place]

    def _tensor(self, found: Any) -> Any:
        """The answer where it lies. Raises Misbehaved for what may compute when it is read, after the clock."""
        torch = self._library.module
        if type(found) is not torch.Tensor or found.dtype is not getattr(torch, self._dtype):
            raise Misbehaved(f"it returned a {type(found).__name__}, expected a Tensor of {self._dtype}")
        if found.device.type != self._library.device:
            raise Misbehaved(f"it returned a Tensor on {found.device.type}, expected {self._library.device}")
        return found if self._library.device == "cuda" else found.numpy()

    def _imported(self) -> Any:
        sys.path.insert(0, str(_FILE.parent.absolute()))
        return importlib.import_module(_FILE.stem)

    def _put(self, target: Any, found: Any) -> None:
        if not isinstance(target, np.ndarray):
            if found.shape != target.shape:
                raise Misbehaved(f"it returned shape {tuple(found.shape)}, expected {tuple(target.shape)}")
            target.copy_(found.view(target.dtype))
            return
        # bfloat16 comes in float32, and every value of it is exact
        target[...] = np.asarray(found, FORMATS[self._dtype], order="C").view(target.dtype)


def _told(fault: Exception) -> Reply:
    kind, text = refusal(fault)
    if kind != "declined":
        traceback.print_exc()
    kind = "memory" if "can't allocate memory" in text else kind
    return msgspec.convert({"kind": kind, "text": text.encode("utf-8", "replace").decode()}, Reply)


def _serve(channel: socket.socket, guest: Guest, data: bytes) -> None:
    """The process of one visit: do what is ordered, in order."""
    decoder = msgspec.msgpack.Decoder(Order)
    while data:
        order, reply = decoder.decode(data), DONE
        try:
            if order.candidate.source:
                _FILE.parent.mkdir(exist_ok=True)
                _FILE.write_text(order.candidate.source, encoding="utf-8")
            if found := getattr(guest, order.op)(order):
                reply = msgspec.msgpack.encode(Reply("done", **found))
        except Exception as fault:
            reply = msgspec.msgpack.encode(_told(fault))
        channel.send(reply)
        data = channel.recv(ORDER_BYTES)


def main() -> None:
    """The first process: import the library, then fork a process for each visit.

    Its arguments are the numbers of a socket and of the shared memory, the library, the limits, and size and number of
    the device's memory if it has any.
    """
    channel, shared = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    guest = Guest(HostMemory(shared=shared), [*map(int, sys.argv[5:])])
    limits = msgspec.json.decode(sys.argv[4], type=Limits)
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
                _serve(channel, guest, data)
            finally:
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        channel.send(msgspec.msgpack.encode(Reply("crashed", f"its process ended with status {status}")))


if __name__ == "__main__":
    main()
