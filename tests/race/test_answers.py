"""Inputs that are drawn and overwritten, answers that are checked on some rows, and the memory pages of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.correctness.expected import expect
from attnlab.correctness.weighing import judge, sampled_rows
from attnlab.race.answers import Drawn, astray
from attnlab.race.pages import Form, Pages
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import round_to
from attnlab.workload.workload import LOG_SUM, Workload

WORKLOADS = (
    Workload(heads=4, kv_heads=2, queries=9, keys=12, head_dim=8, value_dim=6, causal="bottom_right"),
    Workload(batch=2, heads=2, queries=8, keys=8, head_dim=4, key_lengths=(3, 8), bias="alibi", sinks=True),
    Workload(heads=2, queries=8, keys=10, head_dim=4, bias="normal", softcap=3.0, window=(3, 2)),
    Workload(
        batch=2, heads=2, queries=8, keys=8, head_dim=4, direction="forward_with_log_sum", dtype="float16"
    ),
    Workload(heads=2, queries=16, keys=16, head_dim=4, direction="training", mask="random(0.5, 3)"),
    Workload(
        heads=4, kv_heads=2, queries=16, keys=20, head_dim=4, direction="backward", causal="bottom_right"
    ),
    Workload(heads=2, queries=8, keys=8, d_model=8),
    Workload(heads=2, queries=8, keys=8, head_dim=4, dtype="bfloat16", distribution="outliers"),
)


def right(workload: Workload, inputs: Inputs) -> dict[str, Any]:
    """The exact answers, rounded as a backend returns them."""
    exact = expect(inputs, log_sum=LOG_SUM in workload.results)
    found = {name: exact[name].output.reshape(workload.shape_of(name)) for name in workload.results}
    return {name: round_to(one, workload.dtype_of(name)) for name, one in found.items()}


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(WORKLOADS), st.integers(0, 2**32))
def test_right_answers_pass_and_those_to_earlier_inputs_do_not(workload: Workload, seed: int) -> None:
    """The rows and the head are random. The workloads have several masks, biases, formats and directions."""
    generator = np.random.default_rng(seed)
    drawn = Drawn(workload, inputs_of(workload.with_(seed=seed)), generator)
    try:
        rows = sampled_rows(workload, generator)
        assert judge(workload, drawn.inputs, rows, right(workload, drawn.inputs), None).passed
        before = drawn.copy()
        drawn.refresh()
        assert astray(workload, drawn.inputs, right(workload, drawn.inputs), None, generator) is None
        looks = [astray(workload, drawn.inputs, right(workload, before), None, generator) for _ in range(4)]
        assert any(one and "relative error" in one for one in looks)
    finally:
        drawn.pages.close()


def test_no_fresh_key_is_a_query() -> None:
    """All numbers come from random places of one pool. A key that is a query would give the score 8."""
    workload = Workload(heads=1, queries=2048, keys=2048)
    drawn = Drawn(workload, inputs_of(workload), np.random.default_rng(3))
    try:
        for _ in range(100):
            drawn.refresh()
            query, key = ({row.tobytes() for row in array[0, 0]} for array in drawn.pages.arrays[:2])
            assert query.isdisjoint(key)
    finally:
        drawn.pages.close()


@pytest.mark.parametrize(
    ("dtype", "length", "dim"), [("float16", 64, 64), ("bfloat16", 64, 64), ("float64", 2, 2**20)]
)
def test_fresh_inputs_are_of_the_same_format_and_distribution(dtype: str, length: int, dim: int) -> None:
    """Query, key and value change; bias and sinks stay. Heads may be very wide."""
    sizes = {"heads": 2, "queries": length, "keys": length, "head_dim": dim}
    workload = Workload(**sizes, bias="normal", sinks=True, dtype=dtype)
    drawn = Drawn(workload, inputs_of(workload), np.random.default_rng(1))
    before = drawn.copy()
    drawn.refresh()
    for name in ("query", "key", "value"):
        now, was = getattr(drawn.inputs, name), getattr(before, name)
        assert now.dtype == was.dtype and np.array_equal(now, round_to(now, dtype))
        assert np.mean(now == was) < 0.1 and abs(float(np.std(now.astype(float))) - 1) < 0.1
    for name in ("bias", "sinks"):
        assert np.array_equal(getattr(drawn.inputs, name), getattr(before, name))
    drawn.pages.close()


def test_arrays_lie_between_pages_of_nan() -> None:
    """A read past the end of an array gives NaN. Both processes see what one of them writes."""
    pages = Pages([Form("<f4", (3, 5)), Form("<f8", (1024,)), Form("|b1", (7,))])
    other = Pages(pages.forms, pages.path)
    for array, seen in zip(pages.arrays, other.arrays, strict=True):
        array[...] = 1
        assert np.array_equal(array, seen)
    whole = np.frombuffer(pages.memory, np.uint8)
    assert whole.size == sum(one.bytes for one in pages.forms) + 4096
    around = np.concatenate([whole[:4096], whole[4096 + 60 : 4096 + pages.forms[0].bytes]])
    assert np.isnan(around.view("<f4")).all() and around.size >= 2 * 4096
    pages.fill_nan()
    assert np.isnan(other.arrays[0]).all() and np.isnan(other.arrays[1]).all()
    pages.close()
