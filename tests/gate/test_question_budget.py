"""Which questions a slow black box is spared, told by a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from attnlab.errors import Declined, Misbehaved
from attnlab.gate.question_budget import (
    QUESTION_SECONDS,
    SETUP_AT_FIRST,
    SETUP_SECONDS,
    SLOW_SECONDS,
    QuestionBudget,
)


@dataclass(frozen=True)
class Size:
    """A question of so many pairs."""

    pairs: int
    text: str = "a question"


class Box:
    """Takes so many seconds a pair, and a second for its first call."""

    def __init__(self, pace: float) -> None:
        self.pace, self.now = pace, 0.0

    def __call__(self, question: Size) -> int:
        self.now += question.pairs * self.pace + (1.0 if self.now == 0 else 0.0)
        return question.pairs

    def budget(self) -> QuestionBudget[Size, int]:
        return QuestionBudget(self, clock=lambda: self.now)


def test_a_fast_box_is_asked_everything() -> None:
    budget = Box(1e-8).budget()
    assert [budget.put(Size(pairs)) for pairs in (10, 10**5, 10**9)] == [10, 10**5, 10**9]
    assert (budget.asked, budget.left_out) == (3, 0)


def test_a_slow_box_is_spared_long_questions_and_then_all_that_do_not_fit() -> None:
    pace = 1e-6
    budget = Box(pace).budget()
    budget.put(Size(10))  # with its start-up, which is not held against it
    assert budget.put(Size(30_000)) == 30_000
    assert budget.put(Size(int(1.1 * QUESTION_SECONDS / pace))) is None
    asked = 0
    while budget.put(Size(30_000)) is not None:
        asked += 1
    spent = (asked + 1) * 30_000 * pace
    assert spent <= SLOW_SECONDS < spent + 30_000 * pace
    assert budget.put(Size(10)) == 10, "a short one still fits"
    assert budget.left_out == 2


class Compiler(Box):
    """Needs a second to compile for every question that it has not seen, and no time to speak of to answer."""

    def __init__(self) -> None:
        super().__init__(1e-9)
        self.compiling = 0.0
        self.seen: set[int] = set()

    def __call__(self, question: Size) -> int:
        self.compiling += question.pairs not in self.seen
        self.seen.add(question.pairs)
        return super().__call__(question)

    def budget(self) -> QuestionBudget[Size, int]:
        return QuestionBudget(self, clock=lambda: self.now, setup=lambda: self.compiling)


def test_one_that_compiles_is_not_slow_and_compiles_for_so_long_only() -> None:
    """What it compiled for it is asked again and again; a part of the time is kept for what comes after all others."""
    box = Compiler()
    budget = box.budget()
    questions = [Size(10_000 + at) for at in range(100)]
    answered = [question for question in questions if budget.put(question) is not None]
    at_first = 2 + int(
        SETUP_AT_FIRST * SETUP_SECONDS
    )  # the first call's is a library's start-up; one goes over
    assert answered == questions[:at_first]
    assert (budget.left_out, budget.uncompiled) == (0, 100 - at_first)
    assert budget.put(answered[-1]) == answered[-1].pairs
    budget.all_set_up()
    more = [question for question in questions if budget.put(question) is not None]
    assert len(more) == 2 + int(SETUP_SECONDS)
    assert box.compiling <= SETUP_SECONDS + 2


def test_one_that_compiles_once_is_asked_everything() -> None:
    """However long that took: it comes with the first call."""
    box = Compiler()
    box.seen = {10_000 + at for at in range(1, 100)}
    box.compiling = 1000 * SETUP_SECONDS
    budget = box.budget()
    for at in range(100):
        assert budget.put(Size(10_000 + at)) is not None
    assert (budget.asked, budget.left_out, budget.uncompiled) == (100, 0, 0)


def test_what_it_declines_and_what_it_does_wrong_is_noted() -> None:
    def ask(question: Size) -> int:
        if question.pairs == 1:
            raise Declined("not one")
        raise Misbehaved("it changed its query array")

    budget = QuestionBudget(ask)
    assert budget.put(Size(1)) is None
    assert (budget.declined, budget.refusal, budget.asked) == (1, "not one", 0)
    assert budget.put(Size(2)) == "it changed its query array"
    with pytest.raises(ZeroDivisionError):
        QuestionBudget[Size, int](lambda question: 1 // 0).put(Size(1))
