"""Inputs from a file: the workload has the sizes and the digest of the file, and refuses a file that has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnlab.errors import Declined
from attnlab.workload.distributions import digest_of
from attnlab.workload.grid import workloads
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import FORMATS
from attnlab.workload.workload import Workload

pytest.importorskip("safetensors", reason="safetensors is not installed")


def _inputs(seed: int = 0, dtype: str = "float32") -> Inputs:
    rng = np.random.default_rng(seed)
    shapes = (2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return Inputs.of(q, k, v).cast(dtype)


def _file(folder: Path, **layers: Inputs) -> str:
    from safetensors.numpy import save_file

    tensors = {}
    for layer, one in layers.items():
        arrays = {name: getattr(one, name) for name in ("query", "key", "value")}
        tensors |= {f"{layer}.{name}": array.astype(FORMATS[one.dtype]) for name, array in arrays.items()}
    save_file(tensors, str(folder / "qkv.safetensors"))
    return str(folder / "qkv.safetensors")


def _one(distribution: str, **said: Any) -> Workload:
    (found,) = workloads({"distribution": distribution, **said}, grid=False)
    return found


def test_a_workload_takes_its_sizes_from_a_file(tmp_path: Path) -> None:
    file = _file(tmp_path, a=_inputs())
    one = _one(file, scale=0.3, softcap=5.0, causal="bottom_right")
    assert (one.shape, one.kv_heads, one.head_dim, one.value_dim) == ((2, 4, 5, 7), 2, 8, 6)
    assert (one.dtype, one.scale, one.softcap, one.causal) == ("float32", 0.3, 5.0, "bottom_right")
    assert one.distribution == f"{file}/a@{digest_of(file)}"
    assert one.label.endswith(f"qkv.safetensors/a@{digest_of(file)[:8]}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_inputs_are_those_that_were_saved(tmp_path: Path, dtype: str) -> None:
    """Bit for bit, in every number format. A smaller workload has the first heads, queries and keys."""
    saved = _inputs(dtype=dtype)
    file = _file(tmp_path, layer10=_inputs(3), layer7=saved)
    one = _one(f"{file}/layer7")
    found, small = inputs_of(one), inputs_of(one.with_(queries=2, keys=6, heads=2, kv_heads=1))
    assert (found.dtype, found.scale) == (saved.dtype, saved.scale)
    for name in ("query", "key", "value"):
        np.testing.assert_array_equal(getattr(found, name), getattr(saved, name))
    np.testing.assert_array_equal(small.key, saved.key[:, :1, :6])


def test_of_several_layers_one_is_named(tmp_path: Path) -> None:
    dotted = "model.layers.0.self_attn"
    file = _file(tmp_path, layer10=_inputs(1), layer2=_inputs(2), **{dotted: _inputs(3)})
    assert _one(f"{file}/{dotted}").distribution.startswith(f"{file}/{dotted}@")
    (found,) = workloads({"distribution": f"{file}/layer2", "dtypes": ("bfloat16",)})
    assert (found.distribution.partition("/layer2@")[0], found.dtype) == (file, "bfloat16")
    with pytest.raises(ValueError, match=r"holds several layers; name one of .*/layer10, .*/layer2"):
        _one(file)


GOOD = {name: np.ones((1, 2, 3, 4), np.float32) for name in ("query", "key", "value")}


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"weight": np.ones((2, 2), np.float32)}, "holds no inputs: it needs tensors query, key and value"),
        ({**GOOD, "key": np.ones((3, 4), np.float32)}, "key must be a non-empty array of shape"),
        ({**GOOD, "value": np.full((1, 2, 3, 4), np.nan, np.float32)}, "value must be finite"),
        ({**GOOD, "query": 1e6 * GOOD["query"]}, "float16 cannot hold inputs .* name a wider dtype"),
        ({"query": GOOD["query"], "key": GOOD["key"]}, "does not contain tensor value"),
        ((2**62).to_bytes(8, "little") + b"{}", "cannot be read as safetensors"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_input_is_told_in_one_line(tmp_path: Path, held: Any, told: str) -> None:
    from safetensors.numpy import save_file

    file = tmp_path / "bad.safetensors"
    if isinstance(held, bytes):
        file.write_bytes(held)
    else:
        save_file(held, str(file))
    with pytest.raises((ValueError, Declined), match=told) as fault:
        inputs_of(_one(str(file), dtype="float16"))
    assert "\n" not in str(fault.value)


def test_heads_are_those_of_whole_groups(tmp_path: Path) -> None:
    """With other groups, a query head would read another key head than in the file."""
    file = _file(tmp_path, a=_inputs())
    assert [_one(file, heads=heads).kv_heads for heads in (1, 2, 4)] == [1, 1, 2]
    for asked in ({"heads": 3}, {"heads": 2, "kv_heads": 2}):
        with pytest.raises(ValueError, match=r"heads must be at most 2 or 2 for each key head"):
            _one(file, **asked)


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    """It is refused if it is named with its digest, and if inputs are drawn again from a stored workload."""
    file = _file(tmp_path, a=_inputs(0))
    one = _one(file)
    _file(tmp_path, a=_inputs(1))
    os.utime(file, (0, 0))  # the file system's clock may be too coarse to differ
    with pytest.raises(Declined, match=r"qkv\.safetensors has changed: it was [0-9a-f]{16}, it is"):
        inputs_of(one)
    with pytest.raises(ValueError, match=r"has changed: .*leave out what follows @"):
        _one(one.distribution)
    Path(file).unlink()
    with pytest.raises(Declined, match="cannot be read"):
        inputs_of(one)
