"""The error budget of a block: real blocks use it and stay within it, and faulty blocks do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every import judged

from attnlab.backends.discovery import load
from attnlab.correctness import weighing
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import PROJECTIONS, Block, Inputs
from attnlab.workload.workload import Workload

CASES: dict[str, Workload] = {
    "memory": Workload(heads=6, queries=48, keys=80, d_model=384),
    "grouped, causal": Workload(heads=8, kv_heads=2, queries=64, keys=64, d_model=256, causal="top_left"),
    "decoding": Workload(batch=3, heads=8, kv_heads=4, queries=1, keys=300, d_model=128),
    "padded": Workload(batch=2, heads=4, queries=30, keys=30, d_model=96, key_lengths=(30, 7)),
    "one head": Workload(heads=1, queries=40, keys=40, d_model=32),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("dtype", "least"),
    # the budget allows the error of a sum in order; a sum in lanes of a SIMD register has a small part of it
    [("bfloat16", 0.5), ("float16", 0.4), ("float32", 0.02), ("float64", 0.01)],
)
def test_real_blocks_are_within_the_budget_and_use_it(case: str, dtype: str, least: float) -> None:
    """If roundings to the number format dominate, the error is at least 0.5 (0.4 in float16) of the predicted one."""
    workload = CASES[case].with_(dtype=dtype)
    for projection in PROJECTIONS:
        found = judged(load("torch_sdpa"), workload, projection=projection)
        assert found.passed, f"{projection}: {found.reason}"
        assert found.ratio > least


# -- faults


def parameter(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Block], Block]:
    """Replace one of the parameters by change(a copy of it)."""
    return lambda block: replace(
        block, parameters={**block.parameters, name: change(block.parameters[name].copy())}
    )


def zeroed(where: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Set the numbers at an index to 0."""

    def change(x: np.ndarray) -> np.ndarray:
        x[where] = 0
        return x

    return change


#: what a faulty block does to its parameters
FAULTS: dict[str, Callable[[Block], Block]] = {
    "a head dropped": parameter("out_proj.weight", zeroed(np.s_[:, -16:])),
    "two heads exchanged": parameter("out_proj.weight", lambda w: w[:, np.r_[16:32, :16, 32:64]]),
    "no output bias": parameter("out_proj.bias", zeroed(np.s_[:])),
    "no bias of the queries": parameter("in_proj_bias", zeroed(np.s_[:64])),
    "no bias of the values": parameter("in_proj_bias", zeroed(np.s_[128:])),
    "W_O transposed": parameter("out_proj.weight", lambda w: np.ascontiguousarray(w.T)),
    "keys and values exchanged": parameter("in_proj_weight", lambda w: w[np.r_[:64, 128:192, 64:128]]),
}
#: fields of the workload that is asked for, and further fields of the workload that the block answers instead
IGNORED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"scale": 64**-0.5}),
    ({"kv_heads": 2, "causal": "top_left"}, {"kv_heads": 2, "causal": False}),
]
FAULTY = Workload(heads=4, queries=20, keys=20, d_model=64)
ROWS = list(range(20))


def answered(workload: Workload, inputs: Inputs) -> dict[str, np.ndarray]:
    """The answers of `torch_sdpa` to `inputs` of the `workload`."""
    backend = load("torch_sdpa")
    return backend.named(workload, backend.bind(workload, inputs)())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_wrong_block_is_caught(dtype: str) -> None:
    """It is caught if it changes a parameter, and if it ignores or invents a part of the question."""
    for fault, change in FAULTS.items():
        workload = FAULTY.with_(dtype=dtype)
        inputs = inputs_of(workload)
        assert inputs.block is not None
        faulty = inputs.with_(block=change(inputs.block))
        assert weighing.judge(workload, inputs, ROWS, answered(workload, inputs), None).passed
        found = weighing.judge(workload, inputs, ROWS, answered(workload, faulty), None)
        assert not found.passed and found.reason and "head" not in found.reason, fault
    for asked, done in IGNORED:
        workload, other = (FAULTY.with_(dtype=dtype, **one) for one in (asked, {**asked, **done}))
        answers = answered(other, inputs_of(other))
        assert not weighing.judge(workload, inputs_of(workload), ROWS, answers, None).passed, done
