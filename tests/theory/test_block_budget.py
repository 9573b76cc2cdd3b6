"""The block's budget from both sides: real blocks use it and stay within it, and no fault does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attnlab.backends.discovery import load
from attnlab.gate import race_check
from attnlab.problem.block import PROJECTIONS, Block
from attnlab.problem.dtypes import round_to
from attnlab.problem.inputs import problem_of
from attnlab.problem.problem import Problem
from attnlab.problem.result import Accuracy
from attnlab.problem.workload import Workload
from attnlab.theory.block_budget import block_classes
from attnlab.theory.error_budget import FULL, SCORES

BERT = Workload(heads=12, queries=48, keys=48, d_model=768)
CASES: dict[str, Workload] = {
    "BERT base": BERT,
    "memory": BERT.with_(keys=80),
    "grouped, rotary, causal": Workload(
        heads=8, kv_heads=2, queries=64, keys=64, d_model=256, rotary=True, causal="top_left"
    ),
    "decoding": Workload(batch=3, heads=8, kv_heads=4, queries=1, keys=300, d_model=128, rotary=True),
    "one head": Workload(heads=1, queries=40, keys=40, d_model=32),
    "many small heads": Workload(heads=32, queries=33, keys=33, d_model=64),
    "padded": Workload(batch=2, heads=4, queries=30, keys=30, d_model=96, key_lengths=(30, 7)),
    "many keys": Workload(heads=4, queries=256, keys=256, d_model=256),
    "tiny": Workload(heads=2, queries=3, keys=3, d_model=4),
}


def judged(workload: Workload, backend: str, projection: str | None = None) -> Accuracy:
    """A backend's block before the clock, as a race does it."""
    one, rows = load(backend), race_check.sampled_rows(workload)
    answer = one.named(workload, one.bind(workload, projection=projection)())["output"]
    return race_check.judge(workload, rows, answer[:, rows])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "least"),
    # sums in lanes of a SIMD register have a small part of the error of a sum in order, which the budget allows
    [("bfloat16", 0.5), ("float16", 0.4), ("float32", 0.02), ("float64", 0.01)],
)
def test_real_blocks_are_within_the_budget_and_use_it(case: str, dtype: str, least: float, seed: int) -> None:
    """Where the number format's own roundings dominate, the prediction is the measured error, within a factor of 2."""
    workload = CASES[case].with_(dtype=dtype, seed=seed)
    for projection in PROJECTIONS:
        found = judged(workload, "torch_sdpa", projection)
        assert found.passed, f"{projection}: {found.reason}"
        few = case == "tiny"  # a dozen roundings may nearly cancel
        assert found.ratio > least / (10 if few else 1)


@pytest.mark.parametrize(
    "name", ["torch_mha", "torch_eager", "torch_sdpa_math", "numpy_vectorized", "naive_loop"]
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("case", ["memory", "padded", "one head", "grouped, rotary, causal", "many keys"])
def test_every_honest_block_passes(case: str, dtype: str, name: str) -> None:
    """Cores that store scores or weights, and PyTorch's module, whose fast path stores before it adds the bias."""
    workload = CASES[case].with_(dtype=dtype)
    if name == "naive_loop":
        workload = workload.with_(queries=8, keys=8, key_lengths=None)
    reason = load(name).declines(workload)
    if reason:
        pytest.skip(reason)
    found = judged(workload, name)
    assert found.passed, found.reason


def test_the_exact_output_is_the_formula_in_float64() -> None:
    """At some rows as at all."""
    workload = CASES["grouped, rotary, causal"].with_(dtype="float64", batch=2)
    problem = problem_of(workload)
    whole = block_classes(problem)[SCORES]
    backend = load("naive_loop")
    small = workload.with_(queries=64)
    found = load("torch_eager").bind(small, problem)().numpy()
    np.testing.assert_allclose(whole.output[:, 0], found, atol=1e-12)
    some = block_classes(problem, [3, 60])[SCORES]
    np.testing.assert_allclose(some.output, whole.output[:, :, [3, 60]], atol=1e-13)
    np.testing.assert_allclose(some.rms, whole.rms[:, :, [3, 60]], rtol=1e-6)
    assert backend.library == "numpy"


def test_the_prediction_is_the_error_of_independent_roundings() -> None:
    """Each number rounded where an implementation that computes exactly would store it: the variance, within 10 %.

    In float64 between the roundings, so that nothing but they is seen; over many draws of the inputs.
    """
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


# -- faults ------------------------------------------------------------------------------------------


def _with(block: Block, **changed: Any) -> Block:
    return replace(block, parameters={**block.parameters, **changed})


def _heads_permuted(block: Block) -> Block:
    weight = block.parameters["out_proj.weight"]
    heads = np.split(weight, block.heads, axis=1)
    return _with(block, **{"out_proj.weight": np.concatenate([heads[1], heads[0], *heads[2:]], axis=1)})


def _head_dropped(block: Block) -> Block:
    weight = block.parameters["out_proj.weight"].copy()
    weight[:, -block.value_dim :] = 0
    return _with(block, **{"out_proj.weight": weight})


def _without(name: str, rows: slice = slice(None)) -> Callable[[Block], Block]:
    def left_out(block: Block) -> Block:
        bias = block.parameters[name].copy()
        bias[rows] = 0
        return _with(block, **{name: bias})

    return left_out


def _out_transposed(block: Block) -> Block:
    return _with(block, **{"out_proj.weight": np.ascontiguousarray(block.parameters["out_proj.weight"].T)})


def _key_and_value_exchanged(block: Block) -> Block:
    weight = block.parameters["in_proj_weight"]
    q, k, v = np.split(weight, 3)
    return _with(block, in_proj_weight=np.concatenate([q, v, k]))


FAULTS: dict[str, Callable[[Block], Block]] = {
    "a head dropped": _head_dropped,
    "two heads exchanged": _heads_permuted,
    "no output bias": _without("out_proj.bias"),
    "no bias of the queries": _without("in_proj_bias", slice(0, 64)),
    "no bias of the values": _without("in_proj_bias", slice(128, 192)),
    "W_O transposed": _out_transposed,
    "keys and values exchanged": _key_and_value_exchanged,
}
FAULTY = Workload(heads=4, queries=20, keys=20, d_model=64)


def answered(workload: Workload, problem: Problem) -> np.ndarray:
    """What `torch_sdpa` answers to `problem`, posed as `workload`."""
    backend = load("torch_sdpa")
    return backend.named(workload, backend.bind(workload, problem)())["output"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_block_is_caught(fault: str, dtype: str) -> None:
    """Whatever it does to the parameters."""
    workload = FAULTY.with_(dtype=dtype)
    problem = problem_of(workload)
    assert problem.block is not None
    rows = list(range(20))
    assert race_check.judge(workload, rows, answered(workload, problem)).passed
    wrong = answered(workload, problem.with_(block=FAULTS[fault](problem.block)))
    found = race_check.judge(workload, rows, wrong)
    assert not found.passed and found.reason and "head" not in found.reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ({}, {"scale": 64**-0.5}),
        ({"rotary": True}, {"rotary": False}),
        ({}, {"rotary": True}),
        ({"kv_heads": 2, "causal": "top_left"}, {"kv_heads": 2}),
    ],
    ids=["scale of d_model", "rotary left out", "rotary not asked for", "mask left out"],
)
def test_a_block_that_answers_another_question_is_caught(
    asked: dict[str, Any], done: dict[str, Any], dtype: str
) -> None:
    """One field of the workload ignored or made up."""
    workload, other = (FAULTY.with_(dtype=dtype, **one) for one in (asked, {**asked, **done}))
    if "causal" in asked:
        other = other.with_(causal=False)
    wrong = answered(other, problem_of(other))
    assert not race_check.judge(workload, list(range(20)), wrong).passed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rotary_positions_of_the_keys_off_by_one_are_caught(dtype: str) -> None:
    """Where the queries' are right: if both were off, no score would change."""
    workload = FAULTY.with_(rotary=True, dtype=dtype)
    problem = problem_of(workload)
    block = problem.block
    assert block is not None

    class Late(Block):
        @property
        def positions(self) -> Any:
            queries, keys = super().positions
            return queries, keys + 1

    late = Late(**{name: getattr(block, name) for name in block.__dataclass_fields__})
    wrong = answered(workload, problem.with_(block=late))
    assert not race_check.judge(workload, list(range(20)), wrong).passed


def test_no_right_block_is_beyond_the_worst_case() -> None:
    """And the bound is not infinitely far, although it lets every sum of a chain conspire."""
    for dtype in ("float16", "bfloat16", "float32"):
        workload = FAULTY.with_(dtype=dtype)
        budget = block_classes(problem_of(workload))[SCORES]
        assert budget.worst_case is not None
        error = np.abs(answered(workload, problem_of(workload)) - budget.output[:, 0])
        share = (error / budget.worst_case[:, 0]).max()
        assert (1e-3 if dtype != "float32" else 1e-5) < share < 1


def test_few_rows_of_large_heads_are_checked() -> None:
    """What a row costs grows with the square of the head_dim; the first and the last are always among them."""
    large, small = (Workload(heads=heads, queries=512, keys=512, d_model=768) for heads in (1, 12))
    assert race_check.sampled_rows(small.core) == race_check.sampled_rows(small)
    rows = race_check.sampled_rows(large)
    assert len(rows) == 8 and (rows[0], rows[-1]) == (0, 511)
