"""A claim as data, and a theme that gathers the claims about one subject with the experiments that decide them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnlab.claims.check import Check
    from attnlab.claims.laboratory import Laboratory

    Measure = Callable[[Laboratory], Sequence[Check]]

#: what sort of evidence a claim calls for
KINDS = ("identity", "statistics", "precision", "shape", "count", "time", "published", "history", "metaphor")


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a tutorial says, in our own words, and what is right.

    where : places, text and lines, such as ``S2:25``. says : the claim. truth : the right statement. kind : of
    `KINDS`. condition : under which it holds, for a claim that needs one. reference : where to read more.
    """

    id: str
    theme: str
    where: tuple[str, ...]
    kind: str
    says: str
    truth: str
    reference: str
    condition: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim(Statement):
    """A statement and its experiment, `measure`; None where no measurement can settle it."""

    measure: Measure | None = None


@dataclass
class Theme:
    """Claims about one subject, in the order in which they are read."""

    title: str
    claims: list[Claim] = field(default_factory=list)

    def claim(
        self, id: str, where: str, *, kind: str, says: str, truth: str, reference: str, condition: str = ""
    ) -> Callable[[Measure], Measure]:
        """The decorated function is the experiment that decides the claim. `where`: places between semicolons."""

        def decorate(measure: Measure) -> Measure:
            self._add(id, where, kind, says, truth, reference, condition, measure)
            return measure

        return decorate

    def beyond_measurement(
        self, id: str, where: str, *, kind: str, says: str, truth: str, reference: str
    ) -> None:
        """A claim that no measurement can settle."""
        self._add(id, where, kind, says, truth, reference, "", None)

    def _add(
        self,
        id: str,
        where: str,
        kind: str,
        says: str,
        truth: str,
        reference: str,
        condition: str,
        measure: Measure | None,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
        self.claims.append(
            Claim(
                id=id,
                theme=self.title,
                where=tuple(place.strip() for place in where.split(";")),
                kind=kind,
                says=says,
                truth=truth,
                reference=reference,
                condition=condition,
                measure=measure,
            )
        )
