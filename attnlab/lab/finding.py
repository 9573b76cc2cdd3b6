"""What an experiment is and what it found: rows of predicted against measured, picked and stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

# what a bar shows is what a row is judged by
from attnlab.figures import STANDARD_ERRORS as STANDARD_ERRORS
from attnlab.plain import decode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnlab.lab.survey import Survey

Array = NDArray[np.float64]
#: the conditions that tell a row apart: numbers and names
Where = Mapping[str, Any]
#: the relation of a figure that nothing is predicted of
MEASURED = "measured"


def meets(measured: float, relation: str, expected: float, room: float) -> bool:
    """Whether `measured` stands in `relation`, one of = ≤ ≥ < > and `MEASURED`, to `expected`; a NaN stands in none.

    Give or take `room`; < and > must hold beyond it.
    """
    if relation == MEASURED:
        return math.isfinite(measured)
    if measured == expected:
        return relation in "=≤≥"
    above = measured - expected
    reached = {"=": abs(above) <= room, "≤": above <= room, "≥": above >= -room}
    return bool((reached | {"<": above < -room, ">": above > room})[relation])


@dataclass(frozen=True)
class Row:
    """One comparison: `where` tells it apart (d_k, scaling, backend, ...), the rest are the figures.

    `measured` must stand in `relation` to `predicted`, within five times `standard_error` (its own, in its unit) or
    `slack` (what the instrument cannot resolve); `passed` says whether it does.
    """

    quantity: str
    where: Where
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
        """A row that passes where the two figures stand in that relation.

        Without a prediction (None) it passes where `measured` is finite, and is counted in no comparison.
        """
        if predicted is None:
            predicted, relation = measured, MEASURED
        measured, predicted = float(measured), float(predicted)
        passed = meets(measured, relation, predicted, max(STANDARD_ERRORS * standard_error, slack))
        return cls(quantity, where, predicted, measured, standard_error, passed, relation, slack)

    @property
    def compared(self) -> bool:
        """Whether anything was predicted of it."""
        return self.relation != MEASURED

    def takes(self, quantity: str, where: Mapping[str, Any]) -> bool:
        """Whether it is of `quantity`, with these values of `where`, one of them where a tuple of several is given."""
        return quantity in ("", self.quantity) and all(
            self.where.get(name) in (value if isinstance(value, tuple) else (value,))
            for name, value in where.items()
        )


def pick(rows: Iterable[Row], quantity: str = "", **where: Any) -> list[Row]:
    """The rows of that quantity, of any where none is named, whose conditions have these values: see `Row.takes`."""
    return [row for row in rows if row.takes(quantity, where)]


@dataclass(frozen=True)
class Finding:
    """One experiment's answer. `conclusion` is a sentence made from the rows; `facts` what it ran with."""

    experiment: str
    title: str
    question: str
    conclusion: str
    rows: tuple[Row, ...]
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Finding({self.experiment}, {len(self.rows)} rows: {self.conclusion})"

    @property
    def passed(self) -> bool:
        """Whether every row did."""
        return all(row.passed for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """The inverse of `to_dict`. Raises ValueError, naming the key, for what is no finding."""
        return decode(data, cls, "the finding", known_only=False)


@dataclass(frozen=True)
class Shown:
    """Rows for the short table of a chapter: those that `quantity` and `where` take (`Row.takes`).

    Through one backend, or through each where `every`.
    """

    quantity: str
    where: Mapping[str, Any] = field(default_factory=dict)
    every: bool = False


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a module of an experiment defines as ``EXPERIMENT``: how its question is answered, and its chapter.

    question, theory : what is asked, and what is known of it. caption : what stands below the figure. lesson : what
    follows. These hold whatever was measured.

    measure : takes rows through the backends of a `Survey`, which keeps them. conclusion : what was found, in sentences
    made from the rows. draw : in a figure. shown : the rows that show it best.
    """

    title: str
    question: str
    theory: str
    caption: str
    measure: Callable[[Survey], None]
    conclusion: Callable[[Sequence[Row]], str]
    draw: Callable[[Finding], Figure]
    lesson: str
    shown: tuple[Shown, ...]


def values(rows: Iterable[Row], condition: str) -> Array:
    """The values of one condition, a number a row; or of ``measured``, ``predicted``, ``standard_error``."""
    return np.array(
        [float(row.where[condition] if condition in row.where else getattr(row, condition)) for row in rows]
    )
