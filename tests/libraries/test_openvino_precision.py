"""OpenVINO's precision is a setting: float32 unless asked, and what is lower is judged and told as such."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from every import here

import attnlab
from attnlab.backends.backend import Backend
from attnlab.backends.discovery import load
from attnlab.gate import race_check
from attnlab.problem.workload import Workload

WORKLOAD = Workload(heads=4, queries=300, keys=300, head_dim=64)

#: as a user would write it, with OpenVINO's own default precision
DEFAULT = """
import numpy as np
import openvino as ov

LIBRARY = "numpy"
ops = ov.opset13
inputs = [ops.parameter([-1] * 4, ov.Type.f32) for _ in range(3)] + [ops.parameter([], ov.Type.f32)]
zero = ops.constant(np.zeros((), np.float32))
output = ops.scaled_dot_product_attention(*inputs[:3], zero, inputs[3])
compiled = ov.compile_model(ov.Model([output], inputs, "attention"), "CPU")


def declines(workload):
    return None if workload.dtype == "float32" else "float32 alone"


def attend(query, key, value, *, scale):
    return np.array(compiled([query, key, value, np.array(scale, np.float32)])[0])
"""


def loaded(precision: str) -> Backend:
    return here("openvino", settings={"precision": precision})


@pytest.mark.parametrize(
    ("precision", "computes_in"), [("f32", None), ("bf16", "bfloat16"), ("f16", "float16")]
)
@pytest.mark.parametrize("causal", [False, "top_left"])
def test_each_precision_is_right_by_its_own_budget(
    precision: str, computes_in: str | None, causal: str | bool
) -> None:
    backend, workload = loaded(precision), WORKLOAD.with_(causal=causal)
    assert backend.computes_in == computes_in
    rows = race_check.sampled_rows(workload)
    answer = backend.named(workload, backend.bind(workload)())["output"][:, :, rows]
    found = race_check.judge(workload, rows, answer, backend.computes_in)
    assert found.passed, found.reason


@pytest.mark.parametrize(
    ("precision", "kernel"), [("f32", "allowed f32"), ("bf16", "allowed bf16"), ("f16", "allowed f16")]
)
def test_what_was_allowed_is_attested(precision: str, kernel: str) -> None:
    backend = loaded(precision)
    assert kernel in backend.open("cpu").attest(backend.bind(WORKLOAD))


def test_both_are_there_in_one_process() -> None:
    loaded("bf16")
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 64, 16), dtype=np.float32)
    plain, low, again = (
        attnlab.attend(name, q, k, v) for name in ("openvino", "openvino[precision=bf16]", "openvino")
    )
    np.testing.assert_array_equal(plain, again)
    error = np.linalg.norm(low - plain) / np.linalg.norm(plain)
    assert 1e-4 < error < 2e-2


def test_its_silent_default_is_wrong_and_told(tmp_path: Path) -> None:
    """On a processor that has bfloat16."""
    loaded("bf16")
    (tmp_path / "silent.py").write_text(DEFAULT)
    backend = load("silent", [tmp_path])
    rows = race_check.sampled_rows(WORKLOAD)
    answer = backend.named(WORKLOAD, backend.bind(WORKLOAD)())["output"][:, :, rows]
    found = race_check.judge(WORKLOAD, rows, answer)
    assert not found.passed
    assert "this is the error of computing in bfloat16" in str(found.reason)
