"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline, backwards too."""

from __future__ import annotations

import pytest
from every import every, library_of

from attnlab.backends.discovery import load
from attnlab.correctness.gate import BACKWARD, EVERYTHING, FORWARD, Answers, examine
from attnlab.correctness.questions import Question
from attnlab.errors import Unavailable
from attnlab.race.probe import Probe
from attnlab.workload.vocabulary import DTYPES, LOG_SUM

#: seconds a query-key pair by the clock of these tests: slow enough that large questions are left out
PACE = 1e-5
#: libraries that compile for every shape, and seconds a question
COMPILERS, COMPILING = ("jax", "keras", "mlx", "openvino"), 1.5
#: each in one dtype, and without the questions that take it long
BRIEF = [(name, DTYPES[at % len(DTYPES)], True) for at, name in enumerate(every())]
ALL = [(name, dtype, name == "naive_loop") for dtype in DTYPES for name in every()]


@pytest.mark.parametrize(
    ("name", "dtype", "slow"), [*BRIEF, *(pytest.param(*one, marks=pytest.mark.thorough) for one in ALL)]
)
def test_no_false_alarm(name: str, dtype: str, slow: bool) -> None:
    """The gate holds for every correct backend; one that declines everything says why."""
    try:
        probe = Probe(load(name))
        differentiates = probe.backend.open("cpu").no_gradients() is None
    except Unavailable as missing:
        pytest.skip(str(missing))
    pairs = kinds = 0

    def ask(question: Question) -> Answers:
        nonlocal pairs, kinds
        found = probe.answer(question.problem, question.workload(), *question.layouts)
        pairs, kinds = pairs + question.pairs, kinds + 1
        return found

    found = examine(
        ask,
        dtype,
        seed=0,
        directions=EVERYTHING,
        clock=lambda: pairs * PACE if slow else 0.0,
        setup=lambda: kinds * (COMPILING if library_of(name) in COMPILERS else 0.0),
    )
    assert found.fault is None
    if not found.asked:
        assert found.refusal[FORWARD] and found.declined > 50
        return
    # who compiles for every question, and has no gradients, is asked what there is time for
    assert found.asked > (15 if library_of(name) in COMPILERS else 30) and all(
        one.ratio <= 1.25 for one in found.precision.values()
    )
    if probe.backend.attend_with_log_sum is None:
        assert found.refusal[LOG_SUM]
    if not differentiates:
        assert BACKWARD not in found.precision and found.refusal[BACKWARD]
