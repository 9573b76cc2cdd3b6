"""What is often said of attention, decided by measurement: does an experiment settle every claim that it can?"""

import pytest

from attnlab.lab import Claim, ClaimVerdict, chosen_claims, judge


@pytest.fixture(scope="module")
def judged() -> dict[str, Claim]:
    """All claims, through all backends: every experiment runs once."""
    return {one.id: one for one in judge()}


@pytest.mark.parametrize("claim", [one.id for one in chosen_claims()])
def test_claim(claim: str, judged: dict[str, Claim]) -> None:
    """A claim that an experiment settles is settled by it: the experiment itself is never in doubt."""
    one = judged[claim]
    assert one.verdict is not ClaimVerdict.NOT_MEASURABLE or not one.experiment, f"{one.note} {one.checks}"
