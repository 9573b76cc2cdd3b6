"""Presets: each phase has the workloads that its name promises, and options override a preset."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from attnlab.runs.plan import Part, Plan, presets
from attnlab.workload.masks import Mask

EVERY = [part for preset in presets().values() for part in preset.parts]


@pytest.mark.parametrize("part", EVERY, ids=lambda part: part.path)
def test_a_phase_is_what_it_is_called(part: Part) -> None:
    """Training asks for gradients, decoding has one query. Every mask can be typed, and the source is named."""
    phase, found = part.name.partition("/")[0], part.workloads()
    assert phase in ("prefill", "training", "decode")
    assert len(found) == len(set(found)) == len(part.said["lengths"])
    assert {one.direction for one in found} == {"training" if phase == "training" else "forward"}
    assert (phase == "decode") == all(one.queries == 1 for one in found)
    assert all(Mask.parse(one.masked.text) == one.masked for one in found)
    assert re.search(r"arXiv:\d{4}\.\d{5}|Radford et al\. 2019, table 2", presets()[part.preset].source)


def test_options_go_before_what_a_preset_says_and_what_two_ask_for_is_measured_once() -> None:
    said: dict[str, Any] = {"lengths": (16, 32), "dtypes": ("float32", "bfloat16"), "kv_heads": 4}
    plan = Plan.grid(preset="llama3-8b/decode", **said)
    assert [one.label for one in plan.workloads] == [
        f"b1 h32/4 n1x{length} d128 {dtype} cpu" for dtype in said["dtypes"] for length in said["lengths"]
    ]
    assert plan.origins == ("llama3-8b/decode",) * 4
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan
    twice = Plan.grid(preset="llama3-8b/prefill,mistral-7b/prefill", lengths=(256, 8192))
    both = "llama3-8b/prefill, mistral-7b/prefill"
    assert twice.origins == (both, "llama3-8b/prefill", "mistral-7b/prefill")
