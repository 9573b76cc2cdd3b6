"""Workloads that differ in anything but heads and length are ranked, fitted and drawn by themselves."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from attnlab.contract.workload import Workload
from attnlab.report import verdict_text
from attnlab.report.analysis import analyse, conditions
from attnlab.report.page import render
from attnlab.report.speed_figures import latency
from attnlab.report.winners import find_crossovers

SIZES = {"lengths": (64, 128, 256, 512), "heads": (4, 8), "rounds": 31}
B_BACKWARD = {"a": lambda workload: 2e-4, "b": lambda workload: 1e-4 if workload.backward else 3e-4}
MIXED = (
    {},
    {"causal": "bottom_right", "window": (63, 0)},
    {"kv_heads": 2},
    {"direction": "backward"},
    {"queries": 1},
)
NAMES = [
    "as many key heads as heads, as many queries as keys, not causal, no window, forward",
    "causal=bottom_right, window=63,0, forward",
    "2 key heads, forward",
    "backward",
    "1 query over n keys, forward",
]


def test_a_mixed_run_names_and_ranks_every_group_by_itself(made):
    """Forward, a mask, grouped heads, backward and decoding: `b` is the faster backward only."""
    run = made(costs=B_BACKWARD, variants=MIXED, ceiling_flops=1e15, noise=0.002, **SIZES)
    analysis = analyse(run)
    assert [group.name for group in analysis.groups] == NAMES
    assert all(len(group.cells) == 8 for group in analysis.groups)
    assert analysis.shared == "float32, CPU, batch 1, head_dim 64"
    said = dict(re.findall(r"^(.*):\n- Use (\w+) for 64 ≤ n ≤ 512 at 4 and 8 heads", verdict_text(run), re.M))
    assert said == {name: "b" if "backward" in name else "a" for name in NAMES}


def test_a_group_has_its_own_tables_growth_and_panel(made, tmp_path):
    """What lies on one curve differs in length only: a mixed fit would be refused as worse than 10 %."""
    costs = {"a": lambda w: 1e-4 + 1e-9 * w.flops, "b": lambda w: 2e-4 + 1e-9 * w.flops}
    run = made(costs=costs, variants=MIXED[3:] + MIXED[:1], noise=0.002, **{**SIZES, "heads": (4,)})
    text = render(analyse(run), {})
    assert text.count("<summary>Coefficients, and the longest length held out: ") == 3
    assert "no good fit" not in text
    assert "The workloads form 3 groups, each ranked by itself" in text
    worst = text[text.index("## Accuracy") : text.index("## Share of")]
    assert re.search(r"n = 512, \d heads, (backward|1 query over n keys, forward|.*not causal)", worst)
    assert latency(analyse(run), tmp_path).exists()


def test_no_crossover_is_made_of_two_groups(made):
    """`a` wins every forward and `b` every backward workload: nobody changes places with the length."""
    run = made(costs=B_BACKWARD, variants=(MIXED[0], MIXED[3]), ceiling_flops=1e15, noise=0.002, **SIZES)
    analysis = analyse(run)
    found = [one for group in analysis.groups for one in find_crossovers(analysis, group).values()]
    assert found and not any(found)


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
    "direction": "training",
    "distribution": "outliers",
    "seed": 3,
}


@pytest.mark.parametrize("name", [one.name for one in fields(Workload) if one.name not in ("heads", "keys")])
def test_no_field_is_merged_silently(made, name):
    """Whatever differs makes another group, with a name of its own, also for the one at its default."""
    costs = {"a": lambda w: 1e-4, "b": lambda w: 2e-4}
    few = {"lengths": (64,), "heads": (4,), "rounds": 3, "ceiling_flops": 1e18}
    common = {"d_model": 96} if name == "rotary" else {}
    run = made(variants=(common, {**common, name: DIFFERENT[name]}), costs=costs, **few)
    analysis = analyse(run)
    names = [group.name for group in analysis.groups]
    assert len(set(names)) == 2 and all(names)
    text = render(analysis, {})
    assert all(f"**{one}**" in text for one in names)
    given = conditions(run.plan.workloads[1])
    assert name in given and given != conditions(run.plan.workloads[0])
