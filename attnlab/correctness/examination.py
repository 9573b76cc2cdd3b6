"""One examination: every question and sequence in one dtype, put to a black box down to its first fault.

A black box is a callable from a question to its answers by name: "output", "log sum" where the question asks for ln Z,
and "query gradient", "key gradient" and "value gradient" where its inputs have an output gradient. Every named answer
is weighed. What the black box declines is not held against it. The first fault is told with the question that showed
it. A slow black box is spared questions by the clock that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.correctness.gradient_budget import GRADIENT_CLASSES
from attnlab.correctness.questions import (
    BACKWARD,
    CLASSES,
    FORWARD,
    Question,
    pose,
    questions,
    sequences,
    table,
)
from attnlab.correctness.weighing import allowance, explained, relative_error, weigh
from attnlab.errors import Declined, Misbehaved
from attnlab.workload.result import Accuracy
from attnlab.workload.workload import GRADIENTS, LOG_SUM, OUTPUT

#: seconds that a black box may take for the questions of one kind, and for the sequences after them: array libraries
#: take a second or two, a Python loop as much as it is given, a library that compiles for every shape 0.1 to 0.3 s each
SECONDS, SECONDS_IN_ALL = 8.0, 10.0
#: query-key pairs of a question up to which it is asked every day; larger ones are asked where everything is
DAILY = {FORWARD: 10_000, LOG_SUM: 10_000, BACKWARD: 20_000}
#: calls of one question of several blocks: a fault that strikes once in ten calls escapes them with a probability of
#: 0.9^20 = 12 % in one dtype, and of 0.9^80 = 0.02 % in all four
_OFTEN = 20
#: a backend that declines so many of the first questions, the plainest of several shapes, has no gradients, or no ln Z
_PLAINEST = 4
#: asked again at once, with another between, and again and again: several blocks and two heads, so that what runs at
#: once may collide
_REPEATED, _BETWEEN, _REPEATED_OFTEN = "fewer queries, causal", "normal", "several blocks, causal"
#: from the tightest to the loosest, and outside of all
_CLASSES = (*GRADIENT_CLASSES, None)

Answers = dict[str, NDArray[Any]]
#: a question to its answers; raises Declined, or Misbehaved for what no caller expects
Ask = Callable[[Question], Answers]


@dataclass
class Examined:
    """What was found in one dtype; `fault` is None where all held.

    asked, declined : numbers of questions. left_out : questions that would have taken the black box too long. drawn :
    answered questions that were drawn at random. blamed : another dtype, whose question was answered wrong. precision :
    by what was asked about (`KINDS`), by the question that tells the classes apart, of gradients the least exact.
    refusal : why it declined, by what it answered nothing of. unasked : why it could not be asked at all. lower : the
    number format in which it computes, where that is a lower one. loaded : False for a file that cannot be loaded.
    """

    dtype: str
    fault: str | None = None
    asked: int = 0
    declined: int = 0
    left_out: int = 0
    drawn: int = 0
    blamed: str | None = None
    unasked: str | None = None
    lower: str | None = None
    loaded: bool = True
    precision: dict[str, Accuracy] = field(default_factory=dict)
    refusal: dict[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        """Whether all held, None where it declined everything."""
        return None if self.unasked else False if self.fault else True if self.asked else None


class _Kind:
    """One black box under examination by questions of one kind."""

    def __init__(
        self, ask: Ask, dtype: str, seed: int, kind: str, clock: Callable[[], float], daily: bool
    ) -> None:
        self.ask, self.dtype, self.seed, self.kind = ask, dtype, seed, kind
        self.clock, self.daily, self.found = clock, daily, Examined(dtype)
        self.pairs, self.spent, self.limit = 0, 0.0, SECONDS

    def faults(self) -> Iterator[str | None]:
        """What is wrong with each answer in turn."""
        for question in questions(
            self.dtype, self.seed, self.kind, DAILY[self.kind] if self.daily else np.inf
        ):
            found = self._answer(question)
            self.found.drawn += isinstance(found, dict) and question.name.startswith("drawn ")
            yield f"{question.text}: {found}" if isinstance(found, str) else None
            if not self.found.asked and self.found.declined == _PLAINEST and self.kind != FORWARD:
                return
        self.limit = SECONDS_IN_ALL
        if self.kind != LOG_SUM:
            for first, others in self._sequences():
                yield self._in_sequence(first, others)

    def _put(self, question: Question) -> Answers | str | None:
        """The answer, or what it did that no caller expects, in words, or None where it did not answer."""
        predicted = question.pairs * self.spent / max(self.pairs, 1)
        if self.spent + predicted > self.limit:
            self.found.left_out += 1
            return None
        started = self.clock()
        try:
            answer = self.ask(question)
        except Declined as refusal:
            self.found.declined += 1
            self.found.refusal[self.kind] = str(refusal)
            return None
        except Misbehaved as fault:
            return str(fault)
        if self.found.asked:  # the first call carries a library's start-up
            self.spent += self.clock() - started
            self.pairs += question.pairs
        self.found.asked += 1
        return answer

    def _answer(self, question: Question) -> Answers | str | None:
        """The answers where they are right, what is wrong with the first that is not, or None for no answer."""
        found = self._put(question)
        if found is None or isinstance(found, str):
            return found
        accuracy = []
        for name, reference in question.references.items():
            said = f"{name}: " if question.kind != FORWARD else ""
            malformed = _malformed(question, name, found.get(name))
            if malformed:
                return said + malformed
            judged = found[name]
            if name in (OUTPUT, LOG_SUM) and question.rows is not None:
                judged = judged[:, :, question.rows]
            weighed = weigh(reference, judged, **question.weighing(name))
            if weighed.reason is not None:
                if name != OUTPUT:
                    return said + weighed.reason
                return said + explained(question.inputs, judged, reference, weighed.reason, question.rows)
            accuracy.append(weighed)
        if question.name in CLASSES:
            judged_of = accuracy[-1:] if question.kind == LOG_SUM else accuracy[-3:]
            least = max(judged_of, key=lambda one: (_CLASSES.index(one.kind), one.ratio))
            self.found.precision[self.kind] = least
        return found

    def _sequences(self) -> Iterator[tuple[Question, list[Question]]]:
        """A question, and what is asked before it is asked again: itself, another, one like it but for one thing."""
        again, between = (self._fixed("forward", name) for name in (_REPEATED, _BETWEEN))
        if again is not None and between is not None:
            yield again, [again, between]
        yield from sequences(self.dtype, self.seed, self.kind)
        often = self._fixed("long", _REPEATED_OFTEN) if self.kind == FORWARD else None
        if often is not None:
            yield often, [often] * (_OFTEN - 1)

    def _fixed(self, section: str, name: str) -> Question | None:
        return pose(name, table()[section][name], self.dtype, self.seed, self.kind)

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
                self.found.blamed = other.dtype if other.dtype != self.dtype else None
                return f"{other.text}: {between}, when asked after {first.text}"
            again = self._answer(first)
            if again is None:
                return None
            after = "at once" if other is first else f"after {other.text}"
            if isinstance(again, str):
                return f"{first.text}: {again}, when asked again {after}"
            for name, answer in was.items():
                was_answer, now = (one.astype(np.float64) for one in (answer, again[name]))
                off = relative_error(now - was_answer, was_answer)
                if off > 2**0.5 * allowance(first.references[name].lenient):
                    of = f"{name}: " if first.kind == BACKWARD else ""
                    told = f"asked again {after}, the answer differs by {off:.3g} relative"
                    return f"{first.text}: {of}{told}"
        return None


def examine(
    ask: Ask,
    dtype: str,
    *,
    seed: int = 0,
    kinds: Sequence[str] = (FORWARD, BACKWARD),
    clock: Callable[[], float] = lambda: 0.0,
    daily: bool = False,
) -> Examined:
    """Put every question and sequence in `dtype` to `ask`, up to the first fault.

    kinds : what is asked about, of `KINDS`. clock : processor seconds that `ask` took so far; without a clock nothing
    is left out. daily : without the large questions.
    Whatever else `ask` raises comes through.
    """
    found = Examined(dtype)
    for kind in kinds:
        one = _Kind(ask, dtype, seed, kind, clock, daily)
        found.fault, own = next(filter(None, one.faults()), None), one.found
        found.blamed = own.blamed
        # the first questions about gradients that are declined by what has none are no questions that it declined
        if own.asked or kind == kinds[0]:
            for name in ("asked", "declined", "left_out", "drawn"):
                setattr(found, name, getattr(found, name) + getattr(own, name))
        found.precision |= own.precision
        if not own.asked:
            found.refusal |= own.refusal
        if found.fault or not found.asked:
            break
    return found


def _malformed(question: Question, name: str, answer: NDArray[Any] | None) -> str | None:
    inputs = question.inputs
    like = dict(zip(GRADIENTS, (inputs.query, inputs.key, inputs.value), strict=True))
    expected: tuple[int, ...] = like[name].shape if name in like else inputs.output_shape
    dtype = inputs.query.dtype
    if name == LOG_SUM:
        expected, dtype = expected[:3], np.result_type(dtype, np.float32)
    if answer is None:
        return f"no {name} was returned"
    if answer.shape != expected:
        return f"returned shape {answer.shape}, expected {expected}"
    return None if answer.dtype == dtype else f"returned {answer.dtype}, expected {dtype}"
