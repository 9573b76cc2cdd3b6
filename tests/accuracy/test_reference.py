"""The references of problems with every feature: right answers are within them, answers to other problems are not."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.gate.evidence import weigh
from attnlab.gate.reference import refer
from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import Alibi, Problem

GRADIENTS = ("query gradient", "key gradient", "value gradient")
DTYPES = ("float64", "float32", "float16", "bfloat16")
RNG = np.random.default_rng(1)
FEATURES: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "value_dim": {"value_dim": 5},
    "causal": {"causal": "bottom_right"},
    "window": {"window": (9, 0)},
    "lengths": {"key_lengths": [41, 13]},
    "a row without keys": {"mask": np.arange(37)[:, None] != 7},
    "mask": {"mask": RNG.random((37, 41)) < 0.6},
    "bias": {"bias": RNG.standard_normal((1, 4, 37, 41))},
    "alibi": {"bias": Alibi.of_heads(4)},
    "soft cap": {"softcap": 2.0},
    "sinks": {"sinks": np.linspace(1, 3, 4)},
    "all": {"softcap": 3.0, "sinks": np.ones(4), "bias": RNG.standard_normal((37, 41)), "window": (20, 5)},
}


def draw(dtype: str, seed: int = 0, *, value_dim: int = 8, scale: float = 0.4, **features) -> Problem:
    """Two batch elements, four heads on two of key and value, 37 queries and 41 keys."""
    rng = np.random.default_rng(seed)
    shapes = ((2, 4, 37, 8), (2, 2, 41, 8), (2, 2, 41, value_dim), (2, 4, 37, value_dim))
    q, k, v, g = (round_to(rng.standard_normal(shape), dtype) for shape in shapes)
    features = {
        name: round_to(one, dtype) if isinstance(one, np.ndarray) and one.dtype.kind == "f" else one
        for name, one in features.items()
    }
    return Problem.of(q, k, v, output_gradient=g, scale=scale, dtype=dtype, **features)


def eager(problem: Problem, dtype: str | None = None) -> dict[str, np.ndarray]:
    """By PyTorch, each step stored in the dtype, and its gradients by automatic differentiation."""
    kind = getattr(torch, dtype or problem.dtype)
    leaves = [torch.tensor(x).to(kind).requires_grad_() for x in (problem.query, problem.key, problem.value)]
    q, (k, v) = leaves[0], (x.repeat_interleave(problem.group, dim=1) for x in leaves[1:])
    s = q @ k.mT * problem.scale
    if problem.softcap is not None:
        s = torch.tanh(s / problem.softcap) * problem.softcap
    if problem.bias_array is not None:
        s = s + torch.tensor(problem.bias_array).to(kind)
    if problem.sinks is not None:
        column = torch.tensor(problem.sinks).to(kind)[None, :, None, None].expand(*s.shape[:3], 1)
        s = torch.cat([s, column], dim=-1)
    seen = problem.without_sinks().mask.array(problem.without_sinks().shape)
    if seen is not None:
        s = s.masked_fill(torch.tensor(~np.broadcast_to(seen, s.shape)), -math.inf)
    weights = torch.softmax(s, dim=-1)
    if seen is not None:
        weights = torch.where(torch.tensor(seen.any(-1, keepdims=True)), weights, 0.0)
    output = weights[..., : k.shape[2]] @ v
    found = torch.autograd.grad(output, leaves, torch.tensor(problem.output_gradient).to(kind))
    arrays = (torch.nan_to_num(x.detach().double()).numpy() for x in (output, *found))
    return dict(zip(("output", *GRADIENTS), arrays, strict=True))


@pytest.mark.parametrize("feature", FEATURES)
def test_the_exact_results_are_those_of_automatic_differentiation(feature: str) -> None:
    """In float64, without a budget."""
    problem = draw("float64", **FEATURES[feature])
    expected = eager(problem)
    for name, reference in refer(problem).items():
        np.testing.assert_allclose(reference.output, expected[name], atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", FEATURES)
def test_right_answers_are_within_their_budgets(feature: str, dtype: str) -> None:
    """Of an eager implementation, and of one that rounds its results only."""
    for seed in range(2):
        problem = draw(dtype, seed, **FEATURES[feature])
        references = refer(problem)
        exact = eager(problem, "float64")
        for answers in (eager(problem), {name: round_to(one, dtype) for name, one in exact.items()}):
            for name, reference in references.items():
                assert weigh(reference, answers[name], directions=None).fault is None, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("feature", sorted(set(FEATURES) - {"grouped heads", "value_dim"}))
def test_the_answer_to_another_problem_is_refused(feature: str, dtype: str) -> None:
    """Each named result tells on a feature that was left out."""
    problem = draw(dtype, **FEATURES[feature])
    arrays, g = (problem.query, problem.key, problem.value), problem.output_gradient
    wrong = eager(Problem.of(*arrays, output_gradient=g, scale=problem.scale, dtype=dtype), "float64")
    for name, reference in refer(problem).items():
        assert weigh(reference, round_to(wrong[name], dtype), directions=None).fault is not None


@pytest.mark.parametrize("feature", ["soft cap", "sinks", "all"])
def test_a_slope_of_the_cap_that_is_off_by_a_hundredth_is_refused(feature: str) -> None:
    """In float32: the gradients of a cap, and of a sink, of nearly the right size."""
    problem = draw("float32", **FEATURES[feature])
    changes = {"sinks": {"sinks": 1.01 * np.linspace(1, 3, 4)}}.get(feature, {"softcap": 2.02})
    wrong = eager(problem.with_(**changes), "float64")
    for name, reference in refer(problem).items():
        assert weigh(reference, round_to(wrong[name], "float32"), directions=None).fault is not None


@pytest.mark.parametrize("feature", FEATURES)
def test_the_tilt_is_the_derivative_in_the_scale(feature: str) -> None:
    """Of every result, by the difference quotient."""
    problem, step = draw("float64", **FEATURES[feature]), 1e-5
    above, below = (refer(problem.with_(scale=0.4 * math.exp(by))) for by in (step, -step))
    for name, reference in refer(problem).items():
        quotient = (above[name].output - below[name].output) / (2 * step)
        np.testing.assert_allclose(reference.tilt, quotient, atol=1e-7)


@pytest.mark.parametrize("feature", FEATURES)
def test_rows_are_those_of_the_whole(feature: str) -> None:
    """And an output gradient that is 0 elsewhere leaves the same, for less."""
    rows = [0, 7, 30]
    problem = draw("bfloat16", **FEATURES[feature])
    assert problem.output_gradient is not None
    cut = np.zeros_like(problem.output_gradient)
    cut[:, :, rows] = problem.output_gradient[:, :, rows]
    problem = problem.with_(output_gradient=cut)
    whole, part = refer(problem), refer(problem, rows)
    for name in ("output", "query gradient"):
        assert part[name].row(1) == 7
        for what in map(attrgetter, ("output", "bound", "lenient.rms", "low", "hull_slack", "tilt")):
            found, expected = what(part[name]), what(whole[name])[:, :, rows]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-18)
    others = [row for row in range(37) if row not in rows]
    assert (whole["query gradient"].bound[:, :, others] == 0).all()
    for name in ("key gradient", "value gradient"):
        np.testing.assert_allclose(part[name].lenient.rms, whole[name].lenient.rms, rtol=1e-12)


@pytest.mark.parametrize("feature", FEATURES)
def test_the_hull_is_that_of_the_values_that_a_row_sees(feature: str) -> None:
    """Row by row; a sink is one more value, 0."""
    problem = draw("float32", **FEATURES[feature])
    found, wider = refer(problem)["output"], problem.without_sinks()
    seen = wider.mask.array(wider.shape)
    seen = np.broadcast_to(True if seen is None else seen, tuple(wider.shape))
    for b, h, i in np.ndindex(*wider.shape[:3]):
        values = wider.value[b, h // wider.group, seen[b, h, i]]
        least, greatest = (values.min(0), values.max(0)) if values.size else (0, 0)
        assert (found.low[b, h, i] == least).all() and (found.high[b, h, i] == greatest).all()


def online(problem: Problem, block: int, last_first: bool) -> dict[str, np.ndarray]:
    """Online softmax over blocks of keys, its maxima differentiated, weights cast to the dtype before they meet v."""
    kind = getattr(torch, problem.dtype)
    inner = torch.float64 if kind == torch.float64 else torch.float32
    leaves = [torch.tensor(x).to(kind).requires_grad_() for x in (problem.query, problem.key, problem.value)]
    q, k, v = leaves
    top = torch.full((*q.shape[:-1], 1), -1e30, dtype=inner)
    total, output = torch.zeros_like(top), torch.zeros((*q.shape[:-1], v.shape[-1]), dtype=inner)
    starts = range(0, k.shape[2], block)
    for start in reversed(starts) if last_first else starts:
        keys = slice(start, start + block)
        s = q.to(inner) @ k[:, :, keys].to(inner).mT * problem.scale
        highest = torch.maximum(top, s.amax(-1, keepdim=True))
        weights, fade = (s - highest).exp(), (top - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        output = output * fade + weights.to(kind).to(inner) @ v[:, :, keys].to(inner)
        top = highest
    found = torch.autograd.grad(
        (output / total).to(kind), leaves, torch.tensor(problem.output_gradient).to(kind)
    )
    return dict(zip(GRADIENTS, (x.double().numpy() for x in found), strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("last_first", [True, False])
@pytest.mark.parametrize("block", [5, 16, 37, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_cancels_to_nothing_is_judged_by_what_cancelled(
    dtype: str, block: int, last_first: bool, seed: int
) -> None:
    """V = 1: ∂L/∂q and ∂L/∂k are 0, and the error of each maximum on the way lies on its key, wherever that is."""
    rng = np.random.default_rng(seed)
    q, k, g = (round_to(rng.standard_normal((2, 3, n, 16)), dtype) for n in (40, 77, 40))
    problem = Problem.of(q, k, np.ones_like(k), output_gradient=g, scale=0.25, dtype=dtype)
    answers, references = online(problem, block, last_first), refer(problem)
    for name, answer in answers.items():
        assert weigh(references[name], answer, directions=None).fault is None, name
