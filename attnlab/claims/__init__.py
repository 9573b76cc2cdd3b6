"""The claims ledger: what tutorials say of attention, each claim with a verdict computed from a measurement.

`run_claims` measures and returns a `Ledger`. Everything is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnlab.claims.catalogue import claims
    from attnlab.claims.ledger import Ledger
    from attnlab.claims.running import run_claims
    from attnlab.claims.verdict import Verdict

_HOMES = {"Ledger": "ledger", "Verdict": "verdict", "claims": "catalogue", "run_claims": "running"}

__all__ = ["Ledger", "Verdict", "claims", "run_claims"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attnlab.claims' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnlab.claims.{_HOMES[name]}"), name)
