"""Every experiment passes with any seed, gives its claims their verdicts, and fails on a wrong backend."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path

import pytest
from verdicts import VERDICTS

from attnlab.experiments import multihead, variance_scaling
from attnlab.experiments.catalogue import EXPERIMENTS, figure, run_experiments
from attnlab.experiments.claims_api import CLAIMS
from attnlab.experiments.finding import Finding, Row
from attnlab.experiments.ledger import judged
from attnlab.experiments.variance_sampling import sampled_rows

#: training takes minutes and asks no backend: tests/numerics/test_training.py
ASKED = [name for name in EXPERIMENTS if name != "training"]
#: the specification, the fast one of NumPy, whose products PyTorch counts, and the kernel that a user gets
BACKENDS = ("naive_loop", "numpy_blocked", "torch_eager", "torch_sdpa")

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


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    (tmp_path / "wrong_scale.py").write_text(WRONG_SCALE)
    (tmp_path / "raises.py").write_text(
        'LIBRARY = "numpy"\ndef attend(query, key, value, *, causal, scale):\n    raise RuntimeError("no such thing")\n'
    )
    (tmp_path / "not_causal.py").write_text(
        WRONG_SCALE.replace("*, causal, scale", "*, scale")
        .replace("1.1 * ", "")
        .replace("if causal", "if False")
    )
    return tmp_path


@cache
def _sampled(seed: int) -> tuple[Row, ...]:
    return tuple(sampled_rows(seed, variance_scaling.SCALINGS))


@pytest.fixture
def for_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that are about backends: what is sampled without one is kept, and some sizes are smaller."""
    monkeypatch.setattr(variance_scaling, "sampled_rows", lambda seed, scalings: _sampled(seed))
    monkeypatch.setattr(multihead, "MEMORY_LENGTH", 256)
    monkeypatch.setattr(multihead, "_DRAWS", 12)


@pytest.mark.parametrize("name", ASKED)
def test_an_experiment_passes_with_another_seed_and_decides_its_claims(name: str) -> None:
    """Ten seeds: benchmarks/seeds.py."""
    seed = 4711
    (finding,) = run_experiments([name], BACKENDS, seed=seed)
    assert finding.rows
    assert finding.passed, [row for row in finding.rows if not row.passed]
    assert finding.facts["seed"] == seed
    again = Finding.from_dict(json.loads(json.dumps(finding.to_dict())))
    assert again == finding
    assert len(figure(again).axes) >= 1
    for entry in judged([claim for claim in CLAIMS if claim.experiment == name], {name: again}).entries:
        assert entry.verdict is VERDICTS[entry.id], (entry.id, entry.note, entry.checks)


#: a scale shows in all of them but the one where a weight of 0 is a matter of the format alone
SEE_THE_SCALE = [name for name in ASKED if name != "overflow"]


@pytest.mark.usefixtures("for_backends")
@pytest.mark.parametrize("name", SEE_THE_SCALE)
def test_a_wrong_scale_fails(name: str, faulty: Path) -> None:
    (finding,) = run_experiments([name], ["numpy_vectorized", "wrong_scale"], folders=[faulty])
    assert {row.where["backend"] for row in finding.rows if not row.passed} == {"wrong_scale"}
    assert "wrong_scale" in finding.conclusion


@pytest.mark.usefixtures("for_backends")
@pytest.mark.parametrize("name", ASKED)
def test_a_backend_that_raises_is_a_failed_row_and_the_others_are_kept(name: str, faulty: Path) -> None:
    (finding,) = run_experiments([name], ["raises", "numpy_vectorized"], folders=[faulty])
    failed = [row for row in finding.rows if not row.passed]
    assert {row.where["reason"] for row in failed} == {"RuntimeError: no such thing"}
    assert len(finding.rows) > 1
    assert len(figure(finding).axes) >= 1


def test_what_a_backend_declines_is_told_and_no_failure(faulty: Path) -> None:
    (finding,) = run_experiments(["formula"], ["not_causal"], folders=[faulty])
    assert finding.passed and {row.where.get("mask", "none") for row in finding.rows} == {"none"}
    assert "takes no causal mask" in str(finding.facts["without not_causal in part"])


@pytest.mark.usefixtures("for_backends")
@pytest.mark.parametrize("name", ["saturation", "vanishing_gradient"])
def test_the_small_sizes_of_a_slow_backend_are_drawn(name: str) -> None:
    (finding,) = run_experiments([name], ["naive_loop"])
    assert finding.passed and len(figure(finding).axes) >= 1


@pytest.mark.usefixtures("for_backends")
@pytest.mark.parametrize("name", ASKED)
def test_an_experiment_without_a_usable_backend_says_so(name: str) -> None:
    (finding,) = run_experiments([name], ["torch_sdpa_cudnn"])
    assert not [row for row in finding.rows if row.where.get("backend") == "torch_sdpa_cudnn"]
    assert any(fact.startswith("without torch_sdpa_cudnn") for fact in finding.facts)
    assert finding.conclusion
    assert len(figure(finding).axes) >= 1


def test_unknown_names_are_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="did you mean saturation"):
        run_experiments(["saturatoin"])
    with pytest.raises(ValueError, match="numpy_vectorized"):
        run_experiments(["saturation"], ["numpy_vectorised"])
    with pytest.raises(ValueError, match="seed must be a whole number"):
        run_experiments(["saturation"], ["numpy_vectorized"], seed=-1)


@pytest.mark.parametrize(
    ("relation", "measured", "error", "passed"),
    [
        ("=", 1.4, 0.1, True),
        ("=", 1.6, 0.1, False),
        ("=", math.inf, 0.1, False),
        ("=", math.nan, 0.1, False),
        ("<", 0.6, 0.1, False),
        ("<", 0.4, 0.1, True),
        (">", 1.4, 0.1, False),
        (">", 1.6, 0.1, True),
        (">", 1.0, 0.0, False),
        ("≤", 1.0, 0.0, True),
        ("≤", 1.1, 0.0, False),
        ("≤", math.nan, 0.0, False),
        ("≥", 0.9, 0.0, False),
        ("≥", 0.9, 0.1, True),
    ],
)
def test_a_row_has_five_standard_errors(relation: str, measured: float, error: float, passed: bool) -> None:
    row = Row.compare("x", {}, predicted=1.0, measured=measured, standard_error=error, relation=relation)
    assert row.passed is passed
    wide = Row.compare("x", {}, predicted=1.0, measured=measured, slack=5 * error, relation=relation)
    assert wide.passed is passed
