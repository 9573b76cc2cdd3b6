"""Every fault of the zoo is caught in every dtype in which it is one, and no right variant is."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
from black_box import asked
from mutants import FAULTS
from mutants.parts import DK, DQ, DV, Answers, blocked_back, whole
from mutants.right import RIGHT

from attnlab.gate.evidence import weigh
from attnlab.gate.forms import BY_NAME, FEATURES
from attnlab.gate.gate import BACKWARD, FORWARD, examine
from attnlab.gate.questions import pose
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.problem import Problem
from attnlab.theory.exact_attention import exact_gradients


def in_turn(*dtypes: str, at: int) -> str:
    """One of them after another: all of all are in benchmarks/faults.py, over many seeds."""
    return dtypes[at % len(dtypes)]


def by_dtype(asked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Names and dtypes in the order of the dtypes: what is right in one is worked out once."""
    return sorted(asked, key=lambda one: one[1])


@pytest.mark.parametrize(
    ("name", "dtype"),
    by_dtype(((fault.name, in_turn(*fault.dtypes, at=at)) for at, fault in enumerate(FAULTS.values()))),
)
def test_fault_is_caught(name: str, dtype: str) -> None:
    """The gate names a question and a reason, in one line."""
    fault = FAULTS[name]
    found = examine(asked(fault.attention), dtype, directions=(fault.direction,))
    assert found.passed is False
    assert found.fault is not None and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *by_dtype((name, in_turn(*DTYPES, at=at)) for at, name in enumerate(RIGHT)),
        *(
            pytest.param(name, in_turn(*DTYPES, at=at + 1), marks=pytest.mark.thorough)
            for at, name in enumerate(RIGHT)
        ),
    ],
)
def test_right_variant_passes(name: str, dtype: str) -> None:
    """Whatever is rounded, stored, blocked or added in another order; however slow."""
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


@pytest.mark.parametrize(
    ("name", "kind", "gradient_kind"),
    [
        ("float32 inside, blocks of 32", "full precision inside", "full precision inside"),
        ("weights rounded", "weights rounded", None),
        ("fused, blocks of 64", None, "weights rounded"),
        ("partial sums of 32 stored", None, "partial sums rounded"),
        ("scores rounded", "scores rounded", "scores rounded"),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_class_is_told(name: str, kind: str | None, gradient_kind: str | None, dtype: str) -> None:
    """The ways of rounding are told apart by the error alone."""
    found = examine(asked(RIGHT[name]), dtype)
    assert found.precision is not None and found.gradient_precision is not None
    for precision, expected in ((found.precision, kind), (found.gradient_precision, gradient_kind)):
        if expected:
            assert precision.kind == expected
            assert 0.3 < precision.ratio <= 1.25


def test_who_has_float32_inside_is_right_but_does_not_have_float64() -> None:
    """Told as a refusal; an error beyond float32 stays a fault."""

    def narrow(problem: Problem) -> Answers:
        names = ("query", "key", "value")
        few: dict[str, Any] = {name: getattr(problem, name).astype(np.float32) for name in names}
        return {name: one.astype(float) for name, one in whole(problem.with_(**few), "float32").items()}

    found = examine(asked(narrow), "float64", directions=(FORWARD,))
    assert (found.passed, found.fault, found.asked) == (None, None, 0)
    assert found.refusal == "its answers have the precision of float32"

    def narrower(problem: Problem) -> Answers:
        return {name: one * (1 + 1e-5) for name, one in narrow(problem).items()}

    def narrow_here(problem: Problem) -> Answers:
        return narrow(problem) if problem.query.shape[3] == 257 else whole(problem, "float64")

    def gain(problem: Problem) -> Answers:
        return {name: one * (1 + 1e-9) for name, one in whole(problem, "float64").items()}

    for wrong in (narrower, narrow_here, gain):
        found = examine(asked(wrong), "float64", directions=(FORWARD,))
        assert found.passed is False and found.refusal is None


@pytest.mark.parametrize("name", ["root of the scale", "scaled query"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_scale_that_is_folded_in_is_right_where_a_row_sees_few_keys(name: str, dtype: str) -> None:
    """A score near 0 has an error of its products' size, and decides where no other key does."""
    for seed in range(100):
        question = pose(BY_NAME["scale 0.7, causal"], dtype, seed)
        assert question is not None
        output = RIGHT[name](question.problem)["output"]
        assert weigh(question.reference, output, directions=None).fault is None, seed


@pytest.mark.parametrize("seed", [1017, 1026])
def test_a_float32_sum_over_very_many_keys_may_lose_what_is_below_half_a_unit(seed: int) -> None:
    """One key after another is right, and loses 4e-5 there: two seeds of fifty were told wrong before."""
    question = pose(BY_NAME["65539 keys"], "float32", seed)
    assert question is not None
    output = asked(RIGHT["one key after another"])(question)["output"]
    assert weigh(question.reference, output).fault is None


@pytest.mark.parametrize("answer", [partial(whole, dtype="float64"), partial(blocked_back, dtype="float64")])
@pytest.mark.parametrize("form", FEATURES[::5], ids=lambda form: form.name)
def test_the_parts_of_the_zoo_are_those_of_the_theory(answer: Any, form: Any) -> None:
    """In float64, to its roundings, on whole arrays and in blocks."""
    question = pose(form, "float64", 3)
    assert question is not None
    shape = question.problem.output_shape
    problem = question.problem.with_(output_gradient=np.random.default_rng(4).standard_normal(shape))
    with np.errstate(all="ignore"):
        found = answer(problem)
    for name, expected in zip((DQ, DK, DV), exact_gradients(problem), strict=True):
        np.testing.assert_allclose(found[name], expected, atol=1e-11)


def test_directions_are_asked_apart() -> None:
    """A fault of the way back alone is none where gradients are not asked for."""
    wrong = FAULTS["D left out"].attention
    assert examine(asked(wrong), "float32", directions=(FORWARD,)).passed is True
    assert examine(asked(wrong), "float32", directions=(BACKWARD,)).passed is False
