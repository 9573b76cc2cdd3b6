"""What tutorials say of attention, decided by measurement: does every claim get the verdict it is known to deserve?"""

import pytest

from attnlab.claims.catalogue import chosen
from attnlab.claims.running import run_claims
from attnlab.claims.verdict import Verdict


@pytest.mark.parametrize("claim", [one.id for one in chosen(())])
def test_claim(claim: str) -> None:
    """A claim that an experiment settles is settled by it: the experiment itself is never in doubt."""
    (entry,) = run_claims((claim,)).entries
    settled = entry.verdict is not Verdict.NOT_MEASURABLE
    assert settled or not entry.checks, "\n".join(str(check) for check in entry.checks)
