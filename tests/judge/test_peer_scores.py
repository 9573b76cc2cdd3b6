"""What the figures of other benchmark tools claim, in `benchmarks/peer_tools/scoring.py`: by trials written by hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks" / "peer_tools" / "scoring.py"


@pytest.fixture(scope="module")
def scoring() -> ModuleType:
    """The module by its file: benchmarks are no package and are not installed."""
    spec = importlib.util.spec_from_file_location("peer_scoring", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def side(median: float, iqr: float = 0.0, figures: int = 4) -> dict[str, Any]:
    """A side's figures, as pytest-benchmark and torch tell them."""
    q1, q3 = median - iqr / 2, median + iqr / 2
    return {"median": median, "q1": q1, "q3": q3, "significant_figures": figures}


def trial(ratio: float, truth: float = 1.0, **told: Any) -> dict[str, Any]:
    """A stored trial."""
    return {"ratio": ratio, "truth": truth, "aa": truth == 1.0, "spent_s": 10.0, **told}


def claims(scoring: ModuleType, tool: str, one: dict[str, Any]) -> list[int]:
    """What each way to read the tool claims of a trial."""
    return [rule.claim(one) for rule in scoring.RULES[tool]]


def test_pytest_benchmark_claims_by_quartiles_or_by_threshold(scoring: ModuleType) -> None:
    """The one sees scatter and no size, the other size and no scatter."""
    narrow = trial(1.03, first=side(1.0, 0.02), second=side(1.03, 0.02))
    wide = trial(0.9, first=side(1.0, 0.3), second=side(0.9, 0.3))
    assert claims(scoring, "pytest-benchmark", narrow) == [1, 0]
    assert claims(scoring, "pytest-benchmark", wide) == [0, -1]


@pytest.mark.parametrize(("figures", "claimed"), [(2, 0), (3, 1)])
def test_torch_claims_what_the_trimmed_medians_show(scoring: ModuleType, figures: int, claimed: int) -> None:
    """1.01 and 1.04 ms are both 1.0 at two figures; the fewer figures of the two count."""
    one = trial(1.04 / 1.01, first=side(1.01e-3, 0.0, figures), second=side(1.04e-3, 0.0, 4))
    assert claims(scoring, "torch.utils.benchmark", one) == [claimed, 1]


def test_rounding_is_to_significant_figures(scoring: ModuleType) -> None:
    """Whatever the unit."""
    assert scoring.rounded(1.2345e-5, 3) == pytest.approx(1.23e-5)
    assert scoring.rounded(123.45, 2) == pytest.approx(120.0)
    assert scoring.rounded(0.0, 2) == 0.0


def test_pyperf_perfplot_and_attnlab_claim_by_their_own_words(scoring: ModuleType) -> None:
    """Significance, the smaller time, and the verdict."""
    assert claims(scoring, "pyperf", trial(1.02, significant=True)) == [1, 0]
    assert claims(scoring, "pyperf", trial(0.9, significant=False)) == [0, 0]
    assert claims(scoring, "perfplot", trial(0.999)) == [-1, 0]
    assert claims(scoring, "perfplot", trial(1.0)) == [0, 0]
    said = [claims(scoring, "attnlab", trial(1.2, verdict=word))[0] for word in ("slower", "faster")]
    assert said == [1, -1]
    assert claims(scoring, "attnlab", trial(1.2, verdict="undecided")) == [0]
    assert claims(scoring, "attnlab", trial(1.0, verdict="equivalent")) == [0]


def test_a_score_counts_false_right_wrong_and_failed(scoring: ModuleType) -> None:
    """A trial whose truth is not known yet counts for nothing, one that failed only as failed."""
    (rule,) = scoring.RULES["attnlab"]
    trials = [
        trial(1.2, verdict="slower"),
        trial(1.0, verdict="equivalent"),
        trial(1.10, 1.10, verdict="slower"),
        trial(0.88, 1.10, verdict="faster"),
        trial(1.05, 1.10, verdict="undecided"),
        trial(3.0, verdict="slower") | {"truth": None, "aa": False},
        {"truth": 1.0, "aa": True, "spent_s": 150.0, "failed": "did not end"},
    ]
    found = scoring.score(trials, rule)
    assert (found.aa, found.false_claims, found.false_share) == (2, 1, 0.5)
    assert (found.ab, found.right, found.wrong, found.undecided, found.failed) == (3, 1, 1, 1, 1)
    assert found.aa_median == pytest.approx(0.1) and found.aa_95 == pytest.approx(0.19)
    assert found.error == pytest.approx(1.10 / 1.05 - 1) and found.spent == 10.0


def test_a_ratio_is_as_far_off_either_way_round(scoring: ModuleType) -> None:
    """Swapping the two sides changes no error."""
    assert scoring.ratio_error(trial(1.25)) == pytest.approx(scoring.ratio_error(trial(0.8)))


def test_nothing_measured_is_no_figure(scoring: ModuleType) -> None:
    """nan, which the page writes as a dash."""
    found = scoring.score([], scoring.RULES["perfplot"][0])
    assert math.isnan(found.false_share) and math.isnan(found.aa_95) and math.isnan(found.error)
