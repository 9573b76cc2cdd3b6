"""Every backend that comes with attnlab passes the gate in every dtype that it does not decline."""

from __future__ import annotations

import pytest

from attnlab.discovery import backends, load
from attnlab.ground.dtypes import DTYPES
from attnlab.ground.errors import Unavailable
from attnlab.ground.workload import Workload
from attnlab.judging.gate import examine
from attnlab.judging.posing import Specimen
from attnlab.judging.questions import Question


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", backends())
def test_no_false_alarm(name: str, dtype: str) -> None:
    """The gate holds for every correct backend; one that declines everything is not asked."""
    try:
        specimen = Specimen(load(name))
        specimen.backend.open("cpu")
    except Unavailable as missing:
        pytest.skip(str(missing))

    def ask(question: Question) -> object:
        workload = Workload.of_arrays(
            question.q, question.k, question.v, causal=question.causal, scale=question.scale, dtype=dtype
        )
        return specimen.ask(workload, (question.q, question.k, question.v), question.layout)

    found = examine(ask, dtype, seed=0)
    assert found.fault is None
    assert found.asked or found.declined > 50
