"""Presets: the shapes are those of the models, and what is said beside them goes first."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from attnlab.problem.masks import Mask
from attnlab.runs.plan import Plan
from attnlab.runs.presets import PHASES, Part, chosen_parts, presets

#: heads, key heads, head_dim and value_dim by part, and the width of the model where heads × head_dim is it; written
#: down from the sources beside the presets
MODELS: dict[str, tuple[int, int, int, int, int | None]] = {
    "transformer-base": (8, 8, 64, 64, 512),
    "bert-base": (12, 12, 64, 64, 768),
    "bert-large": (16, 16, 64, 64, 1024),
    "gpt2": (12, 12, 64, 64, 768),
    "gpt2-medium": (16, 16, 64, 64, 1024),
    "gpt2-large": (20, 20, 64, 64, 1280),
    "gpt2-xl": (25, 25, 64, 64, 1600),
    "vit-b16": (12, 12, 64, 64, 768),
    "llama3-8b": (32, 8, 128, 128, 4096),
    "llama3-70b": (64, 8, 128, 128, 8192),
    "llama3-405b": (128, 8, 128, 128, 16384),
    "mistral-7b": (32, 8, 128, 128, 4096),
    "gemma2-9b": (16, 8, 256, 256, None),  # 4096, beside a width of 3584
    "gpt-oss-20b": (64, 8, 64, 64, None),  # 4096, beside a width of 2880
    "deepseek-v3/prefill": (128, 128, 192, 128, None),
    "deepseek-v3/training": (128, 128, 192, 128, None),
    "deepseek-v3/decode": (128, 1, 576, 512, None),
    "whisper-large": (20, 20, 64, 64, 1280),
    "sdxl/prefill/self-1024": (20, 20, 64, 64, 1280),
    "sdxl/prefill/self-4096": (10, 10, 64, 64, 640),
    "sdxl/prefill/cross-1024": (20, 20, 64, 64, 1280),
    "sdxl/prefill/cross-4096": (10, 10, 64, 64, 640),
    "sdxl/training/self-1024": (20, 20, 64, 64, 1280),
    "sdxl/training/self-4096": (10, 10, 64, 64, 640),
    "fa2-16k/prefill/d64": (32, 32, 64, 64, 2048),
    "fa2-16k/prefill/d64-causal": (32, 32, 64, 64, 2048),
    "fa2-16k/prefill/d128": (16, 16, 128, 128, 2048),
    "fa2-16k/prefill/d128-causal": (16, 16, 128, 128, 2048),
    "fa2-16k/training": (0, 0, 0, 0, 2048),
    "fa2-2k": (0, 0, 0, 0, 2048),
}
EVERY = [part for preset in presets().values() for part in preset.parts]


def test_the_shapes_are_those_of_the_models() -> None:
    for path, (*expected, width) in MODELS.items():
        for one in (workload for part in chosen_parts(path) for workload in part.workloads()):
            shape = [one.heads, one.kv_heads, one.head_dim, one.value_dim]
            assert not any(expected) or shape == expected, path
            assert width is None or one.heads * one.head_dim == width, path
    assert {part.path for path in MODELS for part in chosen_parts(path)} == {part.path for part in EVERY}


@pytest.mark.parametrize("part", EVERY, ids=lambda part: part.path)
def test_a_phase_is_what_it_is_called(part: Part) -> None:
    """Training asks for gradients, decoding has one query; nothing in it could not be typed; its source is named."""
    phase = part.name.partition("/")[0]
    found = part.workloads()
    assert phase in PHASES and len(found) == len(set(found)) == len(part.said["lengths"])
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
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    twice = Plan.grid(preset="llama3-8b/prefill,mistral-7b/prefill", lengths=(256, 8192))
    both = "llama3-8b/prefill, mistral-7b/prefill"
    assert twice.origins == (both, "llama3-8b/prefill", "mistral-7b/prefill")
