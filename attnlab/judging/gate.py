"""The accuracy gate: every question and every relation, put to a black box in one dtype.

A black box is a callable from a question to its answer. What it declines is not held against it; what it answers
is, down to the first fault, which is told with the question that showed it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.ground.errors import Declined
from attnlab.judging import metamorphic
from attnlab.judging.evidence import Evidence, allowance, weigh
from attnlab.judging.posing import Misbehaved, Witness
from attnlab.judging.questions import CLASS_FORM, FIRST, REPEATED, Question, posed, questions

#: a question to its answer; raises Declined, or Misbehaved for what no caller expects
Ask = Callable[[Question], NDArray[Any]]

#: a question that would take longer, by what a pair has cost so far, is left out
QUESTION_SECONDS = 0.07
#: a backend that needs less than this a pair is asked everything: all long questions then take under a second,
#: and a busy machine does not decide what is asked
FAST_SECONDS_PER_PAIR = 3e-7


@dataclass(frozen=True)
class Precision:
    """How exact a backend is in one dtype, by the question that tells the classes apart."""

    kind: str | None
    relative_error: float
    budget_ratio: float
    max_ulp: float
    bias: float


@dataclass(frozen=True)
class Examined:
    """What the gate found in one dtype; `fault` is None where all held. `left_out`: too slow for this backend."""

    dtype: str
    fault: str | None
    asked: int
    declined: int
    left_out: int
    precision: Precision | None

    @property
    def passed(self) -> bool | None:
        """Whether all held, None where it declined everything."""
        if self.fault:
            return False
        return True if self.asked else None


class Session:
    """One black box under examination in one dtype."""

    def __init__(self, ask: Ask, dtype: str, seed: int, on_event: Callable[[str], None]) -> None:
        self._ask = ask
        self.dtype, self.seed, self._on_event = dtype, seed, on_event
        self.asked = self.declined = self.left_out = 0
        self._seconds_per_pair = math.inf
        self.precision: Precision | None = None

    def judge(self, question: Question) -> str | None:
        """Put one question and weigh the answer; a fault names the question."""
        found = self._answer(question)
        if isinstance(found, str):
            return f"{question.text}: {found}"
        return None

    def _answer(self, question: Question) -> NDArray[Any] | str | None:
        """The answer where it is right, what is wrong with it, or None where it was not given."""
        if self._too_slow(question):
            self.left_out += 1
            return None
        self._on_event(question.text)
        started = time.perf_counter()
        try:
            output = self._ask(question)
        except Declined:
            self.declined += 1
            return None
        except Misbehaved as fault:
            return str(fault)
        self._note_speed(question, time.perf_counter() - started)
        self.asked += 1
        if output.shape != (expected := question.reference.output.shape):
            return f"returned shape {output.shape}, expected {expected}"
        if output.dtype != question.q.dtype:
            return f"returned {output.dtype}, expected {question.q.dtype}"
        evidence = weigh(question.reference, output, certain=question.certain, directions=question.directions)
        if question.name == CLASS_FORM.name:
            self.precision = _precision(evidence)
        return evidence.fault or output

    def _too_slow(self, question: Question) -> bool:
        pace = self._seconds_per_pair  # infinite before the first measurement
        return FAST_SECONDS_PER_PAIR < pace < math.inf and question.pairs * pace > QUESTION_SECONDS

    def _note_speed(self, question: Question, seconds: float) -> None:
        if question.pairs >= 4000:  # below, a call's own cost hides that of its pairs
            self._seconds_per_pair = min(self._seconds_per_pair, seconds / question.pairs)

    def relate(self, relation: metamorphic.Relation, kept: dict[int, Any]) -> str | None:
        """Put what `relation` asks that was not asked before, and compare."""
        answers = []
        for question in (*relation.given, relation.asked):
            if id(question) not in kept:
                kept[id(question)] = self._answer(question)
            answer = kept[id(question)]
            if isinstance(answer, str):
                return f"{question.text}: {answer}"
            if answer is None:
                return None
            answers.append(answer)
        fault = relation.fault(tuple(answers[:-1]), answers[-1])
        return f"{relation.asked.text}: {relation.name}, but {fault}" if fault else None

    def repeat(self) -> str | None:
        """One question once more, after all others: an answer must not depend on what was asked before."""
        first, other = (posed(form, self.dtype, self.seed) for form in (REPEATED, FIRST[0]))
        assert first is not None and other is not None
        answers = [self._answer(question) for question in (first, first, other, first)]
        if any(isinstance(one, str) or one is None for one in answers):
            bad = next((one for one in answers if isinstance(one, str)), None)
            return f"{first.text}: {bad}, when asked again" if bad else None
        arrays = [np.asarray(one, dtype=np.float64) for one in answers]
        allowed = 2**0.5 * allowance(first.reference.lenient)
        for again, when in ((arrays[1], "at once"), (arrays[3], "after another call")):
            off = float(np.linalg.norm(again - arrays[0]) / np.linalg.norm(arrays[0]))
            if off > allowed:
                return f"{first.text}: asked again {when}, the answer differs by {off:.3g} relative"
        return None


def examine(
    ask: Ask, dtype: str, *, seed: int = 0, on_event: Callable[[str], None] = lambda text: None
) -> Examined:
    """Put every question and relation in `dtype` to `ask`, up to the first fault.

    Whatever else `ask` raises comes through.
    """
    session = Session(ask, dtype, seed, on_event)
    fault = next(filter(None, _faults(session)), None)
    return Examined(dtype, fault, session.asked, session.declined, session.left_out, session.precision)


def _faults(session: Session) -> Iterable[str | None]:
    for question in questions(session.dtype, session.seed):
        yield session.judge(question)
    kept: dict[int, Any] = {}
    for relation in metamorphic.relations(session.dtype, session.seed):
        yield session.relate(relation, kept)
    yield session.repeat()


def _precision(evidence: Evidence) -> Precision:
    return Precision(evidence.kind, evidence.relative_error, evidence.ratio, evidence.max_ulp, evidence.bias)


def function_asked(attend: Callable[..., NDArray[Any]]) -> Ask:
    """A plain ``attend(q, k, v, *, causal, scale)`` on NumPy arrays as a black box.

    Arrays hold the values of the question's dtype (bfloat16 in float32), laid out as it wants. An exception of
    `attend` is a fault: Misbehaved.
    """
    witness = Witness(np.asarray)

    def ask(question: Question) -> NDArray[Any]:
        refilled = question.layout == "refilled"
        values = -question.v if refilled else question.v
        given = tuple(_laid_out(array, question.layout) for array in (question.q, question.k, values))
        options = {"causal": question.causal, "scale": question.scale}
        try:
            output = witness.watch(given, lambda: attend(*given, **options))
            if refilled:
                given[2][...] = question.v
                output = witness.watch(given, lambda: attend(*given, **options))
        except (Declined, Misbehaved):
            raise
        except Exception as fault:
            raise Misbehaved(f"raised {type(fault).__name__}: {fault}") from None
        return np.array(output)

    return ask


def _laid_out(array: NDArray[Any], layout: str) -> NDArray[Any]:
    from attnlab.ground.libraries import NumPy
    from attnlab.judging.posing import laid_out

    found: NDArray[Any] = laid_out(NumPy(), array, str(array.dtype), layout)
    return found
