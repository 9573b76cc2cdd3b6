"""The child process of one contender: it holds one backend and does what the conductor asks, in order.

Started as ``python -P -m attnlab.measuring.worker REQUESTS REPLIES`` with two inherited pipes. It needs
attnlab's ground and this package only; array libraries load with the backend.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.backend import Backend, checked_output
from attnlab.ground.errors import Declined, Unavailable
from attnlab.ground.inputs import inputs
from attnlab.ground.libraries import Library, open_library
from attnlab.ground.workload import Workload
from attnlab.measuring import ceilings, memory, protocol

if TYPE_CHECKING:
    from attnlab.judging.posing import Specimen

Reply = tuple[protocol.Message, tuple[NDArray[Any], ...]]


class Wrong(Exception):
    """The backend answered, but with something that cannot be its output."""


class Bench:
    """What a worker holds: a backend, and the workload that lies prepared on it."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.threads: int | None = None
        self.workload: Workload | None = None
        self.call: Callable[[], Any] | None = None
        self.specimen: Specimen | None = None

    def do(self, request: protocol.Message, arrays: tuple[NDArray[Any], ...]) -> Reply:
        """Answer one request: its ``op`` names a method, its other entries are the arguments."""
        arguments = dict(request)
        operation = arguments.pop("op")
        if operation == "attend":
            return self.attend(*arrays, **arguments)
        reply: Reply = getattr(self, operation)(**arguments)
        return reply

    def load(self, backend: str, folders: list[str], threads: int | None) -> Reply:
        from attnlab.discovery import load

        self.backend, self.threads = load(backend, folders), threads
        return {"library": self.backend.library, "kernel": self.backend.kernel}, ()

    def prepare(self, workload: dict[str, Any]) -> Reply:
        self.workload = Workload.from_dict(workload)
        self._library()
        reason = self._backend().declines(self.workload)
        if reason:  # before any input is drawn
            raise Declined(reason)
        self.call = self._backend().bind(self.workload, *inputs(self.workload))
        return {}, ()

    def output(self, rows: list[int]) -> Reply:
        """The prepared workload's output at these query rows, computed twice: fresh and once more."""
        output = self._checked(self._workload(), self._call()())
        return {}, (output[:, :, rows],)

    def attend(self, *arrays: NDArray[Any], workload: dict[str, Any], layout: str = "contiguous") -> Reply:
        """The output for query, key and value that came with the request, lying in memory as `layout` says.

        A backend that changes its inputs, or an output it returned earlier, is wrong.
        """
        from attnlab.judging.posing import Misbehaved, Specimen

        posed = Workload.from_dict(workload)
        self._library(posed.device)
        self.specimen = self.specimen or Specimen(self._backend())
        query, key, value = arrays
        try:
            return {}, (self.specimen.ask(posed, (query, key, value), layout),)
        except Misbehaved as fault:
            raise Wrong(str(fault)) from None

    def calibrate(self, warmup_seconds: float, turn_seconds: float) -> Reply:
        """Warm up, then seconds per call and the number of calls that fill a turn."""
        library, call = self._library(), self._call()
        start = time.perf_counter()
        seconds = library.time_calls(call, 1)
        while time.perf_counter() - start < warmup_seconds:
            seconds = min(seconds, library.time_calls(call, 1))
        iterations = max(1, int(np.ceil(turn_seconds / max(seconds, 1e-9))))
        return {"seconds": seconds, "iterations": iterations}, ()

    def turn(self, iterations: int, refill: bool) -> Reply:
        """One turn on the clock: seconds per call and what disturbed it.

        With `refill` one call goes before, untimed: it refills the caches after the other contenders.
        """
        library, call = self._library(), self._call()
        gc.disable()
        try:
            if refill:
                call()
                library.finish()
            before = resource.getrusage(resource.RUSAGE_SELF)
            seconds = library.time_calls(call, iterations)
            after = resource.getrusage(resource.RUSAGE_SELF)
        finally:
            gc.enable()
        return {
            "seconds": seconds,
            "minor_faults": after.ru_minflt - before.ru_minflt,
            "involuntary_switches": after.ru_nivcsw - before.ru_nivcsw,
        }, ()

    def memory(self) -> Reply:
        peaks, method = memory.peak_bytes(self._library(), self._call())
        return {"peak_bytes": peaks, "method": method}, ()

    def attest(self) -> Reply:
        return {"kernel": self._library().attest(self._call())}, ()

    def free_bytes(self, device: str) -> Reply:
        return {"bytes": self._library(device).free_bytes()}, ()

    def release(self) -> Reply:
        """Let the prepared workload go."""
        self.workload = self.call = None
        gc.collect()
        return {}, ()

    def facts(self, device: str) -> Reply:
        from threadpoolctl import threadpool_info

        pools = [
            {
                name: pool.get(name)
                for name in ("user_api", "internal_api", "version", "num_threads", "architecture")
            }
            for pool in threadpool_info()
        ]
        return {
            "versions": self._library(device).versions(),
            "pools": pools,
            "python": sys.version.split()[0],
        }, ()

    def ceiling(self, library: str, device: str, dtype: str) -> Reply:
        return {"found": ceilings.measure(open_library(library, device), dtype)}, ()

    def _backend(self) -> Backend:
        if self.backend is None:
            raise RuntimeError("load comes first")
        return self.backend

    def _workload(self) -> Workload:
        if self.workload is None:
            raise RuntimeError("prepare comes first")
        return self.workload

    def _call(self) -> Callable[[], Any]:
        if self.call is None:
            raise RuntimeError("prepare comes first")
        return self.call

    def _library(self, device: str | None = None) -> Library:
        library = self._backend().open(device or self._workload().device)
        if self.threads is not None:
            library.set_threads(self.threads)
            self.threads = None  # once, after the library is loaded
        return library

    def _checked(self, workload: Workload, output: Any) -> NDArray[Any]:
        try:
            return checked_output(self._backend(), workload, output)
        except ValueError as fault:
            raise Wrong(str(fault)) from None


def _refusal(fault: BaseException) -> protocol.Message:
    """The reply for an exception: what kind of end it is, and one line for a person."""
    name = type(fault).__name__
    text = " ".join(str(fault).split())[:400] or name
    if isinstance(fault, Declined):
        return {"error": "declined", "message": text}
    if isinstance(fault, Unavailable):
        return {"error": "unavailable", "message": text}
    if isinstance(fault, Wrong):
        return {"error": "wrong", "message": text}
    if isinstance(fault, MemoryError) or "OutOfMemory" in name or "can't allocate memory" in text:
        return {"error": "memory", "message": f"ran out of memory: {text}"}
    return {"error": "raised", "message": f"raised {name}: {text}"}


def _die_with_parent() -> None:
    """Linux: a worker that is stopped when its conductor is killed would otherwise stay for ever."""
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main(requests: int, replies: int) -> None:
    """Serve until the conductor closes its end."""
    _die_with_parent()
    bench = Bench()
    with contextlib.suppress(protocol.Closed):
        protocol.send(replies, {"protocol": protocol.VERSION, "pid": os.getpid()})
        while True:
            request, arrays = protocol.receive(requests)
            try:
                reply, sent = bench.do(request, arrays)
            except Exception as fault:
                reply, sent = _refusal(fault), ()
            protocol.send(replies, reply, sent)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
