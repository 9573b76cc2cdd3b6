"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline, backwards too."""

from __future__ import annotations

import pytest
from every import every, library_of

from attnlab.backends.discovery import load
from attnlab.errors import Unavailable
from attnlab.gate.gate import EVERYTHING, Answers, examine
from attnlab.gate.questions import Question
from attnlab.problem.dtypes import DTYPES
from attnlab.race.probe import Probe

#: those that are spared most questions, as `attnlab check` does by its clock, and seconds a query-key pair
SLOW, PACE = ("naive_loop",), 1e-6
#: libraries that compile for every shape, and seconds a question
COMPILERS, COMPILING = ("jax", "keras", "mlx", "openvino"), 1.5


@pytest.mark.parametrize("name", every())
@pytest.mark.parametrize("dtype", DTYPES)  # one after another: what is right in one is worked out once
def test_no_false_alarm(name: str, dtype: str) -> None:
    """The gate holds for every correct backend; one that declines everything says why.

    By the clock of this test some are slow, and some compile: they are spared as much on any machine.
    """
    try:
        probe = Probe(load(name))
        differentiates = probe.backend.open("cpu").no_gradients() is None
    except Unavailable as missing:
        pytest.skip(str(missing))
    pairs = kinds = 0

    def ask(question: Question) -> Answers:
        nonlocal pairs, kinds
        found = probe.answer(question.problem, question.workload(), question.layout, question.gradient_layout)
        pairs, kinds = pairs + question.pairs, kinds + 1
        return found

    found = examine(
        ask,
        dtype,
        seed=0,
        directions=EVERYTHING,
        clock=lambda: pairs * (PACE if name in SLOW else 0.0),
        setup=lambda: kinds * (COMPILING if library_of(name) in COMPILERS else 0.0),
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
    else:  # slow or compiling, it was spared the questions that tell a precision
        assert found.gradient_refusal or found.left_out or found.uncompiled
