"""What an experiment found: rows of predicted against measured, each with its standard error and verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# what a bar shows is what a row is judged by
from attnlab.figures import STANDARD_ERRORS as STANDARD_ERRORS

#: the relation of a figure that nothing is predicted of
MEASURED = "measured"
#: what `Row.relation` may be; < and > must hold beyond the error
RELATIONS = ("=", "≤", "≥", "<", ">", MEASURED)


def meets(measured: float, relation: str, expected: float, room: float) -> bool:
    """Whether `measured` stands in `relation` to `expected`, give or take `room`; a NaN stands in none.

    Raises ValueError for a relation that is none of `RELATIONS`.
    """
    if relation not in RELATIONS:
        raise ValueError(f"relation must be one of {' '.join(RELATIONS)}, got {relation!r}")
    if relation == MEASURED:
        return math.isfinite(measured)
    if measured == expected:
        return relation in "=≤≥"
    above = measured - expected
    reached = {"=": abs(above) <= room, "≤": above <= room, "≥": above >= -room}
    return bool((reached | {"<": above < -room, ">": above > room})[relation])


#: the conditions that tell a row apart
Where = dict[str, str | float]


@dataclass(frozen=True)
class Row:
    """One comparison: `where` tells it apart (d_k, scaling, backend, ...), the rest are the figures.

    `measured` must stand in `relation` to `predicted`, within five times `standard_error` (its own, in its unit) or
    `slack` (what the instrument cannot resolve); `passed` says whether it does.
    """

    quantity: str
    where: Mapping[str, str | float]
    predicted: float
    measured: float
    standard_error: float
    passed: bool
    relation: str = "="
    slack: float = 0.0

    @classmethod
    def compare(
        cls,
        quantity: str,
        where: Mapping[str, str | float],
        predicted: float,
        measured: float,
        *,
        standard_error: float = 0.0,
        slack: float = 0.0,
        relation: str = "=",
    ) -> Row:
        """A row that passes where the two figures stand in that relation."""
        measured, predicted = float(measured), float(predicted)
        passed = meets(measured, relation, predicted, max(STANDARD_ERRORS * standard_error, slack))
        return cls(quantity, where, predicted, measured, standard_error, passed, relation, slack)

    @classmethod
    def only_measured(
        cls, quantity: str, where: Mapping[str, str | float], measured: float, *, standard_error: float = 0.0
    ) -> Row:
        """A figure without a prediction; it passes where it is finite, and is counted in no comparison."""
        return cls.compare(
            quantity, where, measured, measured, standard_error=standard_error, relation=MEASURED
        )

    @property
    def compared(self) -> bool:
        """Whether anything was predicted of it."""
        return self.relation != MEASURED


def pick(rows: Iterable[Row], quantity: str = "", **where: str | float) -> list[Row]:
    """The rows of that quantity, of any where none is named, whose conditions have these values."""
    return [
        row
        for row in rows
        if quantity in ("", row.quantity) and all(row.where.get(name) == one for name, one in where.items())
    ]


@dataclass(frozen=True)
class Finding:
    """One experiment's answer. `conclusion` is a sentence made from the rows; `facts` what it ran with."""

    experiment: str
    title: str
    question: str
    conclusion: str
    rows: tuple[Row, ...]
    facts: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every row did."""
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `to_dict`."""
        return cls(**{**data, "rows": tuple(Row(**row) for row in data["rows"])})
