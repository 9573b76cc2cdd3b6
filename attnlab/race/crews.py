"""The worker processes of a run: one of each contender is a crew, and a race has several crews, one after the other.

Every crew is a fresh draw of what a process draws when it starts: addresses, heap, environment. Crews are kept from
workload to workload, stopped, because starting a process costs more than racing it; where the machine has no room
for so many, the last are ended and started anew for every workload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from attnlab import system as memory
from attnlab.backends.contender import Contender
from attnlab.problem.result import Outcome
from attnlab.race.worker_process import Died, Hung, NoAnswer, WorkerProcess

#: crews are kept while together they would hold no more than this part of the memory that is free
_KEPT_SHARE = 0.6


class Crews:
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
        self._crews: list[dict[str, WorkerProcess]] = []
        self.absent: dict[str, tuple[Outcome, str]] = {}

    @property
    def workers(self) -> list[WorkerProcess]:
        """All that were made so far."""
        return [worker for crew in self._crews for worker in crew.values()]

    def crew(self, number: int, names: Sequence[str] | None = None) -> dict[str, WorkerProcess]:
        """The crew of that number, by contender: of `names`, all where None, those that are not running are started.

        Side by side: importing a library takes seconds. A contender that does not load in the first crew is not tried
        again; one that does not start in a later one is not alive there.
        """
        while len(self._crews) <= number:
            self._crews.append({one.name: self._make(one, self._folders) for one in self._contenders})
        crew, started = self._crews[number], []
        for name in crew if names is None else names:
            worker = crew[name]
            if worker.alive or name in self.absent:
                continue
            self._on_event(f"starting {name}")
            with self._noting(worker, number):
                worker.start()
                started.append(worker)
        for worker in started:
            with self._noting(worker, number):
                worker.finish_start()
        return crew

    @contextlib.contextmanager
    def _noting(self, worker: WorkerProcess, number: int) -> Iterator[None]:
        try:
            yield
        except (NoAnswer, OSError) as fault:
            worker.end()
            outcome = fault.outcome if isinstance(fault, Died | Hung) else Outcome.UNAVAILABLE
            if number == 0:
                self.absent[worker.contender.name] = outcome, str(fault)

    def size(self, names: Sequence[str], number: int) -> int:
        """Bytes that those of `names` will take that are not yet running in that crew, by those of the first."""
        running = self._crews[number] if number < len(self._crews) else {}
        missing = (name for name in names if name not in running or not running[name].alive)
        return sum(self._crews[0][name].resident_bytes() for name in missing)

    def make_room(self, needed: int, keep: int) -> bool:
        """End processes that are idle until so many bytes are free: of the last crews first, but none of crew `keep`.

        Whether any was ended. They are started again when they are asked for.
        """
        ended = False
        for number in range(len(self._crews) - 1, -1, -1):
            if memory.free_bytes() >= needed:
                break
            for worker in self._crews[number].values() if number != keep else ():
                ended = ended or worker.alive
                worker.end()
        return ended

    def dismiss(self) -> None:
        """After a workload: end as many of the last crews as would take too much memory if they were kept."""
        held = [sum(worker.resident_bytes() for worker in crew.values()) for crew in self._crews]
        room = _KEPT_SHARE * (memory.free_bytes() + sum(held[1:]))
        for number in range(len(self._crews) - 1, 0, -1):
            if sum(held[1 : number + 1]) <= room:
                return
            for worker in self._crews[number].values():
                worker.end()

    def end(self) -> None:
        """End all processes."""
        with contextlib.ExitStack() as leaving:  # all of them, also where an interrupt comes in between
            for worker in self.workers:
                leaving.callback(worker.end)
