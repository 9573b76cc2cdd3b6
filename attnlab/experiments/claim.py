"""A claim as a row of data, what decides it, and the rule that makes its verdict.

A claim names an experiment of `attnlab.experiments` and *tests*: a quantity of it and what its rows must be
if the claim is true. Whose statement a test belongs to says what its failure means: the claim's own, where its
condition holds or beyond it; the right statement's; or a control, without which the experiment would be blind. For
every row that a claim looks at, theory's own prediction is the right statement, and is tested with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from attnlab.experiments.finding import STANDARD_ERRORS, Finding, Row, meets
from attnlab.experiments.survey import RAISED


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
    """Rows of `quantity` whose `where` has these values, one of them where several are given, and what they must be.

    `expected`: a number, or one that the row's conditions give, in `relation` to the measured one; None for what
    theory predicts of the row.
    """

    __test__ = False  # pytest collects what is called Test

    quantity: str
    relation: str = "="
    expected: float | Callable[[Mapping[str, Any]], float] | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def takes(self, row: Row) -> bool:
        """Whether it is about `row`."""
        return row.quantity == self.quantity and all(
            row.where.get(key) in (value if isinstance(value, tuple) else (value,))
            for key, value in self.where.items()
        )


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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN and no infinity: such a number becomes its name."""
        plain = {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }
        return {**plain, "holds": self.holds}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Check:
        """The inverse of `to_dict`; whether it holds is computed anew."""
        known = {name: data[name] for name in cls.__dataclass_fields__}
        numbers = {name: float(data[name]) for name in ("measured", "expected", "standard_error", "slack")}
        return cls(**{**known, **numbers, "role": Role(data["role"])})


class Unmeasured(Exception):
    """The experiment has not the rows that a test needs; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is said of attention, in our own words, and what is right.

    says : the claim. truth : the right statement. condition : under which the claim holds, where it needs one.
    reference : where to read more. experiment : whose quantities decide it, `PUBLISHED` where it was
    looked up; empty where only trained models could tell. plan : the plan of the race whose verdict decides it, where
    a race does and no experiment.
    """

    id: str
    theme: str
    says: str
    truth: str
    reference: str
    condition: str = ""
    experiment: str = ""
    plan: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim(Statement):
    """A statement and the tests that decide it: of the claim, of the claim beyond its condition, and further ones."""

    claimed: tuple[Test, ...] = ()
    beyond: tuple[Test, ...] = ()
    right: tuple[Test, ...] = ()
    control: tuple[Test, ...] = ()

    def checks(self, finding: Finding) -> tuple[Check, ...]:
        """A check a test, and one on theory's prediction for the same rows. Raises Unmeasured where there are none."""
        roles = (
            (Role.CLAIM, self.claimed),
            (Role.BEYOND, self.beyond),
            (Role.RIGHT, self.right),
            (Role.CONTROL, self.control),
        )
        found = [_check(role, test, finding.rows) for role, tests in roles for test in tests]
        predicted = {
            (test.quantity, tuple(test.where.items())): Test(test.quantity, where=test.where)
            for test in (*self.claimed, *self.beyond)
            if test.expected is not None
        }
        return (*found, *(_check(Role.RIGHT, test, finding.rows) for test in predicted.values()))


def _check(role: Role, test: Test, rows: Sequence[Row]) -> Check:
    """The row that comes out worst for `test`. Raises Unmeasured where there is none or a backend raised an error."""
    mine = [row for row in rows if test.takes(row)]
    if not mine or any("backend" in row.where for row in mine):
        for row in rows:
            if row.quantity == RAISED:
                raise Unmeasured(f"{row.where['backend']}: {row.where['reason']}")
    if not mine:
        raise Unmeasured(f"no backend was asked for {test.quantity}")
    found = [_against(role, test, row) for row in mine]
    worst = max(found, key=lambda check: check.excess)
    return (
        worst
        if len(found) == 1
        else Check(**{**vars(worst), "where": f"{worst.where}; worst of {len(found)}"})
    )


def _against(role: Role, test: Test, row: Row) -> Check:
    where = ", ".join(
        str(value)
        if key == "backend"
        else f"{key} = {value:g}"
        if isinstance(value, float)
        else f"{key} = {value}"
        for key, value in row.where.items()
    )
    if test.expected is None:
        relation, expected = row.relation, row.predicted
    else:
        relation = test.relation
        expected = float(test.expected(row.where) if callable(test.expected) else test.expected)
    return Check(role, row.quantity, row.measured, relation, expected, row.standard_error, row.slack, where)


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
