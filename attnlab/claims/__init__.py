"""The claims ledger: what is often said of attention, each claim with a verdict that an experiment's figures decide.

`run_claims` measures and returns a `Ledger`. Everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.claims.claim import ClaimVerdict
    from attnlab.claims.ledger import Ledger, run_claims
    from attnlab.claims.table import CLAIMS

#: `Verdict` and `claims()` are earlier names
_HOMES = {"CLAIMS": "table:CLAIMS", "ClaimVerdict": "claim:ClaimVerdict", "Ledger": "ledger:Ledger"}
_HOMES |= {"run_claims": "ledger:run_claims", "Verdict": "claim:ClaimVerdict", "claims": "table:chosen"}

__all__ = ["CLAIMS", "ClaimVerdict", "Ledger", "run_claims"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnlab.claims' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(importlib.import_module(f"attnlab.claims.{module}"), attribute)
