"""One faulty attention as data, and in which dtypes what it does is below what a gate may tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attnlab.correctness.error_budget import ROUNDING_RMS
from attnlab.correctness.questions import BACKWARD, FORWARD
from attnlab.correctness.weighing import systematic
from attnlab.workload.inputs import Inputs
from attnlab.workload.number_formats import float_format

from .parts import NAMES, Answers, Array, Attention, Remembering, whole

DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Excuse:
    """Why a fault is none in a dtype, in numbers: the relative `effect` that it has, and what a right one may have."""

    effect: float
    allowed: float
    why: str


@dataclass(frozen=True)
class Fault:
    """excuses : by dtype."""

    name: str
    attention: Attention | Remembering
    direction: str = FORWARD
    excuses: tuple[tuple[str, Excuse], ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Where it must be caught."""
        return tuple(dtype for dtype in DTYPES if dtype not in dict(self.excuses))


def unit(dtype: str) -> float:
    """The unit roundoff."""
    return float(float_format(dtype).unit_roundoff)


def stored_in(low: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused where an honest kernel stores the same numbers as coarsely: one rounding of `low` against its own."""
    why = f"a rounding to {low}; an honest kernel stores the same in this dtype"
    return tuple((one, Excuse(unit(low), unit(one), why)) for one in DTYPES if unit(low) <= unit(one))


def shifted_by(effect: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused where a shift that all results share is one that the gate leaves to rounded constants."""
    return tuple(
        (one, Excuse(effect, most, why)) for one in DTYPES[1:] if effect <= (most := systematic(one))
    )


def scattered_by(effect: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused where errors without a direction are below what storing a number in the dtype costs, 0.42 u rms."""
    return tuple(
        (one, Excuse(effect, most, why)) for one in DTYPES if effect <= (most := ROUNDING_RMS * unit(one))
    )


def excused(dtype: str, effect: float, allowed: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """One dtype, with both numbers."""
    return ((dtype, Excuse(effect, allowed, why)),)


#: the same problem, or another that a faulty kernel answers instead
Change = Callable[[Inputs], Inputs]
#: right answers changed in place
Spoil = Callable[[Answers, Inputs], None]


def given(change: Change) -> Attention:
    """Another problem is answered."""
    return lambda problem: whole(change(problem))


def inputs(change: Callable[[Array], Array], *names: str) -> Change:
    """Those of the inputs `names` that are given, changed."""

    def changed(problem: Inputs) -> Inputs:
        found = {name: getattr(problem, name) for name in names}
        return problem.with_(**{name: change(one) for name, one in found.items() if one is not None})

    return changed


def back(wrong: Attention, *names: str) -> Attention:
    """The gradients `names`, or all, are those of `wrong`."""

    def attend(problem: Inputs) -> Answers:
        right = whole(problem)
        if problem.output_gradient is None:
            return right
        found = wrong(problem)
        return right | {name: found[name] for name in names or NAMES[1:]}

    return attend


def both(name: str, change: Change) -> tuple[Fault, Fault]:
    """Another problem is answered: by the forward pass; and, the output being right, by the way back."""
    wrong = given(change)
    return Fault(name, wrong), Fault(f"{name}, on the way back", back(wrong), BACKWARD)


def then(spoil: Spoil) -> Attention:
    """The right answers, changed afterwards."""

    def attend(problem: Inputs) -> Answers:
        found = {name: one.copy() for name, one in whole(problem).items()}
        spoil(found, problem)
        return found

    return attend


def each(spoil: Callable[[Array], Array], *names: str) -> Attention:
    """The right answers with `names` replaced by spoil(answer) where they are given, in their own dtype."""

    def change(found: Answers, problem: Inputs) -> None:
        found |= {name: spoil(found[name]).astype(found[name].dtype) for name in set(names) & set(found)}

    return then(change)
