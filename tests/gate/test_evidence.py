"""One answer against its reference: facts, statistics, and what the gate says of them."""

from __future__ import annotations

import numpy as np
import pytest
from mutants.parts import whole

from attnlab.gate import race_check
from attnlab.gate.evidence import directed, max_ulp, weigh
from attnlab.gate.reference import refer
from attnlab.problem.dtypes import round_to
from attnlab.problem.inputs import problem_of
from attnlab.problem.result import Accuracy, Outcome, Result
from attnlab.problem.workload import Workload

WORKLOAD = Workload(batch=2, heads=4, queries=96, keys=96, head_dim=16, dtype="bfloat16", seed=3)


def answered(workload: Workload, factor: float = 1.0) -> np.ndarray:
    """The right answer, or that of a scale wrong by `factor`."""
    problem = problem_of(workload)
    return whole(problem.with_(scale=problem.scale * factor), workload.dtype)["output"]


def judged(workload: Workload, output: np.ndarray) -> Accuracy:
    """`judge` on the rows it samples."""
    rows = race_check.sampled_rows(workload)
    return race_check.judge(workload, rows, output[:, :, rows])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_answer_passes_with_its_numbers(dtype: str, causal: bool) -> None:
    """Class, ratio, ULP and bias are finite, and the allowance follows from the dtype."""
    workload = WORKLOAD.with_(dtype=dtype, causal=causal)
    found = judged(workload, answered(workload))
    assert found.passed and found.reason is None
    assert found.kind == "full precision inside"
    assert found.relative_error <= found.budget
    assert found.ratio <= 1.25 and abs(found.bias) < 8


def test_a_wrong_scale_is_told_as_such() -> None:
    """1 % too large in bfloat16: the reason says so. 0.2 %, the smaller part of the error: what it looks like."""
    found = judged(WORKLOAD, answered(WORKLOAD, 1.01))
    assert not found.passed
    assert found.reason is not None and "scale looks too large by" in found.reason
    less = judged(WORKLOAD, answered(WORKLOAD, 1.002)).reason or ""
    assert "errors line up with the derivative in the scale, as if it were 0.2" in less and "z = " in less


def test_zero_rows_and_what_is_outside_the_values_are_told() -> None:
    """Facts come before statistics."""
    zero = answered(WORKLOAD)
    zero[:, :, 17] = 0
    assert "rows are zero" in (judged(WORKLOAD, zero).reason or "")
    outside = answered(WORKLOAD)
    outside[0, 0, 3, 5] = 100
    assert "outside the values" in (judged(WORKLOAD, outside).reason or "")
    causal = WORKLOAD.with_(causal=True)
    alone = answered(causal)
    alone[0, 0, 0, 5] = 100
    assert "the row sees one value, " in (judged(causal, alone).reason or "")


def test_nan_is_told_with_its_row() -> None:
    """And the numbers survive JSON."""
    output = answered(WORKLOAD)
    output[1, 2, 7] = np.nan
    found = judged(WORKLOAD, output)
    assert "NaN" in (found.reason or "") and "row 7" in (found.reason or "")
    result = Result("x", WORKLOAD, Outcome.WRONG, reason=found.reason, accuracy=found)
    assert Result.from_json(result.to_json()).to_json() == result.to_json()


def test_judge_refuses_another_shape() -> None:
    """An output that is not what was asked for is malformed, not wrong."""
    with pytest.raises(ValueError, match="must have shape"):
        race_check.judge(WORKLOAD, [0, 1], np.zeros((2, 4, 3, 16)))


def test_a_direction_is_found_with_its_size_and_noise_is_not() -> None:
    """directed() estimates the shift; independent noise has |z| of order 1."""
    rng = np.random.default_rng(5)
    output, rms = rng.standard_normal((2, 4, 200, 16)), np.full((2, 4, 200, 16), 0.01)
    noise = 0.01 * rng.standard_normal(output.shape)
    assert abs(directed(noise, output, rms, (3,)).z) < 5
    found = directed(noise + 0.003 * output, output, rms, (3,))
    assert found.shift == pytest.approx(0.003, rel=0.1)
    assert found.z > 20


def test_ulp_is_that_of_the_largest_component_of_a_row() -> None:
    """A component that cancels to nearly 0 has no last place worth counting."""
    output = np.array([1.5, 1e-9]).reshape(1, 1, 1, 2)
    error = np.array([0.0, 2.0**-23]).reshape(1, 1, 1, 2)
    assert max_ulp(error, output, "float32") == 1.0


def test_an_output_of_zeros_is_right_where_the_values_are() -> None:
    """V = 0: relative errors have no denominator, and nothing divides by it."""
    problem = problem_of(WORKLOAD)
    reference = refer(problem.with_(value=np.zeros_like(problem.value)))["output"]
    assert weigh(reference, np.zeros_like(problem.query)).fault is None
    assert weigh(reference, np.full_like(problem.query, 1e-3)).fault is not None


def test_rounding_twice_is_right_and_eight_bits_are_not() -> None:
    """An honest second rounding stays within the budget; a narrower format does not."""
    workload = WORKLOAD.with_(dtype="float16")
    exact = answered(workload)
    assert judged(workload, round_to(exact, "float16")).passed
    assert not judged(workload, round_to(exact, "bfloat16")).passed
