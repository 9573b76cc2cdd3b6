"""Conditions as text and drawn at random, what a question carries, and which questions a slow black box is spared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.correctness import tables
from attnlab.correctness.conditions import Form
from attnlab.correctness.gate import (
    QUESTION_SECONDS,
    SETUP_AT_FIRST,
    SETUP_SECONDS,
    SLOW_SECONDS,
    QuestionBudget,
)
from attnlab.correctness.questions import BACKWARD_COUNT, FORWARD_COUNT, Question, drawn_forms, posed
from attnlab.workload.mask_kinds import Part
from attnlab.workload.vocabulary import DTYPES


@given(st.integers(0, 2**31), st.sampled_from(DTYPES), st.booleans())
@settings(max_examples=20)
def test_a_drawn_condition_is_repeated_from_its_text(seed: int, dtype: str, backward: bool) -> None:
    """Every one of them fits its problem, and the message that names it says all of it."""
    found = drawn_forms(dtype, seed, backward=backward)
    assert len(found) == (BACKWARD_COUNT if backward else FORWARD_COUNT)
    assert found == drawn_forms(dtype, seed, backward=backward)
    for form in found:
        assert Form.parse(f"{form.name}: {form.text}") == form
        form.masked(np.random.default_rng(0)).check(form.shape)


def test_random_conditions_have_every_kind_of_mask_and_every_part_of_the_contract() -> None:
    """Over a hundred seeds; a kind that is added to the contract is drawn without a change here."""
    found = [form for seed in range(100) for form in drawn_forms("float32", seed)]
    assert {kind for form in found for kind in Part.kinds if kind in form.mask} == set(Part.kinds) - {"given"}
    for name in ("array", "bias", "softcap", "sinks", "scale", "kv_heads", "value_dim"):
        assert any(getattr(form, name) for form in found), name


def test_every_fixed_form_is_what_its_text_says() -> None:
    """And no two of one table share a name, from which their arrays are drawn."""
    for form in (*tables.BY_NAME.values(), *tables.BACKWARD, *tables.BACKWARD_LONG):
        assert Form.parse(f"{form.name}: {form.text}") == form
    names = [one.name for one in (*tables.FORWARD, *tables.LONG, *tables.PATHS)]
    assert len(names) == len(set(names))
    with pytest.raises(ValueError, match="a condition has no 'colour=red'"):
        Form.parse("mine: b1 colour=red")


def test_a_question_is_told_with_its_whole_condition() -> None:
    """Dtype, name and every field that is not at its default; another draw has other arrays."""
    form = Form.parse("mine: b2 h4/2 n5x9 d8v3 causal bias=1hqk- softcap=3.0 sinks upstream=signs")
    question, again = (posed(one, "bfloat16", 0) for one in (form, Form.parse(f"mine: {form.text} draw=1")))
    assert question is not None and again is not None
    assert question.text == f"gradients in bfloat16, mine ({form.text})"
    assert question.problem.group == 2 and question.problem.output_shape == (2, 4, 5, 3)
    assert question.problem.sinks is not None and question.problem.softcap == 3.0
    assert not np.array_equal(again.problem.query, question.problem.query)


# -- what a slow one is spared, by a clock of the test's own


def sized(pairs: int, draw: int = 0) -> Question:
    """A question of so many pairs of a query and a key."""
    found = posed(Form.parse(f"sized: h1 n1x{pairs} d1 draw={draw}"), "float32", 0)
    assert found is not None
    return found


class Box:
    """Takes so many seconds a pair, a second for its first call, and one to compile for each new question."""

    def __init__(self, pace: float, compiles: bool = False) -> None:
        self.pace, self.compiles, self.now, self.compiling = pace, compiles, 0.0, 0.0
        self.seen: set[int] = set()
        self.budget = QuestionBudget(self, clock=lambda: self.now, setup=lambda: self.compiling)

    def __call__(self, question: Question) -> dict[str, Any]:
        self.now += question.pairs * self.pace + (not self.seen)
        self.compiling += self.compiles and id(question) not in self.seen
        self.seen.add(id(question))
        return {}

    def answers(self, question: Question) -> bool:
        """Whether it was asked."""
        return self.budget.put(question) is not None


def test_a_fast_one_is_asked_everything_and_a_slow_one_what_fits() -> None:
    fast, slow = Box(1e-8), Box(1e-6)
    assert all(fast.answers(sized(30_000, draw)) for draw in range(200))
    assert slow.answers(sized(10)), "its start-up is not held against it"
    assert slow.answers(sized(30_000))
    assert not slow.answers(sized(int(1.1 * QUESTION_SECONDS / 1e-6)))
    asked = 0
    while slow.answers(sized(30_000)):
        asked += 1
    spent = (asked + 1) * 30_000 * 1e-6
    assert spent <= SLOW_SECONDS < spent + 30_000 * 1e-6
    assert slow.answers(sized(10)), "a short one still fits"
    assert slow.budget.left_out == 2


def test_one_that_compiles_is_not_slow_and_compiles_for_so_long_only() -> None:
    """What it compiled for it is asked again and again; a part of the time is kept for what comes after all others."""
    box = Box(1e-9, compiles=True)
    given_ = [sized(100 + at) for at in range(100)]
    answered = [one for one in given_ if box.answers(one)]
    # the first is start-up; one goes over
    assert answered == given_[: 2 + int(SETUP_AT_FIRST * SETUP_SECONDS)]
    assert (box.budget.left_out, box.budget.uncompiled) == (0, 100 - len(answered))
    assert box.answers(answered[-1])
    box.budget.all_set_up()
    assert sum(box.answers(one) for one in given_) == 2 + int(SETUP_SECONDS)
