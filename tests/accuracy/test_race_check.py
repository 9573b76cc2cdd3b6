"""What is wrong with an answer is said by its name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attnlab.gate import race_check
from attnlab.problem.dtypes import round_to
from attnlab.problem.workload import Workload


def test_not_a_number_is_called_by_its_name() -> None:
    """And neither an error of nan nor a pass."""
    answer = np.full((1, 1, 4, 4), np.nan)
    answer[0, 0, 0, 0] = 1.0
    judged = race_check.judge(Workload(heads=1, queries=4, keys=4, head_dim=4), [0, 1, 2, 3], answer)
    assert not judged.passed
    assert judged.reason == "NaN in 15 of 16 values, in row 0 first; every input is finite"


def test_a_sampled_row_is_named_by_its_number_in_the_output() -> None:
    """Not by its place in the sample: that is where a kernel author will look."""
    workload = Workload(heads=2, queries=4096, keys=512, head_dim=8)
    rows = race_check.sampled_rows(workload)
    assert len(rows) < workload.queries
    exact = race_check.references(workload, tuple(rows))["output"].output.astype(np.float32)
    wrong = rows.index(rows[len(rows) // 2])
    exact[0, 1, wrong] += 1
    found = race_check.judge(workload, rows, exact)
    assert not found.passed and f"row {rows[wrong]}," in (found.reason or "")
    exact[0, 1, wrong] = np.nan
    assert f"row {rows[wrong]} first" in (race_check.judge(workload, rows, exact).reason or "")


TRAINING = Workload(
    heads=4, kv_heads=2, queries=300, keys=320, head_dim=8, causal="bottom_right", direction="training"
)


def answered(workload: Workload, rows: list[int]) -> dict[str, np.ndarray]:
    """The exact results, rounded."""
    found = race_check.references(workload, tuple(rows))
    return {name: round_to(found[name].output, workload.dtype) for name in workload.results}


@pytest.mark.parametrize("direction", ["forward", "backward", "training"])
@pytest.mark.parametrize(
    "features", [{}, {"window": (100, 0), "softcap": 5.0, "sinks": True, "bias": "alibi"}]
)
def test_right_results_of_every_direction_pass(direction: str, features: dict[str, Any]) -> None:
    """Output and query gradient at the sampled rows, the gradients of key and value whole."""
    workload, rows = TRAINING.with_(direction=direction, dtype="bfloat16", **features), [0, 3, 150, 299]
    answers = answered(workload, rows)
    for name, one in answers.items():
        assert one.shape[2] == (4 if name in ("output", "query gradient") else 320)
    judged = race_check.judge(workload, rows, answers)
    assert judged.passed and judged.of in answers and judged.kind == "full precision inside"


@pytest.mark.parametrize("name", TRAINING.results)
def test_the_wrong_one_of_several_results_is_named(name: str) -> None:
    """By the verdict and by its reason."""
    rows = race_check.sampled_rows(TRAINING)
    answers = answered(TRAINING, rows)
    answers[name] = answers[name] * np.float32(1.01)
    judged = race_check.judge(TRAINING, rows, answers)
    assert not judged.passed and judged.of == name
    assert name == "output" or (judged.reason or "").startswith(f"{name}: ")


def test_missing_results_and_other_shapes_are_refused() -> None:
    """One line, before anything is compared."""
    rows = [0, 1]
    answers = answered(TRAINING, rows)
    with pytest.raises(ValueError, match="key gradient must have shape"):
        race_check.judge(TRAINING, rows, answers | {"key gradient": answers["output"]})
    del answers["value gradient"]
    with pytest.raises(
        ValueError, match="answers must be key gradient, output, query gradient, value gradient"
    ):
        race_check.judge(TRAINING, rows, answers)
