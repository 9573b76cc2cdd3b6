"""Every backend that comes with attnlab passes in a dtype that it does not decline, backwards too; so do users' own."""

from __future__ import annotations

from pathlib import Path

import pytest
from every import every, library_of

from attnlab.backends.discovery import load
from attnlab.correctness.answering import Probe
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.questions import BACKWARD, FORWARD, KINDS, Question
from attnlab.errors import Unavailable
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.workload import LOG_SUM

#: seconds a query-key pair by the clock of these tests, and for a question of a library that compiles for every shape
PACE, COMPILING = 5e-5, 0.5
COMPILERS = ("jax", "keras", "mlx", "openvino")
#: each in one dtype, without the questions that take it long; and any mask in one array, in whose softmax
#: differentiation goes back through the maximum
BRIEF = [(name, DTYPES[at % len(DTYPES)], True) for at, name in enumerate(every())]
BRIEF.append(("any_mask_in_one_array", "float16", True))
ALL = [(name, dtype, name == "naive_loop") for dtype in DTYPES for name in every()]


@pytest.mark.parametrize(
    ("name", "dtype", "brief"), [*BRIEF, *(pytest.param(*one, marks=pytest.mark.thorough) for one in ALL)]
)
def test_no_false_alarm(name: str, dtype: str, brief: bool) -> None:
    """Every right backend passes; one that declines everything says why."""
    written = [str(Path(__file__).with_name("written"))] if name == "any_mask_in_one_array" else []
    try:
        probe = Probe(load(name, written))
        differentiates = probe.backend.open("cpu").without_gradients is None
    except Unavailable as missing:
        pytest.skip(str(missing))
    now, own = 0.0, COMPILING if not written and library_of(name) in COMPILERS else 0.0

    def ask(question: Question) -> Answers:
        nonlocal now
        now += question.pairs * PACE + own
        return probe.ask(question)

    daily = brief or bool(written)
    found = examine(ask, dtype, kinds=KINDS, clock=lambda: now if brief else 0.0, daily=daily)
    assert found.fault is None
    if not found.asked:
        assert found.refusal[FORWARD] and found.declined > 50
        return
    assert found.asked > 15 and all(one.ratio <= 1.25 for one in found.precision.values())
    if probe.backend.attend_with_log_sum is None:
        assert found.refusal[LOG_SUM]
    if not differentiates:
        assert BACKWARD not in found.precision and found.refusal[BACKWARD]
