"""A workload knows its sizes by arithmetic alone, and equal workloads pose bit-equal questions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.contract.distributions import DISTRIBUTIONS
from attnlab.contract.dtypes import DTYPES, ITEM_BYTES
from attnlab.contract.errors import Declined
from attnlab.contract.inputs import inputs
from attnlab.contract.workload import DEVICES, Workload

sizes = st.integers(1, 9)
workloads = st.builds(
    Workload,
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    queries=sizes,
    keys=sizes,
    head_dim=sizes,
    value_dim=st.none() | sizes,
    dtype=st.sampled_from(DTYPES),
    device=st.sampled_from(DEVICES),
    causal=st.booleans(),
    scale=st.none() | st.floats(-8, 8),
    distribution=st.sampled_from(sorted(DISTRIBUTIONS)),
    seed=st.integers(0, 2**32),
)


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
    assert repr(bad) in str(refusal.value)


def brute_force_pairs(workload: Workload) -> int:
    """Every query and key looked at, one by one."""
    kept = sum(
        1
        for query in range(workload.queries)
        for key in range(workload.keys)
        if not workload.causal or key <= query
    )
    return workload.batch * workload.heads * kept


@given(workloads)
def test_pairs_are_those_that_the_mask_keeps(workload: Workload) -> None:
    """Top-left causal, also where there are more keys than queries and the other way round."""
    assert workload.pairs == brute_force_pairs(workload)


@given(workloads)
def test_flops_are_a_multiplication_and_an_addition_per_pair_and_dimension(workload: Workload) -> None:
    """Both matrix products, each with its own dimension."""
    counted = brute_force_pairs(workload) * 2 * (workload.head_dim + workload.value_dim)
    assert workload.flops == counted


@given(drawable)
@settings(max_examples=30, deadline=None)
def test_bytes_are_those_of_the_arrays(workload: Workload) -> None:
    """Counted on real arrays, in the dtype asked for (bfloat16 travels in wider ones)."""
    width = ITEM_BYTES[workload.dtype]
    q, k, v = inputs(workload)
    output = (workload.batch, workload.heads, workload.queries, workload.value_dim)
    assert workload.input_bytes == (q.size + k.size + v.size) * width
    assert workload.output_bytes == int(np.prod(output)) * width
    assert workload.least_bytes == workload.input_bytes + workload.output_bytes
    assert workload.score_bytes == q[..., 0].size * k.shape[-2] * width


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
    with pytest.raises(ValueError, match="unknown workload field 'window'; known: batch, causal"):
        Workload.from_dict({"window": 8})


def test_defaults_are_resolved_at_once_so_that_equal_questions_are_equal() -> None:
    """Spelt out or left to the default: the same workload."""
    assert Workload(head_dim=16) == Workload(head_dim=16, value_dim=16, scale=0.25)
    assert Workload(scale=1) == Workload(scale=1.0)


@given(workloads, workloads)
def test_labels_tell_workloads_apart(one: Workload, other: Workload) -> None:
    """The scale, which a label rounds, aside."""
    if one.with_(scale=1.0) != other.with_(scale=1.0):
        assert one.label != other.label


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
        (ARRAY[0], ARRAY, ARRAY, "query must have shape"),
        (ARRAY, ARRAY[..., :4], ARRAY, "same head_dim, got 8 and 4"),
        (ARRAY, ARRAY, ARRAY[:, :, :2], "same length, got 5 and 2"),
        (ARRAY, ARRAY[:1], ARRAY[:1], "agree in batch and heads"),
        (ARRAY, ARRAY[:, :2], ARRAY[:, :2], "agree in batch and heads"),
        (ARRAY, ARRAY.astype(np.float64), ARRAY, "share one dtype"),
        (ARRAY[:, :, :0], ARRAY, ARRAY, "queries must be a whole number of at least 1, got 0"),
        (*[ARRAY.astype(np.int32)] * 3, "dtype must be one of"),
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
