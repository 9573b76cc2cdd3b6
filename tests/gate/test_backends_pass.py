"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline, backwards too."""

from __future__ import annotations

import pytest
from every import every

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.gate.gate import EVERYTHING, Answers, examine
from attnlab.gate.questions import Question
from attnlab.problem.dtypes import DTYPES
from attnlab.race.probe import Pace, Probe


@pytest.mark.parametrize("name", every())
@pytest.mark.parametrize("dtype", DTYPES)  # one after another: what is right in one is worked out once
def test_no_false_alarm(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate holds for every correct backend; one that declines everything says why.

    One that compiles for every shape is asked about fewer shapes than by `attnlab check`.
    """
    monkeypatch.setattr("attnlab.gate.question_budget.SETUP_SECONDS", 5.0)
    try:
        probe = Probe(load(name))
        differentiates = probe.backend.open("cpu").no_gradients() is None
    except Unavailable as missing:
        pytest.skip(str(missing))

    pace = Pace()

    def ask(question: Question) -> Answers:
        layouts = question.layout, question.gradient_layout
        return pace.timed(lambda: probe.answer(question.problem, question.workload(), *layouts))

    found = examine(
        ask, dtype, seed=0, directions=EVERYTHING, clock=lambda: pace.seconds, setup=lambda: pace.setup
    )
    assert found.fault is None
    if probe.backend.attend_with_log_sum is not None and found.asked:
        assert found.log_sum_precision is not None and found.log_sum_precision.ratio <= 1.25
    elif found.asked:
        assert found.log_sum_refusal
    if not found.asked:
        assert found.refusal and found.declined > 50
    elif not differentiates:
        assert found.gradient_precision is None and found.gradient_refusal
    elif found.gradient_precision:
        assert found.gradient_precision.ratio <= 1.25
    else:  # or a busy machine, or compiling, left no time for the questions that tell a precision
        assert found.gradient_refusal or found.left_out or found.uncompiled
