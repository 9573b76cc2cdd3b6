"""Exact results compared with automatic differentiation, and error budgets compared with real rounding errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention import FEATURES, by_differentiation, drawn
from mutants.rounding import RIGHT

from attnlab.correctness.expected import expect
from attnlab.lab import theory
from attnlab.workload.inputs import Inputs

HALVES = ("float16", "bfloat16")


@pytest.mark.parametrize("feature", FEATURES)
def test_the_exact_results_are_those_of_automatic_differentiation(feature: str) -> None:
    """The tilt is their derivative in the logarithm of the scale, compared with a difference quotient."""
    problem, step = drawn("float64", **FEATURES[feature]), 1e-5
    expected = by_differentiation(problem)
    above, below = (expect(problem.with_(scale=0.4 * math.exp(by))) for by in (step, -step))
    for name, reference in expect(problem).items():
        np.testing.assert_allclose(reference.output, expected[name], atol=1e-12)
        quotient = (above[name].output - below[name].output) / (2 * step)
        np.testing.assert_allclose(reference.lenient.tilt, quotient, atol=1e-7)


#: right implementations, and the error classes of their output and of their gradients (None: not tested)
KINDS = {
    "float64 inside": ("full precision inside", "full precision inside"),
    "weights rounded": ("weights rounded", None),
    "fused, blocks of 64": (None, "weights rounded"),
    "partial sums of 32 stored": (None, "partial sums rounded"),
    "scores rounded": ("scores rounded", "scores rounded"),
    "softmax written out": ("scores rounded", None),
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("feature", ["plain", "soft cap", "bias", "all"])
def test_who_rounds_has_the_error_of_the_budget_of_its_class(feature: str, kind: str, dtype: str) -> None:
    """The error is neither far below nor above the budget, which is an upper model of several implementations."""
    features = {**FEATURES[feature], "queries": 70, "keys": 90, "dim": 16}
    problem = drawn(dtype, 1, **features)
    of_output, of_gradients = KINDS[kind]
    found = RIGHT[kind](problem)
    for name, reference in expect(problem).items():
        error = found[name].astype(np.float64) - reference.output
        chosen = of_output if name == "output" else of_gradients
        if chosen is not None:
            relative = np.linalg.norm(error) / np.linalg.norm(reference.output)
            ratio = relative / reference.classes[chosen].relative
            assert (0.5 if chosen != "scores rounded" else 0.25) < ratio < 1.2, name


@pytest.mark.parametrize(
    ("n", "d", "std", "mean"), [(64, 8, 1, 0), (256, 64, 8, 0), (600, 32, 1, 0), (128, 64, 1, 3)]
)
def test_the_inner_model_is_the_error_of_sums_in_order(n: int, d: int, std: float, mean: float) -> None:
    """The sums are computed term by term, with every partial sum rounded to float32."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, n, d)).astype(np.float32) for _ in range(3))
    q, k = (std * q + mean).astype(np.float32), (k + mean).astype(np.float32)
    s = sum((q[..., :, None, c] * k[..., None, :, c] for c in range(d)), np.zeros(1, np.float32))
    s = s * np.float32(d**-0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    total = sum((p[..., j, None] for j in range(n)), np.zeros(1, np.float32))
    o = sum((p[..., j, None] * v[:, :, None, j] for j in range(n)), np.zeros(1, np.float32)) / total
    budget = theory.error_budget(Inputs.of(q, k, v, dtype="float32")).restricted_to("output", "inner")
    ratio = np.linalg.norm(o - budget.output) / np.linalg.norm(budget.output) / budget.relative
    slack = 3 * budget.relative_scatter
    assert 0.6 * (1 - slack) < ratio < 1.1 * (1 + slack)
