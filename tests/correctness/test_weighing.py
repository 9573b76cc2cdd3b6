"""One answer compared with its reference: what the check reports, and the check before a race."""

from __future__ import annotations

import numpy as np
import pytest
from attention import FEATURES, by_differentiation, drawn
from mutants.fault import inputs
from mutants.parts import divided, rounder, whole
from mutants.rounding import RIGHT

from attnlab.correctness import weighing
from attnlab.correctness.check import examine
from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import weigh
from attnlab.errors import Declined
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import DTYPES, round_to
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import OUTPUT, Workload

WORKLOAD = Workload(batch=2, heads=4, queries=96, keys=96, head_dim=16, dtype="bfloat16", seed=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_right_answers_pass_and_those_to_another_problem_do_not(feature: str, dtype: str) -> None:
    """The right answers round every step, or only the results. Without the feature, every result is wrong."""
    problem = drawn(dtype, **FEATURES[feature])
    references, exact = expect(problem), by_differentiation(problem)
    for answers in (
        RIGHT["scores rounded"](problem),
        {name: round_to(one, dtype) for name, one in exact.items()},
    ):
        for name, reference in references.items():
            assert weigh(reference, answers[name], directions=None).passed, name
    if feature not in ("plain", "value_dim"):
        arrays, g = (problem.query, problem.key, problem.value), problem.output_gradient
        plain = Inputs.of(*arrays, output_gradient=g, scale=problem.scale, dtype=dtype)
        for name, one in by_differentiation(plain).items():
            assert not weigh(references[name], round_to(one, dtype), directions=None).passed, name


# -- what is said of one answer


@pytest.mark.parametrize(
    ("said", "scale", "gain", "where", "number"),
    [
        ("scale looks too large by", 1.01, 1.0, (), 0),
        ("line up with the derivative in the scale, as if it were too large by 0.2", 1.002, 1.0, (), 0),
        ("too large by 1 % on average", 1.0, 1.01, (), 0),
        ("rows are zero", 1.0, 1.0, np.s_[:, :, 17], 0),
        ("outside the values", 1.0, 1.0, np.s_[0, 0, 3, 5], 100),
        ("NaN in 16 of 12288 values, in row 7 first", 1.0, 1.0, np.s_[1, 2, 7], np.nan),
        ("infinity in 16", 1.0, 1.0, np.s_[1, 2, 7], np.inf),
    ],
)
def test_a_fault_is_told_by_what_it_looks_like(said, scale, gain, where, number) -> None:
    """The report is one line, which JSON preserves. Broken facts are reported before statistics."""
    posed = inputs_of(WORKLOAD)
    output = gain * whole(posed.with_(scale=posed.scale * scale), WORKLOAD.dtype)["output"]
    if where:
        output[where] = number
    rows = weighing.sampled_rows(WORKLOAD, np.random.default_rng())
    found = weighing.judge(WORKLOAD, posed, rows, {OUTPUT: output}, None)
    assert not found.passed and found.reason is not None and said in found.reason and "\n" not in found.reason
    result = Result("x", WORKLOAD, Outcome.WRONG, reason=found.reason, accuracy=found)
    assert Result.from_json(result.to_json()).to_json() == result.to_json()


# -- backends that compute in a lower precision than that of their inputs


RACED = Workload(batch=2, heads=3, queries=70, keys=90, head_dim=16)
ROWS = list(range(RACED.queries))


def computed(problem: Inputs, dtype: str, scale: float = 1.0) -> np.ndarray:
    """Inputs, scores and weights rounded to `dtype`, the rest and the output in float32."""
    store = rounder(dtype)
    few = inputs(store, "query", "key", "value")(problem.with_(scale=problem.scale * scale))

    def weights(s: np.ndarray) -> np.ndarray:
        return store(divided(np.exp(store(s) - s.max(axis=-1, keepdims=True))))

    return whole(few, "float32", weights=weights)["output"]


@pytest.mark.parametrize(
    ("dtype", "words"), [("bfloat16", "in bfloat16:"), ("float16", "in float16 or TF32:")]
)
def test_who_says_it_is_judged_by_that_format_and_who_does_not_is_told(dtype: str, words: str) -> None:
    """For a backend that says its format, the truth is that for inputs rounded to it. A wrong scale is still wrong."""
    posed = inputs_of(RACED)
    answers = {OUTPUT: computed(posed, dtype)}
    said, silent = (weighing.judge(RACED, posed, ROWS, answers, one) for one in (dtype, None))
    assert said.passed and said.relative_error < silent.relative_error
    assert not silent.passed and f"this is the error of computing {words}" in str(silent.reason)
    wrong = {OUTPUT: computed(posed, dtype, scale=1.05)}
    assert not weighing.judge(RACED, posed, ROWS, wrong, dtype).passed
    found = examine(
        lambda question: {OUTPUT: computed(question.inputs, dtype)}, "float32", kinds=("forward",)
    )
    with pytest.raises(Declined, match=f"its {dtype} cannot hold the inputs"):
        weighing.judge(RACED, posed.with_(query=np.full_like(posed.query, 3.4028e38)), ROWS, answers, dtype)
    assert found.asked == 1 and f"computing {words}" in str(found.fault)
