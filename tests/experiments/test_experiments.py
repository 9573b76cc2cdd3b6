"""Every experiment passes through right backends, gives its claims their verdicts, and fails on a wrong backend."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from verdicts import VERDICTS

from attnlab.experiments import EXPERIMENTS, experiment, figure, overflow, run_experiment
from attnlab.experiments.claims import CLAIMS, judged
from attnlab.experiments.finding import Finding, Row, pick
from attnlab.experiments.survey import Survey
from attnlab.theory import float_format

#: the plain kernel, whose products PyTorch counts, and the one that a user gets
RIGHT = ("torch_eager", "torch_sdpa")
#: training asks no backend (tests/experiments/test_training.py)
ANY = [name for name in EXPERIMENTS if name != "training"]
LONG = ("saturation", "vanishing_gradient", "multihead")
ASKED = [pytest.param(name, marks=pytest.mark.thorough) if name in LONG else name for name in ANY]
WRONG_SCALE = '''
"""A scale that is a tenth too large."""
import numpy as np

LIBRARY = "numpy"


def attend(query, key, value, *, causal, scale):
    s = 1.1 * scale * (query @ key.swapaxes(-1, -2))
    if causal:
        s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    return ((p / p.sum(axis=-1, keepdims=True)) @ value).astype(query.dtype)
'''


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of backends that are wrong."""
    folder = tmp_path_factory.mktemp("faulty")
    (folder / "wrong_scale.py").write_text(WRONG_SCALE)
    (folder / "raises.py").write_text(
        'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale):\n    raise RuntimeError("no such thing")\n'
    )
    (folder / "not_causal.py").write_text(
        WRONG_SCALE.replace("*, causal, scale", "*, scale")
        .replace("1.1 * ", "")
        .replace("if causal", "if False")
    )
    return folder


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


def test_a_kernel_that_flushes_its_weights_is_told_from_one_that_flushes_exponentials(tmp_path: Path) -> None:
    gaps, least = overflow.vanishing_gaps("float32", 64), float_format("float32").smallest_normal
    assert math.exp(-gaps[overflow.FLUSHED_WEIGHT]) / 63 == pytest.approx(least, rel=1e-9)
    flush = "np.where(np.abs({0}) < np.finfo(np.float32).tiny, 0, {0}).astype(np.float32)"
    for name, exponential, weight in (
        (overflow.FLUSHED_EXPONENTIAL, flush.format("e"), "w"),
        (overflow.FLUSHED_WEIGHT, "e", flush.format("w")),
        ("both too early", "np.where(e < 1e-30, 0, e)", "w"),
    ):
        backend = name.replace(" ", "_")
        (tmp_path / f"{backend}.py").write_text(
            'LIBRARY = "numpy"\nimport numpy as np\ndef attend(query, key, value, *, causal, scale):\n'
            "    s = scale * (query @ key.swapaxes(-1, -2))\n    e = np.exp(s - s.max(axis=-1, keepdims=True))\n"
            f"    e = {exponential}\n    w = e / e.sum(axis=-1, keepdims=True)\n    w = {weight}\n"
            "    return (w @ value).astype(query.dtype)\n"
        )
        survey = Survey((backend,), folders=[tmp_path])
        survey.each(lambda one, seed: overflow.thresholds(one, seed, "float32"), dtype="float32")
        (row,) = pick(survey.rows, overflow.GAP, keys=64)
        assert row.passed is (name != "both too early") and (row.where["subnormals"] == name) is row.passed
