"""Every backend answers every question of the contract that it does not decline, as the definition says."""

import functools
import math
from typing import Any

import numpy as np
import pytest
from every import every
from numpy.typing import NDArray

from attnlab.backend.call import answer
from attnlab.errors import Declined, Unavailable
from attnlab.problem.problem import Alibi, Problem
from attnlab.problem.vocabulary import GRADIENTS, OUTPUT

EVERYTHING = ("naive_loop", "numpy_vectorized", "numpy_blocked", "torch_eager")
_RNG = np.random.default_rng(1)


def by_definition(problem: Problem) -> NDArray[np.float64]:
    """The definition, pair by pair, in float64; it knows no library and no tile."""
    q, k, v = (one.astype(np.float64) for one in (problem.query, problem.key, problem.value))
    b_n, h_n, n_q, n_k = problem.shape
    found = problem.mask.array(problem.shape)
    seen = np.broadcast_to(True if found is None else found, problem.shape)
    added = problem.bias_array
    bias = np.broadcast_to(np.asarray(0.0 if added is None else added), problem.shape)
    output = np.zeros(problem.output_shape)
    for b, h, i in np.ndindex(b_n, h_n, n_q):
        kept = [j for j in range(n_k) if seen[b, h, i, j]]
        if not kept:
            continue
        key_head = h // (h_n // k.shape[1])
        scores = [problem.scale * float(q[b, h, i] @ k[b, key_head, j]) for j in kept]
        if problem.softcap is not None:
            scores = [problem.softcap * math.tanh(one / problem.softcap) for one in scores]
        scores = [one + bias[b, h, i, j] for one, j in zip(scores, kept, strict=True)]
        logits = scores + ([] if problem.sinks is None else [float(problem.sinks[h])])
        top = max(logits)
        total = math.fsum(math.exp(one - top) for one in logits)
        output[b, h, i] = sum(
            math.exp(one - top) / total * v[b, key_head, j] for one, j in zip(scores, kept, strict=True)
        )
    return output


def _normal(*shape: int) -> NDArray[Any]:
    return _RNG.standard_normal(shape)


#: (batch, heads, kv_heads, queries, keys, head_dim, value_dim), and what is asked of them
CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 3, 5, 7, 4, 4), {}),
    "bottom right, fewer queries": ((1, 2, 2, 4, 7, 4, 4), {"causal": "bottom_right"}),
    "bottom right, fewer keys": ((1, 2, 2, 7, 4, 4, 4), {"causal": "bottom_right"}),
    "window": ((1, 2, 2, 9, 9, 4, 4), {"window": (2, 1)}),
    "causal window": ((1, 2, 2, 5, 9, 4, 4), {"window": (2, 0), "causal": "bottom_right"}),
    "key lengths": ((3, 2, 2, 5, 7, 4, 4), {"key_lengths": (7, 3, 0)}),
    "boolean array": ((2, 2, 2, 5, 7, 4, 4), {"mask": _RNG.random((2, 2, 5, 7)) < 0.6}),
    "nothing seen": ((1, 2, 2, 3, 4, 4, 4), {"mask": np.array([[True] * 4, [False] * 4, [True] * 4])}),
    "bias": ((2, 2, 2, 5, 7, 4, 4), {"bias": _normal(1, 2, 5, 7)}),
    "bias of a key": ((2, 2, 2, 5, 7, 4, 4), {"bias": _normal(7)}),
    "bias that masks": ((1, 2, 2, 2, 3, 4, 4), {"bias": np.array([[0.0, -np.inf, 1.0], [-np.inf] * 3])}),
    "alibi": ((1, 4, 4, 5, 7, 4, 4), {"bias": Alibi.of_heads(4), "causal": "bottom_right"}),
    "grouped": ((2, 6, 2, 5, 7, 4, 4), {}),
    "multi-query, causal": ((1, 4, 1, 6, 6, 4, 4), {"causal": True}),
    "decode": ((2, 4, 2, 1, 33, 8, 8), {"causal": "bottom_right", "window": (16, 0)}),
    "soft cap": ((1, 2, 2, 5, 7, 4, 4), {"softcap": 1.5, "scale": 3.0}),
    "soft cap, bias and mask": (
        (1, 2, 2, 5, 7, 4, 4),
        {"softcap": 1.5, "bias": _normal(2, 5, 7), "mask": "random(0.6,1)"},
    ),
    "sinks": ((2, 2, 2, 5, 7, 4, 4), {"sinks": _normal(2)}),
    "sinks where nothing is seen": ((1, 2, 2, 3, 4, 4, 4), {"sinks": _normal(2), "key_lengths": (0,)}),
    "all of it": (
        (2, 4, 2, 5, 9, 4, 6),
        {
            "sinks": _normal(4),
            "softcap": 2.0,
            "bias": _normal(2, 1, 5, 9),
            "causal": "bottom_right",
            "window": (3, 0),
            "key_lengths": (9, 6),
            "scale": 0.7,
        },
    ),
    "no scale": ((1, 2, 2, 5, 7, 4, 4), {"scale": 0.0, "causal": True}),
    "negative scale": ((1, 2, 2, 5, 5, 4, 4), {"scale": -0.4, "causal": True}),
}


def _problem(case: str, dtype: str = "float32", **more: Any) -> Problem:
    (batch, heads, kv_heads, queries, keys, dim, value_dim), asked = CASES[case]
    rng = np.random.default_rng(len(case))
    shapes = ((batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim))
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    cast: dict[str, Any] = {
        name: one.astype(dtype) if isinstance(one, np.ndarray) and one.dtype.kind == "f" else one
        for name, one in asked.items()
    }
    return Problem.of(q, k, v, **cast, **more)


def _answer(name: str, problem: Problem, direction: str = "forward") -> dict[str, NDArray[Any]]:
    try:
        return answer(name, problem, direction=direction)
    except (Declined, Unavailable) as reason:
        assert name not in EVERYTHING or direction != "forward", f"{name} supports everything: {reason}"
        pytest.skip(str(reason))


@functools.cache
def _defined(case: str) -> NDArray[np.float64]:
    """The output of a case, the same for all backends."""
    return by_definition(_problem(case))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", every())
def test_outputs_are_those_of_the_definition(name: str, case: str) -> None:
    found = _answer(name, _problem(case))[OUTPUT]
    np.testing.assert_allclose(found, _defined(case), rtol=2e-5, atol=2e-5)


@functools.cache
def _quotients(case: str) -> tuple[Problem, dict[str, tuple[NDArray[Any], float]]]:
    """A case with an output gradient; by gradient a random direction, and the difference quotient along it."""
    problem = _problem(case, "float64")
    rng = np.random.default_rng(3)
    upstream = rng.standard_normal(problem.output_shape)
    step = 1e-5
    found = {}
    for gradient, which in zip(GRADIENTS, ("query", "key", "value"), strict=True):
        along = rng.standard_normal(getattr(problem, which).shape)
        ends = [
            (
                upstream
                * by_definition(problem.with_(**{which: getattr(problem, which) + sign * step * along}))
            ).sum()
            for sign in (1, -1)
        ]
        found[gradient] = along, (ends[0] - ends[1]) / (2 * step)
    return problem.with_(output_gradient=upstream), found


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name in every() if name.startswith("torch")])
def test_gradients_are_difference_quotients_of_the_definition(name: str, case: str) -> None:
    """Along random directions: enough to tell a wrong gradient, and cheap."""
    problem, expected = _quotients(case)
    found = _answer(name, problem, "training")
    if name == "torch_eager":
        assert set(GRADIENTS) <= set(found)
    for gradient, (along, quotient) in expected.items():
        assert (found[gradient] * along).sum() == pytest.approx(quotient, rel=1e-6, abs=1e-7)
