"""The program in the sandbox: it loads a candidate and calls it on arrays in shared memory.

Once it is loaded, the candidate controls this process and may replace any code in it. So the judge trusts nothing that
this process says. It reads the answers from the shared memory, and it has its own clock.

The first process imports the array library. It forks a process for each visit, so that a visit starts in a fresh state.
The judge kills that process from outside.
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

#: most bytes of a message to the sandbox, which may hold a candidate's text; most bytes of a reply
ORDER_BYTES, REPLY_BYTES = 2**17, 2**16
#: the candidate's file in the sandbox
_FILE = Path("candidate") / "candidate.py"


class Limits(msgspec.Struct):
    """Limits of each process in the sandbox, named as in getrlimit(2): `data` and `fsize` in bytes, `cpu` in seconds.

    `nproc` and `data` also limit all processes of a sandbox together, including memory that the kernel holds for them.
    sigpending : 0 forbids queued signals and so POSIX timers, which would wake a stopped process.
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
    """An order to the process of a visit; `op` names a method of `Guest`.

    places : the inputs of the message's calls, stacked, then their outputs; for "ask" the question's arrays and output.
    plain : what `unpack` takes. dtype : the number format of the calls. init : constructor arguments of a module.
    seed : for the module's parameters. device : where the candidate computes, and where the arrays of calls lie.
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
    """A reply of the sandbox, which may be false. ran : operators, from `profile`. plain : what `describe` found."""

    kind: Literal["done", "declined", "wrong", "raised", "memory", "unavailable", "crashed"]
    text: str = ""
    plain: dict[str, Any] = {}
    ran: list[str] = []


DONE = msgspec.msgpack.encode(Reply("done"))


class Guest:
    """Loads and calls the candidate in the process of one visit. `Order.op` names one of its methods.

    device : size and file descriptor of the shared memory on the device; empty without one.
    """

    def __init__(self, host: HostMemory, device: Sequence[int]) -> None:
        self._host = self._memory = host
        self._device, self._views = device, dict[Place, Any]()

    def load(self, order: Order) -> None:
        """Load the candidate and make the function that calls it."""
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
        """Compute all calls of the message."""
        *inputs, outputs = order.places
        for *arrays, output in zip(*map(self._taken, inputs), self._memory.array(outputs), strict=True):
            if self._library.name not in ("torch", "numpy"):  # those two use the shared memory itself
                arrays = [self._library.from_numpy(one, self._dtype) for one in arrays]
            self._put(output, self._call(*arrays))
        self._memory.finish()

    def rest(self, order: Order) -> None:
        """Compute nothing."""

    def ask(self, order: Order) -> None:
        """Answer a question, which may have another shape than the calls."""
        assert order.workload is not None
        *places, output = order.places
        inputs = unpack(order.plain, [self._host.array(one).copy() for one in places])
        found = self._backend.bind(order.workload, inputs)()
        self._put(self._host.array(output), self._backend.named(order.workload, found)[OUTPUT])

    def describe(self, order: Order) -> dict[str, Any]:
        """Constructor arguments, shapes and dtypes of a KernelBench reference, computed without data ("meta")."""
        module, torch = self._imported(), importlib.import_module("torch")
        with torch.device("meta"):
            init, inputs = list(module.get_init_inputs()), list(module.get_inputs())
            output = module.Model(*init)(*inputs)
        dtypes = [str(one.dtype).partition(".")[2] for one in (*inputs, output)]
        shapes = [list(one.shape) for one in inputs]
        return {"plain": {"init": init, "shapes": shapes, "output": list(output.shape), "dtypes": dtypes}}

    def profile(self, order: Order) -> dict[str, Any]:
        """Compute the calls and return the operators that ran, at most 500; none unless the library is PyTorch."""
        if self._library.name != "torch":
            return {}
        from attnlab.libraries.torch_library import recorded

        with recorded(self._library.device) as record:
            self.call(order)
        return {"ran": sorted({str(event.key) for event in record.key_averages()})[:500]}

    def _taken(self, place: Place) -> Any:
        """The stacked arrays at `place`, for PyTorch as a tensor. They are kept, because making them takes time."""
        if place not in self._views:
            array = self._memory.array(place)
            if self._library.name == "torch":
                torch = self._library.module
                self._views[place] = torch.as_tensor(array).view(getattr(torch, self._dtype))
            else:
                self._views[place] = array.view(FORMATS[self._dtype])
        return self._views[place]

    def _tensor(self, found: Any) -> Any:
        """The answer as a tensor on CUDA, else as an array.

        Raises Misbehaved for another type, number format or device. A subclass may compute when it is read, after the
        clock has stopped.
        """
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
        # bfloat16 arrives in float32, which holds it exactly
        target[...] = np.asarray(found, FORMATS[self._dtype], order="C").view(target.dtype)


def _told(fault: Exception) -> Reply:
    kind, text = refusal(fault)
    if kind != "declined":
        traceback.print_exc()
    kind = "memory" if "can't allocate memory" in text else kind
    return msgspec.convert({"kind": kind, "text": text.encode("utf-8", "replace").decode()}, Reply)


def _serve(channel: socket.socket, guest: Guest, data: bytes) -> None:
    """The process of one visit: carry out the orders, one after the other."""
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

    Its arguments: the file descriptors of the socket and of the shared memory, the library, the limits as JSON, and, if
    there is a device, the size and the file descriptor of the device's memory.
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
