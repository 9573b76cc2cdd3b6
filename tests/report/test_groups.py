"""Workloads that differ in anything but heads and length are ranked, fitted and drawn by themselves."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from attnlab.report.analysis import analyse
from attnlab.report.answer import answer_of
from attnlab.report.tables import winners
from attnlab.stats.groups import conditions, grouped
from attnlab.workload.workload import Workload

SIZES = {"lengths": (64, 128, 256, 512), "heads": (4, 8), "rounds": 31}
B_BACKWARD = {"a": lambda workload: 2e-4, "b": lambda workload: 1e-4 if workload.backward else 3e-4}
MIXED: tuple[dict[str, Any], ...] = (
    {},
    {"causal": "bottom_right", "window": (63, 0)},
    {"direction": "backward"},
)
NAMES = ["not causal, no window, forward", "causal=bottom_right, window=63,0, forward", "backward"]


def test_a_mixed_run_names_and_ranks_every_group_by_itself(made):
    """Forward, a mask and backward: `b` is the faster backward only."""
    run = made(costs=B_BACKWARD, variants=MIXED, ceiling_flops=1e15, noise=0.002, **SIZES)
    analysis = analyse(run)
    assert [group.name for group in analysis.groups] == NAMES
    assert all(len(group.cells) == 8 for group in analysis.groups)
    assert analysis.shared == "float32, CPU, batch 1, head_dim 64"
    found = answer_of(analysis)
    assert found.line == (
        "**It depends on the kind of workload**: use `a` for 2 kinds and `b` for 1 kind, as the tables say."
    )
    said = {one.name: re.match(r"\*\*Use `(\w)`\*\*: nothing", line)[1] for one, line in found.groups}
    assert said == {name: "b" if "backward" in name else "a" for name in NAMES}
    assert all(winners(one).count("●") == 8 for one in analysis.groups)


DIFFERENT = {
    "batch": 2,
    "kv_heads": 2,
    "queries": 7,
    "head_dim": 32,
    "value_dim": 16,
    "d_model": 96,
    "rotary": True,
    "dtype": "float16",
    "device": "cuda",
    "causal": "top_left",
    "window": (3, 0),
    "key_lengths": (5,),
    "mask": "prefix(3)",
    "bias": "alibi",
    "softcap": 5.0,
    "sinks": True,
    "scale": 0.0,
    "layout": "bshd",
    "storage": "paged",
    "direction": "training",
    "distribution": "outliers",
    "seed": 3,
}


@pytest.mark.parametrize("name", [one.name for one in fields(Workload) if one.name not in ("heads", "keys")])
def test_no_field_is_merged_silently(name):
    """Whatever differs makes another group, with a name of its own, also for the one at its default."""
    one = Workload(heads=4, queries=64, keys=64, **({"d_model": 96} if name == "rotary" else {}))
    other = one.with_(**{name: DIFFERENT[name]})
    names = [told for told, _ in grouped({one: "", other: ""})[1]]
    assert len(set(names)) == 2 and all(names)
    assert name in conditions(other) and conditions(one) != conditions(other)
