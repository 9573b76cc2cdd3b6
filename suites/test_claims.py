"""What is often said of attention, decided by measurement: does an experiment settle every claim that it can?"""

import pytest

from attnlab.lab.claims import CLAIMS, ClaimVerdict, Ledger, run_claims


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    """All claims, through all backends: every experiment runs once."""
    return run_claims()


@pytest.mark.parametrize("claim", [one.id for one in CLAIMS])
def test_claim(claim: str, ledger: Ledger) -> None:
    """A claim that an experiment settles is settled by it: the experiment itself is never in doubt."""
    entry = ledger[claim]
    settled = entry.verdict is not ClaimVerdict.NOT_MEASURABLE
    assert settled or not entry.experiment, "\n".join([entry.note, *map(str, entry.checks)])
