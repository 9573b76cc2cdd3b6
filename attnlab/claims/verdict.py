"""The rule that makes a verdict of checks; no verdict is written down anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from attnlab.claims.check import Check, Role


class Verdict(StrEnum):
    """What becomes of a claim."""

    CONFIRMED = "confirmed"
    CONDITIONAL = "conditional"
    REFUTED = "refuted"
    NOT_MEASURABLE = "not measurable"


def decide(checks: Sequence[Check]) -> Verdict:
    """The verdict that follows from an experiment's checks.

    Not measurable: the claim was put to no test, or a control failed. Confirmed: the claim meets every test. Else
    its failure counts only where the right statement meets its own tests, as an experiment that contradicts both
    has decided nothing; then the claim is conditional where it meets all tests within its condition, and refuted
    where it does not.
    """

    def hold(role: Role) -> bool:
        return all(check.holds for check in checks if check.role is role)

    if not any(check.role is Role.CLAIM for check in checks) or not hold(Role.CONTROL):
        return Verdict.NOT_MEASURABLE
    if hold(Role.CLAIM) and hold(Role.BEYOND):
        return Verdict.CONFIRMED
    if not hold(Role.RIGHT):
        return Verdict.NOT_MEASURABLE
    return Verdict.CONDITIONAL if hold(Role.CLAIM) else Verdict.REFUTED
