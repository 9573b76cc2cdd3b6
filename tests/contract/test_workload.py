"""A workload knows its sizes by arithmetic alone, and equal workloads pose bit-equal questions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import strategies
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnlab.errors import Declined
from attnlab.problem.directions import DIRECTIONS, GRADIENTS, LOG_SUM, OUTPUT
from attnlab.problem.dtypes import ITEM_BYTES
from attnlab.problem.inputs import inputs, problem_of
from attnlab.problem.problem import pack, unpack
from attnlab.problem.workload import Workload

sizes = st.integers(1, 9)
small = st.integers(1, 3)


workloads = strategies.workloads()


def can_be_drawn(workload: Workload) -> bool:
    """Not at a scale near 0 whose logits no format has the queries for."""
    try:
        inputs(workload)
    except Declined:
        return False
    return True


drawable = workloads.filter(can_be_drawn)

BAD = [
    *[
        (name, bad)
        for name in ("batch", "heads", "queries", "keys", "head_dim", "value_dim")
        for bad in (0, -1)
    ],
    ("queries", 2.0),
    ("heads", True),
    ("keys", "8"),
    ("batch", None),
    ("dtype", "int8"),
    ("dtype", None),
    ("device", "gpu"),
    ("causal", 1),
    ("causal", "bottom-right"),
    ("kv_heads", 3),
    ("window", (513, 0)),
    ("window", (-2, 0)),
    ("window", (1.5, 0)),
    ("window", (1,)),
    ("key_lengths", (513,)),
    ("key_lengths", (-1,)),
    ("key_lengths", (3, 3)),
    ("mask", "strange"),
    ("mask", "random(2)"),
    ("mask", "prefix(513)"),
    ("bias", "strange"),
    ("softcap", 0.0),
    ("softcap", -1.0),
    ("sinks", 1),
    ("layout", "sbhd"),
    ("storage", "strange"),
    ("storage", None),
    ("splits", 0),
    ("splits", 2.0),
    ("direction", "sideways"),
    ("causal", "yes"),
    ("scale", float("nan")),
    ("scale", float("inf")),
    ("scale", True),
    ("scale", "1"),
    ("distribution", "strange"),
    ("seed", -1),
    ("seed", 1.5),
    ("seed", False),
]


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_a_malformed_field_is_refused_by_name_with_what_came(name: str, bad: Any) -> None:
    """The message names the field and shows the value."""
    with pytest.raises(ValueError, match=name) as refusal:
        Workload(**{name: bad})
    shown = str(refusal.value)
    assert repr(bad) in shown or (name in ("window", "key_lengths", "mask") and "got" in shown)
    assert "\n" not in shown


def seen_pairs(workload: Workload) -> NDArray[np.bool_]:
    """Every query and key looked at, one by one: (batch, heads, queries, keys)."""
    found = workload.masked.array(workload.shape)
    return np.broadcast_to(True if found is None else found, workload.shape)


@given(workloads)
def test_flops_and_bytes_are_those_of_the_pairs_that_the_mask_keeps(workload: Workload) -> None:
    """A multiplication and an addition a pair and dimension; what nobody sees is not read."""
    w, seen = workload, seen_pairs(workload)
    assert w.pairs == seen.sum()
    assert w.flops == int(DIRECTIONS[w.direction].flops * 2 * int(seen.sum()) * (w.head_dim + w.value_dim))
    by_group = seen.reshape(w.batch, w.kv_heads, -1, w.queries, w.keys)
    read = by_group.any(axis=(2, 3)).sum() * (w.head_dim + w.value_dim)
    read += seen.any(axis=3).sum() * (w.head_dim + (w.value_dim if w.backward else 0))
    read += seen.any(axis=0).sum() if w.bias == "normal" else 0
    assert w.least_bytes == int(read) * ITEM_BYTES[w.dtype] + w.output_bytes


def test_a_direction_costs_its_matrix_products() -> None:
    """Two forward, five backward, seven for both."""
    products = {name: 2 * DIRECTIONS[name].flops for name in ("forward", "backward", "training")}
    assert products == {"forward": 2, "backward": 5, "training": 7}


@given(drawable)
@settings(max_examples=30, deadline=None)
def test_bytes_are_those_of_the_arrays(workload: Workload) -> None:
    """Counted on real arrays, in the dtype asked for (bfloat16 travels in wider ones)."""
    width = ITEM_BYTES[workload.dtype]
    problem = problem_of(workload)
    arrays = [problem.query, problem.key, problem.value]
    output = int(np.prod(problem.output_shape))
    returned = {name: one.size * width for name, one in zip(GRADIENTS, arrays, strict=True)}
    returned[OUTPUT] = output * width
    returned[LOG_SUM] = int(np.prod(problem.shape[:3])) * max(width, 4)  # in float32 at least
    bias = problem.bias.size if isinstance(problem.bias, np.ndarray) else 0
    taken = sum(one.size for one in arrays) + bias + (output if workload.backward else 0)
    assert workload.input_bytes == taken * width
    assert workload.output_bytes == sum(returned[name] for name in workload.results)
    assert workload.score_bytes == int(np.prod(problem.shape)) * width


@given(workloads)
def test_a_problem_poses_the_workload_that_it_was_drawn_for(workload: Workload) -> None:
    """But for how its inputs were drawn."""
    try:
        problem = problem_of(workload)
    except Declined:
        return
    posed = Workload.of_problem(
        problem, device=workload.device, direction=workload.direction, layout=workload.layout
    )
    names = ("bias", "distribution", "seed", "storage", "splits")
    same = {name: getattr(workload, name) for name in names}
    assert posed.with_(**same) == workload
    back = unpack(*pack(problem))
    assert back.mask.text == problem.mask.text and Workload.of_problem(back).pairs == workload.pairs


@pytest.mark.parametrize("scale", [1e-6, 5e-324])
def test_a_scale_that_no_query_makes_up_for_is_declined(scale: float) -> None:
    """Of float16, or of any format; never an infinity in the inputs."""
    workload = Workload(
        dtype="float16", scale=scale, distribution="logit_std_4", queries=2, keys=2, head_dim=1
    )
    with pytest.raises(Declined, match="no float16 holds the inputs of logit_std_4 at scale"):
        inputs(workload)


@given(workloads)
def test_a_workload_survives_a_trip_through_json(workload: Workload) -> None:
    """As equal, and with an equal hash."""
    back = Workload.from_dict(json.loads(json.dumps(workload.to_dict())))
    assert back == workload
    assert hash(back) == hash(workload)


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    """A plan of a newer version must not be half understood."""
    with pytest.raises(ValueError, match="unknown workload field 'windows'; known: batch, bias, causal"):
        Workload.from_dict({"windows": 8})


def test_defaults_are_resolved_at_once_so_that_equal_questions_are_equal() -> None:
    """Spelt out or left to the default: the same workload."""
    assert Workload(head_dim=16) == Workload(head_dim=16, value_dim=16, scale=0.25)
    assert Workload(scale=1) == Workload(scale=1.0)


@given(workloads | strategies.blocks(), workloads | strategies.blocks())
def test_labels_tell_workloads_apart(one: Workload, other: Workload) -> None:
    """The numbers that a label rounds aside."""
    rounded = {"scale": 1.0, "softcap": None}
    if one.with_(**rounded) != other.with_(**rounded):
        assert one.with_(**rounded).label != other.with_(**rounded).label


@given(drawable)
@settings(max_examples=30, deadline=None)
def test_equal_workloads_give_bit_equal_inputs(workload: Workload) -> None:
    """Drawn anew, from a copy that travelled."""
    again = Workload.from_dict(workload.to_dict())
    for one, other in zip(inputs(workload), inputs(again), strict=True):
        assert one.tobytes() == other.tobytes()


def test_the_seed_changes_every_array() -> None:
    """No array is drawn from a stream that forgets the seed."""
    small = Workload(heads=1, queries=4, keys=4, head_dim=4)
    for one, other in zip(inputs(small), inputs(small.with_(seed=1)), strict=True):
        assert not np.array_equal(one, other)


def test_queries_do_not_depend_on_how_many_keys_there_are() -> None:
    """Each array has a stream of its own; of one head, the first keys stay as they were too."""
    few, many = (Workload(heads=1, queries=5, keys=keys, head_dim=8) for keys in (3, 300))
    (q_few, k_few, v_few), (q_many, k_many, v_many) = inputs(few), inputs(many)
    assert np.array_equal(q_few, q_many)
    assert np.array_equal(k_few, k_many[:, :, :3])
    assert np.array_equal(v_few, v_many[:, :, :3])
    assert not np.array_equal(q_few[:, :, :3], k_few)


ARRAY = np.zeros((2, 3, 5, 8), np.float32)


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        (ARRAY[0], ARRAY, ARRAY, "query must be a non-empty array of shape"),
        (ARRAY, ARRAY[..., :4], ARRAY, "same head_dim, got"),
        (ARRAY, ARRAY, ARRAY[:, :, :2], "same length, got"),
        (ARRAY, ARRAY[:1], ARRAY[:1], "agree in batch"),
        (ARRAY, ARRAY[:, :2], ARRAY[:, :2], "key's heads must divide the query's"),
        (ARRAY, ARRAY.astype(np.float64), ARRAY, "share one dtype"),
        (ARRAY[:, :, :0], ARRAY, ARRAY, "query must be a non-empty array"),
        (*[ARRAY.astype(np.int32)] * 3, "must hold floating-point numbers, got int32"),
    ],
)
def test_arrays_that_pose_no_workload_are_refused(query: Any, key: Any, value: Any, message: str) -> None:
    """By the first thing that does not fit."""
    with pytest.raises(ValueError, match=message):
        Workload.of_arrays(query, key, value)


def test_arrays_pose_the_workload_of_their_shapes() -> None:
    """Every size is read off the array that has it."""
    posed = Workload.of_arrays(np.zeros((2, 3, 5, 8)), np.zeros((2, 3, 7, 8)), np.zeros((2, 3, 7, 4)))
    wanted = Workload(batch=2, heads=3, queries=5, keys=7, head_dim=8, value_dim=4, dtype="float64")
    assert posed == wanted
