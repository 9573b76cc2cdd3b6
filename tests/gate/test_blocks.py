"""A block's budget from both sides: real blocks use it and stay within it, and no fault does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnlab.backend.discovery import load
from attnlab.gate import race_check
from attnlab.problem.block import PROJECTIONS, Block
from attnlab.problem.dtypes import round_to
from attnlab.problem.inputs import problem_of
from attnlab.problem.problem import Problem
from attnlab.problem.result import Accuracy
from attnlab.problem.workload import Workload
from attnlab.theory.block_budget import block_classes
from attnlab.theory.error_budget import FULL, SCORES

CASES: dict[str, Workload] = {
    "memory": Workload(heads=12, queries=48, keys=80, d_model=768),
    "grouped, rotary, causal": Workload(
        heads=8, kv_heads=2, queries=64, keys=64, d_model=256, rotary=True, causal="top_left"
    ),
    "decoding": Workload(batch=3, heads=8, kv_heads=4, queries=1, keys=300, d_model=128, rotary=True),
    "padded": Workload(batch=2, heads=4, queries=30, keys=30, d_model=96, key_lengths=(30, 7)),
    "one head": Workload(heads=1, queries=40, keys=40, d_model=32),
}


def judged(workload: Workload, backend: str, projection: str | None = None) -> Accuracy:
    """A backend's block before the clock, as a race does it."""
    one, rows = load(backend), race_check.sampled_rows(workload)
    answer = one.named(workload, one.bind(workload, projection=projection)())["output"]
    return race_check.judge(workload, rows, answer[:, rows])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "least"),
    # sums in lanes of a SIMD register have a small part of the error of a sum in order, which the budget allows
    [("bfloat16", 0.5), ("float16", 0.4), ("float32", 0.02), ("float64", 0.01)],
)
def test_real_blocks_are_within_the_budget_and_use_it(case: str, dtype: str, least: float) -> None:
    """Where the number format's own roundings dominate, the prediction is the measured error, within a factor of 2."""
    workload = CASES[case].with_(dtype=dtype)
    for projection in PROJECTIONS:
        found = judged(workload, "torch_sdpa", projection)
        assert found.passed, f"{projection}: {found.reason}"
        assert found.ratio > least


@pytest.mark.parametrize("name", ["torch_mha", "torch_eager", "numpy_vectorized"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("case", ["memory", "padded"])
def test_every_honest_block_passes(case: str, dtype: str, name: str) -> None:
    """Cores that store scores or weights, and PyTorch's module, whose fast path stores before it adds the bias."""
    workload = CASES[case].with_(dtype=dtype)
    reason = load(name).declines(workload)
    if reason:
        pytest.skip(reason)
    found = judged(workload, name)
    assert found.passed, found.reason


def test_the_exact_output_is_the_formula_in_float64() -> None:
    """At some rows as at all."""
    workload = CASES["grouped, rotary, causal"].with_(dtype="float64", batch=2)
    problem = problem_of(workload)
    whole, some = (block_classes(problem, rows)[SCORES] for rows in (None, [3, 60]))
    found = load("torch_eager").bind(workload, problem)().numpy()
    np.testing.assert_allclose(whole.output[:, 0], found, atol=1e-12)
    np.testing.assert_allclose(some.output, whole.output[:, :, [3, 60]], atol=1e-13)
    np.testing.assert_allclose(some.rms, whole.rms[:, :, [3, 60]], rtol=1e-6)


def test_the_prediction_is_the_error_of_independent_roundings() -> None:
    """Each number rounded where an implementation that computes exactly would store it: the variance, within 10 %."""
    squares, predicted = [], []
    for seed in range(40):
        workload = Workload(heads=4, queries=12, keys=12, d_model=32, dtype="bfloat16", seed=seed)
        problem = problem_of(workload)
        budget = block_classes(problem)[FULL]
        error = stored_once(problem) - budget.output[:, 0]
        squares.append(float(np.sum(error**2)))
        predicted.append(budget.relative**2 * float(np.sum(budget.output**2)))
    assert 0.9 < np.sqrt(np.mean(squares) / np.mean(predicted)) < 1.1


def stored_once(problem: Problem) -> np.ndarray:
    """The block in float64, with query, key, value, the heads and the output each rounded once."""
    block, dtype = problem.block, problem.dtype
    assert block is not None
    projected = {}
    for name, (weight, bias) in block.projections.items():
        tokens = (block.x if name == "query" else block.source).astype(np.float64)
        flat = round_to(tokens @ weight.T.astype(np.float64) + bias, dtype)
        projected[name] = np.stack(np.split(flat, block.heads, axis=-1), axis=1).astype(np.float64)
    scores = projected["query"] @ projected["key"].swapaxes(-1, -2) * problem.scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = round_to(weights / weights.sum(axis=-1, keepdims=True) @ projected["value"], dtype)
    flat = np.concatenate(list(heads.swapaxes(0, 1)), axis=-1).astype(np.float64)
    out = block.parameters["out_proj.weight"].T.astype(np.float64), block.parameters["out_proj.bias"]
    return round_to(flat @ out[0] + out[1], dtype).astype(np.float64)


# -- faults


def parameter(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Block], Block]:
    """One of the parameters replaced."""
    return lambda block: replace(
        block, parameters={**block.parameters, name: change(block.parameters[name].copy())}
    )


def zeroed(where: Any) -> Callable[[np.ndarray], np.ndarray]:
    """0 at an index."""

    def change(x: np.ndarray) -> np.ndarray:
        x[where] = 0
        return x

    return change


class Late(Block):
    """Its keys are one position off; if queries were too, no score would change."""

    @property
    def positions(self) -> Any:
        queries, keys = super().positions
        return queries, keys + 1


#: what a faulty block does to its parameters
FAULTS: dict[str, Callable[[Block], Block]] = {
    "a head dropped": parameter("out_proj.weight", zeroed(np.s_[:, -16:])),
    "two heads exchanged": parameter("out_proj.weight", lambda w: w[:, np.r_[16:32, :16, 32:64]]),
    "no output bias": parameter("out_proj.bias", zeroed(np.s_[:])),
    "no bias of the queries": parameter("in_proj_bias", zeroed(np.s_[:64])),
    "no bias of the values": parameter("in_proj_bias", zeroed(np.s_[128:])),
    "W_O transposed": parameter("out_proj.weight", lambda w: np.ascontiguousarray(w.T)),
    "keys and values exchanged": parameter("in_proj_weight", lambda w: w[np.r_[:64, 128:192, 64:128]]),
    "keys one position off": lambda block: Late(
        **{name: getattr(block, name) for name in block.__dataclass_fields__}
    ),
}
#: what a block is asked for, and what it answers instead, as fields of a workload
IGNORED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"scale": 64**-0.5}),
    ({"rotary": True}, {"rotary": False}),
    ({"kv_heads": 2, "causal": "top_left"}, {"kv_heads": 2, "causal": False}),
]
FAULTY = Workload(heads=4, queries=20, keys=20, d_model=64)
ROWS = list(range(20))


def answered(workload: Workload, problem: Problem) -> np.ndarray:
    """What `torch_sdpa` answers to `problem`, posed as `workload`."""
    backend = load("torch_sdpa")
    return backend.named(workload, backend.bind(workload, problem)())["output"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_block_is_caught(dtype: str) -> None:
    """Whatever it does to the parameters, and whatever part of the question it ignores or makes up."""
    for fault, change in FAULTS.items():
        workload = FAULTY.with_(dtype=dtype, rotary=fault == "keys one position off")
        problem = problem_of(workload)
        assert problem.block is not None
        assert race_check.judge(workload, ROWS, answered(workload, problem)).passed
        found = race_check.judge(
            workload, ROWS, answered(workload, problem.with_(block=change(problem.block)))
        )
        assert not found.passed and found.reason and "head" not in found.reason, fault
    for asked, done in IGNORED:
        workload, other = (FAULTY.with_(dtype=dtype, **one) for one in (asked, {**asked, **done}))
        assert not race_check.judge(workload, ROWS, answered(other, problem_of(other))).passed, done


def test_no_right_block_is_beyond_the_worst_case_and_few_rows_of_large_heads_are_checked() -> None:
    """The bound is not infinitely far. What a row costs grows with the square of the head_dim."""
    for dtype, least in (("float16", 1e-3), ("bfloat16", 1e-3), ("float32", 1e-5)):
        workload = FAULTY.with_(dtype=dtype)
        budget = block_classes(problem_of(workload))[SCORES]
        error = np.abs(answered(workload, problem_of(workload)) - budget.output[:, 0])
        assert budget.worst_case is not None
        assert least < (error / budget.worst_case[:, 0]).max() < 1
    large, small = (Workload(heads=heads, queries=512, keys=512, d_model=768) for heads in (1, 12))
    assert race_check.sampled_rows(small.core) == race_check.sampled_rows(small)
    rows = race_check.sampled_rows(large)
    assert len(rows) == 8 and (rows[0], rows[-1]) == (0, 511)
