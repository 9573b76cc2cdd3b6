"""Inputs from a file: a distribution of a workload with its sizes, conditions and digest, refused where it changed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.cli.options import read_workload
from attnlab.errors import Declined
from attnlab.runs.plan import Plan
from attnlab.workload import captured
from attnlab.workload.captured import Captured
from attnlab.workload.drawing import inputs, problem_of
from attnlab.workload.grid import workloads
from attnlab.workload.inputs import Inputs

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="safetensors is not installed"
)


def _problem(
    seed: int = 0, heads: int = 4, kv_heads: int = 2, dtype: str = "float32", **asked: Any
) -> Inputs:
    rng = np.random.default_rng(seed)
    shapes = (2, heads, 5, 8), (2, kv_heads, 7, 8), (2, kv_heads, 7, 6)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return Inputs.of(q, k, v, **asked).cast(dtype)


def _file(folder: Path, **problems: Inputs) -> str:
    file = folder / "qkv.safetensors"
    captured.save(file, problems)
    return str(file)


def test_a_workload_takes_sizes_and_conditions_from_its_file(tmp_path: Path) -> None:
    file = _file(tmp_path, a=_problem(scale=0.3, softcap=5.0, causal="bottom_right"))
    (one,) = workloads({"distribution": file}, grid=False)
    assert one.shape == (2, 4, 5, 7)
    assert (one.kv_heads, one.head_dim, one.value_dim, one.dtype) == (2, 8, 6, "float32")
    assert (one.scale, one.softcap, one.causal) == (0.3, 5.0, "bottom_right")
    assert one.distribution == f"{file}/a@{captured.digest_of(file)}"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_problem_is_the_one_that_was_saved(tmp_path: Path, dtype: str) -> None:
    """Arrays, mask, bias and sinks bit for bit, in every number format."""
    rng = np.random.default_rng(1)
    seen = rng.random((1, 4, 5, 7)) < 0.7
    seen[..., 0] = True
    bias = rng.standard_normal((5, 7)).astype(np.float32)
    saved = _problem(dtype=dtype, mask=seen, bias=bias, sinks=np.ones(4, np.float32))
    file = _file(tmp_path, first=_problem(3), layer7=saved)
    (one,) = workloads({"distribution": f"{file}/layer7"}, grid=False)
    found = problem_of(one)
    for name in ("query", "key", "value", "sinks"):
        assert np.array_equal(getattr(found, name), getattr(saved, name))
    assert np.array_equal(np.broadcast_to(np.asarray(found.bias), (1, 1, 5, 7))[0, 0], np.asarray(saved.bias))
    whole = (2, 4, 5, 7)
    assert np.array_equal(np.broadcast_to(found.mask.array(found.shape), whole), np.broadcast_to(seen, whole))


def test_a_plan_has_a_workload_a_layer_and_a_race_one(tmp_path: Path) -> None:
    file = _file(tmp_path, layer0=_problem(0), layer1=_problem(1), layer10=_problem(2))
    plan = Plan.grid(distribution=file)
    layers = [Captured.parse(one.distribution).layer for one in plan.workloads]
    assert layers == ["layer0", "layer1", "layer10"]
    assert len({one.label for one in plan.workloads}) == 3
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(ValueError, match=r"holds 3 layers, and one is taken here: name one of .*/layer0"):
        read_workload({"distribution": file})


GOOD = {name: np.ones((1, 2, 3, 4), np.float32) for name in ("query", "key", "value")}


@pytest.mark.parametrize(
    ("held", "about", "told"),
    [
        ({"weight": np.ones((2, 2), np.float32)}, None, "holds no inputs: it needs tensors query, key and value"),
        ({**GOOD, "key": np.ones((1, 2, 3, 5), np.float32)}, None, "must have the same head_dim"),
        ({**GOOD, "key": np.ones((3, 4), np.float32)}, None, "key must be a non-empty array of shape"),
        (GOOD, {"conditions": '{"eval": "1"}'}, "unexpected keyword argument 'eval'"),
        ({**GOOD, "value": np.full((1, 2, 3, 4), np.nan, np.float32)}, None, "value holds a NaN or an infinity"),
        ({**GOOD, "query": 1e6 * GOOD["query"]}, None, "no float16 holds the inputs .* name a wider dtype"),
        ((2**62).to_bytes(8, "little") + b"{}", None, "is no safetensors file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_input_is_told_in_one_line(
    tmp_path: Path, held: Any, about: Any, told: str
) -> None:
    from safetensors.numpy import save_file

    file = tmp_path / "bad.safetensors"
    if isinstance(held, bytes):
        file.write_bytes(held)
    else:
        save_file(held, str(file), about)
    with pytest.raises((ValueError, Declined), match=told) as fault:
        inputs(*workloads({"distribution": str(file), "dtype": "float16"}, grid=False))
    assert "\n" not in str(fault.value)


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    """Where it is named with its digest, and where inputs are drawn again from a stored workload."""
    file = _file(tmp_path, a=_problem(0))
    (one,) = workloads({"distribution": file}, grid=False)
    _file(tmp_path, a=_problem(1))
    with pytest.raises(Declined, match=r"qkv\.safetensors has changed: it was [0-9a-f]{16}, it is"):
        inputs(one)
    with pytest.raises(ValueError, match=r"has changed: .*leave out what follows @"):
        workloads({"distribution": one.distribution}, grid=False)
    Path(file).unlink()
    with pytest.raises(Declined, match="cannot be read"):
        inputs(one)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"distribution": "none.safetensors"}, "the file of inputs none.safetensors cannot be read"),
        ({"distribution": "{file}/b"}, "holds no 'b'; it holds a"),
        ({"distribution": "{file}", "queries": 6}, "queries must be at most the 5 of"),
        ({"distribution": "{file}", "mask": "given"}, "mask cannot be given: .* holds none"),
        ({"distribution": "a`b.safetensors"}, "its path of letters, digits"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(tmp_path: Path, said: dict[str, Any], told: str) -> None:
    file = _file(tmp_path, a=_problem())
    with pytest.raises(ValueError, match=told) as fault:
        workloads({**said, "distribution": said["distribution"].format(file=file)}, grid=False)
    assert "\n" not in str(fault.value)
