"""Every fault of the zoo is caught in every dtype in which it is one, and no right variant is."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from zoo import FAULTS, coverage
from zoo.parts import Array, plain
from zoo.right import RIGHT

from attnlab.accuracy.coverage_questions import ALL_FORMS
from attnlab.accuracy.evidence import weigh
from attnlab.accuracy.gate import examine, function_asked
from attnlab.accuracy.gate_result import Examined
from attnlab.accuracy.questions import SCALE_FORMS, pose
from attnlab.contract.dtypes import DTYPES


@cache
def told(name: str, dtype: str) -> Examined:
    """What the gate finds on a fault."""
    return examine(function_asked(FAULTS[name].make(dtype)), dtype)


@pytest.mark.parametrize(
    ("name", "dtype"), [(fault.name, dtype) for fault in FAULTS.values() for dtype in fault.dtypes]
)
def test_fault_is_caught(name: str, dtype: str) -> None:
    """The gate names a question and a reason, in one line."""
    found = told(name, dtype)
    assert found.passed is False
    assert found.fault is not None and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_right_variant_passes(name: str, dtype: str) -> None:
    """Rounding scores, weights or nothing, in blocks or not, forwards or backwards: all right."""
    found = examine(function_asked(RIGHT[name](dtype)), dtype, clock=lambda: 0.0)  # however slow
    assert found.fault is None
    assert found.passed and found.left_out == 0


def test_every_form_of_coverage_is_needed() -> None:
    """By a fault that no question before it shows."""
    faults = [told(fault.name, dtype).fault or "" for fault in coverage.FAULTS for dtype in fault.dtypes]
    needed = {fault.partition(", ")[2].partition(" (b")[0] for fault in faults}
    assert {form.name for form in ALL_FORMS} <= needed


def test_the_zoo_is_large_and_every_excuse_is_arithmetic() -> None:
    """At least forty faults; where one is no fault in a dtype, a sentence with numbers says why."""
    assert len(FAULTS) >= 40
    for fault in FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for _, excuse in fault.harmless:
            assert len(excuse) > 30


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("float32 inside, blocks of 32", "full precision inside"),
        ("weights rounded", "weights rounded"),
        ("scores rounded", "scores rounded"),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_class_is_told(name: str, kind: str, dtype: str) -> None:
    """The three ways of rounding are told apart by the error alone."""
    found = examine(function_asked(RIGHT[name](dtype)), dtype)
    assert found.precision is not None
    assert found.precision.kind == kind
    # of what is allowed where scores are rounded, the scale of 1/8 rounds nothing, nor does a softmax in one step
    assert 0.6 < found.precision.budget_ratio <= 1.25


def test_who_has_float32_inside_is_right_but_does_not_have_float64() -> None:
    """Told as a refusal; an error beyond float32 stays a fault."""

    def narrow(q: Array, k: Array, v: Array, **options: Any) -> Array:
        few = (array.astype(np.float32) for array in (q, k, v))
        return plain(*few, **options, dtype="float32").astype(q.dtype)

    found = examine(function_asked(narrow), "float64")
    assert (found.passed, found.fault, found.asked) == (None, None, 0)
    assert found.refusal == "its answers have the precision of float32"

    def narrower(q: Array, k: Array, v: Array, **options: Any) -> Array:
        return narrow(q, k, v, **options) * (1 + 1e-5)

    def narrow_here(q: Array, k: Array, v: Array, **options: Any) -> Array:
        return (narrow if q.shape[3] == 257 else partial(plain, dtype="float64"))(q, k, v, **options)

    def gain(q: Array, k: Array, v: Array, **options: Any) -> Array:
        return plain(q, k, v, **options, dtype="float64") * (1 + 1e-9)

    for wrong in (narrower, narrow_here, gain):
        found = examine(function_asked(wrong), "float64")
        assert found.passed is False and found.refusal is None


@pytest.mark.parametrize("name", ["root of the scale", "scaled query"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_scale_that_is_folded_in_is_right_where_a_row_sees_few_keys(name: str, dtype: str) -> None:
    """A score near 0 has an error of its products' size, and decides where no other key does."""
    form = next(form for form in SCALE_FORMS if form.name == "scale 0.7, causal")
    for seed in range(100):
        question = pose(form, dtype, seed)
        assert question is not None
        output = RIGHT[name](dtype)(
            question.q, question.k, question.v, causal=question.causal, scale=question.scale
        )
        assert weigh(question.reference, output, directions=None).fault is None, seed


@pytest.mark.parametrize("seed", [1017, 1026])
def test_a_float32_sum_over_very_many_keys_may_lose_what_is_below_half_a_unit(seed: int) -> None:
    """One key after another is right, and loses 4e-5 there: two seeds of fifty were told wrong before."""
    (form,) = (form for form in ALL_FORMS if form.name == "65539 keys")
    question = pose(form, "float32", seed)
    assert question is not None
    output = function_asked(RIGHT["one key after another"]("float32"))(question)
    assert weigh(question.reference, output).fault is None
