"""What the figures of other benchmark tools claim, in `benchmarks/peer_scores.py`: by trials written by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from peer_scores import RULES, quantile, ratio_errors, score


def side(median: float, iqr: float = 0.0, figures: int = 4) -> dict[str, Any]:
    """A side's figures, as pytest-benchmark and torch tell them."""
    return {"median": median, "q1": median - iqr / 2, "q3": median + iqr / 2, "significant_figures": figures}


def trial(ratio: float, truth: float = 1.0, **told: Any) -> dict[str, Any]:
    """A stored trial."""
    return {"ratio": ratio, "truth": truth, "aa": truth == 1.0, "spent_s": 10.0, **told}


@pytest.mark.parametrize(
    ("tool", "one", "claims"),
    [
        ("pytest-benchmark", trial(1.03, first=side(1.0, 0.02), second=side(1.03, 0.02)), [1, 0]),
        ("pytest-benchmark", trial(0.9, first=side(1.0, 0.3), second=side(0.9, 0.3)), [0, -1]),
        ("torch.utils.benchmark", trial(1.03, first=side(1.01e-3, 0, 2), second=side(1.04e-3)), [0, 1]),
        ("torch.utils.benchmark", trial(1.03, first=side(1.01e-3, 0, 3), second=side(1.04e-3)), [1, 1]),
        ("pyperf", trial(1.02, significant=True), [1, 0]),
        ("pyperf", trial(0.9, significant=False), [0, 0]),
        ("perfplot", trial(0.999), [-1, 0]),
        ("attnlab", trial(1.2, verdict="slower"), [1]),
        ("attnlab", trial(1.2, verdict="undecided"), [0]),
    ],
)
def test_each_tool_claims_by_its_own_figures(tool: str, one: dict[str, Any], claims: list[int]) -> None:
    assert [rule.claim(one) for rule in RULES[tool]] == claims


def test_a_score_counts_false_right_wrong_and_failed() -> None:
    """A trial that failed counts only as failed."""
    trials = [
        trial(1.2, verdict="slower"),
        trial(1.0, verdict="equivalent"),
        trial(1.10, 1.10, verdict="slower"),
        trial(0.88, 1.10, verdict="faster"),
        trial(1.05, 1.10, verdict="undecided"),
        {"truth": 1.0, "aa": True, "spent_s": 150.0, "failed": "did not end"},
    ]
    found = score(trials, RULES["attnlab"][0])
    assert (found.aa, found.false_claims, found.ab, found.right, found.wrong, found.failed) == (
        2,
        1,
        3,
        1,
        1,
        1,
    )
    assert sorted(found.aa_off) == pytest.approx([0.0, 0.2])
    assert math.isnan(quantile(score([], RULES["attnlab"][0]).aa_off, 0.5))
    assert ratio_errors([trial(1.25)]) == pytest.approx(ratio_errors([trial(0.8)]))
