"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline, backwards too."""

from __future__ import annotations

import time

import pytest

from attnlab.accuracy.gate import EVERYTHING, Answers, examine
from attnlab.accuracy.questions import Question
from attnlab.contract.discovery import backends, load
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.errors import Unavailable
from attnlab.measuring.probe import Probe


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", backends())
def test_no_false_alarm(name: str, dtype: str) -> None:
    """The gate holds for every correct backend; one that declines everything says why."""
    try:
        probe = Probe(load(name))
        differentiates = probe.backend.open("cpu").no_gradients() is None
    except Unavailable as missing:
        pytest.skip(str(missing))

    def ask(question: Question) -> Answers:
        asked = question.workload()
        return probe.answer(question.problem, asked, question.layout, question.gradient_layout)

    # processor seconds: beside other work nobody is too slow to be asked
    found = examine(ask, dtype, seed=0, directions=EVERYTHING, clock=time.process_time)
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
    else:
        assert found.gradient_refusal
