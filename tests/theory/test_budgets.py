"""Exact results against automatic differentiation, and error budgets against attentions that round for real."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from attention import FEATURES, drawn, eager
from hypothesis import given, settings
from hypothesis import strategies as st
from mutants.right import RIGHT

from attnlab.gate.reference import refer
from attnlab.problem.dtypes import DTYPES, round_to
from attnlab.problem.masks import Mask
from attnlab.problem.problem import Problem
from attnlab.theory import (
    GRADIENT_CLASSES,
    classify,
    error_budget,
    exact_gradients,
    gradient_budgets,
    precision_classes,
)
from attnlab.theory.exact_attention import backward_rows, blocks
from attnlab.theory.gradient_noise import Ways

HALVES = ("float16", "bfloat16")


@pytest.mark.parametrize("feature", FEATURES)
def test_the_exact_results_are_those_of_automatic_differentiation(feature: str) -> None:
    """And the tilt is their derivative in the scale, by the difference quotient."""
    problem, step = drawn("float64", **FEATURES[feature]), 1e-5
    expected = eager(problem)
    above, below = (refer(problem.with_(scale=0.4 * math.exp(by))) for by in (step, -step))
    for name, reference in refer(problem).items():
        np.testing.assert_allclose(reference.output, expected[name], atol=1e-12)
        quotient = (above[name].output - below[name].output) / (2 * step)
        np.testing.assert_allclose(reference.tilt, quotient, atol=1e-7)


@pytest.mark.parametrize("feature", FEATURES)
def test_rows_are_those_of_the_whole(feature: str) -> None:
    """An output gradient that is 0 elsewhere leaves the same, for less; and the hull is that of the values seen."""
    rows = [0, 7, 30]
    problem = drawn("bfloat16", **FEATURES[feature])
    assert problem.output_gradient is not None
    cut = np.zeros_like(problem.output_gradient)
    cut[:, :, rows] = problem.output_gradient[:, :, rows]
    whole, part = (refer(problem.with_(output_gradient=cut), at) for at in (None, rows))
    for name in ("output", "query gradient"):
        for of in (lambda x: x.output, lambda x: x.bound, lambda x: x.lenient.rms, lambda x: x.low):
            np.testing.assert_allclose(of(part[name]), of(whole[name])[:, :, rows], rtol=1e-9, atol=1e-18)
    assert (np.delete(whole["query gradient"].bound, rows, axis=2) == 0).all()
    for name in ("key gradient", "value gradient"):
        np.testing.assert_allclose(part[name].lenient.rms, whole[name].lenient.rms, rtol=1e-12)
    wider = problem.without_sinks()
    seen = wider.mask.array(wider.shape)
    seen = np.broadcast_to(True if seen is None else seen, tuple(wider.shape))
    for b, h, i in np.ndindex(*wider.shape[:3]):
        values = wider.value[b, h // wider.group, seen[b, h, i]]
        least, greatest = (values.min(0), values.max(0)) if values.size else (0, 0)
        assert (whole["output"].low[b, h, i] == least).all()
        assert (whole["output"].high[b, h, i] == greatest).all()


@given(seed=st.integers(0, 99), text=st.sampled_from(["causal", "window(3,2)", "prefix(4)", "random(0.3,1)"]))
@settings(max_examples=15)
def test_a_mask_is_its_array_and_a_bias_of_minus_infinity(seed: int, text: str) -> None:
    """Budgets and bounds included."""
    kind = drawn("bfloat16", seed, mask=text)
    seen = Mask.parse(text).array(kind.shape)
    array, biased = (
        drawn("bfloat16", seed, **one) for one in ({"mask": seen}, {"bias": np.where(seen, 0.0, -np.inf)})
    )
    found = error_budget(kind, worst_case=True)
    for other in (array, biased):
        budget = error_budget(other, worst_case=True)
        for name in ("output", "rms", "worst_case"):
            np.testing.assert_allclose(getattr(found, name), getattr(budget, name), rtol=1e-12)


def test_arrays_and_their_problem_are_one() -> None:
    """The public functions take either; a row that sees no key has the output 0 without error."""
    problem = drawn("bfloat16", causal="bottom_right", softcap=2.0)
    arrays = (problem.query, problem.key, problem.value)
    options = {"causal": "bottom_right", "softcap": 2.0, "scale": 0.4, "dtype": "bfloat16"}
    for name, expected in precision_classes(problem, worst_case=True).items():
        found = precision_classes(*arrays, **options, worst_case=True)[name]
        np.testing.assert_array_equal(found.rms, expected.rms)
        np.testing.assert_array_equal(found.worst_case, expected.worst_case)
    upstream = problem.output_gradient
    for mine, theirs in zip(
        gradient_budgets(*arrays, upstream, **options), gradient_budgets(problem), strict=True
    ):
        np.testing.assert_array_equal(mine.rms, theirs.rms)
    for mine, theirs in zip(
        exact_gradients(*arrays, upstream, **options), exact_gradients(problem), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)
    empty = error_budget(drawn("bfloat16", **FEATURES["a row without keys"]), worst_case=True)
    for zero in (empty.output, empty.rms, empty.worst_case):
        assert zero is not None and (zero[:, :, 7] == 0).all()


#: right ways of rounding, and the classes of output and of gradients that they are of
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
    """From both sides, as far as an upper model of several implementations goes, and below the worst case."""
    features = {**FEATURES[feature], "queries": 70, "keys": 90, "dim": 16}
    problem = drawn(dtype, 1, **features)
    of_output, of_gradients = KINDS[kind]
    found = RIGHT[kind](problem)
    for name, reference in refer(problem).items():
        error = found[name].astype(np.float64) - reference.output
        assert (np.abs(error) <= reference.bound).all()
        chosen = of_output if name == "output" else of_gradients
        if chosen is not None:
            ratio = (
                np.linalg.norm(error) / np.linalg.norm(reference.output) / reference.classes[chosen].relative
            )
            assert (0.5 if chosen != "scores rounded" else 0.25) < ratio < 1.2, name


@pytest.mark.parametrize("dtype", HALVES)
def test_the_classes_are_told_apart_and_nest(dtype: str) -> None:
    problem = drawn(dtype, 9, queries=300, keys=400, dim=64, scale=0.125)
    budgets = precision_classes(problem)
    for kind, (name, _) in KINDS.items():
        if name is not None and kind != "softmax written out":
            output = RIGHT[kind](problem)["output"].astype(np.float64)
            exact = budgets[name].output
            assert classify(float(np.linalg.norm(output - exact) / np.linalg.norm(exact)), budgets) == name
    assert classify(1.0, budgets) is None
    for budget in gradient_budgets(problem):
        sizes = [budget.restricted_to(*sources).relative for sources in GRADIENT_CLASSES.values()]
        assert sizes == sorted(sizes)


@given(
    seed=st.integers(0, 99),
    std=st.sampled_from([0.1, 1.0, 8.0, 40.0]),
    softcap=st.sampled_from([None, 0.5, 50.0]),
    bias=st.sampled_from([0.0, 1.0, 20.0]),
    queries=st.integers(1, 30),
    keys=st.integers(1, 30),
    kind=st.sampled_from(
        ["scores rounded", "partial sums of 32 stored", "root of the scale", "merged halves"]
    ),
)
@settings(max_examples=60)
def test_the_worst_case_is_never_passed(
    seed: int, std: float, softcap: float | None, bias: float, queries: int, keys: int, kind: str
) -> None:
    """Also where the first order is of no use: saturated rows, a cap that binds on large scores, one key."""
    added = bias * np.random.default_rng(seed).standard_normal((queries, keys))
    problem = drawn("bfloat16", seed, std=std, softcap=softcap, bias=added, queries=queries, keys=keys)
    for name, one in RIGHT[kind](problem).items():
        reference = refer(problem)[name]
        assert (np.abs(one - reference.output) <= reference.bound).all(), name


@pytest.mark.parametrize(
    ("n", "d", "std", "mean"), [(64, 8, 1, 0), (256, 64, 8, 0), (600, 32, 1, 0), (128, 64, 1, 3)]
)
def test_the_inner_model_is_the_error_of_sums_in_order(n: int, d: int, std: float, mean: float) -> None:
    """Every partial sum rounded to float32, one term after another."""
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, n, d)).astype(np.float32) for _ in range(3))
    q, k = (std * q + mean).astype(np.float32), (k + mean).astype(np.float32)
    s = sum((q[..., :, None, c] * k[..., None, :, c] for c in range(d)), np.zeros(1, np.float32))
    s = s * np.float32(d**-0.5)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    total = sum((p[..., j, None] for j in range(n)), np.zeros(1, np.float32))
    o = sum((p[..., j, None] * v[:, :, None, j] for j in range(n)), np.zeros(1, np.float32)) / total
    budget = error_budget(q, k, v, dtype="float32").restricted_to("output", "inner")
    ratio = np.linalg.norm(o - budget.output) / np.linalg.norm(budget.output) / budget.relative
    slack = 3 * budget.relative_scatter
    assert 0.6 * (1 - slack) < ratio < 1.1 * (1 + slack)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last_first", [True, False])
def test_what_cancels_to_nothing_is_judged_by_what_cancelled(dtype: str, last_first: bool) -> None:
    """V = 1: ∂L/∂q and ∂L/∂k are 0, and the error of each maximum on the way lies on its key, wherever that is."""
    for block in (5, 37):
        problem = drawn(dtype, 2, queries=40, keys=77, dim=16)
        problem = problem.with_(value=np.ones_like(problem.value))
        for name, answer in eager(problem, block=block, last_first=last_first).items():
            reference = refer(problem)[name]
            assert np.linalg.norm(answer - reference.output) <= 1.25 * np.linalg.norm(reference.lenient.rms)


# -- noise at one place of the backward pass

PLACES = {
    "from_scores": "s",
    "from_products": "a",
    "from_raw_slopes": "r",
    "from_weights": "weights",
    "from_offsets": "d",
    "from_factors": "factor",
}
SCALE, STEP = 0.7, 1e-6


def passed(back: Any, **noise: Any) -> list[np.ndarray]:
    """dq, dk, dv of one head where noise is added at a place, by the definition; 0 for the key of a sink."""
    at = dict.fromkeys(PLACES.values(), 0.0) | noise
    part, scores = back.part, back.soft.scores + at["s"]
    if part.visible is not None:
        scores = np.where(part.visible, scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p = p / p.sum(axis=-1, keepdims=True)
    products = back.g @ part.v.swapaxes(2, 3) + at["a"]
    offset = (p * products).sum(axis=-1, keepdims=True) + at["d"]
    p = p * (1 + at["factor"])
    raw = p * (products - offset) * (1 if back.soft.slope is None else back.soft.slope) + at["r"]
    found = [
        SCALE * raw @ part.k,
        SCALE * raw.swapaxes(2, 3) @ part.q,
        (p + at["weights"]).swapaxes(2, 3) @ back.g,
    ]
    for of_keys in found[1:] if part.sink else ():
        of_keys[:, :, -1] = 0
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "features",
    [{}, {"softcap": 2.0, "sinks": np.array([0.3]), "window": (2, 2), "bias": np.linspace(-1, 1, 6)}],
    ids=["plain", "all"],
)
def test_noise_spreads_as_derived(place: str, features: dict[str, Any]) -> None:
    """Each noise alone moves the gradients by its derivative; squares times variances add up to what is said."""
    rng = np.random.default_rng(4)
    q, k, v, g = (rng.standard_normal((1, 1, *shape)) for shape in ((4, 5), (6, 5), (6, 3), (4, 3)))
    (part,) = blocks(Problem.of(q, k, v, scale=SCALE, **features))
    back = backward_rows(part, g)
    shape = back.offset.shape if place in ("from_offsets", "from_factors") else back.slopes.shape
    variance = rng.uniform(0.5, 2, size=shape)
    if shape == back.slopes.shape and part.visible is not None:
        variance = variance * part.visible
    if place == "from_raw_slopes" and part.sink:
        variance[..., -1] = 0  # f' of a sink is 0
    sums: list[Any] = [0.0, 0.0, 0.0]
    for at in np.ndindex(shape):
        noise = np.zeros(shape)
        noise[at] = STEP
        above, below = passed(back, **{PLACES[place]: noise}), passed(back, **{PLACES[place]: -noise})
        for index in range(3):
            sums[index] = sums[index] + variance[at] * ((above[index] - below[index]) / (2 * STEP)) ** 2
    found = getattr(Ways(back), place)(variance)
    for at, counted in enumerate(sums):
        np.testing.assert_allclose(found[at], np.broadcast_to(counted, found[at].shape), rtol=1e-6, atol=1e-9)


# -- what is refused

X = np.zeros((1, 2, 3, 4))
BAD: list[dict[str, Any]] = [
    *({"q": one} for one in (X[0], X[..., :3], X[:, :, :0], X[:, :1])),
    *({"v": np.full_like(X, one)} for one in (math.nan, math.inf)),
    *({name: one} for name, one in (("dtype", "float8"), ("score_roundings", -1), ("scale", math.nan))),
    *({"rows": rows} for rows in ([3], [], [0.5])),
    *({"mask": mask} for mask in (np.ones((3, 3)), np.ones((2, 3), dtype=bool))),
    {"causal": "middle"},
]


@pytest.mark.parametrize("change", BAD)
def test_bad_input_is_refused_in_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must") as caught:
        error_budget(**{"q": X, "k": X, "v": X, "dtype": "float32", **change})
    assert "\n" not in str(caught.value)


def test_other_numbers_without_meaning_are_refused() -> None:
    budgets = precision_classes(X, X, X + 1, dtype="float16")
    for bad in (math.nan, -1.0, math.inf):
        with pytest.raises(ValueError, match="relative_error must"):
            classify(bad, budgets)
    with pytest.raises(ValueError, match="source must be one of"):
        budgets["weights rounded"].restricted_to("luck")
    with pytest.raises(ValueError, match="must have an output_gradient"):
        exact_gradients(drawn("float32").with_(output_gradient=None))
    assert math.isnan(error_budget(X, X, X, dtype="float32").relative)
    assert round_to(X, "float16").dtype == np.float16
