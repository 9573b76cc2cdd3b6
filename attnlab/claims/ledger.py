"""The ledger: every claim with its checks and the verdict that follows from them. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnlab.claims.check import Check
from attnlab.claims.claim import Claim, Statement
from attnlab.claims.verdict import Verdict, decide


@dataclass(frozen=True, kw_only=True)
class Entry(Statement):
    """A claim and what its experiment found.

    `note` says why there are no checks, where there are none. The verdict is not stored but follows.
    """

    checks: tuple[Check, ...] = ()
    note: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, claim: Claim, checks: tuple[Check, ...], note: str = "", seconds: float = 0.0) -> Entry:
        """`claim` with what was found."""
        text = {name: getattr(claim, name) for name in _TEXT}
        return cls(**text, where=claim.where, checks=checks, note=note, seconds=seconds)

    @property
    def verdict(self) -> Verdict:
        """What follows from the checks by the rule of `attnlab.claims.verdict`."""
        return decide(self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; with the verdict, for whoever reads it elsewhere."""
        text = {name: getattr(self, name) for name in _TEXT}
        return {
            **text,
            "verdict": str(self.verdict),
            "where": list(self.where),
            "checks": [{**one.to_dict(), "holds": one.holds} for one in self.checks],
            "note": self.note,
            "seconds": self.seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Entry:
        """The inverse of `to_dict`; the verdict is computed anew, whatever the data say."""
        fields = {name: value for name, value in data.items() if name != "verdict"}
        checks = tuple(
            Check.from_dict({name: value for name, value in one.items() if name != "holds"})
            for one in data["checks"]
        )
        return cls(**{**fields, "where": tuple(data["where"]), "checks": checks})


_TEXT = ("id", "theme", "kind", "says", "truth", "reference", "condition")


@dataclass(frozen=True)
class Ledger:
    """What one run found. `facts` are the seed, the backends that were asked and why others were not."""

    entries: tuple[Entry, ...]
    facts: Mapping[str, str | float]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many claims met each verdict."""
        found = Counter(entry.verdict for entry in self.entries)
        return {verdict: found[verdict] for verdict in Verdict}

    def __getitem__(self, id: str) -> Entry:
        for entry in self.entries:
            if entry.id == id:
                return entry
        raise KeyError(id)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"facts": dict(self.facts), "claims": [entry.to_dict() for entry in self.entries]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Ledger:
        """The inverse of `to_dict`."""
        return cls(tuple(Entry.from_dict(one) for one in data["claims"]), dict(data["facts"]))
