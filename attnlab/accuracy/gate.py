"""The accuracy gate: every question and every relation, put to a black box in one dtype.

A black box is a callable from a question to its answer. What it declines is not held against it; what it answers
is, down to the first fault, which is told with the question that showed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.accuracy import metamorphic
from attnlab.accuracy.evidence import told_apart, weigh
from attnlab.accuracy.gate_result import Examined, Precision
from attnlab.accuracy.question_budget import Asking
from attnlab.accuracy.questions import CLASS_FORM, FIRST, REPEATED, REPEATED_OFTEN, Question, posed, questions
from attnlab.accuracy.reference import refer
from attnlab.contract.errors import Declined
from attnlab.libraries.numpy_library import NumPy
from attnlab.measuring.probe import Misbehaved, Witness

#: part of float32's error that float32 inside leaves at the least
_NO_BETTER = 0.01
#: calls of one question, to meet a fault that strikes once in ten
_OFTEN = 20

#: a question to its answer; raises Declined, or Misbehaved for what no caller expects
Ask = Callable[[Question], NDArray[Any]]


class Session:
    """One black box under examination in one dtype."""

    def __init__(self, asking: Asking[Question, NDArray[Any]], dtype: str, seed: int) -> None:
        self.asking, self.dtype, self.seed = asking, dtype, seed
        self.precision: Precision | None = None
        self.narrow = False

    def judge(self, question: Question) -> str | None:
        """Put one question and weigh the answer; a fault names the question."""
        found = self._answer(question)
        if isinstance(found, str):
            return f"{question.text}: {found}"
        return None

    def _answer(self, question: Question) -> NDArray[Any] | str | None:
        """The answer where it is right, what is wrong with it, or None where it was not given."""
        output = self.asking.put(question)
        if output is None or isinstance(output, str):
            return output
        if output.shape != (expected := question.answer_shape):
            return f"returned shape {output.shape}, expected {expected}"
        if output.dtype != question.q.dtype:
            return f"returned {output.dtype}, expected {question.q.dtype}"
        judged = output if question.every == 1 else output[:, :, question.rows]
        evidence = weigh(question.reference, judged, certain=question.certain, directions=question.directions)
        if question.name == CLASS_FORM.name:
            self.precision = Precision.of(evidence)
        if evidence.fault and self.dtype == "float64" and self.asking.asked == 1:
            self.narrow = _as_float32(question, judged)
        return evidence.fault or output

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
        return self._told_apart(first, (first, first, other, first), {1: "at once", 3: "after another call"})

    def insist(self) -> str | None:
        """A causal question of several blocks twenty times over: what collides only now and then.

        A fault that strikes once in ten calls escapes with a probability of 0.9^20 = 12 % in one dtype, and of
        0.9^80 = 0.02 % in all four. A backend for which it takes too long is not asked.
        """
        question = posed(REPEATED_OFTEN, self.dtype, self.seed)
        assert question is not None
        if self.asking.too_slow(question):
            return None
        often = {at: f"for the {at + 1}th time" for at in range(_OFTEN)}
        return self._told_apart(question, (question,) * _OFTEN, often)

    def _told_apart(self, first: Question, asked: Iterable[Question], when: dict[int, str]) -> str | None:
        """Ask, and hold the answers numbered in `when` against the first."""
        answers: list[NDArray[Any]] = []
        for question in asked:
            answer = self._answer(question)
            if answer is None or isinstance(answer, str):
                return answer and f"{question.text}: {answer}, when asked again"
            answers.append(answer)
        told = told_apart([answers[0], *(answers[at] for at in when)], list(when.values()), first.reference)
        return told and f"{first.text}: {told}"


def examine(
    ask: Ask,
    dtype: str,
    *,
    seed: int = 0,
    on_event: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Examined:
    """Put every question and relation in `dtype` to `ask`, up to the first fault.

    clock : see `attnlab.accuracy.question_budget`. Whatever else `ask` raises comes through. Who answers the first
    question in float64 as if it were in float32 is right but does not have float64: that counts as declined.
    """
    session = Session(Asking(ask, on_event, clock), dtype, seed)
    fault = next(filter(None, _faults(session)), None)
    if session.narrow:
        return Examined.none(dtype, session.asking, "its answers have the precision of float32")
    return Examined.of(dtype, fault, session.asking, session.precision)


def _as_float32(question: Question, answer: NDArray[Any]) -> bool:
    """Whether it would be right in float32, and is no better than that.

    What rounding the inputs costs is within what a q, a k and weights may cost that are stored again.
    """
    narrow = refer(question.problem.with_(dtype="float32"), question.rows)["output"]
    evidence = weigh(narrow, answer, directions=None)
    return evidence.fault is None and evidence.relative_error > _NO_BETTER * narrow.full.relative


def _faults(session: Session) -> Iterable[str | None]:
    for question in questions(session.dtype, session.seed):
        yield session.judge(question)
    kept: dict[int, Any] = {}
    for relation in metamorphic.relations(session.dtype, session.seed):
        yield session.relate(relation, kept)
    yield session.repeat()
    yield session.insist()


def function_asked(attend: Callable[..., NDArray[Any]]) -> Ask:
    """A plain ``attend(q, k, v, *, causal, scale)`` on NumPy arrays as a black box.

    Arrays hold the values of the question's dtype (bfloat16 in float32), laid out as it wants. An exception of
    `attend` is a fault: Misbehaved.
    """
    witness, library = Witness(np.asarray), NumPy()

    def ask(question: Question) -> NDArray[Any]:
        arrays = (question.q, question.k, question.v)
        asked = partial(attend, causal=question.causal, scale=question.scale)
        try:
            output = witness.asked(asked, library, arrays, str(question.q.dtype), question.layout)
        except (Declined, Misbehaved):
            raise
        except Exception as fault:
            raise Misbehaved(f"raised {type(fault).__name__}: {fault}") from None
        return np.array(output)

    return ask
