"""Every experiment passes through right backends, gives its claims their verdicts, and fails on a wrong backend."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from verdicts import VERDICTS

from attnlab.errors import Unavailable
from attnlab.lab import EXPERIMENTS, error_growth, experiment, figure, run_experiment
from attnlab.lab.claims import CLAIMS, judged
from attnlab.lab.finding import Finding, Row, pick
from attnlab.lab.survey import OpenBackend, Survey

#: the plain kernel, whose products PyTorch counts, and the one that a user gets
RIGHT = ("torch_eager", "torch_sdpa")
#: training asks no backend (tests/experiments/test_training.py)
ANY = [name for name in EXPERIMENTS if name != "training"]
LONG = ("saturation", "vanishing_gradient", "multihead")
ASKED = [pytest.param(name, marks=pytest.mark.thorough) if name in LONG else name for name in ANY]


@cache
def found(name: str, faulty: Path) -> Finding:
    """The experiment through right backends, one with a wrong scale and one that raises, with a seed of its own."""
    return run_experiment(name, [*RIGHT, "wrong_scale", "raises"], seed=4711, folders=[faulty])


@pytest.mark.parametrize("name", ASKED)
def test_an_experiment_passes_is_drawn_and_decides_its_claims(name: str, faulty: Path) -> None:
    """Ten seeds: `python benchmarks seeds`."""
    every = found(name, faulty)
    right = [row for row in every.rows if row.where.get("backend") not in ("wrong_scale", "raises")]
    finding = replace(every, rows=tuple(right))
    assert finding.rows and finding.passed, [row for row in finding.rows if not row.passed]
    again = Finding.from_dict(json.loads(json.dumps(finding.to_dict())))
    assert again == finding and finding.facts["seed"] == 4711
    assert figure(again).axes and experiment(name).conclusion(again.rows).endswith(".")
    for entry in judged([claim for claim in CLAIMS if claim.experiment == name], {name: again}).entries:
        assert entry.verdict is VERDICTS[entry.id], (entry.id, entry.note, entry.checks)


@pytest.mark.parametrize("name", ASKED)
def test_wrong_backends_fail_and_the_others_are_kept(name: str, faulty: Path) -> None:
    finding = found(name, faulty)
    failed = [row for row in finding.rows if not row.passed]
    wrong = {"raises", "wrong_scale"}
    assert {row.where["backend"] for row in failed} == wrong
    reasons = {row.where["reason"] for row in failed if row.where["backend"] == "raises"}
    assert reasons == {"RuntimeError: no such thing"}
    assert all(backend in finding.conclusion for backend in wrong) and figure(finding).axes


@pytest.mark.parametrize("name", ANY)
def test_an_experiment_without_a_usable_backend_says_so(name: str) -> None:
    finding = run_experiment(name, ["torch_sdpa_cudnn"])
    assert not pick(finding.rows, backend="torch_sdpa_cudnn")
    assert any(fact.startswith("without torch_sdpa_cudnn") for fact in finding.facts)
    assert finding.conclusion and figure(finding).axes


def test_what_a_backend_declines_is_told_and_no_failure(faulty: Path) -> None:
    finding = run_experiment("formula", ["not_causal"], folders=[faulty])
    assert finding.passed and {row.where.get("mask", "none") for row in finding.rows} == {"none"}
    assert "takes no causal mask" in str(finding.facts["without not_causal in part"])


@pytest.mark.parametrize(
    ("relation", "measured", "error", "passed"),
    [
        ("=", 1.4, 0.1, True),
        ("=", 1.6, 0.1, False),
        ("=", math.nan, 0.1, False),
        ("<", 0.6, 0.1, False),
        ("≤", 1.1, 0.0, False),
        ("≤", math.nan, 0.0, False),
        ("≥", 0.9, 0.1, True),
    ],
)
def test_a_row_has_five_standard_errors(relation: str, measured: float, error: float, passed: bool) -> None:
    row = Row.compare("x", {}, predicted=1.0, measured=measured, standard_error=error, relation=relation)
    assert row.passed is passed


def test_no_prediction_is_further_off_than_is_said() -> None:
    """Whatever the worst is: a fifth and a half per cent are no fifth."""
    where = {"backend": "torch_eager", "dtype": "bfloat16", "axis": "logit_std", "value": 16.0}
    rounded, off = {**where, "precision": "scores rounded"}, 0.2036
    found = Row.compare(error_growth.ERROR, rounded, 1.0, 1.0 - off, slack=0.25)
    worst = Row.compare(error_growth.OF_WORST, where, 1.0, 0.3, relation="≤")
    (said,) = re.findall(r"within (\d+) %", error_growth.conclusion([found, worst]))
    assert int(said) >= 100 * off


def test_what_a_missing_package_would_measure_is_left_out_and_told() -> None:
    """As memory without its tracer: no backend did wrong, and the rest of the experiment stands."""

    def measure(one: OpenBackend, seed: int) -> Iterator[Row]:
        yield one.row("first", {}, 1.0, 1.0)
        raise Unavailable("no tracer")

    survey = Survey(["numpy_vectorized"])
    survey.each(measure)
    assert [row.quantity for row in survey.rows] == ["first"] and survey.rows[0].passed
    assert survey.facts["without numpy_vectorized in part"] == "no tracer"
