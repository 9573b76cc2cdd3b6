"""What tests of the gate share."""

from __future__ import annotations

import contextlib
import copy
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from attnlab.backends.contender import Contender
from attnlab.backends.discovery import load
from attnlab.correctness import gate
from attnlab.correctness.questions import Question, questions
from attnlab.race.worker import Worker, refusal
from attnlab.race.worker_process import Refused


class InThisProcess:
    """A worker that answers in this process, in place of a `WorkerProcess`: nothing is started.

    For tests of what is asked and judged, many of which would each import an array library anew; that a backend works
    in a process of its own, and may end it, is tested where that counts.
    """

    def __init__(self, contender: Contender, folders: Sequence[str] = ()) -> None:
        self._contender, self._folders = contender, [str(Path(folder).resolve()) for folder in folders]
        self._worker = Worker()
        self.computes_in: str | None = None
        self.parts = 1
        self.alive = False

    def start(self) -> None:
        """Nothing is there to be started."""

    def finish_start(self) -> None:
        """Import the backend."""
        with _refusing():
            backend = load(self._contender.backend, self._folders, dict(self._contender.settings))
        self.alive = True
        self._worker.backend, self.computes_in = backend, backend.computes_in

    def begin(self, op: str, *, seconds: float, **arguments: Any) -> Callable[[], Any]:
        """A call of what is returned does it; what was asked is not changed by it."""

        def answer() -> Any:
            with _refusing():
                return getattr(self._worker, op)(**copy.deepcopy(arguments))

        return answer

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


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` asks a backend in this process: no array library is imported anew, and nothing is raced."""
    monkeypatch.setattr("attnlab.runs.check.WorkerProcess", InThisProcess)
    monkeypatch.setattr("attnlab.runs.check._on_the_clock", lambda *_: None)


@pytest.fixture
def few_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the questions about outputs the first three, for what is asked after them."""

    def few(dtype: str, seed: int, kind: str = gate.FORWARD) -> Iterator[Question]:
        return itertools.islice(questions(dtype, seed, kind), 3 if kind == gate.FORWARD else None)

    monkeypatch.setattr(gate, "questions", few)
