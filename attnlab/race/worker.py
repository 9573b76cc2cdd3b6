"""A contender's process in one visit: it holds one backend and carries out the conductor's requests in order.

It reads its inputs from pages that it shares with the conductor, and writes its answers to other pages. It never knows
how the inputs were drawn, nor which rows of a turn's answer will be checked.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from attnlab import system
from attnlab.backends.backend import Backend, Calling
from attnlab.backends.contender import Contender
from attnlab.backends.discovery import digest, load
from attnlab.errors import Declined, Misbehaved
from attnlab.libraries.library import VERSIONS, Library
from attnlab.processes import Channel, refusal, serve
from attnlab.race.instruments import INSTRUMENTS, Readings
from attnlab.race.pages import Form, Pages
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs, unpack
from attnlab.workload.workload import CONTIGUOUS, OUTPUT, Workload

#: memory that is allocated after the padding is shifted by up to this: a huge page
_PADDING_BYTES = 2**21
#: least calls of a warm-up; seconds after which fewer calls are enough; calls of a smaller workload; calls after a
#: warm-up that show what a GPU's clock leaves out. A process allocates memory in its first calls: the plain formula was
#: still 10 % and 6 % slower in its eighth and ninth call
_CALLS, _LONG, _FEW, _BETWEEN = 8, 0.2, 3, 2
#: words of libraries that cannot allocate more memory
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "RESOURCE_EXHAUSTED")
#: the clock as it was before any backend was imported
_clock = time.perf_counter
_secret = random.SystemRandom()
#: arrays with one row for each key
OF_KEYS = ("key", "value")
T = TypeVar("T")


def _there(thing: T | None) -> T:
    if thing is None:
        raise RuntimeError("load and prepare come first")
    return thing


def slowed(call: Callable[[], Any], library: Library, percent: float) -> Callable[[], Any]:
    """The call, then a wait of `percent` of its time: a known difference, to test the measurement itself."""

    def longer() -> Any:
        start = _clock()
        found = call()
        library.finish()
        now = _clock()
        until = now + (now - start) * percent / 100
        while _clock() < until:
            pass
        return found

    return longer


class Worker:
    """The object that serves requests in a contender's process. Requests name its methods."""

    def __init__(self) -> None:
        self._backend: Backend | None = None
        self._contender: Contender | None = None
        self._workload: Workload | None = None
        self._inputs: Inputs | None = None
        self._answers: Pages | None = None
        self._calling: Calling | None = None
        self._call: Callable[[], Any] | None = None
        self._returned: Any = None
        self._library: Library | None = None
        #: whether inputs may be changed between the calls of a turn
        self._changes = False
        #: it shifts all later allocations at random: the place in memory decides the speed of some calls
        self._padding = np.empty(_secret.randrange(1, _PADDING_BYTES), np.uint8)

    def load(self, contender: Contender, folders: list[str]) -> dict[str, Any]:
        """Import the backend with its own settings, and return what its file declares."""
        one = load(contender.backend, folders, dict(contender.settings))
        self._backend, self._contender = replace(one, mask_form=contender.mask), contender
        self._file = digest(contender.backend, folders)
        gc.collect()
        gc.freeze()
        known = ("library", "kernel", "computes_in", "memory", "summary")
        return {name: getattr(one, name) for name in known}

    def declines(self, workload: Workload) -> None:
        """Raises Declined for a workload that the backend does not do. Computes nothing."""
        self._open(workload.device)
        contender = _there(self._contender)
        refusal = _there(self._backend).declines(workload, contender.projection)
        if refusal is not None:
            raise Declined(refusal)

    def free_bytes(self, device: str) -> int:
        """Bytes of memory that are free on `device`."""
        return self._open(device).free_bytes()

    def trial(self, workload: Workload) -> float:
        """Seconds of a call of a small workload: the least of several calls, or on a CPU its processor time if less.

        On a busy machine a call may take many times as long as alone, but it does not take more processor time.
        """
        self.declines(workload)
        self._call = self._bound(workload, inputs_of(workload))
        self._call()  # the first call starts threads, allocates memory, plans or loads a kernel
        least = self.warm(0.0, _FEW)
        self._calling = self._call = None
        return least["seconds"] if workload.device != "cpu" else min(least["seconds"], least["processor_s"])

    def prepare(
        self,
        workload: Workload,
        plain: dict[str, Any],
        inputs: tuple[list[Form], str],
        answers: tuple[list[Form], str],
    ) -> dict[str, Any]:
        """Prepare the call of `workload`. Its inputs lie in shared pages, and its answers go to other pages.

        ``bind_s`` : seconds that the backend took: compiling, sessions, masks, packed weights. ``refreshes`` : whether
        its inputs can be overwritten before each turn. ``cache`` : "warm" or "cold" in timed calls.
        """
        self.declines(workload)
        system.confine(workload.device)
        library, pages = self._open(workload.device), Pages(*inputs)
        # a backward pass alone keeps the inputs of its forward pass
        refreshes = library.refill is not None and OUTPUT in workload.results
        core = workload.d_model is None and workload.storage == CONTIGUOUS and not workload.backward
        self._changes = core and refreshes and library.in_place
        arrays = pages.arrays if refreshes else [one.copy() for one in pages.arrays]
        self._inputs, self._answers, self._workload = unpack(plain, arrays), Pages(*answers), workload
        library.finish()
        started = _clock()
        self._call = self._bound(workload, self._inputs)
        library.finish()
        return {"bind_s": _clock() - started, "refreshes": refreshes, "cache": library.cache}

    def _bound(self, workload: Workload, inputs: Inputs) -> Callable[[], Any]:
        backend, contender = _there(self._backend), _there(self._contender)
        library = self._open(workload.device)
        self._calling = Calling(backend, workload, inputs, library)
        return self._slowed(self._calling.call(projection=contender.projection))

    def _slowed(self, call: Callable[[], Any]) -> Callable[[], Any]:
        percent = _there(self._contender).slowed
        return slowed(call, _there(self._library), percent) if percent else call

    def refresh(self) -> None:
        """Take over the inputs that are in the pages now."""
        calling, inputs = _there(self._calling), _there(self._inputs)
        for arrays, made in calling.held:
            for array, other in zip(arrays, made(inputs), strict=True):
                _there(calling.library.refill)(array, other)
        for again in calling.again:
            self._call = self._slowed(again())
        calling.library.finish()

    def answer(self) -> dict[str, float]:
        """Call once and write the answer to its pages. With ``deterministic=1``, a second call must give equal bits."""
        library, started = _there(self._library), _clock()
        self._returned = self._completed(_there(self._call)())
        library.finish()
        seconds = _clock() - started
        self.reveal()
        if _there(self._contender).deterministic:
            before = [one.copy() for one in _there(self._answers).arrays]
            self._returned = self._completed(_there(self._call)())
            self.reveal()
            pairs = zip(before, _there(self._answers).arrays, strict=True)
            if any(one.tobytes() != other.tobytes() for one, other in pairs):
                raise Misbehaved("it gave other bits in a second call, and deterministic=1 asks for the same")
        return {"first_call_s": seconds}

    def _completed(self, returned: Any) -> Any:
        completed = _there(self._library).completed
        return returned if completed is None else completed(returned)

    def reveal(self) -> None:
        """Write what the last call returned to the answer's pages. Raises Misbehaved if that is no answer."""
        try:
            named = _there(self._backend).named(_there(self._workload), self._returned)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None
        for array, found in zip(_there(self._answers).arrays, named.values(), strict=True):
            array[...] = found
        self._returned = None

    def warm(self, least_seconds: float, calls: int = _CALLS) -> dict[str, float]:
        """Call for at least `least_seconds`. Returns the least ``seconds`` and the least ``processor_s`` of a call.

        ``between_s`` : seconds that a call of a turn takes in addition.
        """
        library, call, started = _there(self._library), _there(self._call), _clock()
        least = {"seconds": math.inf, "processor_s": math.inf}
        count = 0
        while _clock() - started < least_seconds or (count < calls and _clock() - started < _LONG):
            before, count = system.processor_seconds(), count + 1
            seconds = library.time_calls(call, 1)
            taken = system.processor_seconds() - before
            least = {name: min(least[name], one) for name, one in zip(least, (seconds, taken), strict=True)}
        for _ in range(_BETWEEN if library.own_clock else 0):  # the first loads what a launch needs
            least["between_s"] = self._timed(call, 1)[1]
        started = _clock()
        self._change_a_key()
        return {"between_s": _clock() - started, **least}

    def _timed(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        """Seconds of `count` calls, and other seconds: the change of a key, and what a device's clock leaves out."""
        library, began = _there(self._library), _clock()
        self._change_a_key()
        changed = _clock()
        seconds = library.time_calls(call, count) * count
        return seconds, (_clock() - began - seconds) if library.own_clock else changed - began

    def turn(self, calls: int, opening: bool) -> dict[str, float]:
        """Time `calls` calls. With `opening`, one more call comes first, off the clock, to refill the caches.

        ``seconds`` : of one call. ``run_delay_s`` : how long threads of this process waited for a core in the timed
        calls.
        """
        library, call = _there(self._library), _there(self._call)

        def keeping() -> Any:
            self._returned = None
            self._returned = found = call()
            return found

        gc.disable()
        try:
            started = _clock()
            if opening:
                library.time_calls(keeping, 1)
            waited = system.run_delay_seconds()
            opened = _clock() - started
            seconds = between = 0.0
            for count in (1,) * calls if self._changes else (calls,):
                timed, other = self._timed(keeping, count)
                seconds, between = seconds + timed, between + other
            ended = _clock()
            waited = system.run_delay_seconds() - waited
            between += _clock() - ended  # to read the delays of a hundred threads takes milliseconds
        finally:
            gc.enable()
        return {
            "seconds": seconds / calls,
            "iterations": float(calls),
            "opening_s": opened,
            "between_s": between,
            "run_delay_s": waited,
        }

    def _change_a_key(self) -> None:
        """Copy a random key and its value over another, off the clock. An answer kept from the call before is then
        wrong.

        Only if the call reads arrays that can be written in place, and nothing was prepared or derived from them.
        """
        inputs, calling = self._inputs, self._calling
        if inputs is None or calling is None or not self._changes or calling.again:
            return
        keys = _there(self._workload).keys
        source, target = _secret.randrange(keys), _secret.randrange(keys)
        for (arrays, _), name in zip(calling.held[1:], OF_KEYS, strict=True):
            for array in (getattr(inputs, name), *arrays):
                array[:, :, target] = array[:, :, source]
        calling.library.finish()

    def attest(self) -> str:
        """The kernels that the prepared call really ran."""
        return _there(self._library).attest(_there(self._call))

    def measure(self, quantity: str) -> Readings:
        """The readings of the instrument for `quantity` on the prepared call."""
        return INSTRUMENTS[quantity].measure(_there(self._library), _there(self._call))

    def facts(self, device: str) -> dict[str, Any]:
        """Versions, thread pools, interpreter and a digest of the backend's file: what decides its figures."""
        from threadpoolctl import threadpool_info

        known = ("user_api", "internal_api", "prefix", "version", "num_threads", "architecture")
        pools = [{name: pool.get(name) for name in known} for pool in threadpool_info()]
        library = self._open(device)
        versions = {**VERSIONS, **library.versions()}
        told = {"versions": versions, "pools": pools, "python": sys.version.split()[0], "file": self._file}
        modes = library.modes()
        return {**told, "modes": modes} if modes else told

    def _open(self, device: str) -> Library:
        """The backend's library on `device`, opened and set up once."""
        if self._library is None or self._library.device != device:
            contender = _there(self._contender)
            if device != "cpu":
                system.confine(device)  # a device's driver maps far more memory than it uses
            self._library = library = _there(self._backend).open(device)
            if contender.deterministic:
                if not hasattr(library, "be_deterministic"):
                    raise Declined(f"{library.name} has no deterministic mode; leave out deterministic=1")
                library.be_deterministic()
            if contender.threads is not None:
                library.set_threads(contender.threads)
        return self._library


def told(fault: Exception) -> tuple[str, str]:
    """Like `attnlab.processes.refusal`, but also recognizes how libraries say that memory ran out."""
    kind, text = refusal(fault)
    if "OutOfMemory" in type(fault).__name__ or kind == "memory" or any(one in text for one in _NO_MEMORY):
        return "memory", f"ran out of memory: {text}"
    return kind, text


def work(channel: Channel) -> None:
    """Answer requests until the channel closes."""
    system.adopt_orphans()  # so that all that a backend starts ends with this process
    system.confine()
    serve(channel, Worker(), told)
