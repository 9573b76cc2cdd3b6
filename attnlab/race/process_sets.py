"""The worker processes of a run: a set has one of each contender, and a race goes over several sets at once.

Every set is a fresh draw of what a process draws when it starts: addresses, heap, environment. Contenders of one
library and environment are forked from a fresh process of their set that has imported the library, where it bears that.
Sets are kept from workload to workload, stopped; where the machine has no room for so many, the last are ended and
started anew for every workload.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from attnlab import system as memory
from attnlab.backends.contender import Contender
from attnlab.race.worker_process import SERVE, Died, Hung, NoAnswer, WorkerProcess
from attnlab.subprocesses import Siblings
from attnlab.system import adopting
from attnlab.workload.result import Outcome

#: of what would be free without the idle sets, this part stays free when they are kept
_LEFT_SHARE = 0.4
#: processes that import a library at the same time, for each core
_AT_ONCE = 2


class ProcessSets:
    """Starts processes when they are first needed. `absent` holds the contenders whose backend does not load."""

    def __init__(
        self,
        contenders: Sequence[Contender],
        folders: Sequence[str] = (),
        on_event: Callable[[str], None] = lambda text: None,
        make: Callable[[Contender, Sequence[str]], WorkerProcess] = WorkerProcess,
    ) -> None:
        self._contenders, self._folders = tuple(contenders), folders
        self._on_event, self._make = on_event, make
        self._sets: list[dict[str, WorkerProcess]] = []
        self.absent: dict[str, tuple[Outcome, str]] = {}

    @property
    def workers(self) -> list[WorkerProcess]:
        """All that were made so far."""
        return [worker for one in self._sets for worker in one.values()]

    def running(self, number: int, names: Collection[str] | None = None) -> dict[str, WorkerProcess]:
        """The set of that number, by contender, started where it is not there: see `start`."""
        self.start([number], names)
        return self._sets[number]

    def start(self, numbers: Sequence[int], names: Collection[str] | None = None) -> None:
        """Start what is not there of the sets of these numbers: of `names`, of all contenders where None.

        Side by side: importing a library takes seconds. A contender that does not load in the first set is not tried
        again; one that does not start in a later one is not alive there.
        """
        while len(self._sets) <= max(numbers):
            self._sets.append({one.name: self._make(one, self._folders) for one in self._contenders})
        families: dict[Any, list[WorkerProcess]] = {}
        for number in numbers:
            for name, worker in self._sets[number].items():
                if (names is None or name in names) and name not in self.absent and not worker.alive:
                    modules = None
                    if worker.contender.elsewhere and not number:
                        self._on_event(f"looking for what {name} runs in, or making it")
                    with self._noting(worker, number):
                        forks = all(one[name].forks for one in self._sets)
                        modules = (worker.before_fork() or None) if forks else None
                    if number == 0 and name in self.absent:
                        continue
                    environment = tuple(sorted(worker.contender.environment({}).items()))
                    own = name if modules is None else (environment, replace(worker.interpreter, own=()))
                    families.setdefault((number, modules, own), []).append(worker)
        waiting = list(families.items())
        while waiting:  # whole sets, and enough of them for all cores: those that hang do not add up
            last = waiting[min(_AT_ONCE * memory.cores(), len(waiting)) - 1][0][0]
            now = [
                (key, there)
                for key, family in waiting
                if key[0] <= last
                and (there := [one for one in family if one.contender.name not in self.absent])
            ]
            waiting = [one for one in waiting if one[0][0] > last]
            if not now:
                continue
            with adopting() as able:
                deadline = time.monotonic() + now[0][1][0].start_seconds
                begun = [self._begin(family, key[0], key[1] if able else None) for key, family in now]
                for (key, family), siblings in zip(now, begun, strict=True):
                    if siblings is None:
                        continue
                    processes = siblings.born(deadline)
                    for worker, process in zip([one for one in family if one.log], processes, strict=True):
                        worker.forks = time.monotonic() < deadline or not isinstance(process, str)
                        with self._noting(worker, key[0]):
                            worker.adopt(process)
            started = [(key[0], worker) for key, family in now for worker in family]
            for again in (False, True):  # those that were started afresh are waited for together
                for number, worker in started:
                    if worker.alive and (worker.starting or not again):
                        with self._noting(worker, number):
                            worker.finish_start(excusing=not again)

    def _begin(
        self, family: Sequence[WorkerProcess], number: int, modules: tuple[str, ...] | None
    ) -> Siblings | None:
        """Start processes of one library and environment: to be forked from one that imports it, or each by itself."""
        outputs, interpreters, environment = [], [], dict[str, str]()
        for worker in family:
            self._on_event(f"starting {worker.contender.name}")
            with self._noting(worker, number):
                if modules is None:
                    worker.start()
                else:
                    environment = worker.open()
                    if worker.log:
                        outputs.append(worker.log)
                        interpreters.append(worker.interpreter)
        if modules is None or not outputs:
            return None
        return Siblings(SERVE, modules, outputs, environment, interpreters)

    @contextlib.contextmanager
    def _noting(self, worker: WorkerProcess, number: int) -> Iterator[None]:
        try:
            yield
        except (NoAnswer, OSError) as fault:
            worker.end()
            outcome = fault.outcome if isinstance(fault, Died | Hung) else Outcome.UNAVAILABLE
            if number == 0:
                self.absent[worker.contender.name] = outcome, str(fault)

    def make_room(self, needed: int, keep: Collection[int]) -> bool:
        """End idle processes until so many bytes are free: of the last sets first, but none of the sets to `keep`.

        Whether any was ended. They are started again when they are asked for.
        """
        ended = False
        for number in range(len(self._sets) - 1, -1, -1):
            if memory.free_bytes() >= needed:
                break
            for worker in self._sets[number].values() if number not in keep else ():
                ended = ended or worker.alive
                worker.end()
        return ended

    def dismiss(self) -> None:
        """After a workload: end as many of the last sets as would take too much memory if they were kept."""
        held = sum(worker.resident_bytes() for one in self._sets[1:] for worker in one.values())
        self.make_room(int(_LEFT_SHARE * (memory.free_bytes() + held)), keep=[0])

    def end(self) -> None:
        """End all processes."""
        with contextlib.ExitStack() as leaving:  # all of them, also where an interrupt comes in between
            for worker in self.workers:
                leaving.callback(worker.end)
