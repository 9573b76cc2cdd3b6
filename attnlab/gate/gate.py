"""The accuracy gate: every question, relation and sequence, put to a black box in one dtype.

A black box is a callable from a question to its answers by name: "output", "log sum" where the question asks for ln Z,
and "query gradient", "key gradient" and "value gradient" where its problem has an output gradient. Whatever is named is
weighed. What it declines is not held against it; what it answers is, down to the first fault, which is told with the
question that showed it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.gate import metamorphic
from attnlab.gate.evidence import told_apart, weigh
from attnlab.gate.form import Form
from attnlab.gate.forms import BACKWARD_CLASS_FORM, CLASS_FORM, FIRST, REPEATED, REPEATED_OFTEN, SEQUENCES
from attnlab.gate.lower_precision import explained
from attnlab.gate.question_budget import QuestionBudget
from attnlab.gate.questions import Question, gradient_questions, log_sum_questions, posed, questions
from attnlab.gate.random_conditions import is_drawn
from attnlab.problem.directions import LOG_SUM, OUTPUT
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.result import Accuracy
from attnlab.theory.gradient_budget import GRADIENT_CLASSES

#: part of float32's error that float32 inside leaves at the least
_NO_BETTER = 0.01
#: calls of one question, to meet a fault that strikes once in ten
_OFTEN = 20
#: who declines so many of the first questions, the plainest ones of several shapes, has no gradients, or no ln Z
_PLAINEST = 4
#: what is asked about: the output, and the gradients of query, key and value; and where it is named, ln Z
FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")
EVERYTHING = (FORWARD, LOG_SUM, BACKWARD)
_QUESTIONS = {FORWARD: questions, LOG_SUM: log_sum_questions, BACKWARD: gradient_questions}

#: those that decide the class that is printed
_CLASS_FORMS = (CLASS_FORM.name, BACKWARD_CLASS_FORM.name, "ln Z, precision class")
#: from the tightest to the loosest, and outside of all
_CLASSES = (*GRADIENT_CLASSES, None)

Answers = dict[str, NDArray[Any]]
#: a question to its answers; raises Declined, or Misbehaved for what no caller expects
Ask = Callable[[Question], Answers]


@dataclass(frozen=True)
class GateResult:
    """What the gate found in one dtype; `fault` is None where all held.

    asked, declined, left_out : numbers of questions; left out are those that are too slow for this backend, and
    uncompiled those that came after it had compiled for too long, see `attnlab.gate.question_budget`. drawn :
    conditions drawn at random among those that it answered. precision, gradient_precision : by the question that tells
    the classes apart, of gradients the least exact; None where it was not asked so far. refusal : why it declined,
    where it answered none; gradient_refusal : where it gave no gradients. log_sum_precision, log_sum_refusal : the same
    of ln Z.
    """

    dtype: str
    fault: str | None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    uncompiled: int = 0
    drawn: int = 0
    precision: Accuracy | None = None
    gradient_precision: Accuracy | None = None
    refusal: str | None = None
    gradient_refusal: str | None = None
    log_sum_precision: Accuracy | None = None
    log_sum_refusal: str | None = None

    @property
    def passed(self) -> bool | None:
        """Whether all held, None where it declined everything."""
        if self.fault:
            return False
        return True if self.asked else None


class _Examination:
    """One black box under examination in one dtype and one direction."""

    def __init__(
        self,
        budget: QuestionBudget[Question, Answers],
        dtype: str,
        seed: int,
        direction: str,
        parts: int = 1,
    ) -> None:
        self.budget, self.dtype, self.seed, self.direction = budget, dtype, seed, direction
        self.parts = parts
        self.precision: Accuracy | None = None
        self.narrow = False
        self.drawn = 0

    def faults(self) -> Iterator[str | None]:
        """What is wrong with each answer in turn."""
        for question in _QUESTIONS[self.direction](self.dtype, self.seed):
            yield self._judge(question)
            if not self.budget.asked and self.budget.declined == _PLAINEST and self.direction != FORWARD:
                return
        self.budget.all_set_up()
        if self.direction == LOG_SUM:
            return
        if self.direction == FORWARD:
            answers: dict[int, Answers | str | None] = {}
            for relation in metamorphic.relations(self.dtype, self.seed):
                yield self._relate(relation, answers)
        for first, others in self._sequences():
            yield self._in_sequence(first, others)
        if self.direction == FORWARD:
            yield self._insist()

    def _judge(self, question: Question) -> str | None:
        """Put one question and weigh the answers; a fault names the question."""
        found = self._answer(question)
        if isinstance(found, dict):
            self.drawn += is_drawn(question.name)
        return f"{question.text}: {found}" if isinstance(found, str) else None

    def _answer(self, question: Question) -> Answers | str | None:
        """The answers where they are right, what is wrong with the first that is not, or None for no answer."""
        found = self.budget.put(question)
        if found is None or isinstance(found, str):
            return found
        accuracy, rows = [], question.problem.shape.queries
        for name, reference in question.references_of(self.parts).items():
            said = f"{name}: " if question.kind != FORWARD else ""
            malformed = _malformed(question, name, found.get(name))
            if malformed:
                return said + malformed
            judged = found[name]
            if name in (OUTPUT, LOG_SUM) and question.rows is not None:
                judged = judged[:, :, question.rows]
            weighed = weigh(reference, judged, **question.weighing(name))
            if weighed.fault:
                if self.dtype == "float64" and self.budget.asked == 1 and question.kind == FORWARD:
                    self.narrow = _as_float32(question, judged)
                if name != OUTPUT:
                    return said + weighed.fault
                return said + explained(question.problem, judged, reference, weighed.fault, question.rows)
            accuracy.append(weighed.accuracy(len(question.rows or range(rows)), rows, name))
        if question.name in _CLASS_FORMS:
            judged_of = accuracy[-1:] if question.log_sum else accuracy[-3:]
            self.precision = max(judged_of, key=lambda one: (_CLASSES.index(one.kind), one.ratio))
        return found

    def _relate(self, relation: metamorphic.Relation, answers: dict[int, Answers | str | None]) -> str | None:
        """Put what `relation` asks that was not asked before, and compare."""
        outputs = []
        for question in (*relation.given, relation.asked):
            if id(question) not in answers:
                answers[id(question)] = self._answer(question)
            answer = answers[id(question)]
            if isinstance(answer, str):
                return f"{question.text}: {answer}"
            if answer is None:
                return None
            outputs.append(answer[OUTPUT])
        fault = relation.fault(tuple(outputs[:-1]), outputs[-1])
        return f"{relation.asked.text}: {relation.name}, but {fault}" if fault else None

    def _sequences(self) -> Iterator[tuple[Question, list[Question]]]:
        """A question, and what is asked before it is asked again: itself, another, one like it but for one thing."""
        first, other = self._posed(REPEATED), self._posed(FIRST[0])
        if first is not None and other is not None:
            yield first, [first, other]
        for form, changes in SEQUENCES if self.direction == FORWARD else SEQUENCES[:1]:
            question = self._posed(form)
            others = (self._posed(*_changed(form, change)) for change in changes)
            if question is not None:
                yield question, [one for one in others if one is not None]

    def _posed(self, form: Form, dtype: str | None = None) -> Question | None:
        if self.direction == BACKWARD and not form.upstream:
            form = replace(form, upstream="normal")
        return posed(form, dtype or self.dtype, self.seed)

    def _in_sequence(self, first: Question, others: Sequence[Question]) -> str | None:
        """`first`, then each of the others and `first` again: all right, and the answers to `first` alike.

        A kernel that is kept by a key that leaves something out answers one of the others as it did the first.
        """
        was = self._answer(first)
        if not isinstance(was, dict):
            return was and f"{first.text}: {was}"
        for other in others:
            between = self._answer(other) if other is not first else None
            if isinstance(between, str):
                return f"{other.text}: {between}, when asked after {first.dtype}, {first.condition}"
            again = self._answer(first)
            after = "at once" if other is first else f"after {other.dtype}, {other.condition}"
            fault = self._told_apart(first, was, again, after)
            if fault:
                return fault
        return None

    def _insist(self) -> str | None:
        """A causal question of several blocks twenty times over: what collides only now and then.

        A fault that strikes once in ten calls escapes with a probability of 0.9^20 = 12 % in one dtype, and of
        0.9^80 = 0.02 % in all four. A backend for which it takes too long is not asked.
        """
        question = self._posed(REPEATED_OFTEN)
        assert question is not None
        if self.budget.too_slow(question):
            return None
        was = self._answer(question)
        if not isinstance(was, dict):
            return was and f"{question.text}: {was}"
        for time_ in range(1, _OFTEN):
            again = self._answer(question)
            if again is None:
                break
            fault = self._told_apart(question, was, again, f"for the {time_ + 1}th time")
            if fault:
                return fault
        return None

    def _told_apart(
        self, first: Question, was: Answers, again: Answers | str | None, asked: str
    ) -> str | None:
        if again is None or isinstance(again, str):
            return again and f"{first.text}: {again}, when asked again {asked}"
        for name, answer in was.items():
            told = told_apart(answer, again[name], asked, first.references[name])
            if told:
                return f"{first.text}: {name + ': ' if first.backward else ''}{told}"
        return None


def examine(
    ask: Ask,
    dtype: str,
    *,
    seed: int = 0,
    directions: Sequence[str] = DIRECTIONS,
    on_event: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = lambda: 0.0,
    setup: Callable[[], float] = lambda: 0.0,
    parts: int = 1,
) -> GateResult:
    """Put every question, relation and sequence in `dtype` to `ask`, up to the first fault; outputs, then gradients.

    directions : what is asked about, `DIRECTIONS` or `EVERYTHING`. clock, setup : seconds that `ask` took so far, see
    `attnlab.gate.question_budget`; without a clock everything is asked. parts : into how many the black box cuts the
    keys, see `Backend`. Whatever else `ask` raises comes through. Who answers the first question in float64 as if it
    were in float32 is right but does not have float64: that counts as declined.
    """
    done: dict[str, _Examination] = {}
    fault = None
    for direction in directions:
        budget = QuestionBudget(ask, on_event, clock, setup)
        one = done[direction] = _Examination(budget, dtype, seed, direction, parts)
        fault = next(filter(None, one.faults()), None)
        if one.narrow:
            return GateResult(
                dtype,
                None,
                declined=budget.asked + budget.declined,
                left_out=budget.left_out,
                refusal="its answers have the precision of float32",
            )
        if fault or (direction == directions[0] and not budget.asked):
            break
    budgets = {direction: one.budget for direction, one in done.items()}
    # the first questions about gradients that are declined by what has none are no questions that it declined
    counted = [one for direction, one in budgets.items() if one.asked or direction == directions[0]]
    refusals = {direction: None if one.asked else one.refusal for direction, one in budgets.items()}
    precisions = {direction: one.precision for direction, one in done.items()}
    return GateResult(
        dtype=dtype,
        fault=fault,
        asked=sum(one.asked for one in counted),
        declined=sum(one.declined for one in counted),
        left_out=sum(one.left_out for one in counted),
        uncompiled=sum(one.uncompiled for one in counted),
        drawn=sum(one.drawn for one in done.values()),
        precision=precisions.get(FORWARD),
        gradient_precision=precisions.get(BACKWARD),
        refusal=refusals.get(directions[0]),
        gradient_refusal=refusals.get(BACKWARD),
        log_sum_precision=precisions.get(LOG_SUM),
        log_sum_refusal=refusals.get(LOG_SUM),
    )


def _malformed(question: Question, name: str, answer: NDArray[Any] | None) -> str | None:
    problem = question.problem
    like = {"query gradient": problem.query, "key gradient": problem.key, "value gradient": problem.value}
    expected: tuple[int, ...] = problem.output_shape
    dtype = problem.query.dtype
    if name == LOG_SUM:
        expected, dtype = expected[:3], np.result_type(dtype, np.float32)
    elif name != OUTPUT:
        expected = like[name].shape
    if answer is None:
        return f"no {name} was returned"
    if answer.shape != expected:
        return f"returned shape {answer.shape}, expected {expected}"
    if answer.dtype != dtype:
        return f"returned {answer.dtype}, expected {dtype}"
    return None


def _as_float32(question: Question, answer: NDArray[Any]) -> bool:
    """Whether it would be right in float32, and is no better than that.

    What rounding the inputs costs is within what a q, a k and weights may cost that are stored again.
    """
    narrow = replace(question, problem=question.problem.with_(dtype="float32")).reference
    evidence = weigh(narrow, answer, directions=None)
    return evidence.fault is None and evidence.relative_error > _NO_BETTER * narrow.full.relative


def _changed(form: Form, change: str) -> tuple[Form, str | None]:
    """`form` with one thing changed, and the dtype where it is that."""
    if change in DTYPES:
        return form, change
    read = Form.parse(f"{form.name}: {change}")
    key = change.partition("=")[0]
    return replace(form, **{key: getattr(read, key)}), None
