"""A claim as a row of data, what decides it, the rule that makes its verdict, and the ledger of many.

A claim names an experiment of `attnlab.experiments` and *tests*: a quantity of it and what its rows must be
if the claim is true. Whose statement a test belongs to says what its failure means: the claim's own, where its
condition holds or beyond it; the right statement's; or a control, without which the experiment would be blind. For
every row that a claim looks at, theory's own prediction is the right statement, and is tested with it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from attnlab.experiments.finding import STANDARD_ERRORS, Finding, Row, meets, pick
from attnlab.experiments.survey import RAISED
from attnlab.plain import finite


class Role(StrEnum):
    """Whose statement a test belongs to."""

    CLAIM = "claim"  #: the claim as it is made; where it has a condition, within it
    BEYOND = "beyond"  #: the claim as it is made, outside its condition
    RIGHT = "right"  #: the right statement
    CONTROL = "control"  #: that the experiment can tell one from the other


class ClaimVerdict(StrEnum):
    """What becomes of a claim."""

    CONFIRMED = "confirmed"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    NOT_MEASURABLE = "not measurable"


@dataclass(frozen=True)
class Test:
    """The rows that `quantity` and `where` take (`Row.takes`), and what they must be.

    `expected`: a number, or one that the row's conditions give, in `relation` to the measured one; None for what
    theory predicts of the row.
    """

    __test__ = False  # pytest collects what is called Test

    quantity: str
    relation: str = "="
    expected: float | Callable[[Mapping[str, Any]], float] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def check(self, role: Role, rows: Sequence[Row]) -> Check:
        """The row that comes out worst. Raises `_Unmeasured` where there is none or a backend raised an error."""
        mine = pick(rows, self.quantity, **self.where)
        if not mine or any("backend" in row.where for row in mine):
            for row in pick(rows, RAISED):
                raise _Unmeasured(f"{row.where['backend']}: {row.where['reason']}")
        if not mine:
            raise _Unmeasured(f"no backend was asked for {self.quantity}")
        found = [self._against(role, row) for row in mine]
        worst = max(found, key=lambda check: check.excess)
        return worst if len(found) == 1 else replace(worst, where=f"{worst.where}; worst of {len(found)}")

    def _against(self, role: Role, row: Row) -> Check:
        words = {
            key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in row.where.items()
        }
        where = ", ".join(text if key == "backend" else f"{key} = {text}" for key, text in words.items())
        relation, expected = self.relation, self.expected
        if expected is None:
            relation, expected = row.relation, row.predicted
        number = float(expected(row.where) if callable(expected) else expected)
        return Check(role, row.quantity, row.measured, relation, number, row.standard_error, row.slack, where)


@dataclass(frozen=True)
class Check:
    """A measured figure held against what a statement says of it: the row of a test that comes out worst for it."""

    role: Role
    quantity: str
    measured: float
    relation: str
    expected: float
    standard_error: float = 0.0
    slack: float = 0.0
    where: str = ""

    @property
    def room(self) -> float:
        """By how much the figure may miss: five standard errors, or what the instrument cannot resolve."""
        return max(STANDARD_ERRORS * self.standard_error, self.slack)

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return meets(self.measured, self.relation, self.expected, self.room)

    @property
    def excess(self) -> float:
        """How far the figure is beyond what is allowed, infinite for a NaN; above 0 where the check fails."""
        above, room = self.measured - self.expected, self.room
        if math.isnan(above):
            return 0.0 if self.holds else math.inf
        above = {"=": abs(above), "≥": -above, ">": -above}.get(self.relation, above)
        return above + room if self.relation in "<>" else above - room

    def __str__(self) -> str:
        """The figures in words: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
        of = "claimed" if self.role in (Role.CLAIM, Role.BEYOND) else "predicted"
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        slack = f" ± {self.slack:.2g}" if self.slack and self.relation not in "<>" else ""
        expected = f"{self.relation} {_number(self.expected)}{slack}"
        where = f" ({self.where})" if self.where else ""
        return f"{self.quantity}: {_number(self.measured)}{error}, {of} {expected}{where}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN and no infinity: such a number becomes its name."""
        return {**finite(asdict(self)), "holds": self.holds}


class _Unmeasured(Exception):
    """The experiment has not the rows that a test needs; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is said of attention, in our own words, what is right, the tests that decide it; and how they came out.

    says : the claim. truth : the right statement. condition : under which the claim holds, where it needs one.
    reference : where to read more. experiment : whose quantities decide it, ``published`` where they were
    looked up; empty where only trained models could tell. plan : the plan of the race whose verdict decides it, where
    a race does and no experiment. claimed, beyond, right, control : tests by `Role`. checks : of a judged claim; the
    verdict is not stored but follows. note : why there are no checks, where there are none.
    """

    id: str
    theme: str
    says: str
    truth: str
    reference: str
    condition: str = ""
    experiment: str = ""
    plan: str = ""
    claimed: tuple[Test, ...] = ()
    beyond: tuple[Test, ...] = ()
    right: tuple[Test, ...] = ()
    control: tuple[Test, ...] = ()
    checks: tuple[Check, ...] = ()
    note: str = ""

    def judged(self, finding: Finding | None) -> Claim:
        """With what its experiment found: a check a test, and one on theory's prediction for the same rows."""
        if finding is None:
            asked = f"a race decides it, on the machine where it is asked: attnlab run --plan {self.plan}"
            untrained = "a question about models trained on language, and no experiment here trains one"
            note = "its experiment was not run" if self.experiment else asked if self.plan else untrained
            return replace(self, note=note)
        tests = list(zip(Role, (self.claimed, self.beyond, self.right, self.control), strict=True))
        predicted = {
            (test.quantity, tuple(test.where.items())): Test(test.quantity, where=test.where)
            for test in (*self.claimed, *self.beyond)
            if test.expected is not None
        }
        try:
            every = (*tests, (Role.RIGHT, tuple(predicted.values())))
            checks = tuple(test.check(role, finding.rows) for role, mine in every for test in mine)
        except _Unmeasured as reason:
            return replace(self, note=f"not measured here: {reason}")
        return replace(self, checks=checks)

    @property
    def verdict(self) -> ClaimVerdict:
        """What follows from the checks."""
        return decide(self.checks)

    @property
    def deciding(self) -> Check | None:
        """The check on which the verdict turns: the first that the claim fails, or its first where it fails none."""
        said = [check for check in self.checks if check.role in (Role.CLAIM, Role.BEYOND)]
        tests = [check for check in self.checks if check.role in (Role.RIGHT, Role.CONTROL)]
        if self.verdict is ClaimVerdict.NOT_MEASURABLE:
            return next((check for check in tests if not check.holds), None)
        return next((check for check in said if not check.holds), said[0])

    @property
    def deciding_figure(self) -> str:
        """That check in words, or why there is none: ``Var(q·k): 1014 ± 6, claimed = 256 (σ = 2, d_k = 64)``."""
        check = self.deciding
        return self.note if check is None else str(check)

    def verdict_in(self, words: Mapping[ClaimVerdict, str]) -> str:
        """The verdict in `words`, with its condition where it hangs on one."""
        conditional = self.verdict is ClaimVerdict.CONDITIONAL and self.condition
        return words[self.verdict] + (f": {self.condition}" if conditional else "")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; with the verdict, for whoever reads it elsewhere."""
        texts = ("id", "theme", "says", "truth", "reference", "condition", "experiment", "plan", "note")
        plain: dict[str, Any] = {name: getattr(self, name) for name in texts}
        return {**plain, "verdict": str(self.verdict), "checks": [one.to_dict() for one in self.checks]}


def decide(checks: Iterable[Check]) -> ClaimVerdict:
    """The verdict that follows from a claim's checks.

    Not measurable: the claim was put to no test, or a control failed. Confirmed: the claim meets every test. Else
    its failure counts only where the right statement meets its own tests, as an experiment that contradicts both
    has decided nothing; then the claim is conditional where it meets all tests within its condition, and refuted
    where it does not.
    """
    failed: dict[Role, bool] = {}
    for check in checks:
        failed[check.role] = failed.get(check.role, False) or not check.holds
    if Role.CLAIM not in failed or failed.get(Role.CONTROL):
        return ClaimVerdict.NOT_MEASURABLE
    if not failed[Role.CLAIM] and not failed.get(Role.BEYOND):
        return ClaimVerdict.CONFIRMED
    if failed.get(Role.RIGHT):
        return ClaimVerdict.NOT_MEASURABLE
    return ClaimVerdict.REFUTED if failed[Role.CLAIM] else ClaimVerdict.CONDITIONAL


@dataclass(frozen=True)
class Ledger:
    """What one run found. `facts` are the seed, the backends that were asked and the seconds that it took."""

    entries: tuple[Claim, ...]
    facts: Mapping[str, str | float]

    @property
    def counts(self) -> dict[ClaimVerdict, int]:
        """How many claims met each verdict."""
        found = Counter(entry.verdict for entry in self.entries)
        return {verdict: found[verdict] for verdict in ClaimVerdict}

    def __getitem__(self, id: str) -> Claim:
        return {entry.id: entry for entry in self.entries}[id]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"facts": dict(self.facts), "claims": [entry.to_dict() for entry in self.entries]}

    def rows(self) -> list[dict[str, Any]]:
        """Every test of every claim as plain values, a row a test."""
        return [
            {"claim": entry.id, "tested": _TESTED[check.role], **{name: getattr(check, name) for name in _FIGURES},
             "met": check.holds, "where": check.where}
            for entry in self.entries
            for check in entry.checks
        ]  # fmt: skip


_TESTED = {
    Role.CLAIM: "the claim",
    Role.BEYOND: "the claim, beyond its condition",
    Role.RIGHT: "the right statement",
    Role.CONTROL: "the experiment itself",
}
_FIGURES = ("quantity", "measured", "standard_error", "relation", "expected", "slack")


def _number(value: float) -> str:
    """A whole number in full, any other to four digits."""
    return f"{value:,.0f}" if abs(value) < 1e15 and value == int(value) else f"{value:.4g}"
