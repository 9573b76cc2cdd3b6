"""What a backend says of itself is filed beside what ran: its number format, and the operator that it forces."""

from __future__ import annotations

from pathlib import Path

from fake_workers import QUICK, SMALL, Clock, FakeWorker, race

from attnlab.backend.contender import parse_all
from attnlab.problem.result import Outcome, Result
from attnlab.race.conductor import Conductor

#: rounds its inputs, scores and weights to bfloat16, and says so where its setting is
SOURCE = """
import ml_dtypes
import numpy as np

SETTINGS = {"says": ("no", "yes"), "scale": ("right", "wrong")}
LIBRARY = "numpy"


def configure(*, says, scale):
    global _factor
    _factor = 1.05 if scale == "wrong" else 1.0
    return "bfloat16" if says == "yes" else None


def cut(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def declines(workload):
    return None if workload.dtype == "float32" else "float32 alone"


def attend(query, key, value, *, causal, scale):
    scores = cut(cut(query) @ cut(key).swapaxes(-1, -2) * np.float32(scale * _factor))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return cut(weights / weights.sum(-1, keepdims=True)) @ cut(value)
"""


def test_a_fallback_is_said_in_the_row_and_what_forced_nothing_has_none() -> None:
    clock = Clock()
    fallen = FakeWorker("fallen", clock, asked_kernel="_flash", kernel="_math")
    forced = FakeWorker("forced", clock, asked_kernel="_flash", kernel="_flash_for_cpu")
    results, _ = race([fallen, forced, FakeWorker("free", clock)])
    assert [one.fell_back for one in results] == [True, False, False]
    assert results[0].reason == "it asked for _flash, but _math ran"
    assert [one.reason for one in results[1:]] == [None, None]
    assert Result.from_json(results[0].to_json()) == results[0]


def test_a_real_one_is_measured_where_it_says_it_and_wrong_where_not(tmp_path: Path) -> None:
    (tmp_path / "low.py").write_text(SOURCE)
    names = ["low[says=yes]", "low", "low[says=yes,scale=wrong]"]
    workload = SMALL.with_(queries=64, keys=64, head_dim=16)
    with Conductor(parse_all(names), folders=[str(tmp_path)], limits=QUICK, memory=False) as conductor:
        honest, silent, wrong = conductor.race(workload)
    assert (honest.outcome, honest.computes_in) == (Outcome.MEASURED, "bfloat16"), honest.reason
    assert honest.accuracy is not None and honest.accuracy.relative_error > 1e-4
    assert silent.outcome is Outcome.WRONG
    assert "this is the error of computing in bfloat16" in str(silent.reason)
    assert wrong.outcome is Outcome.WRONG and "error of computing" not in str(wrong.reason)
