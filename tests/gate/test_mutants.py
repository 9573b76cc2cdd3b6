"""Faulty attentions are caught in the dtypes in which they are faults, and no right variant is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from black_box import asked
from mutants import FAULTS
from mutants.parts import DK, DQ, DV, Answers, blocked_back, whole
from mutants.right import RIGHT

from attnlab.gate.evidence import weigh
from attnlab.gate.gate import BACKWARD, FORWARD, examine
from attnlab.gate.questions import pose
from attnlab.gate.tables import BY_NAME
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.problem import Problem
from attnlab.theory import exact_gradients

#: of all of them, every so many in the plain suite; benchmarks/faults.py asks all, in all dtypes, over many seeds
EVERY = 5


def in_turn(dtypes: tuple[tuple[str, tuple[str, ...]], ...]) -> list[Any]:
    """Each with one of its dtypes, one dtype after another: what is right in one is worked out once."""
    pairs = [(name, own[at % len(own)], at) for at, (name, own) in enumerate(dtypes)]
    return [
        pytest.param(name, dtype, marks=() if at % EVERY == 0 else pytest.mark.thorough)
        for name, dtype, at in sorted(pairs, key=lambda one: one[1])
    ]


@pytest.mark.parametrize(
    ("name", "dtype"), in_turn(tuple((fault.name, fault.dtypes) for fault in FAULTS.values()))
)
def test_a_fault_is_caught(name: str, dtype: str) -> None:
    """The gate names a question and a reason, in one line."""
    fault = FAULTS[name]
    found = examine(asked(fault.attention), dtype, directions=(fault.direction,))
    assert found.passed is False
    assert found.fault is not None and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize(("name", "dtype"), in_turn(tuple((name, DTYPES) for name in RIGHT)))
def test_a_right_variant_passes(name: str, dtype: str) -> None:
    """Whatever is rounded, stored, blocked or added in another order."""
    found = examine(asked(RIGHT[name]), dtype)
    assert found.fault is None
    assert found.passed and found.left_out == 0


def test_every_excuse_is_arithmetic() -> None:
    """Where a fault is none in a dtype, its effect is at most what the same dtype costs a right implementation."""
    assert len(FAULTS) >= 200
    for fault in FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for dtype, excuse in fault.excuses:
            assert 0 <= excuse.effect <= excuse.allowed, (fault.name, dtype, excuse)


def test_who_has_float32_inside_is_right_but_does_not_have_float64() -> None:
    """Told as a refusal; an error beyond float32 stays a fault."""

    def narrow(problem: Problem) -> Answers:
        few: dict[str, Any] = {
            name: getattr(problem, name).astype(np.float32) for name in ("query", "key", "value")
        }
        return {name: one.astype(float) for name, one in whole(problem.with_(**few), "float32").items()}

    found = examine(asked(narrow), "float64", directions=(FORWARD,))
    assert (found.passed, found.fault, found.asked) == (None, None, 0)
    assert found.refusal[FORWARD] == "its answers have the precision of float32"
    found = examine(
        asked(lambda p: {name: one * (1 + 1e-5) for name, one in narrow(p).items()}),
        "float64",
        directions=(FORWARD,),
    )
    assert found.passed is False and not found.refusal


@pytest.mark.parametrize("name", ["root of the scale", "scaled query"])
def test_a_scale_that_is_folded_in_is_right_where_a_row_sees_few_keys(name: str) -> None:
    """A score near 0 has an error of its products' size, and decides where no other key does."""
    for seed in range(100):
        question = pose(BY_NAME["scale 0.7, causal"], "bfloat16", seed)
        assert question is not None
        output = RIGHT[name](question.problem)["output"]
        assert weigh(question.reference, output, directions=None).fault is None, seed


def test_the_ways_back_agree_with_the_exact_one() -> None:
    """The right parts are right: blocks and whole arrays, in float64."""
    question = pose(BY_NAME["all at once, array"], "float64", 0)
    assert question is not None
    problem = question.problem
    problem = problem.with_(output_gradient=np.ones(problem.output_shape))
    exact = dict(zip((DQ, DK, DV), exact_gradients(problem), strict=True))
    with np.errstate(all="ignore"):
        for found in (whole(problem), blocked_back(problem, block=7)):
            for name, gradient in exact.items():
                np.testing.assert_allclose(found[name], gradient, atol=1e-10)


def test_no_gradients_is_no_fault() -> None:
    """Who declines the plainest questions about them is asked no others."""
    from attnlab.errors import Declined

    def forward_only(question: Any) -> Answers:
        if question.backward:
            raise Declined("for inference")
        return asked(whole)(question)

    found = examine(forward_only, "float64")
    assert found.passed and found.refusal[BACKWARD] == "for inference" and FORWARD in found.precision
