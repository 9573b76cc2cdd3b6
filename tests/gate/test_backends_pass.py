"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline, backwards too."""

from __future__ import annotations

import numpy as np
import pytest

from attnlab.accuracy.gate import examine
from attnlab.accuracy.gradient_gate import examine_gradients
from attnlab.accuracy.gradient_questions import GradientQuestion
from attnlab.accuracy.questions import Question
from attnlab.contract.discovery import backends, load
from attnlab.contract.dtypes import DTYPES
from attnlab.contract.errors import Declined, Unavailable
from attnlab.contract.workload import Workload
from attnlab.measuring.probe import Specimen


def opened(name: str) -> Specimen:
    """The backend, or a skipped test where it cannot be had here."""
    try:
        specimen = Specimen(load(name))
        specimen.backend.open("cpu")
    except Unavailable as missing:
        pytest.skip(str(missing))
    return specimen


def workload_of(question: Question) -> Workload:
    """What the question asks of a backend."""
    q, k, v = question.q, question.k, question.v
    return Workload.of_arrays(q, k, v, causal=question.causal, scale=question.scale, dtype=question.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", backends())
def test_no_false_alarm(name: str, dtype: str) -> None:
    """The gate holds for every correct backend; one that declines everything is not asked."""
    specimen = opened(name)

    def ask(question: Question) -> object:
        return specimen.ask(workload_of(question), (question.q, question.k, question.v), question.layout)

    found = examine(ask, dtype, seed=0)
    assert found.fault is None
    assert found.asked or found.declined > 50


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", backends())
def test_no_false_alarm_on_gradients(name: str, dtype: str) -> None:
    """PyTorch's are right; NumPy has none, says so, and is asked no other question."""
    specimen = opened(name)

    def ask(question: GradientQuestion) -> object:
        posed = question.question
        arrays = (posed.q, posed.k, posed.v)
        return specimen.gradients(
            workload_of(posed), arrays, question.upstream, posed.layout, question.upstream_layout
        )

    found = examine_gradients(ask, dtype, seed=0)
    assert found.fault is None
    if specimen.backend.library == "numpy":
        assert found.passed is None and found.declined == 1
        assert "NumPy has no" in (found.refusal or "")
    elif found.asked:
        assert found.precision is not None and found.precision.kind is not None
        assert found.precision.budget_ratio <= 1.25
    else:
        assert found.refusal


def test_a_refusal_is_declined_before_anything_is_computed() -> None:
    """What NumPy cannot do is no fault of a backend."""
    specimen = opened("numpy_vectorized")
    workload = Workload(batch=1, heads=1, queries=2, keys=2, head_dim=4, dtype="float32")
    array = np.zeros((1, 1, 2, 4), dtype=np.float32)
    with pytest.raises(Declined, match="automatic differentiation"):
        specimen.gradients(workload, (array, array, array), array)
