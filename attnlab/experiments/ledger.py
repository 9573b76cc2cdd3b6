"""The ledger: claims with their checks and the verdicts that follow from them; and the run that makes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from attnlab.experiments.catalogue import EXPERIMENTS, check_request, run_experiments
from attnlab.experiments.claim import Check, Claim, ClaimVerdict, Statement, Unmeasured, decide
from attnlab.experiments.claims import chosen
from attnlab.experiments.finding import Finding
from attnlab.experiments.published import PUBLISHED, published

NO_EXPERIMENT = "a question about models trained on language, and no experiment here trains one"
NOT_RUN = "its experiment was not run"


@dataclass(frozen=True, kw_only=True)
class LedgerEntry(Statement):
    """A claim and what its experiment found.

    `note` says why there are no checks, where there are none. The verdict is not stored but follows.
    """

    checks: tuple[Check, ...] = ()
    note: str = ""

    @classmethod
    def of(cls, claim: Claim, finding: Finding | None) -> LedgerEntry:
        """`claim` judged by what its experiment found."""
        checks: tuple[Check, ...] = ()
        asked = f"a race decides it, on the machine where it is asked: attnlab run --plan {claim.plan}"
        note = "" if finding else NOT_RUN if claim.experiment else asked if claim.plan else NO_EXPERIMENT
        try:
            checks = claim.checks(finding) if finding else ()
        except Unmeasured as reason:
            note = f"not measured here: {reason}"
        return cls(
            **{one.name: getattr(claim, one.name) for one in fields(Statement)}, checks=checks, note=note
        )

    @property
    def verdict(self) -> ClaimVerdict:
        """What follows from the checks."""
        return decide(self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; with the verdict, for whoever reads it elsewhere."""
        text = {one.name: getattr(self, one.name) for one in fields(Statement)}
        checks = [one.to_dict() for one in self.checks]
        return {**text, "verdict": str(self.verdict), "checks": checks, "note": self.note}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of `to_dict`; the verdict is computed anew, whatever the data say."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        return cls(**{**known, "checks": tuple(Check.from_dict(one) for one in data["checks"])})


@dataclass(frozen=True)
class Ledger:
    """What one run found. `facts` are the seed, the backends that were asked and the seconds that it took."""

    entries: tuple[LedgerEntry, ...]
    facts: Mapping[str, str | float]

    @property
    def counts(self) -> dict[ClaimVerdict, int]:
        """How many claims met each verdict."""
        found = Counter(entry.verdict for entry in self.entries)
        return {verdict: found[verdict] for verdict in ClaimVerdict}

    def __getitem__(self, id: str) -> LedgerEntry:
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
        return cls(tuple(LedgerEntry.from_dict(one) for one in data["claims"]), dict(data["facts"]))


def run_claims(
    ids: Iterable[str] = (),
    *,
    seed: int = 0,
    backends: Sequence[str] | None = None,
    folders: Sequence[Path | str] = (),
    findings: Iterable[Finding] = (),
    on_event: Callable[[str], None] = lambda text: None,
) -> Ledger:
    """Judge the claims called `ids`, all where none is named, by the experiments that they need, each run once.

    backends : names to measure through, all that are found where None. folders : where to look for more of them.
    findings : experiments that have been run already, with the same seed and backends.

    Raises ValueError for an unknown id or backend or a bad seed, before any experiment has run.
    """
    wanted = chosen(ids)
    check_request(backends, seed, folders)
    found = {one.experiment: one for one in findings}
    for name in EXPERIMENTS:
        if name not in found and any(claim.experiment == name for claim in wanted):
            on_event(name.replace("_", " "))
            (found[name],) = run_experiments([name], backends, seed=seed, folders=folders)
    return judged(wanted, found, seed)


def judged(claims: Iterable[Claim], found: Mapping[str, Finding], seed: int = 0) -> Ledger:
    """The ledger of `claims` from findings by name of their experiment, and from what was published."""
    found = {PUBLISHED: published(), **found}
    entries = tuple(LedgerEntry.of(claim, found.get(claim.experiment)) for claim in claims)
    used = [found[name] for name in dict.fromkeys(entry.experiment for entry in entries) if name in found]
    facts: dict[str, str | float] = {"seed": seed}
    for one in used:
        facts |= {
            key: value for key, value in one.facts.items() if key.startswith("without") or key == "backends"
        }
    seconds = sum(float(one.facts.get("seconds", 0.0)) for one in used)
    return Ledger(entries, {"backends": "none", **facts, "seconds": round(seconds, 2)})
