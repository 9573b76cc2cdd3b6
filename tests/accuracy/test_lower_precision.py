"""A contender that computes in less than its inputs' precision: judged by that where it says so, told where not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.gate import race_check
from attnlab.gate.evidence import weigh
from attnlab.gate.gate import examine
from attnlab.gate.lower_precision import looks_like
from attnlab.gate.questions import Question
from attnlab.gate.reference import refer
from attnlab.problem.directions import OUTPUT
from attnlab.problem.dtypes import DTYPES, lower, round_to
from attnlab.problem.inputs import problem_of
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

RACED = Workload(batch=2, heads=3, queries=70, keys=90, head_dim=16)
ROWS = list(range(RACED.queries))


def computed(problem: Problem, dtype: str, scale: float = 1.0) -> NDArray[Any]:
    """Attention with inputs, scores and weights rounded to `dtype`, the rest and the output in float32."""
    q, k, v = (round_to(one, dtype).astype(np.float32) for one in (problem.query, problem.key, problem.value))
    scores = round_to(q @ k.swapaxes(2, 3) * np.float32(problem.scale * scale), dtype).astype(np.float32)
    seen = problem.mask.array(problem.shape)
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return round_to(weights / weights.sum(-1, keepdims=True), dtype).astype(np.float32) @ v


def test_lower_is_what_rounds_more_coarsely() -> None:
    """Of two formats one, and of one none."""
    below = {one: {other for other in DTYPES if lower(one, other)} for one in DTYPES}
    assert below == {
        "float64": {"float32", "float16", "bfloat16"},
        "float32": {"float16", "bfloat16"},
        "float16": {"bfloat16"},
        "bfloat16": set(),
    }
    assert lower("float32", None) is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, "top_left"])
def test_who_says_it_is_judged_by_that_formats_budget(dtype: str, causal: str | bool) -> None:
    """And by the truth of inputs rounded to it, to which the answer is nearer."""
    workload = RACED.with_(causal=causal)
    answer = computed(problem_of(workload), dtype)
    said = race_check.judge(workload, ROWS, answer, dtype)
    assert said.passed, said.reason
    silent = race_check.judge(workload, ROWS, answer)
    assert not silent.passed
    assert said.relative_error < silent.relative_error
    assert said.budget > 100 * silent.budget


@pytest.mark.parametrize(
    ("dtype", "words"), [("bfloat16", "in bfloat16:"), ("float16", "in float16 or TF32:")]
)
def test_who_does_not_say_it_is_wrong_and_told_what_it_looks_like(dtype: str, words: str) -> None:
    silent = race_check.judge(RACED, ROWS, computed(problem_of(RACED), dtype))
    assert f"; this is the error of computing {words} set the precision that its library computes in" in str(
        silent.reason
    )


def test_a_wrong_answer_in_the_lower_format_is_wrong_whatever_is_said() -> None:
    """By a scale that is off by 5 %."""
    answer = computed(problem_of(RACED), "bfloat16", scale=1.05)
    assert not race_check.judge(RACED, ROWS, answer, "bfloat16").passed


def test_a_format_that_is_not_lower_changes_nothing() -> None:
    """float16 inputs of a backend that computes in float32."""
    workload = RACED.with_(dtype="float16")
    answer = computed(problem_of(workload), "float16").astype(np.float16)
    assert race_check.judge(workload, ROWS, answer, "float32") == race_check.judge(workload, ROWS, answer)


@pytest.mark.parametrize("fault", [1.0003, 1.001, 1.003, 1.01, 1.2])
def test_other_faults_are_not_taken_for_it(fault: float) -> None:
    """They have not moved along with rounded inputs, however small they are."""
    problem = problem_of(RACED)
    reference = refer(problem)[OUTPUT]
    for answer in (
        (reference.output * fault).astype(np.float32),
        refer(problem.with_(scale=problem.scale * fault))[OUTPUT].output.astype(np.float32),
    ):
        assert weigh(reference, answer).fault is not None
        assert looks_like(problem, answer, reference) is None


def test_the_gate_names_it_with_the_first_question() -> None:
    def ask(question: Question) -> dict[str, NDArray[Any]]:
        return {OUTPUT: computed(question.problem, "bfloat16")}

    found = examine(ask, "float32", directions=("forward",))
    assert found.asked == 1
    assert "this is the error of computing in bfloat16" in str(found.fault)


def test_a_problem_is_cast_with_all_its_arrays() -> None:
    """But for ALiBi, which is exact numbers and no array."""
    problem = problem_of(RACED.with_(bias="normal", sinks=True, direction="training"))
    cast = problem.cast("bfloat16")
    assert cast.dtype == "bfloat16"
    for name in ("query", "key", "value", "bias", "sinks", "output_gradient"):
        np.testing.assert_array_equal(getattr(cast, name), round_to(getattr(problem, name), "bfloat16"))
    assert cast.cast("float32").query.dtype == np.float32
    alibi = problem_of(RACED.with_(bias="alibi"))
    assert alibi.cast("float16").bias == alibi.bias
