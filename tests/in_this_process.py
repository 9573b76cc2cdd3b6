"""A worker that answers in this process: what a backend is told and what it says are the same, and nothing is started.

For tests of what is asked and judged, many of which would each import an array library anew; that a backend works in a
process of its own, and may end it, is tested where that counts.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnlab.backend.contender import Contender
from attnlab.backend.discovery import load
from attnlab.race.worker import Worker, refusal
from attnlab.race.worker_process import Refused


class InThisProcess:
    """In place of a `WorkerProcess`."""

    alive = True

    def __init__(self, contender: Contender, folders: Sequence[str] = ()) -> None:
        self._contender, self._folders = contender, [str(Path(folder).resolve()) for folder in folders]
        self._worker = Worker()
        self.computes_in: str | None = None
        self.parts = 1

    def start(self) -> None:
        """Nothing is there to be started."""

    def finish_start(self) -> None:
        """Import the backend."""
        with _refusing():
            backend = load(self._contender.backend, self._folders, dict(self._contender.settings))
        self._worker.backend, self.computes_in, self.parts = backend, backend.computes_in, backend.parts

    def begin(self, op: str, *, seconds: float, **arguments: Any) -> Callable[[], Any]:
        """A call of what is returned does it."""
        return lambda: self.ask(op, seconds=seconds, **arguments)

    def ask(self, op: str, *, seconds: float, **arguments: Any) -> Any:
        """The answer; what was asked is not changed by it."""
        with _refusing():
            return getattr(self._worker, op)(**copy.deepcopy(arguments))

    def answered(self) -> bool:
        """Whether nothing is to be waited for."""
        return True

    def end(self) -> None:
        """Nothing is there to be ended."""


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What is raised is told as by a worker; warnings, which a worker prints, are nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except Exception as fault:
            raise Refused(*refusal(fault)) from None
