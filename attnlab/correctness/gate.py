"""The accuracy gate: every question, relation and sequence, put to a black box in one dtype.

A black box is a callable from a question to its answers by name: "output", "log sum" where the question asks for ln Z,
and "query gradient", "key gradient" and "value gradient" where its problem has an output gradient. Whatever is named is
weighed. What it declines is not held against it; what it answers is, down to the first fault, which is told with the
question that showed it. A slow one is spared questions by the clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.conditions import Form
from attnlab.correctness.evidence import explained, told_apart, weigh
from attnlab.correctness.gradient_budget import GRADIENT_CLASSES
from attnlab.correctness.questions import Question, Relation, drawn, is_drawn, posed, questions, relations
from attnlab.correctness.tables import (
    BACKWARD_CLASS_FORM,
    CLASS_FORM,
    FIRST,
    REPEATED,
    REPEATED_OFTEN,
    SEQUENCES,
)
from attnlab.errors import Declined, Misbehaved
from attnlab.workload.result import Accuracy
from attnlab.workload.vocabulary import DTYPES, GRADIENTS, LOG_SUM, OUTPUT

#: a backend that needs less than this a query-key pair, on average, is asked everything: array libraries need 1e-8 to
#: 1e-7 with the overhead of small calls, a Python loop 1e-6
FAST_SECONDS_PER_PAIR = 3e-7
#: a slower one is spared a question that would take longer, and all that do not fit into so many seconds
QUESTION_SECONDS = 0.05
SLOW_SECONDS = 2.0
#: one that compiles for every shape is asked nothing new once compiling took so many seconds: a hundred shapes of a
#: graph of a few operators (0.1 to 0.3 s by XLA)
SETUP_SECONDS = 30.0
#: the part of them that single questions may take: the rest is kept for relations and sequences, which show
#: a compiled kernel that is used for what it was not compiled for
SETUP_AT_FIRST = 0.75
#: so many pairs must have been asked before a pace is believed
_PACED_PAIRS = 20_000


#: part of float32's error that float32 inside leaves at the least
_NO_BETTER = 0.01
#: calls of one question of several blocks: a fault that strikes once in ten calls escapes them with a probability of
#: 0.9^20 = 12 % in one dtype, and of 0.9^80 = 0.02 % in all four
_OFTEN = 20
#: who declines so many of the first questions, the plainest ones of several shapes, has no gradients, or no ln Z
_PLAINEST = 4
#: what is asked about: the output, and the gradients of query, key and value; and where it is named, ln Z
FORWARD, BACKWARD = DIRECTIONS = ("forward", "backward")
EVERYTHING = (FORWARD, LOG_SUM, BACKWARD)

#: those that decide the class that is printed
_CLASS_FORMS = (CLASS_FORM.name, BACKWARD_CLASS_FORM.name, "ln Z, precision class")
#: from the tightest to the loosest, and outside of all
_CLASSES = (*GRADIENT_CLASSES, None)

Answers = dict[str, NDArray[Any]]
#: a question to its answers; raises Declined, or Misbehaved for what no caller expects
Ask = Callable[[Question], Answers]


class QuestionBudget:
    """One black box, and the account of what it was asked.

    asked, declined, left_out, uncompiled : numbers of questions; left out is what would take this backend too long,
    uncompiled what was left out because it had compiled for too long by then. refusal : the reason that it gave last
    for declining. clock : seconds that the black box took so far; it stands still by default, so that everything is
    asked. setup : seconds beside them that it took to compile and the like, which the pace leaves out.
    """

    def __init__(
        self,
        ask: Ask,
        on_event: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = lambda: 0.0,
        setup: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._ask, self._on_event, self._clock, self._setup = ask, on_event, clock, setup
        self.asked = self.declined = self.left_out = self.uncompiled = 0
        self.refusal: str | None = None
        self._pairs, self._spent, self._compiling = 0, 0.0, 0.0
        self._setup_seconds = SETUP_AT_FIRST * SETUP_SECONDS
        #: what it compiled for, if it compiles
        self._known: set[int] = set()

    def put(self, question: Question) -> Answers | str | None:
        """The answer, or what it did that no caller expects, in words, or None where it did not answer.

        Whatever else the black box raises comes through.
        """
        if self.too_slow(question):
            self.left_out += 1
            return None
        if self._compiling > self._setup_seconds and id(question) not in self._known:
            self.uncompiled += 1
            return None
        self._on_event(question.text)
        started, set_up = self._clock(), self._setup()
        try:
            answer = self._ask(question)
        except Declined as refusal:
            self.declined += 1
            self.refusal = str(refusal)
            return None
        except Misbehaved as fault:
            return str(fault)
        if self.asked:  # the first call carries a library's start-up
            self._spent += self._clock() - started
            self._compiling += self._setup() - set_up
            self._pairs += question.pairs
        self.asked += 1
        self._known.add(id(question))
        return answer

    def all_set_up(self) -> None:
        """Let what is asked from now on take the rest of the seconds for compiling."""
        self._setup_seconds = SETUP_SECONDS

    def too_slow(self, question: Question) -> bool:
        """Whether it would take this backend too long, by what a pair has cost so far."""
        if self._pairs < _PACED_PAIRS or self._spent / self._pairs < FAST_SECONDS_PER_PAIR:
            return False
        predicted = question.pairs * self._spent / self._pairs
        return predicted > QUESTION_SECONDS or self._spent + predicted > SLOW_SECONDS


@dataclass(frozen=True)
class GateResult:
    """What the gate found in one dtype; `fault` is None where all held.

    asked, declined, left_out, uncompiled : numbers of questions, as of a `QuestionBudget`. drawn : conditions drawn at
    random among those that it answered. precision : by what was asked about (`EVERYTHING`), by the question that tells
    the classes apart, of gradients the least exact; without what was not asked. refusal : why it declined, by what it
    answered nothing of.
    """

    dtype: str
    fault: str | None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    uncompiled: int = 0
    drawn: int = 0
    precision: dict[str, Accuracy] = field(default_factory=dict)
    refusal: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Whether all held, None where it declined everything."""
        if self.fault:
            return False
        return True if self.asked else None


@dataclass
class _Examination:
    """One black box under examination in one dtype and one direction."""

    budget: QuestionBudget
    dtype: str
    seed: int
    direction: str
    parts: int = 1
    precision: Accuracy | None = None
    narrow: bool = False
    drawn: int = 0

    def faults(self) -> Iterator[str | None]:
        """What is wrong with each answer in turn."""
        for question in questions(self.dtype, self.seed, self.direction):
            found = self._answer(question)
            self.drawn += isinstance(found, dict) and is_drawn(question.name)
            yield f"{question.text}: {found}" if isinstance(found, str) else None
            if not self.budget.asked and self.budget.declined == _PLAINEST and self.direction != FORWARD:
                return
        self.budget.all_set_up()
        if self.direction == LOG_SUM:
            return
        if self.direction == FORWARD:
            answers: dict[int, Answers | str | None] = {}
            for relation in relations(self.dtype, self.seed):
                yield self._relate(relation, answers)
        for first, others in self._sequences():
            yield self._in_sequence(first, others)

    def _answer(self, question: Question) -> Answers | str | None:
        """The answers where they are right, what is wrong with the first that is not, or None for no answer."""
        found = self.budget.put(question)
        if found is None or isinstance(found, str):
            return found
        accuracy = []
        for name, reference in question.references_of(self.parts).items():
            said = f"{name}: " if question.kind != FORWARD else ""
            malformed = _malformed(question, name, found.get(name))
            if malformed:
                return said + malformed
            judged = found[name]
            if name in (OUTPUT, LOG_SUM) and question.rows is not None:
                judged = judged[:, :, question.rows]
            weighed = weigh(reference, judged, **question.weighing(name))
            if weighed.reason is not None:
                if self.dtype == "float64" and self.budget.asked == 1 and question.kind == FORWARD:
                    self.narrow = _as_float32(question, judged)
                if name != OUTPUT:
                    return said + weighed.reason
                return said + explained(question.problem, judged, reference, weighed.reason, question.rows)
            accuracy.append(weighed)
        if question.name in _CLASS_FORMS:
            judged_of = accuracy[-1:] if question.form.log_sum else accuracy[-3:]
            self.precision = max(judged_of, key=lambda one: (_CLASSES.index(one.kind), one.ratio))
        return found

    def _relate(self, relation: Relation, answers: dict[int, Answers | str | None]) -> str | None:
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
        often = self._posed(REPEATED_OFTEN) if self.direction == FORWARD else None
        if often is not None and not self.budget.too_slow(often):
            yield often, [often] * (_OFTEN - 1)

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
            if again is None and other is first:
                break
            after = "at once" if other is first else f"after {other.dtype}, {other.condition}"
            fault = self._told_apart(first, was, again, after)
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
    `QuestionBudget`; without a clock everything is asked. parts : into how many the black box cuts the
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
            refused = {direction: "its answers have the precision of float32"}
            declined = budget.asked + budget.declined
            return GateResult(dtype, None, declined=declined, left_out=budget.left_out, refusal=refused)
        if fault or (direction == directions[0] and not budget.asked):
            break
    # the first questions about gradients that are declined by what has none are no questions that it declined
    counted = [
        one.budget for direction, one in done.items() if one.budget.asked or direction == directions[0]
    ]
    names = ("asked", "declined", "left_out", "uncompiled")
    return GateResult(
        dtype=dtype,
        fault=fault,
        **{name: sum(getattr(one, name) for one in counted) for name in names},
        drawn=sum(one.drawn for one in done.values()),
        precision={direction: one.precision for direction, one in done.items() if one.precision},
        refusal={
            direction: one.budget.refusal
            for direction, one in done.items()
            if one.budget.refusal and not one.budget.asked
        },
    )


def forget(inputs: bool = False) -> None:
    """Free the questions asked so far, which serve all backends of a process: those of one dtype take some 300 MB.

    inputs : the drawn inputs too, which all dtypes share: some 100 MB.
    """
    for kept in (posed, relations, *((drawn,) if inputs else ())):
        kept.cache_clear()


def _malformed(question: Question, name: str, answer: NDArray[Any] | None) -> str | None:
    problem = question.problem
    like = dict(zip(GRADIENTS, (problem.query, problem.key, problem.value), strict=True))
    expected: tuple[int, ...] = like[name].shape if name in like else problem.output_shape
    dtype = problem.query.dtype
    if name == LOG_SUM:
        expected, dtype = expected[:3], np.result_type(dtype, np.float32)
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
    found = weigh(narrow, answer, directions=None)
    return found.passed and found.relative_error > _NO_BETTER * narrow.full.relative


def _changed(form: Form, change: str) -> tuple[Form, str | None]:
    """`form` with one thing changed, and the dtype where it is that."""
    if change in DTYPES:
        return form, change
    read = Form.parse(f"{form.name}: {change}")
    key = change.partition("=")[0]
    return replace(form, **{key: getattr(read, key)}), None
