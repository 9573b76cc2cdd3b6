"""What tests of the gate share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from in_this_process import InThisProcess

from attnlab.gate import gate
from attnlab.gate.questions import Question, questions


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` asks a backend in this process: no array library is imported anew."""
    monkeypatch.setattr("attnlab.runs.check.WorkerProcess", InThisProcess)


@pytest.fixture
def few_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the questions about outputs the first three, for what is asked after them."""

    def few(dtype: str, seed: int, kind: str = gate.FORWARD) -> Iterator[Question]:
        return itertools.islice(questions(dtype, seed, kind), 3 if kind == gate.FORWARD else None)

    monkeypatch.setattr(gate, "questions", few)
