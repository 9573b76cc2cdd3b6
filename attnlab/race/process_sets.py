"""The worker processes of a run: a set has one of each contender, and a race has several sets, one after the other.

Every set is a fresh draw of what a process draws when it starts: addresses, heap, environment. Sets are kept from
workload to workload, stopped, because starting a process costs more than racing it; where the machine has no room
for so many, the last are ended and started anew for every workload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from attnlab import system as memory
from attnlab.backend.contender import Contender
from attnlab.problem.result import Outcome
from attnlab.race.worker_process import Died, Hung, NoAnswer, WorkerProcess

#: of what would be free without the idle sets, this part stays free when they are kept
_LEFT_SHARE = 0.4


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

    def running(self, number: int, names: Sequence[str] | None = None) -> dict[str, WorkerProcess]:
        """The set of that number, by contender: of `names`, all where None, those that are not there are started.

        Side by side: importing a library takes seconds. A contender that does not load in the first set is not tried
        again; one that does not start in a later one is not alive there.
        """
        while len(self._sets) <= number:
            self._sets.append({one.name: self._make(one, self._folders) for one in self._contenders})
        found, started = self._sets[number], []
        for name in found if names is None else names:
            worker = found[name]
            if worker.alive or name in self.absent:
                continue
            self._on_event(f"starting {name}")
            with self._noting(worker, number):
                worker.start()
                started.append(worker)
        for worker in started:
            with self._noting(worker, number):
                worker.finish_start()
        return found

    @contextlib.contextmanager
    def _noting(self, worker: WorkerProcess, number: int) -> Iterator[None]:
        try:
            yield
        except (NoAnswer, OSError) as fault:
            worker.end()
            outcome = fault.outcome if isinstance(fault, Died | Hung) else Outcome.UNAVAILABLE
            if number == 0:
                self.absent[worker.contender.name] = outcome, str(fault)

    def make_room(self, needed: int, keep: int) -> bool:
        """End processes that are idle until so many bytes are free: of the last sets first, but none of set `keep`.

        Whether any was ended. They are started again when they are asked for.
        """
        ended = False
        for number in range(len(self._sets) - 1, -1, -1):
            if memory.free_bytes() >= needed:
                break
            for worker in self._sets[number].values() if number != keep else ():
                ended = ended or worker.alive
                worker.end()
        return ended

    def dismiss(self) -> None:
        """After a workload: end as many of the last sets as would take too much memory if they were kept."""
        held = sum(worker.resident_bytes() for one in self._sets[1:] for worker in one.values())
        self.make_room(int(_LEFT_SHARE * (memory.free_bytes() + held)), keep=0)

    def end(self) -> None:
        """End all processes."""
        with contextlib.ExitStack() as leaving:  # all of them, also where an interrupt comes in between
            for worker in self.workers:
                leaving.callback(worker.end)
