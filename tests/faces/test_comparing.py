"""Comparisons: what several sets of processes may claim together, and what other programs are told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attnlab.contract.workload import Workload
from attnlab.measuring.limits import Limits
from attnlab.program.compare import compare
from attnlab.statistics.pairing import Kind, Verdict
from attnlab.statistics.verdicts import agreed, sentence

SLOWER = Verdict(Kind.SLOWER, 1.03, 1.02, 1.04, 30)
QUICK = Limits(min_rounds=12, max_rounds=12, workload_seconds=20.0, turn_seconds=0.001)
TINY = Workload(heads=1, queries=16, keys=16, head_dim=8)
FIELDS = {"name", "outcome", "reason", "seconds_median", "rounds", "ratio", "ratio_low", "ratio_high"}
FIELDS |= {"verdict", "peak_bytes", "relative_error"}


def test_sets_that_agree_claim_with_the_widest_interval() -> None:
    """And count all rounds; one set speaks for itself."""
    assert agreed([SLOWER]) is SLOWER
    other = Verdict(Kind.SLOWER, 1.05, 1.03, 1.09, 30, disturbed=2)
    assert agreed([SLOWER, other, SLOWER]) == Verdict(Kind.SLOWER, 1.03, 1.02, 1.09, 90, disturbed=2)


@pytest.mark.parametrize("other", [Verdict(Kind.EQUIVALENT, 1.0, 0.995, 1.005, 30), None])
def test_sets_that_differ_or_are_missing_claim_nothing(other: Verdict | None) -> None:
    """A contender that crashed in the second set was not slower in it."""
    assert agreed([SLOWER, other, SLOWER]).kind is Kind.UNDECIDED


def test_a_sentence_names_both_and_the_interval() -> None:
    """Whatever the verdict."""
    for kind in Kind:
        said = sentence("mine", "theirs", Verdict(kind, 1.5, 1.4, 1.6, 30))
        assert "mine" in said and "theirs" in said and "1.4" in said and "1.6" in said


def test_other_programs_get_every_field_and_no_speed_for_the_wrong(tmp_path: Path) -> None:
    """The JSON is strict, the same contender twice is told apart, and the slow one is found slow."""
    (tmp_path / "half.py").write_text('LIBRARY = "numpy"\ndef attend(q, k, v): return v / 2\n')
    asked = ["numpy_vectorized", "numpy_vectorized", "naive_loop", "half"]
    found = compare(asked, TINY, folders=[str(tmp_path)], limits=QUICK)
    told = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert told["baseline"] == "numpy_vectorized" and told["workload"]["queries"] == 16
    base, again, slow, half = told["contenders"]
    assert set(base) >= FIELDS
    assert [one["name"] for one in told["contenders"]] == [asked[0], "numpy_vectorized#2", *asked[2:]]
    assert (base["ratio"], base["verdict"]) == (1.0, "baseline")
    assert again["outcome"] == slow["outcome"] == "measured"
    assert slow["verdict"] == "slower" and slow["ratio_low"] > 2
    assert half["outcome"] == "wrong" and half["reason"]
    assert half["seconds_median"] is half["ratio"] is half["verdict"] is half["peak_bytes"] is None
    assert any(line.startswith("half: wrong.") for line in found.sentences())
    assert told["command"] == (
        "attnlab compare numpy_vectorized numpy_vectorized naive_loop half --length 16 --heads 1 --head-dim 8 "
        f"--implementations {tmp_path} --seconds 20"
    )


def test_grouped_heads_a_window_and_a_backward_pass_get_a_verdict() -> None:
    """Every result of both is checked, and their times are compared."""
    asked = {"heads": 2, "kv_heads": 1, "causal": "bottom_right", "window": (8, 0), "direction": "training"}
    patient = replace(QUICK, call_seconds=30.0, workload_seconds=60.0)
    found = compare(["torch_sdpa", "torch_eager"], TINY.with_(**asked, scale=None), limits=patient)
    assert [one.outcome for one in found.results] == ["measured", "measured"]
    assert all(one.accuracy is not None and one.accuracy.passed for one in found.results)
    assert set(found.verdicts) <= {"torch_eager"}
    assert found.command.startswith(found.workload.command("torch_sdpa", "torch_eager"))
