"""The child process of one contender: it holds one backend and does what the conductor asks, in order.

Started by `attnlab.race.worker_process`. Array libraries load with the backend.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from attnlab import system
from attnlab.backends.backend import Backend
from attnlab.backends.calling import Calling
from attnlab.backends.contender import Contender
from attnlab.backends.library import Library, half_installed, import_listeners, libraries, open_library
from attnlab.errors import Declined, Misbehaved, Unavailable
from attnlab.libraries.host import VERSIONS
from attnlab.race import ceilings, invariance, variation
from attnlab.race.admission import PLACED_BYTES, drawn_bytes
from attnlab.race.instruments import LATENCY, Instrument, Readings
from attnlab.race.probe import Pace, Probe
from attnlab.subprocesses import Channel, Closed
from attnlab.text import bytes_text
from attnlab.workload import captured
from attnlab.workload.drawing import checked_problem, problem_of
from attnlab.workload.inputs import PROJECTIONS, Inputs, digest, pack, unpack
from attnlab.workload.workload import Workload

#: calls that a calibration makes at least, unless one takes over `_LONG` seconds
_CALLS = 5
_LONG = 0.1
#: inputs are changed while that takes fewer seconds, or a smaller part of the turns'; seconds that it takes for a byte,
#: about: not as measured, which would change them less on a busy machine
_CHANGING_SECONDS, _CHANGING_SHARE, _CHANGING_BYTE_SECONDS = 0.02, 0.03, 1.5e-9
#: what is placed anew is moved by up to this: a huge page
_PADDING_BYTES = 2**21
#: what libraries say that cannot take more memory
_NO_MEMORY = ("can't allocate memory", "bad_alloc", "Cannot allocate memory", "RESOURCE_EXHAUSTED")
T = TypeVar("T")
Answers = dict[str, NDArray[Any]]


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


#: whose functions measure and read in this process
_MEASURING = ("attnlab.backends", "attnlab.libraries", "attnlab.race", "attnlab.system")
_CLOCKS = ("perf_counter", "monotonic", "process_time", "time")
#: and what it calls of other modules: a backend may replace whatever else they have
_OTHERS: dict[Any, tuple[str, ...]] = {
    time: (*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS)),
    gc: ("disable", "enable", "collect"),
    np: ("array", "asarray"),
}


def _functions() -> dict[tuple[Any, str], Any]:
    """What times calls and reads their results, as it is now, by module or class and name."""
    libraries()  # imports their classes
    owners: list[Any] = [module for name, module in sys.modules.items() if name.startswith(_MEASURING)]
    owners += {one for module in owners for one in vars(module).values() if isinstance(one, type)}
    ours = [one for one in owners if getattr(one, "__module__", one.__name__).startswith(_MEASURING)]
    found = {(owner, name): one for owner in ours for name, one in vars(owner).items()}
    found |= {(owner, name): getattr(owner, name) for owner, names in _OTHERS.items() for name in names}
    kinds = classmethod, property
    return {place: one for place, one in found.items() if callable(one) or isinstance(one, kinds)}


class _Last:
    """A call that keeps what it returned last, and one result at a time."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.returned = call, None

    def __call__(self) -> Any:
        self.returned = None
        self.returned = found = self.call()
        return found


def _same(one: Answers, other: Answers) -> bool:
    """Whether they hold the same bits."""
    return all(array.tobytes() == other[name].tobytes() for name, array in one.items())


def _copied(problem: Inputs) -> Inputs:
    plain, arrays = pack(problem)
    return unpack(plain, [array.copy() for array in arrays])


class Worker:
    """What a worker process holds: a backend, and the workload that is prepared for it. Requests name its methods."""

    def __init__(self) -> None:
        self.backend: Backend | None = None
        self.contender: Contender | None = None
        self.workload: Workload | None = None
        self.problem: Inputs | None = None
        #: what is bound, where its inputs can be changed, and the problem that takes turns with `problem`
        self.calling: Calling | None = None
        self.other: Inputs | None = None
        #: whether the library may have taken the arrays of `problem` over as they lie: it has to stay as it is
        self.lent = False
        #: by what its inputs are changed now; the seconds that changing them took, about, and those of all turns
        self.seed: int | None = None
        self.changing, self.turning = 0.0, 0.0
        self.call: Callable[[], Any] | None = None
        #: memory that only moves what is taken after it
        self.padding: NDArray[Any] | None = None
        self.probe: Probe | None = None
        #: seconds that the last binding took, and whether anything was prepared in this process so far
        self.bound_seconds = 0.0
        self.used = False
        self._functions = _functions()
        self._threads: int | None = None
        self.pace = Pace()

    def load(self, contender: Contender, folders: Sequence[str]) -> dict[str, Any]:
        """Import the backend, with its own settings; it stays for the life of the process."""
        from attnlab.backends.discovery import load

        one = load(contender.backend, folders, dict(contender.settings))
        self.backend = one = replace(one, mask_form=contender.mask)
        self.contender, self._threads = contender, contender.threads
        gc.collect()
        gc.freeze()  # what a library made on import stays: to look through it again took 0.1 s a workload
        return {name: getattr(one, name) for name in ("library", "kernel", "computes_in")}

    def describe(self, backend: str, folders: Sequence[str], workload: Workload) -> dict[str, Any]:
        """Import a backend in place of the one before: its library, its summary, and why it declines `workload`."""
        self.load(Contender(backend, backend), folders)
        found = _there(self.backend, "load")
        if found.block is not None:  # of what computes whole blocks, a block is asked
            workload = workload.with_(d_model=workload.heads * workload.head_dim)
        refusal = found.declines(workload)
        reason = None if refusal is None else refusal.reason
        return {"library": found.library, "summary": found.summary, "reason": reason}

    def declines(self, workload: Workload) -> None:
        """Refuse what the backend does not do; nothing is drawn or computed."""
        self.library(workload.device)
        _there(self.backend, "load").require(workload, self.projection)

    def prepare(self, workload: Workload, digested: bool = False) -> dict[str, Any]:
        """Draw the inputs of `workload` and hand them to the backend; the workload before is freed.

        `digested`: tell the digest of the inputs as ``inputs``, where they are not too large to be kept.
        ``bind_s`` is the seconds that the backend then took to get ready: compiling, sessions, masks, packed weights.
        ``fresh`` is 1 where nothing was prepared in this process before.
        """
        self._forget()
        self.declines(workload)
        system.confine(workload.device)
        self.problem = problem_of(workload) if drawn_bytes(workload) <= PLACED_BYTES else None
        self.call = self._bound(workload, self.problem)
        self.workload = workload
        fresh, self.used = float(not self.used), True
        told = {"cache": self.library().cache, "bind_s": self.bound_seconds, "fresh": fresh}
        if digested and self.problem is not None:
            told["inputs"] = digest(self.problem)
        return told

    def place(self) -> str | None:
        """Let the inputs, and whatever calls take, lie elsewhere in memory: taken anew, the old given back.

        Where they lie decides the speed of a call by up to 30 %, and is drawn only here and when a process starts.
        Inputs that are large are spread over the whole memory anyway, and twice of them might not fit: returned is why
        they stay, or None.
        """
        workload = _there(self.workload, "prepare")
        if self.problem is None:
            return f"its inputs take over {bytes_text(PLACED_BYTES)}"
        self.call, self.calling, self.problem = None, None, _copied(self.problem)
        self._give_back(workload.device)
        self.padding = np.empty(random.SystemRandom().randrange(1, _PADDING_BYTES), np.uint8)
        self.call = self._bound(workload, self.problem)
        return None

    def _bound(self, workload: Workload, problem: Inputs | None) -> Callable[[], Any]:
        backend, library = _there(self.backend, "load"), self.library(workload.device)
        backend.require(workload, self.projection)
        changeable = problem is not None and library.refill is not None
        arrays, left = backend.arrays(workload, problem)
        calling = Calling(backend, workload, left, library)
        library.finish()
        started = time.perf_counter()
        call = calling.call(arrays, None, self.projection or PROJECTIONS[0])
        library.finish()
        self.bound_seconds = time.perf_counter() - started
        self.calling, self.seed = calling if changeable and calling.held else None, None
        self.lent = True
        return self._slowed(call, library)

    def _slowed(self, call: Callable[[], Any], library: Library) -> Callable[[], Any]:
        percent = 0.0 if self.contender is None else self.contender.slowed
        return slowed(call, library, percent) if percent else call

    def _change(self, calling: Calling, last: _Last, seed: int) -> None:
        """Write inputs changed by `seed` into the arrays that the last call reads, or elsewhere if they are so."""
        if self.lent:
            self.problem, self.lent = _copied(_there(self.problem, "prepare")), False
        problem, asked = _there(self.problem, "prepare"), variation.posed(calling.workload, seed)
        if asked is not calling.workload:
            self.other = self.other or problem_of(asked)
            problem = self.other
        problem = variation.changed(problem, calling.workload, seed)
        stays = seed == self.seed
        for arrays, made in calling.held:
            for array, other in zip(made(problem) if stays else arrays, made(problem), strict=True):
                _there(calling.library.refill, "prepare")(array, other)
        for again in () if stays else calling.again:
            last.call = self._slowed(again(), calling.library)
        calling.library.finish()
        self.seed = seed
        self.changing += _CHANGING_BYTE_SECONDS * drawn_bytes(calling.workload)

    def check(self, rows: Sequence[int], calls: int = 2) -> dict[str, Any]:
        """``answers``: the prepared workload's named results at these query rows, of so many calls in a row.

        ``first_call_s`` is the seconds of the first of them, and ``last_call_s`` of the last. The second shows a
        backend that writes into its inputs: the timed calls would compute something else. Whatever was asked to be
        deterministic and gives other bits in one of them is Misbehaved. Gradients are those of
        `checked_problem`, and ``timed`` are then those of the call that is timed, as `turn` returns them.
        """
        workload, call = _there(self.workload, "prepare"), _there(self.call, "prepare")
        if workload.backward:
            call = _there(self.backend, "load").bind(workload, checked_problem(workload, rows))
        library, seconds = self.library(), []
        answers: list[Answers] = []
        bits: set[bytes] = set()
        # of a library whose calls return before they are done, where it has no queue to be finished
        completed = getattr(library, "completed", None)
        for _ in range(calls):
            started = time.perf_counter()
            returned = call()
            if completed is not None:
                returned = completed(returned)
            library.finish()
            seconds.append(time.perf_counter() - started)
            answers.append(self._cut(returned, rows))
            if self._deterministic:
                bits.add(invariance.fingerprint(self._named(workload, returned)))
            del returned
        if len(bits) > 1:
            raise Misbehaved("it gave other bits in a second call, and deterministic=1 asks for the same")
        self._require_unchanged(library)
        told = {"answers": answers, "first_call_s": seconds[0], "last_call_s": seconds[-1]}
        if workload.backward and calls > 1:
            told["timed"] = self._cut(_there(self.call, "prepare")(), rows, few=True)
        return told

    def turn(self, rows: Sequence[int], seed: int, change: bool = True, **options: Any) -> dict[str, Any]:
        """One turn of the race: ``readings`` of `Latency`, and what its calls returned.

        Before the clock starts the inputs are changed by `seed`, where they can be, and unless `change` tells that
        they must, only where that takes no time to speak of; or as much is written elsewhere where they are so already:
        ``changed`` tells which, None for neither. ``seed`` tells by what they are changed, None where they are as
        drawn. ``answers`` are the results at these query rows, of gradients of key and value at some of their rows: of
        the last call on the clock, and before it of the first on these inputs where they differ.
        """
        workload, call = _there(self.workload, "prepare"), _there(self.call, "prepare")
        system.confine(workload.device)  # others have taken their inputs since
        library, last, answers = self.library(), _Last(call), list[Answers]()
        expected = self.changing + _CHANGING_BYTE_SECONDS * drawn_bytes(workload)
        due = change or expected < max(_CHANGING_SECONDS, _CHANGING_SHARE * self.turning)
        changing = partial(self._change, self.calling, last, seed) if self.calling and due else None
        changed = None if changing is None else seed != self.seed
        started = time.perf_counter()
        readings = LATENCY.measure(
            library,
            last,
            change=changing,
            read=lambda: answers.append(self._cut(last.returned, rows, few=True)),
            **options,
        )
        self.turning += time.perf_counter() - started
        self.call = last.call
        answers.append(self._cut(last.returned, rows, few=True))
        self._require_unchanged(library)
        if len(answers) > 1 and _same(*answers):
            del answers[0]
        return {"readings": readings, "seed": self.seed, "changed": changed, "answers": answers}

    def _cut(self, returned: Any, rows: Sequence[int], few: bool = False) -> Answers:
        """Copies of the named results at these query rows."""
        workload = _there(self.workload, "prepare")
        named = self._named(workload, returned)
        return {name: np.array(workload.cut(name, one, rows, few=few)) for name, one in named.items()}

    def _require_unchanged(self, library: Library) -> None:
        """Raises Misbehaved where the backend has replaced a function that it is measured with."""
        unset = object()
        replaced = [
            f"{owner.__name__}.{name}"
            for (owner, name), one in self._functions.items()
            if vars(owner).get(name, unset) is not one
        ]
        replaced += [
            f"its library's {name}" for name in ("finish", "time_calls", "to_numpy") if name in vars(library)
        ]
        if replaced:
            raise Misbehaved(f"it replaced what it is measured with: {', '.join(replaced[:3])}")

    def answer(
        self,
        problem: Inputs,
        workload: Workload,
        layout: str = "contiguous",
        gradient_layout: str = "contiguous",
    ) -> dict[str, Any]:
        """``results``: the named results for a problem, lying in memory as the layouts say.

        A backend that changes its inputs, or a result it returned earlier, is wrong. ``cpu_seconds`` and
        ``setup_seconds`` as `Pace` tells them apart.
        """
        self.library(workload.device)
        probe = self.probe = self.probe or Probe(_there(self.backend, "load"))
        seconds, setup = self.pace.seconds, self.pace.setup
        found = self.pace.timed(lambda: probe.answer(problem, workload, layout, gradient_layout))
        taken = {"cpu_seconds": self.pace.seconds - seconds, "setup_seconds": self.pace.setup - setup}
        return {**taken, "results": found}

    def calibrate(self, warmup_seconds: float) -> dict[str, float]:
        """Warm up for at least `warmup_seconds`, then seconds per call: the least of those seen.

        ``waited`` is the time for which threads waited for a core, over the time that it took (nan: not told). The
        least of at least `_CALLS` where they are short: the first of all carries a library's start-up,
        which can be a thousand times the call.
        """
        library, call = self.library(), _there(self.call, "prepare")
        start, delay = time.perf_counter(), system.run_delay_seconds()
        seconds, calls = library.time_calls(call, 1), 1
        while time.perf_counter() - start < warmup_seconds or (calls < _CALLS and seconds < _LONG):
            seconds, calls = min(seconds, library.time_calls(call, 1)), calls + 1
        waited = (system.run_delay_seconds() - delay) / max(time.perf_counter() - start, 1e-9)
        return {"seconds": seconds, "waited": waited}

    def measure(self, instrument: Instrument, **options: Any) -> Readings:
        """The readings of an instrument on the prepared call."""
        system.confine(_there(self.workload, "prepare").device)  # others have taken their inputs since
        return instrument.measure(self.library(), _there(self.call, "prepare"), **options)

    def attest(self) -> str:
        """The kernels that the prepared call really ran."""
        return self.library().attest(_there(self.call, "prepare"))

    def invariance(self, dtype: str, device: str, size: int | None = None) -> dict[str, Any]:
        """The output for a problem of its own, and whether parts of it, computed alone, have the same bits.

        With a `size` (1 for all of it) the output alone. Raises Declined. See `attnlab.race.invariance`.
        """
        backend = _there(self.backend, "load")
        self.library(device)
        backend.require(invariance.workload_in(dtype, device))
        if size is not None:
            return {"output": invariance.whole(backend, invariance.workload_in(dtype, device, size))}
        size = invariance.size_for(backend, dtype, device)
        workload = invariance.workload_in(dtype, device, size)
        expected = invariance.whole(backend, workload)
        same, reason = invariance.same_in_parts(backend, workload, expected)
        if reason is None:
            same |= invariance.gradients_again(backend, workload)
        return {"size": size, "same": same, "reason": reason, "output": expected}

    def free_bytes(self, device: str) -> int:
        """Bytes that can still be taken on `device`."""
        return self.library(device).free_bytes()

    def release(self) -> None:
        """Free the prepared workload, and the device memory that its calls left behind."""
        device = self.workload.device if self.workload else None
        self._forget()
        self._give_back(device)

    def _forget(self) -> None:
        self.workload = self.problem = self.other = self.call = self.calling = self.padding = None
        self.changing, self.turning = 0.0, 0.0

    def _give_back(self, device: str | None) -> None:
        """What is not in use, to the device and to the system."""
        gc.collect()
        if device:
            self.library(device).trim()
        system.trim_heap()  # it is kept between calls, not between workloads

    def facts(self, device: str) -> dict[str, Any]:
        """Versions, thread pools and interpreter: what decides the figures in this process."""
        from threadpoolctl import threadpool_info

        known = ("user_api", "internal_api", "prefix", "version", "num_threads", "architecture")
        pools = [{name: pool.get(name) for name in known} for pool in threadpool_info()]
        library = self.library(device)
        versions = {**VERSIONS, **library.versions()}
        told = {"versions": versions, "pools": pools, "python": sys.version.split()[0]}
        modes = library.modes()
        return {**told, "modes": modes} if modes else told

    def ceiling(self, library: str, device: str, dtype: str) -> dict[str, float] | None:
        """The best rates of one array library; needs no backend."""
        return ceilings.measure(open_library(library, device), dtype)

    @property
    def projection(self) -> str | None:
        """How x of a multi-head block is to be projected."""
        return None if self.contender is None else self.contender.projection

    @property
    def _deterministic(self) -> bool:
        return self.contender is not None and self.contender.deterministic

    def library(self, device: str | None = None) -> Library:
        library = _there(self.backend, "load").open(device or _there(self.workload, "prepare").device)
        if self._deterministic:
            if not hasattr(library, "be_deterministic"):
                raise Declined(f"{library.name} has no deterministic mode; leave out deterministic=1")
            library.be_deterministic()
        if self._threads is not None:
            library.set_threads(self._threads)
            self._threads = None  # once, after the library is loaded
        return library

    def _named(self, workload: Workload, returned: Any) -> Answers:
        try:
            return _there(self.backend, "load").named(workload, returned)
        except ValueError as fault:
            raise Misbehaved(str(fault)) from None


def refusal(fault: BaseException) -> tuple[str, str]:
    """What kind of end an exception is, of `attnlab.race.worker_process.Refused`, and one line for a person."""
    name = type(fault).__name__
    text = " ".join(str(fault).split())[:400] or name
    for known, kind in {Declined: "declined", Unavailable: "unavailable", Misbehaved: "wrong"}.items():
        if isinstance(fault, known):
            return kind, text
    if isinstance(fault, MemoryError) or "OutOfMemory" in name or any(said in text for said in _NO_MEMORY):
        return "memory", f"ran out of memory: {text}"
    half = half_installed(fault)
    if half is not None:
        return "unavailable", f"{half.module} does not hold what is asked of it ({name}: {text}); {half.mend}"
    return "raised", f"raised {name}: {text}"


def serve(channel: Channel) -> None:
    """Answer requests, (number, method, arguments), until the channel closes, in the folder that is told first.

    An answer is (number, "answer", value), or the number and what `refusal` tells.
    """
    system.die_with_parent()
    system.limit_files()
    system.confine()
    worker = Worker()
    import_listeners.append(lambda one: channel.send((0, "importing", tuple(one))))
    with contextlib.suppress(Closed):
        with contextlib.suppress(OSError):  # it may have been removed: then no path is meant from there
            captured.started_in = Path.cwd()
        os.chdir(channel.receive())
        while True:
            number, op, arguments = channel.receive()
            try:
                kind, told = "answer", getattr(worker, op)(**arguments)
            except Exception as fault:
                kind, told = refusal(fault)
            channel.send((number, kind, told))
