"""Exact results and budgets of problems with masks, bias, soft cap and sinks: what changes them, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.problem.dtypes import round_to
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Alibi, Problem
from attnlab.theory import error_budget, exact_gradients, gradient_budgets, precision_classes


def draw(seed: int, dtype: str = "float64", *, std: float = 1.0, **features) -> Problem:
    """One batch element, four heads on two of key and value, 17 queries and 23 keys."""
    rng = np.random.default_rng(seed)
    shapes = ((1, 4, 17, 6), (1, 2, 23, 6), (1, 2, 23, 5), (1, 4, 17, 5))
    q, k, v, g = (round_to(rng.standard_normal(shape), dtype) for shape in shapes)
    return Problem.of(round_to(std * q, dtype), k, v, output_gradient=g, scale=0.3, dtype=dtype, **features)


def results(problem: Problem):
    """Output and gradients."""
    return error_budget(problem).output, *exact_gradients(problem)


NOTHING: dict[str, dict[str, Any]] = {
    "a bias of zeros": {"bias": np.zeros((1, 1, 17, 23))},
    "a bias that is one number a row": {"bias": np.linspace(-9, 9, 17)[:, None]},
    "a soft cap far above": {"softcap": 1e9},
    "sinks far below": {"sinks": np.full(4, -1e4)},
    "a window over all": {"window": (23, 23)},
    "all lengths": {"key_lengths": [23]},
    "a mask that keeps all": {"mask": np.ones((17, 23), bool)},
}


@pytest.mark.parametrize("feature", NOTHING)
@given(seed=st.integers(0, 99), causal=st.sampled_from([False, "top_left", "bottom_right"]))
@settings(max_examples=5)
def test_what_says_nothing_changes_nothing(feature, seed, causal):
    plain, featured = (results(draw(seed, causal=causal, **one)) for one in ({}, NOTHING[feature]))
    for found, expected in zip(featured, plain, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@given(seed=st.integers(0, 99), share=st.floats(0.05, 1))
@settings(max_examples=20)
def test_a_mask_is_a_bias_of_minus_infinity(seed, share):
    """Budgets and bounds included; rows that see no key have the output 0 without error, and no gradient."""
    seen = np.random.default_rng(seed).random((4, 17, 23)) < share
    seen[:, 3] = False
    masked, biased = (
        draw(seed, "bfloat16", **one) for one in ({"mask": seen}, {"bias": np.where(seen, 0.0, -np.inf)})
    )
    for found, expected in zip(results(masked), results(biased), strict=True):
        np.testing.assert_array_equal(found, expected)
    budget, other = (error_budget(one, worst_case=True, weights_dtype="bfloat16") for one in (masked, biased))
    np.testing.assert_array_equal(budget.rms, other.rms)
    np.testing.assert_array_equal(budget.worst_case, other.worst_case)
    back = gradient_budgets(masked).query
    for zero in (budget.output, budget.rms, budget.worst_case, back.output, back.rms, back.worst_case):
        assert zero is not None and (zero[:, :, 3] == 0).all()


@given(seed=st.integers(0, 99), text=st.sampled_from(["causal", "window(3,2)", "prefix(4)", "random(0.3,1)"]))
@settings(max_examples=20)
def test_every_kind_of_mask_is_its_array(seed, text):
    """Values are averaged, ranges taken and bounds computed over the keys that it keeps."""
    kind = draw(seed, "float16", mask=text)
    array = draw(seed, "float16", mask=Mask.parse(text).array(kind.shape))
    for rows in (None, [16, 2, 5]):
        found, expected = (error_budget(one, worst_case=True, rows=rows) for one in (kind, array))
        for name in ("output", "rms", "worst_case"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-12)


def test_arrays_and_their_problem_are_one():
    """The public functions take either."""
    problem = draw(0, "bfloat16", causal="bottom_right", softcap=2.0)
    arrays = (problem.query, problem.key, problem.value)
    options = {"causal": "bottom_right", "softcap": 2.0, "scale": 0.3, "dtype": "bfloat16"}
    found = precision_classes(*arrays, **options, worst_case=True)
    for name, expected in precision_classes(problem, worst_case=True).items():
        np.testing.assert_array_equal(found[name].rms, expected.rms)
        np.testing.assert_array_equal(found[name].worst_case, expected.worst_case)
    named = error_budget(q=arrays[0], k=arrays[1], v=arrays[2], **options)
    np.testing.assert_array_equal(named.rms, error_budget(problem).rms)
    upstream = problem.output_gradient
    of_arrays = gradient_budgets(*arrays, upstream, **options)
    for mine, theirs in zip(of_arrays, gradient_budgets(problem), strict=True):
        np.testing.assert_array_equal(mine.rms, theirs.rms)
    with pytest.raises(ValueError, match="must have an output_gradient"):
        exact_gradients(problem.with_(output_gradient=None))


def stored_pass(problem: Problem):
    """Output and gradients in float64, every step stored in the dtype, the soft cap's slope as 1 − y² of a stored y."""

    def keep(x):
        return round_to(x, problem.dtype).astype(np.float64)

    q, g = (x.astype(np.float64) for x in (problem.query, problem.output_gradient))
    k, v = (np.repeat(x.astype(np.float64), problem.group, axis=1) for x in (problem.key, problem.value))
    s, slope = keep(keep(q @ k.swapaxes(2, 3)) * problem.scale), 1.0
    if problem.softcap is not None:
        y = keep(np.tanh(keep(s / problem.softcap)))
        s, slope = keep(y * problem.softcap), keep(1 - keep(y * y))
    if problem.bias is not None:
        s = keep(s + keep(problem.bias_array))
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p = keep(p / p.sum(axis=-1, keepdims=True))
    a = keep(g @ v.swapaxes(2, 3))
    t = keep(p * keep(a - keep((p * a).sum(axis=-1, keepdims=True))))
    t = keep(keep(t * slope) * problem.scale)
    found = keep(p @ v), keep(t @ k), keep(t.swapaxes(2, 3) @ q), keep(p.swapaxes(2, 3) @ g)
    pairs = (1, problem.kv_heads, problem.group)
    return found[0], found[1], *(keep(x.reshape(*pairs, *x.shape[2:]).sum(axis=2)) for x in found[2:])


STORED: dict[str, dict[str, Any]] = {
    "a cap that binds": {"softcap": 0.7, "std": 3.0},
    "a cap": {"softcap": 3.0},
    "a cap far above": {"softcap": 50.0},
    "a bias": {"bias": round_to(np.random.default_rng(2).standard_normal((4, 17, 23)), "bfloat16")},
    "a large bias": {"bias": round_to(30 + np.random.default_rng(2).standard_normal(23), "bfloat16")},
    "alibi": {"bias": Alibi((0.3, 0.2, 0.1, 0.05))},
    "both": {"softcap": 3.0, "bias": Alibi.of_heads(4)},
}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("feature", STORED)
def test_a_pass_that_stores_every_step_has_the_error_of_the_loosest_budgets(feature, dtype):
    """From both sides, as far as an upper model of several implementations goes, and below the worst case."""
    for seed in range(3):
        problem = draw(seed, dtype, **STORED[feature])
        output = precision_classes(problem, any_unfused=True, worst_case=True)["scores rounded"]
        for found, budget in zip(stored_pass(problem), (output, *gradient_budgets(problem)), strict=True):
            error = found - budget.output
            ratio = np.linalg.norm(error) / np.linalg.norm(budget.output) / budget.relative
            assert 0.25 < ratio < 1.2
            assert (np.abs(error) <= budget.worst_case).all()


@given(
    seed=st.integers(0, 99),
    std=st.sampled_from([0.1, 1.0, 8.0, 40.0]),
    softcap=st.sampled_from([None, 0.5, 5.0, 50.0]),
    bias=st.sampled_from([0.0, 1.0, 20.0]),
)
@settings(max_examples=40)
def test_the_worst_case_is_never_passed(seed, std, softcap, bias):
    """Also where the first order is of no use: a cap that binds on scores a hundred times as large."""
    added = round_to(bias * np.random.default_rng(seed).standard_normal((17, 23)), "bfloat16")
    problem = draw(seed, "bfloat16", std=std, softcap=softcap, bias=added)
    output = precision_classes(problem, any_unfused=True, worst_case=True)["scores rounded"]
    for found, budget in zip(stored_pass(problem), (output, *gradient_budgets(problem)), strict=True):
        assert (np.abs(found - budget.output) <= budget.worst_case).all()


def by_exponentials(x):
    """tanh as (1 − e)/(1 + e) with e = e^{−2|x|}, in the precision of x."""
    e = np.exp(-2 * np.abs(x))
    return np.sign(x) * (1 - e) / (1 + e)


def in_order_in_float32(problem: Problem, tanh):
    """Output of a capped and biased attention, every partial sum rounded to float32."""
    k, v = (np.repeat(x, problem.group, axis=1) for x in (problem.key, problem.value))
    single, q = np.float32, problem.query
    s = np.zeros(tuple(problem.shape), single)
    for c in range(q.shape[-1]):
        s += q[..., :, None, c] * k[..., None, :, c]
    s *= single(problem.scale)
    s = single(problem.softcap) * tanh(s / single(problem.softcap)) + np.asarray(problem.bias).astype(single)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    z = np.cumsum(p, axis=-1, dtype=single)[..., -1:]
    o = np.zeros(problem.output_shape, single)
    for j in range(k.shape[2]):
        o += p[..., j, None] * v[:, :, None, j]
    return o / z


@pytest.mark.parametrize(("tanh", "least"), [(by_exponentials, 0.4), (np.tanh, 0.0)])
@pytest.mark.parametrize("softcap", [0.7, 5.0, 50.0])
def test_the_inner_model_of_a_cap_and_a_bias_is_the_error_of_sums_in_order(softcap, tanh, least):
    """Of a tanh by exponentials from both sides; a library's tanh keeps the digits of small scores."""
    for seed in range(3):
        added = round_to(np.random.default_rng(seed).standard_normal((17, 23)), "float32")
        problem = draw(seed, "float32", std=4.0, softcap=softcap, bias=added)
        budget = error_budget(problem)
        error = in_order_in_float32(problem, tanh) - budget.output
        ratio = np.linalg.norm(error) / np.linalg.norm(budget.output)
        assert least < ratio / budget.relative < 1.1
