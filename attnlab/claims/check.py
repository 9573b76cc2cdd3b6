"""One figure of an experiment held against what a statement says of it.

Whose statement it is decides what its failure means: the claim's own, where its condition holds or beyond it; the
right statement's; or a control, without which the experiment would be blind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from attnlab.numerics.finding import STANDARD_ERRORS


class Role(StrEnum):
    """Whose statement a check tests."""

    CLAIM = "claim"  #: the claim as it is made; where it has a condition, within it
    BEYOND = "beyond"  #: the claim as it is made, outside its condition
    RIGHT = "right"  #: the right statement
    CONTROL = "control"  #: that the experiment can tell one from the other


@dataclass(frozen=True)
class Check:
    """`measured` stands in `relation` to `expected`, within five standard errors or the `slack` of the instrument.

    `relation` is =, ≤ or ≥, or < or >, which must hold *beyond* the standard error. All figures in `unit`.
    """

    role: Role
    quantity: str
    measured: float
    relation: str
    expected: float
    standard_error: float = 0.0
    slack: float = 0.0
    where: str = ""
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether it does; a NaN stands in no relation to anything."""
        room = max(STANDARD_ERRORS * self.standard_error, self.slack)
        above = self.measured - self.expected
        match self.relation:
            case "=":
                return abs(above) <= room
            case "≤":
                return above <= room
            case "≥":
                return above >= -room
            case "<":
                return above < -room
            case ">":
                return above > room
        raise ValueError(f"relation must be one of = ≤ ≥ < >, got {self.relation!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, which has no NaN: such a number becomes its name."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Check:
        """The inverse of `to_dict`."""
        numbers = {n: float(data[n]) for n in ("measured", "expected", "standard_error", "slack")}
        return cls(**{**data, **numbers, "role": Role(data["role"])})


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _check(
    role: Role,
    quantity: str,
    measured: float,
    relation: str,
    expected: float,
    *,
    error: float = 0.0,
    slack: float = 0.0,
    where: str = "",
    unit: str = "",
) -> Check:
    return Check(
        role, quantity, float(measured), relation, float(expected), float(error), float(slack), where, unit
    )


claimed = partial(_check, Role.CLAIM)
beyond = partial(_check, Role.BEYOND)
right = partial(_check, Role.RIGHT)
control = partial(_check, Role.CONTROL)
