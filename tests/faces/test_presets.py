"""Presets: the shapes are those of the models, what is said beside them goes first, and a slip is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typed import status

from attnlab.cli.compare import compare
from attnlab.cli.options import read_workload
from attnlab.problem.grid import choices
from attnlab.problem.mask_parts import Shape
from attnlab.problem.masks import Mask
from attnlab.problem.problem import masked_by
from attnlab.problem.workload import Workload
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.presets import PHASES, Part, chosen_parts, only_workload, preset_workloads, presets

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


@pytest.mark.parametrize("path", MODELS)
def test_the_shapes_are_those_of_the_model(path: str) -> None:
    for part in chosen_parts(path):
        for one in part.workloads():
            shape = (one.heads, one.kv_heads, one.head_dim, one.value_dim)
            *expected, width = MODELS[path]
            assert not any(expected) or shape == tuple(expected)
            assert width is None or one.heads * one.head_dim == width


def test_no_preset_is_left_without_such_a_check() -> None:
    checked = {part.path for path in MODELS for part in chosen_parts(path)}
    assert checked == {part.path for part in EVERY}


@pytest.mark.parametrize("part", EVERY, ids=lambda part: part.path)
def test_a_phase_is_what_it_is_called(part: Part) -> None:
    """Training asks for gradients, decoding has one query, and nothing but layouts and masks is left to the dtype."""
    phase = part.name.partition("/")[0]
    found = part.workloads()
    assert phase in PHASES and len(found) == len(set(found)) == len(part.said["lengths"])
    assert {one.direction for one in found} == {"training" if phase == "training" else "forward"}
    assert (phase == "decode") == all(one.queries == 1 for one in found)
    assert {one.dtype for one in found} == {"float32"}
    assert [one.keys * one.queries for one in found] == sorted(one.keys * one.queries for one in found)


@pytest.mark.parametrize("preset", presets().values(), ids=lambda preset: preset.name)
def test_every_preset_names_its_source(preset: Any) -> None:
    """A paper by its number or year, and what the numbers are called there."""
    assert preset.title and re.search(r"arXiv:\d{4}\.\d{5}|Radford et al\. 2019, table 2", preset.source)


def test_special_features_are_there() -> None:
    """Cap, sinks and windows, as the models have them: a window of 4,096 keys is a query's own and 4,095 before."""
    gemma = preset_workloads("gemma2-9b", {})
    assert {one.softcap for one in gemma} == {50.0} and {one.scale for one in gemma} == {1 / 16}
    assert {one.window for one in gemma} == {None, (4095, 0)}
    oss = preset_workloads("gpt-oss-20b", {})
    assert all(one.sinks for one in oss) and {one.window for one in oss} == {None, (127, 0)}
    assert {(one.keys, one.window) for one in preset_workloads("mistral-7b/prefill", {}) if one.window} == {
        (8192, (4095, 0))
    }
    (absorbed, *_) = preset_workloads("deepseek-v3/decode", {})
    assert absorbed.scale == pytest.approx(192**-0.5, rel=1e-12)
    assert {one.queries for one in preset_workloads("whisper-large/prefill/cross", {})} == {4, 448}
    assert {one.keys for one in preset_workloads("sdxl/prefill/cross-4096", {})} == {77}


def test_the_batch_follows_from_the_tokens() -> None:
    """As in the table of the paper: (32, 512) to (1, 16384)."""
    found = preset_workloads("fa2-16k/prefill/d64", {})
    assert [(one.batch, one.keys) for one in found] == [
        (32, 512),
        (16, 1024),
        (8, 2048),
        (4, 4096),
        (2, 8192),
        (1, 16384),
    ]
    assert [one.batch for one in preset_workloads("fa2-16k/prefill/d64", {"lengths": (100, 40000)})] == [
        163,
        1,
    ]
    assert [one.batch for one in preset_workloads("fa2-2k/prefill/d64", {"batch": 3})] == [3] * 5


@given(st.integers(0, 12), st.integers(1, 9), st.booleans())
def test_a_window_is_left_out_only_where_it_hides_nothing(left: int, keys: int, decoding: bool) -> None:
    said: dict[str, Any] = {"lengths": (keys,), "heads": (1,), "window": (left, 0), "causal": "top_left"}
    if decoding:
        said |= {"queries": 1, "causal": "bottom_right"}
    (workload,) = Part("model", "prefill", said).workloads()
    shape = Shape(1, 1, 1 if decoding else keys, keys)
    own = np.arange(shape.queries)[:, None] + shape.keys - shape.queries
    expected = (np.arange(keys) <= own) & (np.arange(keys) >= own - left)
    seen = workload.masked.array(shape)
    assert np.array_equal(
        np.broadcast_to(True if seen is None else seen, (1, 1, *expected.shape))[0, 0], expected
    )
    assert (workload.window is None) == (left >= keys - 1)


def test_a_window_that_somebody_asks_for_stays() -> None:
    """Beside a preset it is taken at its word."""
    (workload,) = preset_workloads("mistral-7b/prefill", {"lengths": (64,), "window": (64, 0)})
    assert workload.window == (64, 0)
    assert masked_by(causal=True, window=(64, 0)) == workload.masked


def test_options_go_before_what_a_preset_says() -> None:
    said: dict[str, Any] = {"lengths": (16, 32), "dtypes": ("float32", "bfloat16"), "kv_heads": 4}
    plan = Plan.grid(preset="llama3-8b/decode", **said)
    assert [one.label for one in plan.workloads] == [
        "b1 h32/4 n1x16 d128 float32 cpu",
        "b1 h32/4 n1x32 d128 float32 cpu",
        "b1 h32/4 n1x16 d128 bfloat16 cpu",
        "b1 h32/4 n1x32 d128 bfloat16 cpu",
    ]
    assert plan.origins == ("llama3-8b/decode",) * 4
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_what_two_presets_ask_for_is_measured_once() -> None:
    """Up to its window Mistral 7B attends as Llama 3 8B does; both are named."""
    plan = Plan.grid(preset="llama3-8b/prefill,mistral-7b/prefill", lengths=(256, 8192))
    assert plan.origins == (
        "llama3-8b/prefill, mistral-7b/prefill",
        "llama3-8b/prefill",
        "mistral-7b/prefill",
    )


def test_a_plan_file_may_name_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('preset = "gpt2/prefill, bert-base"\nlengths = [64]\nbackends = ["torch_sdpa"]')
    plan = Plan.grid(**read_plan(file))
    assert plan.origins == ("gpt2/prefill", "bert-base/prefill", "bert-base/training")
    assert plan.contenders == ("torch_sdpa",) and {one.keys for one in plan.workloads} == {64}
    with pytest.raises(ValueError, match="origins must be one a workload"):
        Plan(workloads=plan.workloads, origins=("x",))


def typed(*arguments: str) -> Workload:
    """The workload that ``attnlab compare`` understands."""
    parsed = compare.make_context("compare", ["a", "b", *arguments]).params
    texts = {choice.name: parsed[choice.name] for choice in choices(grid=False)}
    return read_workload(texts, parsed["preset"])


def test_compare_takes_one_workload_of_a_preset() -> None:
    """Named by its part and its length; the command that it prints says all of it without the preset."""
    workload = typed("--preset", "llama3-70b/decode", "--length", "131072", "--dtype", "bfloat16")
    assert workload.label == "b1 h64/8 n1x131072 d128 bfloat16 cpu"
    assert typed(*workload.options()) == workload
    assert typed("--preset", "bert-base/prefill", "--length", "100", "--heads", "3").label.startswith(
        "b1 h3 n100"
    )
    assert only_workload("whisper-large/decode/cross", {}).keys == 1500


MISTAKES = {
    "run --preset lama3-8b": "no preset is called 'lama3-8b'; did you mean llama3-8b",
    "run --preset quux": "no preset is called 'quux'; there are: transformer-base, bert-base",
    "run --preset llama3-8b/decoding": "the preset llama3-8b has no part 'decoding'; it has prefill, training, decode",
    "run --preset gpt2,,bert-base": "separated by single commas",
    "run --preset llama3-8b --heads 4": "--heads: kv_heads must divide the 4 heads, got 8",
    "run --preset gpt2 --dtypes float31": "--dtypes must be one of",
    "compare a b --preset llama3-8b": "name one of llama3-8b/prefill, llama3-8b/training, llama3-8b/decode and give",
    "compare a b --preset llama3-8b --length 64": "name one of llama3-8b/prefill",
    "compare a b --preset llama3-8b/decode": "give --length, one of 1024, 4096, 16384, 65536",
    "plans llama3": "no preset is called 'llama3'; did you mean llama3-8b",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(*words.split()) == 2
    shown = capsys.readouterr()
    assert MISTAKES[words] in shown.err and shown.err.count("\n") == 1 and not shown.out


def test_plans_lists_every_part_with_its_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("plans") == 0
    shown = capsys.readouterr().out
    assert all(f" {part.path} " in shown for part in EVERY)
    row = next(line for line in shown.splitlines() if " llama3-8b/decode " in line)
    # 2 · 32 heads · n pairs · (128 + 128); 32 · n scores; 2 · 8 · n · 128 numbers of key and value
    assert "32 heads, head_dim 128, 8 key heads, 1 query over" in row
    assert "16.8 MFLOP to 1.07 GFLOP" in row and "128 KiB to 8.00 MiB" in row and "8.03 MiB to 512 MiB" in row


def test_plans_tells_one_preset_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("plans", "mistral-7b/prefill") == 0
    shown = capsys.readouterr().out
    assert "Source: Jiang et al. 2023, arXiv:2310.06825" in shown and "window_size 4096" in shown
    assert "mistral-7b/training" not in shown and shown.count("mistral-7b/prefill") == 6
    assert status("plans", "fa2-2k", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    workload = told["parts"][0]["workloads"][0]
    assert workload["flops"] == 4 * 16 * 128 * 128 * 32 * 64
    assert Workload.from_dict({key: workload[key] for key in Workload().to_dict()}).batch == 16


def test_masks_of_presets_are_written_as_masks_are() -> None:
    """A preset holds nothing that could not be typed."""
    for part in EVERY:
        for one in part.workloads():
            assert Mask.parse(one.masked.text) == one.masked
