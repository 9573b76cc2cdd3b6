"""Common claims about attention, judged by measurement: does each claim with an experiment get a verdict?"""

import pytest

from attnlab.lab import Claim, ClaimVerdict, chosen_claims, judge


@pytest.fixture(scope="module")
def judged() -> dict[str, Claim]:
    """All claims, judged with all backends. Every experiment runs once."""
    return {one.id: one for one in judge()}


@pytest.mark.parametrize("claim", [one.id for one in chosen_claims()])
def test_claim(claim: str, judged: dict[str, Claim]) -> None:
    """A claim that has an experiment gets a verdict: the experiment's own checks do not fail."""
    one = judged[claim]
    assert one.verdict is not ClaimVerdict.NOT_MEASURABLE or not one.experiment, f"{one.note} {one.checks}"
