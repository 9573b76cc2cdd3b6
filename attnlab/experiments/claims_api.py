"""The claims ledger: what is often said of attention, each claim with a verdict that an experiment's figures decide."""

from __future__ import annotations

from attnlab.experiments.claim import ClaimVerdict
from attnlab.experiments.claims import CLAIMS
from attnlab.experiments.ledger import Ledger, run_claims

__all__ = ["CLAIMS", "ClaimVerdict", "Ledger", "run_claims"]
