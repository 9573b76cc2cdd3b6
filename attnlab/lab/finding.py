"""What an experiment found: rows of measured beside predicted, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

# what a bar shows is what a row is judged by
from attnlab.figures import STANDARD_ERRORS as STANDARD_ERRORS

#: the conditions that tell a row apart: numbers and names
Where = Mapping[str, Any]
#: the relation of a figure of which nothing is predicted
MEASURED = "measured"


def meets(measured: float, relation: str, expected: float, room: float) -> bool:
    """Whether `measured` stands in `relation` (= ≤ ≥ < > or `MEASURED`) to `expected`, give or take `room`.

    < and > must hold beyond the room. A NaN stands in no relation.
    """
    if relation == MEASURED:
        return math.isfinite(measured)
    if measured == expected:
        return relation in "=≤≥"
    above = measured - expected
    reached = {"=": abs(above) <= room, "≤": above <= room, "≥": above >= -room}
    return bool((reached | {"<": above < -room, ">": above > room})[relation])


class Row(msgspec.Struct, frozen=True):
    """One comparison. `where` tells it apart (d_k, scaling, backend, ...).

    It passes if `measured` stands in `relation` to `predicted`, within five times `standard_error` or within `slack`
    (what the instrument cannot resolve), whichever is larger.
    """

    quantity: str
    where: dict[str, Any]
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
        where: Where,
        predicted: float | None,
        measured: float,
        *,
        standard_error: float = 0.0,
        slack: float = 0.0,
        relation: str = "=",
    ) -> Row:
        """A judged row. Without a prediction (None) it passes if `measured` is finite."""
        if predicted is None:
            predicted, relation = measured, MEASURED
        measured, predicted, error = float(measured), float(predicted), float(standard_error)
        passed = meets(measured, relation, predicted, max(STANDARD_ERRORS * error, slack))
        plain = {name: one if isinstance(one, str | int) else float(one) for name, one in where.items()}
        return cls(quantity, plain, predicted, measured, error, passed, relation, float(slack))

    @property
    def compared(self) -> bool:
        """Whether anything was predicted of it."""
        return self.relation != MEASURED

    @property
    def excess(self) -> float:
        """How far it lies beyond its room (below 0: within), in rooms where there is one; a NaN is infinitely far."""
        room, above = max(STANDARD_ERRORS * self.standard_error, self.slack), self.measured - self.predicted
        if math.isnan(above):
            return -math.inf if self.passed else math.inf
        above = {"=": abs(above), "≥": -above, ">": -above, MEASURED: -math.inf}.get(self.relation, above)
        beyond = above + room if self.relation in "<>" else above - room
        return beyond / room if room else beyond


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one experiment found. `conclusion` is its sentence with the measured values.

    facts : seed, backends, seconds. missing : why a backend took no part, by its name.
    """

    experiment: str
    title: str
    question: str
    conclusion: str
    rows: tuple[Row, ...]
    facts: dict[str, str | int | float] = {}
    missing: dict[str, str] = {}

    @property
    def passed(self) -> bool:
        """Whether every row did."""
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `to_dict`. Raises ValueError, naming the key, for what is no finding."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as fault:
            raise ValueError(f"the finding: {fault}") from None


def pick(rows: Iterable[Row], quantity: str | Sequence[str], **where: Any) -> list[Row]:
    """The rows of that quantity with these conditions; a tuple or a list stands for any of its values."""

    def among(value: Any, wanted: Any) -> bool:
        return value in wanted if isinstance(wanted, tuple | list) else bool(value == wanted)

    return [
        row
        for row in rows
        if among(row.quantity, quantity)
        and all(among(row.where.get(name), wanted) for name, wanted in where.items())
    ]
