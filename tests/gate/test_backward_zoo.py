"""Every fault of the backward zoo is caught in every dtype in which it is one, and no right variant is."""

from __future__ import annotations

import numpy as np
import pytest
from zoo.backward_faults import BACKWARD_FAULTS
from zoo.backward_parts import in_blocks, with_parts
from zoo.backward_right import RIGHT_BACKWARD

from attnlab.accuracy.gradient_gate import examine_gradients, gradients_asked
from attnlab.contract.dtypes import DTYPES
from attnlab.theory.exact_gradients import exact_gradients


@pytest.mark.parametrize(
    ("name", "dtype"), [(fault.name, dtype) for fault in BACKWARD_FAULTS.values() for dtype in fault.dtypes]
)
def test_fault_is_caught(name: str, dtype: str) -> None:
    """The gate names a question and a reason, in one line."""
    found = examine_gradients(gradients_asked(BACKWARD_FAULTS[name].make(dtype)), dtype)
    assert found.passed is False
    assert found.fault is not None and "\n" not in found.fault and dtype in found.fault


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT_BACKWARD)
def test_right_variant_passes(name: str, dtype: str) -> None:
    """Whatever is rounded, stored, blocked or added in another order."""
    found = examine_gradients(
        gradients_asked(RIGHT_BACKWARD[name](dtype)),
        dtype,
        clock=lambda: 0.0,  # however slow
    )
    assert found.fault is None
    assert found.passed and found.left_out == 0


def test_the_zoo_is_large_and_every_excuse_is_arithmetic() -> None:
    """At least forty faults; where one is no fault in a dtype, a sentence says why."""
    assert len(BACKWARD_FAULTS) >= 40
    for fault in BACKWARD_FAULTS.values():
        assert fault.dtypes, f"{fault.name} is nowhere a fault"
        for _, excuse in fault.harmless:
            assert len(excuse) > 30


@pytest.mark.parametrize(
    ("name", "kind", "least"),
    [
        ("float32 inside, blocks of 32", "full precision inside", 0.9),
        ("fused, blocks of 64", "weights rounded", 0.9),
        # stored as often as the budget's fewest terms allow, but later sums are no longer than the first are
        ("partial sums of 32 stored", "partial sums rounded", 0.7),
        # of what is allowed where scores are rounded, the scale of 1/8 rounds nothing, nor does a softmax in one step,
        # and D is added up in one go
        ("scores rounded", "scores rounded", 0.35),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_class_is_told(name: str, kind: str, least: float, dtype: str) -> None:
    """The four ways of rounding are told apart by the error alone."""
    found = examine_gradients(gradients_asked(RIGHT_BACKWARD[name](dtype)), dtype)
    assert found.precision is not None
    assert found.precision.kind == kind
    assert least < found.precision.budget_ratio <= 1.25


@pytest.mark.parametrize("made", [with_parts(), in_blocks(block=8)], ids=["whole", "blocked"])
@pytest.mark.parametrize("causal", [False, True])
def test_both_ways_back_are_those_of_the_theory(made, causal: bool) -> None:
    """In float64, to its roundings."""
    rng = np.random.default_rng(4)
    q, k, v, g = (rng.standard_normal((2, 3, n, d)) for n, d in ((17, 8), (21, 8), (21, 5), (17, 5)))
    found = made("float64")(q, k, v, g, causal=causal, scale=0.4)
    expected = exact_gradients(q, k, v, g, causal=causal, scale=0.4)
    for one, other in zip(found[1:], expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-13)
