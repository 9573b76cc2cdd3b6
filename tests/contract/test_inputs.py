"""Inputs are drawn piece by piece and given up array by array, and are what they would be drawn at once."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from attnlab.backends import backend
from attnlab.backends.discovery import load
from attnlab.problem import inputs
from attnlab.problem.dtypes import DTYPES, round_to
from attnlab.problem.problem import Problem
from attnlab.problem.workload import Workload

ASKED = Workload(
    heads=4,
    kv_heads=2,
    queries=7,
    keys=33,
    head_dim=8,
    value_dim=5,
    bias="normal",
    direction="training",
    seed=3,
)


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_are_what_one_draw_gives(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, in every array that a workload has."""
    monkeypatch.setattr(inputs, "_DRAWN", 100)
    workload = ASKED.with_(dtype=dtype)
    problem = inputs.problem_of(workload)
    shapes = {0: (1, 4, 7, 8), 1: (1, 2, 33, 8), 2: (1, 2, 33, 5), 8: (1, 4, 7, 5)}
    drawn = (problem.query, problem.key, problem.value, problem.output_gradient)
    for (stream, shape), found in zip(shapes.items(), drawn, strict=True):
        expected = np.random.default_rng([3, stream]).standard_normal(shape)
        np.testing.assert_array_equal(found, round_to(expected, dtype))
    wide = np.float64 if dtype == "float64" else np.float32
    bias = np.random.default_rng([3, 6]).standard_normal((1, 4, 7, 33), dtype=wide)
    np.testing.assert_array_equal(problem.bias, round_to(bias, dtype))


def test_what_is_drawn_for_a_call_is_given_up_array_by_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the values are taken over, queries and keys are there once and not twice."""
    drawn: list[weakref.ref[Any]] = []
    there: list[list[bool]] = []

    def problem_of(workload: Workload) -> Problem:
        problem = inputs.problem_of(workload)
        drawn.extend(weakref.ref(array) for array in (problem.query, problem.key, problem.value))
        return problem

    def laid_out(*arguments: Any) -> Any:
        there.append([one() is not None for one in drawn])
        return real(*arguments)

    real = backend.laid_out
    monkeypatch.setattr(backend, "problem_of", problem_of)
    monkeypatch.setattr(backend, "laid_out", laid_out)
    workload = ASKED.with_(direction="forward", bias="none")
    call = load("torch_eager").bind(workload)
    assert there == [[True, True, True], [False, True, True], [False, False, True]]
    assert not any(one() is not None for one in drawn)
    expected = load("torch_eager").bind(workload, inputs.problem_of(workload))()
    np.testing.assert_array_equal(call(), expected)
