"""A faulty attention as data, with the dtypes in which its effect is too small for the check to report."""

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
    """Why a fault does not count in a dtype: its relative `effect` is at most what a right one is `allowed`."""

    effect: float
    allowed: float
    why: str


@dataclass(frozen=True)
class Fault:
    """A named fault of one pass. excuses : the dtypes in which it does not count, each with the reason."""

    name: str
    attention: Attention | Remembering
    direction: str = FORWARD
    excuses: tuple[tuple[str, Excuse], ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes in which it must be caught."""
        return tuple(dtype for dtype in DTYPES if dtype not in dict(self.excuses))


def unit(dtype: str) -> float:
    """The unit roundoff of a dtype."""
    return float(float_format(dtype).unit_roundoff)


def stored_in(low: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused if a right kernel stores the same numbers as coarsely: the dtype's roundoff is at least `low`'s."""
    why = f"a rounding to {low}; an honest kernel stores the same in this dtype"
    return tuple((one, Excuse(unit(low), unit(one), why)) for one in DTYPES if unit(low) <= unit(one))


def shifted_by(effect: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused if a shift that all results share is at most what the check allows for rounded constants."""
    return tuple(
        (one, Excuse(effect, most, why)) for one in DTYPES[1:] if effect <= (most := systematic(one))
    )


def scattered_by(effect: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused if errors without a direction are at most those of storing a number in the dtype, 0.42 u rms."""
    return tuple(
        (one, Excuse(effect, most, why)) for one in DTYPES if effect <= (most := ROUNDING_RMS * unit(one))
    )


def excused(dtype: str, effect: float, allowed: float, why: str) -> tuple[tuple[str, Excuse], ...]:
    """Excused in one dtype, with both numbers."""
    return ((dtype, Excuse(effect, allowed, why)),)


#: from a problem to the one that a faulty kernel answers instead
Change = Callable[[Inputs], Inputs]
#: changes right answers in place
Spoil = Callable[[Answers, Inputs], None]


def given(change: Change) -> Attention:
    """Answer change(problem) instead of the problem."""
    return lambda problem: whole(change(problem))


def inputs(change: Callable[[Array], Array], *names: str) -> Change:
    """Change each of the inputs `names` that is not None."""

    def changed(problem: Inputs) -> Inputs:
        found = {name: getattr(problem, name) for name in names}
        return problem.with_(**{name: change(one) for name, one in found.items() if one is not None})

    return changed


def back(wrong: Attention, *names: str) -> Attention:
    """The right answers, but with the gradients `names` (by default all) of `wrong`."""

    def attend(problem: Inputs) -> Answers:
        right = whole(problem)
        if problem.output_gradient is None:
            return right
        found = wrong(problem)
        return right | {name: found[name] for name in names or NAMES[1:]}

    return attend


def both(name: str, change: Change) -> tuple[Fault, Fault]:
    """Two faults that answer another problem: in the forward pass, and in the backward pass with a right output."""
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
    """The right answers, with spoil(answer) for each of `names` that is present, in its own dtype."""

    def change(found: Answers, problem: Inputs) -> None:
        found |= {name: spoil(found[name]).astype(found[name].dtype) for name in set(names) & set(found)}

    return then(change)
