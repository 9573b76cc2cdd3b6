"""Backends of attnlab and of a user pass the check in the dtypes that they do not decline, also for gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from every import every, here, judged, library_of

from attnlab.backends.discovery import load
from attnlab.correctness.answering import Probe
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.questions import BACKWARD, FORWARD, KINDS, Question
from attnlab.errors import Unavailable
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.workload import LOG_SUM, Workload

#: seconds by the clock of these tests: per query-key pair; per question to a library that compiles for every shape
PACE, COMPILING = 5e-5, 0.5
COMPILERS = ("jax", "keras", "mlx", "openvino")
#: each backend in one dtype, without the questions that are slow for it; and a user's backend
BRIEF = [(name, DTYPES[at % len(DTYPES)], True) for at, name in enumerate(every())]
BRIEF.append(("any_mask_in_one_array", "float16", True))
ALL = [(name, dtype, name == "naive_loop") for dtype in DTYPES for name in every()]


@pytest.mark.parametrize(
    ("name", "dtype", "brief"), [*BRIEF, *(pytest.param(*one, marks=pytest.mark.thorough) for one in ALL)]
)
def test_no_false_alarm(name: str, dtype: str, brief: bool) -> None:
    """Every right backend passes; a backend that declines everything says why."""
    written = [str(Path(__file__).with_name("written"))] if name == "any_mask_in_one_array" else []
    try:
        probe = Probe(load(name, written))
        differentiates = probe.backend.open("cpu").without_gradients is None
    except Unavailable as missing:
        pytest.skip(str(missing))
    now, own = 0.0, COMPILING if not written and library_of(name) in COMPILERS else 0.0

    def ask(question: Question) -> Answers:
        nonlocal now
        now += question.pairs * PACE + own
        return probe.ask(question)

    daily = brief or bool(written)
    found = examine(ask, dtype, kinds=KINDS, clock=lambda: now if brief else 0.0, daily=daily)
    assert found.fault is None
    if not found.asked:
        assert found.refusal[FORWARD] and found.declined > 50
        return
    assert found.asked > 15 and all(one.ratio <= 1.25 for one in found.precision.values())
    if probe.backend.attend_with_log_sum is None:
        assert found.refusal[LOG_SUM]
    if not differentiates:
        assert BACKWARD not in found.precision and found.refusal[BACKWARD]


OFFSET = {"head_dim": 2, "scale": 1.2953324684324823, "distribution": "below_minus_50000", "dtype": "float64"}
FAR = {"heads": 4, "kv_heads": 1, "dtype": "bfloat16", "distribution": "subnormal"}
BANDS = {
    "batch": 2,
    "queries": 65,
    "keys": 16,
    "mask": "prefix(15) & window(4,2) & window(1,15)",
    "seed": 730110,
}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("torch_sdpa", {"batch": 3, "queries": 200, "keys": 257, "head_dim": 128, "scale": 1 / 128}),
        (
            "torch_eager",
            {
                "d_model": 512,
                "causal": True,
                "sinks": True,
                "dtype": "float64",
                "seed": 213765,
                "queries": 128,
                "keys": 128,
            },
        ),
        ("torch_eager", {"keys": 11, "scale": 0.0, "dtype": "float16"}),
        ("numpy_blocked", {**OFFSET, "direction": "forward_with_log_sum"}),
        ("torch_eager", {"keys": 64, "distribution": "subnormal", "direction": "training"}),
        ("torch_eager", {**FAR, **BANDS, "bias": "normal", "direction": "training"}),
        ("torch_eager", {**FAR, "heads": 12, "queries": 129, "keys": 70, "softcap": 0.64, "scale": 0.008}),
    ],
)
def test_a_right_answer_to_unusual_inputs_passes_before_a_race(name: str, asked: dict[str, Any]) -> None:
    """In each case rounding errors are unusual.

    Small scores, compared with which errors of exp are large. A block's row that sees one key and a sink. Equal
    weights. A rounded scale that shifts all scores equally. Weights that a processor replaces by 0. Large errors of
    scores, after which the errors of their exponentials are not normally distributed. Capped scores.
    """
    torch.set_flush_denormal(True)
    try:
        found = judged(here(name), Workload(**{"queries": 64, "keys": 33, **asked}))
    finally:
        torch.set_flush_denormal(False)
    assert found.passed, found.reason
