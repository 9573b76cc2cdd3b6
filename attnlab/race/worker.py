"""The child process of one contender: it holds one backend and does what the conductor asks, in order.

Started as ``python -P -m attnlab.race.worker REQUESTS REPLIES`` with two inherited pipes. It needs
`attnlab.problem` and this package only; array libraries load with the backend.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.backends import importing
from attnlab.backends.backend import Backend
from attnlab.backends.library import Library, open_library
from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.libraries.host import VERSIONS
from attnlab.problem.inputs import checked_problem, problem_of
from attnlab.problem.problem import Problem, digest, pack, unpack
from attnlab.problem.workload import Workload
from attnlab.race import ceilings, protocol
from attnlab.race.disturbance import run_delay_seconds
from attnlab.race.pace import Pace
from attnlab.race.prediction import PLACED_BYTES, drawn_bytes
from attnlab.race.probe import Probe
from attnlab.units import bytes_text

#: calls that a calibration makes at least, unless one takes over `_LONG` seconds
_CALLS = 5
_LONG = 0.1
#: what is placed anew is moved by up to this: a huge page
_PADDING_BYTES = 2**21
#: what libraries say that cannot take more memory
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "RESOURCE_EXHAUSTED")
T = TypeVar("T")
Reply = tuple[protocol.Message, tuple[NDArray[Any], ...]]


def _there(thing: T | None, op: str) -> T:
    """`thing`, which the request `op` brings."""
    if thing is None:
        raise RuntimeError(f"{op} comes first")
    return thing


def slowed(call: Callable[[], Any], library: Library, percent: float) -> Callable[[], Any]:
    """The call, and then a wait of `percent` of its own time: a known difference, which an instrument must find."""

    def longer() -> Any:
        start = time.perf_counter()
        found = call()
        library.finish()
        now = time.perf_counter()
        until = now + (now - start) * percent / 100
        while time.perf_counter() < until:
            pass
        return found

    return longer


def _copied(problem: Problem) -> Problem:
    plain, arrays = pack(problem)
    return unpack(plain, [array.copy() for array in arrays])


class Worker:
    """What a worker process holds: a backend, and the workload that is prepared for it."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.threads: int | None = None
        self.slowed = 0.0
        self.projection: str | None = None
        self.workload: Workload | None = None
        self.problem: Problem | None = None
        self.call: Callable[[], Any] | None = None
        #: memory that only moves what is taken after it
        self.padding: NDArray[Any] | None = None
        self.probe: Probe | None = None
        #: seconds that the last binding took, and whether anything was prepared in this process so far
        self.bound_seconds = 0.0
        self.used = False
        self.pace = Pace()

    def do(self, request: protocol.Message, arrays: tuple[NDArray[Any], ...]) -> Reply:
        """Answer one request: its ``op`` names a method, its other entries are the arguments."""
        arguments = dict(request)
        operation = arguments.pop("op")
        reply: Reply = getattr(self, operation)(*arrays, **arguments)
        return reply

    def load(
        self,
        backend: str,
        folders: list[str],
        threads: int | None = None,
        slowed: float = 0.0,
        settings: dict[str, str] | None = None,
        projection: str | None = None,
    ) -> Reply:
        """Import the backend, with its own settings; it stays for the life of the process."""
        from attnlab.backends.discovery import load

        self.backend, self.threads, self.slowed = load(backend, folders, settings), threads, slowed
        self.projection = projection
        gc.collect()
        gc.freeze()  # what a library made on import stays: to look through it again took 0.1 s a workload
        one = self.backend
        told = ("library", "kernel", "computes_in", "parts")
        return {name: getattr(one, name) for name in told}, ()

    def describe(self, backend: str, folders: list[str], workload: dict[str, Any]) -> Reply:
        """Import a backend in place of the one before: its library, its summary, and why it declines `workload`."""
        self.load(backend, folders)
        found = _there(self.backend, "load")
        asked = Workload.from_dict(workload)
        if found.block is not None:  # of what computes whole blocks, a block is asked
            asked = asked.with_(d_model=asked.heads * asked.head_dim)
        reason = found.declines(asked)
        return {"library": found.library, "summary": found.summary, "reason": reason}, ()

    def declines(self, workload: dict[str, Any]) -> Reply:
        """Refuse what the backend does not do; nothing is drawn or computed."""
        asked = Workload.from_dict(workload)
        self.library(asked.device)
        reason = _there(self.backend, "load").declines(asked, self.projection)
        if reason:
            raise Declined(reason)
        return {}, ()

    def prepare(self, workload: dict[str, Any], digested: bool = False) -> Reply:
        """Draw the inputs of `workload` and hand them to the backend; the workload before is freed.

        `digested`: tell the digest of the inputs as ``inputs``, where they are not too large to be kept.
        ``bind_s`` is the seconds that the backend then took to get ready: compiling, sessions, masks, packed weights.
        ``fresh`` is 1 where nothing was prepared in this process before.
        """
        self.workload = self.problem = self.call = self.padding = None
        self.declines(workload)
        asked = Workload.from_dict(workload)
        system.confine(asked.device)
        self.problem = problem_of(asked) if drawn_bytes(asked) <= PLACED_BYTES else None
        self.call = self._bound(asked, self.problem)
        self.workload = asked
        fresh, self.used = float(not self.used), True
        told = {"cache": self.library().cache, "bind_s": self.bound_seconds, "fresh": fresh}
        if digested and self.problem is not None:
            told["inputs"] = digest(self.problem)
        return told, ()

    def place(self) -> Reply:
        """Let the inputs, and whatever calls take, lie elsewhere in memory: taken anew, the old given back.

        Where they lie decides the speed of a call by up to 30 %, and is drawn only here and when a process starts.
        Inputs that are large are spread over the whole memory anyway, and twice of them might not fit.
        """
        workload = _there(self.workload, "prepare")
        if self.problem is None:
            return {"placed": False, "reason": f"its inputs take over {bytes_text(PLACED_BYTES)}"}, ()
        self.call, self.problem = None, _copied(self.problem)
        self._give_back(workload.device)
        self.padding = np.empty(random.SystemRandom().randrange(1, _PADDING_BYTES), np.uint8)
        self.call = self._bound(workload, self.problem)
        return {"placed": True}, ()

    def _bound(self, workload: Workload, problem: Problem | None) -> Callable[[], Any]:
        backend, library = _there(self.backend, "load"), self.library(workload.device)
        backend.require(workload, self.projection)
        arrays, left = backend.arrays(workload, problem)
        library.finish()
        started = time.perf_counter()
        call = backend.call(workload, left, arrays, projection=self.projection)
        library.finish()
        self.bound_seconds = time.perf_counter() - started
        return slowed(call, self.library(workload.device), self.slowed) if self.slowed else call

    def check(self, rows: list[int], calls: int = 2) -> Reply:
        """The prepared workload's named results at these query rows, of so many calls one after the other.

        ``first_call_s`` is the seconds of the first of them. The second shows a backend that writes into its inputs:
        the timed calls would compute something else. Gradients are those of `checked_problem`. The arrays are those
        of the first call, then those of the next.
        """
        workload, call = _there(self.workload, "prepare"), _there(self.call, "prepare")
        if workload.backward:
            call = _there(self.backend, "load").bind(workload, checked_problem(workload, rows))
        library, seconds, answers = self.library(), [], []
        # of a library whose calls return before they are done, where it has no queue to be finished
        completed = getattr(library, "completed", None)
        for _ in range(calls):
            started = time.perf_counter()
            returned = call()
            if completed is not None:
                returned = completed(returned)
            library.finish()
            seconds.append(time.perf_counter() - started)
            answers.append(self._named(workload, returned))
            del returned
        named = [pair for answer in answers for pair in answer.items()]
        cut = tuple(workload.cut(name, one, rows) for name, one in named)
        return {"names": list(answers[0]), "first_call_s": seconds[0]}, cut

    def answer(
        self,
        *arrays: NDArray[Any],
        problem: dict[str, Any],
        workload: dict[str, Any],
        layout: str = "contiguous",
        gradient_layout: str = "contiguous",
    ) -> Reply:
        """The named results for a packed problem that came with the request, lying in memory as the layouts say.

        A backend that changes its inputs, or a result it returned earlier, is wrong. ``cpu_seconds`` and
        ``setup_seconds`` as `Pace` tells them apart.
        """
        asked = Workload.from_dict(workload)
        self.library(asked.device)
        probe = self.probe = self.probe or Probe(_there(self.backend, "load"))
        seconds, setup = self.pace.seconds, self.pace.setup
        given = unpack(problem, arrays)
        found = self.pace.timed(lambda: probe.answer(given, asked, layout, gradient_layout))
        reply = {"cpu_seconds": self.pace.seconds - seconds, "setup_seconds": self.pace.setup - setup}
        return {**reply, "names": list(found)}, tuple(found.values())

    def calibrate(self, warmup_seconds: float) -> Reply:
        """Warm up for at least `warmup_seconds`, then seconds per call: the least of those seen.

        ``waited`` is the time for which threads waited for a core, over the time that it took (nan: not told). The
        least of at least `_CALLS` where they are short: the first of all carries a library's start-up,
        which can be a thousand times the call.
        """
        library, call = self.library(), _there(self.call, "prepare")
        start, delay = time.perf_counter(), run_delay_seconds()
        seconds, calls = library.time_calls(call, 1), 1
        while time.perf_counter() - start < warmup_seconds or (calls < _CALLS and seconds < _LONG):
            seconds, calls = min(seconds, library.time_calls(call, 1)), calls + 1
        waited = (run_delay_seconds() - delay) / max(time.perf_counter() - start, 1e-9)
        return {"seconds": seconds, "waited": waited}, ()

    def measure(self, instrument: str, **options: Any) -> Reply:
        """The readings of an instrument, written ``module:class``, on the prepared call."""
        module, _, name = instrument.partition(":")
        found = getattr(importlib.import_module(module), name)()
        return asdict(found.measure(self.library(), _there(self.call, "prepare"), **options)), ()

    def attest(self) -> Reply:
        """The kernels that the prepared call really ran."""
        return {"kernel": self.library().attest(_there(self.call, "prepare"))}, ()

    def invariance(self, dtype: str, device: str, size: int | None = None) -> Reply:
        """The output for a problem of its own, and whether parts of it, computed alone, have the same bits.

        With a `size` (1 for all of it) the output alone. Raises Declined. See `attnlab.race.invariance`.
        """
        from attnlab.race import invariance

        backend = _there(self.backend, "load")
        self.library(device)
        backend.require(invariance.workload_in(dtype, device))
        if size is not None:
            return {"size": size}, (invariance.whole(backend, invariance.workload_in(dtype, device, size)),)
        size = invariance.size_for(backend, dtype, device)
        workload = invariance.workload_in(dtype, device, size)
        expected = invariance.whole(backend, workload)
        same, reason = invariance.same_in_parts(backend, workload, expected)
        return {"size": size, "same": same, "reason": reason}, (expected,)

    def free_bytes(self, device: str) -> Reply:
        """Bytes that can still be taken on `device`."""
        return {"bytes": self.library(device).free_bytes()}, ()

    def release(self) -> Reply:
        """Free the prepared workload, and the device memory that its calls left behind."""
        device = self.workload.device if self.workload else None
        self.workload = self.problem = self.call = self.padding = None
        self._give_back(device)
        return {}, ()

    def _give_back(self, device: str | None) -> None:
        """What is not in use, to the device and to the system."""
        gc.collect()
        if device:
            self.library(device).trim()
        system.trim_heap()  # it is kept between calls, not between workloads

    def facts(self, device: str) -> Reply:
        """Versions, thread pools and interpreter: what decides the figures in this process."""
        from threadpoolctl import threadpool_info

        known = ("user_api", "internal_api", "version", "num_threads", "architecture")
        pools = [{name: pool.get(name) for name in known} for pool in threadpool_info()]
        library = self.library(device)
        versions = {**VERSIONS, **library.versions()}
        told = {"versions": versions, "pools": pools, "python": sys.version.split()[0]}
        modes = library.modes()
        return {**told, "modes": modes} if modes else told, ()

    def ceiling(self, library: str, device: str, dtype: str) -> Reply:
        """The best rates of one array library; needs no backend."""
        return {"found": ceilings.measure(open_library(library, device), dtype)}, ()

    def library(self, device: str | None = None) -> Library:
        library = _there(self.backend, "load").open(device or _there(self.workload, "prepare").device)
        if self.threads is not None:
            library.set_threads(self.threads)
            self.threads = None  # once, after the library is loaded
        return library

    def _named(self, workload: Workload, returned: Any) -> dict[str, NDArray[Any]]:
        try:
            return _there(self.backend, "load").named(workload, returned)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


def _refusal(fault: BaseException) -> protocol.Message:
    """The reply for an exception: what kind of end it is, and one line for a person."""
    name = type(fault).__name__
    text = " ".join(str(fault).split())[:400] or name
    for kind, error in {Declined: "declined", Unavailable: "unavailable", Misbehaved: "wrong"}.items():
        if isinstance(fault, kind):
            return {"error": error, "message": text}
    if isinstance(fault, MemoryError) or "OutOfMemory" in name or any(said in text for said in _NO_MEMORY):
        return {"error": "memory", "message": f"ran out of memory: {text}"}
    half = importing.lacking(fault)
    if half is not None:
        message = f"{half.module} does not hold what is asked of it ({name}: {text}); {half.mend}"
        return {"error": "unavailable", "message": message}
    return {"error": "raised", "message": f"raised {name}: {text}"}


def main(requests: int, replies: int) -> None:
    """Serve until the conductor closes its end."""
    system.die_with_parent()
    system.limit_files()
    system.confine()
    worker = Worker()
    importing.listeners.append(lambda one: protocol.send(replies, {"importing": one}))
    with contextlib.suppress(protocol.Closed):
        protocol.send(replies, {"protocol": protocol.VERSION, "pid": os.getpid()})
        while True:
            request, arrays = protocol.receive(requests)
            number = request.pop("number")
            try:
                reply, sent = worker.do(request, arrays)
            except Exception as fault:
                reply, sent = _refusal(fault), ()
            protocol.send(replies, {**reply, "number": number}, sent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
