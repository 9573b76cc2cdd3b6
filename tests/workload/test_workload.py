"""A workload computes its sizes by arithmetic only, and equal workloads give bit-equal inputs."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnlab.errors import Declined, FieldError
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs, pack, unpack
from attnlab.workload.number_formats import FORMATS, ITEM_BYTES
from attnlab.workload.workload import DIRECTIONS, GRADIENTS, LOG_SUM, OUTPUT, Workload

workloads = strategies.workloads()
SIZES = ("batch", "heads", "queries", "keys", "head_dim", "value_dim", "d_model")
BAD: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("batch", "heads", "queries", "keys", "head_dim"), (0, -1, 2.0, True, "8", 10**12)),
    "kv_heads": (3, 0),
    "d_model": (0, True, 10**12),
    "dtype": ("int8", None),
    "device": ("gpu",),
    "causal": (1, "bottom-right", "yes"),
    "window": ((513, 0), (-2, 0), (1.5, 0), (1,)),
    "key_lengths": ((513,), (-1,), (3, 3)),
    "mask": ("strange", "random(2)", "prefix(513)", "prefix(x)", "prefix(1,2)"),
    "bias": ("strange",),
    "softcap": (0.0, -1.0, 1e-320, 1e300),
    "sinks": (1,),
    "layout": ("sbhd",),
    "storage": ("strange", None),
    "direction": ("sideways",),
    "scale": (float("nan"), float("inf"), True, "1", 1e300, -1e300),
    "distribution": ("strange",),
    "seed": (-1, 1.5, False, 10**30),
}


@pytest.mark.parametrize(("name", "bad"), [(name, bad) for name, all_bad in BAD.items() for bad in all_bad])
def test_a_malformed_field_is_refused_in_one_line_by_name_with_what_came(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=name) as refusal:
        Workload(**{name: bad})
    shown = str(refusal.value)
    assert repr(bad) in shown or (name in ("window", "key_lengths", "mask") and "got" in shown)
    assert "\n" not in shown


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(SIZES, st.integers(0, 70).map(lambda bits: 2**bits))))
def test_sizes_are_counted_in_63_bits_at_once_or_refused_in_one_line(asked: dict[str, int]) -> None:
    """However large they are, alone and together: no memory of that size is allocated."""
    try:
        workload = Workload(**asked)
    except ValueError as refusal:
        assert "\n" not in str(refusal)
        return
    for each in (workload, workload.with_(direction="training") if workload.d_model is None else workload):
        assert max(each.flops, each.least_bytes, each.score_bytes) < 2**63


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"queries": 2**17, "keys": 2**17, "mask": "random(0.5)"},
            "is drawn for at most 1,073,741,824 pairs",
        ),
        ({"d_model": 770, "heads": 12}, "d_model must be divisible by heads, got 770 and 12; take 11 heads"),
        ({"d_model": 64, "layout": "bshd"}, "layout of a multi-head block .* got 'bshd': its projections"),
        ({"d_model": 64, "direction": "training"}, "direction of a multi-head block .* no error budget"),
        ({"distribution": "qkv.safetensors/a"}, "must name the digest"),
    ],
)
def test_what_does_not_go_together_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as refusal:
        Workload(**asked)
    assert "\n" not in str(refusal.value)


def seen_pairs(workload: Workload) -> NDArray[np.bool_]:
    """Whether each query sees each key: (batch, heads, queries, keys)."""
    found = workload.masked.array(workload.shape)
    return np.broadcast_to(True if found is None else found, workload.shape)


@given(workloads)
def test_flops_and_bytes_are_those_of_the_pairs_that_the_mask_keeps(workload: Workload) -> None:
    """A multiplication and an addition per pair and dimension. What no query sees is not read."""
    w, seen = workload, seen_pairs(workload)
    assert w.pairs == seen.sum()
    assert w.flops == int(DIRECTIONS[w.direction].flops * 2 * int(seen.sum()) * (w.head_dim + w.value_dim))
    by_group = seen.reshape(w.batch, w.kv_heads, -1, w.queries, w.keys)
    read = by_group.any(axis=(2, 3)).sum() * (w.head_dim + w.value_dim)
    read += seen.any(axis=3).sum() * (w.head_dim + (w.value_dim if w.backward else 0))
    # one array for all batch elements
    read += w.heads * (seen[:, 0].sum() // w.batch) if w.bias == "normal" else 0
    assert w.least_bytes == int(read) * ITEM_BYTES[w.dtype] + w.output_bytes


@given(workloads | strategies.blocks())
def test_bytes_are_those_of_the_arrays(workload: Workload) -> None:
    """Counted on real arrays, in the dtype of the workload (bfloat16 is held in wider arrays)."""
    width = ITEM_BYTES[workload.dtype]
    try:
        inputs = inputs_of(workload)
    except Declined:  # its dtype cannot hold these numbers
        return
    bias = inputs.bias.size if isinstance(inputs.bias, np.ndarray) else 0
    if inputs.block is not None:
        block = inputs.block
        arrays = [block.x, *block.parameters.values(), *([] if block.memory is None else [block.memory])]
        taken = sum(one.size for one in arrays) + bias
        assert workload.input_bytes == taken * width
        assert workload.output_bytes == inputs.block.x.size * width
        return
    arrays = [inputs.query, inputs.key, inputs.value]
    output = int(np.prod(workload.shape_of(OUTPUT)))
    returned = {name: one.size * width for name, one in zip(GRADIENTS, arrays, strict=True)}
    returned[OUTPUT] = output * width
    returned[LOG_SUM] = int(np.prod(inputs.shape[:3])) * max(width, 4)  # at least float32
    taken = sum(one.size for one in arrays) + bias + (output if workload.backward else 0)
    assert workload.input_bytes == taken * width
    assert workload.output_bytes == sum(returned[name] for name in workload.results)
    assert workload.score_bytes == int(np.prod(inputs.shape)) * width


@given(workloads | strategies.blocks())
def test_inputs_pose_the_workload_that_it_was_drawn_for(workload: Workload) -> None:
    """Except for the fields that say how its inputs were drawn and stored."""
    try:
        inputs = inputs_of(workload)
    except Declined:
        return
    posed = Workload.of_inputs(
        inputs, device=workload.device, direction=workload.direction, layout=workload.layout
    )
    assert digest(inputs) == digest(inputs_of(workload)) == digest(unpack(*pack(inputs)))
    names = ("bias", "distribution", "seed", "storage")
    same = {name: getattr(workload, name) for name in names}
    assert posed.with_(**same) == workload
    back = unpack(*pack(inputs))
    assert back.mask.text == inputs.mask.text and Workload.of_inputs(back).pairs == workload.pairs


@given(workloads | strategies.blocks(), workloads | strategies.blocks())
def test_labels_tell_workloads_apart_and_json_keeps_them(one: Workload, other: Workload) -> None:
    """Scale and soft cap are left out of the comparison, because a label rounds them."""
    rounded = {"scale": 1.0, "softcap": None}
    if one.with_(**rounded) != other.with_(**rounded):
        assert one.with_(**rounded).label != other.with_(**rounded).label
    back = Workload.from_dict(json.loads(json.dumps(one.to_dict())))
    assert back == one and hash(back) == hash(one)


def test_defaults_are_resolved_at_once_and_an_unknown_field_is_refused() -> None:
    assert Workload(head_dim=16) == Workload(head_dim=16, value_dim=16, scale=0.25)
    assert Workload(heads=16, d_model=768).head_dim == 48
    written = Workload(heads=2).to_dict()
    assert all(Workload.from_dict({name: one}) for name, one in written.items()), "a file may leave out any"
    with pytest.raises(ValueError, match="unknown key 'windows'; did you mean window"):
        Workload.from_dict({"windows": 8})


def digest(inputs: Inputs) -> str:
    """A digest of inputs: plain data, and every array's dtype, shape and bytes, little-endian on every platform."""
    plain, arrays = pack(inputs)
    found = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for array in arrays:
        found.update(f"{array.dtype.newbyteorder('<')} {array.shape}".encode())
        found.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)
    return found.hexdigest()[:16]


ARRAY = np.zeros((2, 3, 5, 8), np.float32)


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (ARRAY[0], ARRAY, ARRAY, "query must be a non-empty array of shape"),
        (ARRAY, ARRAY[..., :4], ARRAY, "same head_dim, got"),
        (ARRAY, ARRAY, ARRAY[:, :, :2], "in heads and length, got"),
        (ARRAY, ARRAY[:1], ARRAY[:1], "agree in batch"),
        (ARRAY, ARRAY[:, :2], ARRAY[:, :2], "key's heads must divide the query's"),
        (ARRAY.astype(FORMATS["bfloat16"]), ARRAY, ARRAY, "share one dtype, got bfloat16, float32, float32"),
        (*[ARRAY.astype(np.int32)] * 3, "must hold floating-point numbers, got int32"),
        (ARRAY[:0], ARRAY[:0], ARRAY[:0], "query must be a non-empty array"),
        (ARRAY[:, :, :0], ARRAY, ARRAY, "query must be a non-empty array"),
        (ARRAY, ARRAY[:, :, :0], ARRAY[:, :, :0], "key must be a non-empty array"),
        (ARRAY[..., :0], ARRAY[..., :0], ARRAY, "query must be a non-empty array"),
    ],
)
def test_arrays_that_pose_no_workload_are_refused(query: Any, key: Any, value: Any, message: str) -> None:
    """The message names the first thing that does not fit."""
    with pytest.raises(ValueError, match=message):
        Inputs.of(query, key, value)


def test_two_arrays_both_hide() -> None:
    assert len(Inputs.of(ARRAY, ARRAY, ARRAY, mask=np.eye(5) > 0, bias=[-np.inf] * 5).mask.parts) == 2


@pytest.mark.parametrize(
    "asked",
    [
        *({"mask": np.ones((5, 5))}, {"mask": np.ones((2, 5), bool)}, {"causal": "middle"}),
        *({"bias": [np.nan] * 5}, {"bias": [np.inf] * 5}),
    ],
    ids=str,
)
def test_a_mask_or_a_bias_that_is_none_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(FieldError, match="must"):
        Inputs.of(ARRAY, ARRAY, ARRAY, **asked)
