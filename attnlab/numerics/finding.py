"""What an experiment found: rows of predicted against measured, each with its standard error and verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# what a bar shows is what a row is judged by
from attnlab.figures.drawing import STANDARD_ERRORS as STANDARD_ERRORS


@dataclass(frozen=True)
class Row:
    """One comparison: `where` tells it apart (d_k, scaling, backend, ...), the rest are the figures.

    `standard_error` is of `measured`, in its unit; `passed` whether the two agree.
    """

    quantity: str
    where: Mapping[str, str | float]
    predicted: float
    measured: float
    standard_error: float
    passed: bool

    @classmethod
    def compare(
        cls,
        quantity: str,
        where: Mapping[str, str | float],
        *,
        predicted: float,
        measured: float,
        standard_error: float,
        slack: float = 0.0,
    ) -> Row:
        """A row that passes within five standard errors, or within `slack` (the instrument's own error)."""
        passed = abs(measured - predicted) <= max(STANDARD_ERRORS * standard_error, slack)
        return cls(quantity, where, predicted, measured, standard_error, bool(passed))


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
