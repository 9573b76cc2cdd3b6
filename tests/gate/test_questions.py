"""Conditions as text, conditions drawn at random, and what a question carries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.gate import forms
from attnlab.gate.form import Form
from attnlab.gate.questions import pose
from attnlab.gate.random_conditions import BACKWARD_COUNT, FORWARD_COUNT, drawn_forms
from attnlab.problem.dtypes import DTYPES
from attnlab.problem.mask_parts import Part


@given(st.integers(0, 2**31), st.sampled_from(DTYPES), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_drawn_condition_is_repeated_from_its_text(seed: int, dtype: str, backward: bool) -> None:
    """Every one of them fits its problem, and the message that names it says all of it."""
    found = drawn_forms(dtype, seed, backward=backward)
    assert len(found) == (BACKWARD_COUNT if backward else FORWARD_COUNT)
    assert found == drawn_forms(dtype, seed, backward=backward)
    for form in found:
        assert Form.parse(f"{form.name}: {form.text}") == form
        form.masked(np.random.default_rng(0)).check(form.shape)
    assert len({form.dim for form in found}) == len(found)


def test_random_conditions_have_every_kind_of_mask_and_every_part_of_the_contract() -> None:
    """Over a hundred seeds; a kind that is added to the contract is drawn without a change here."""
    found = [form for seed in range(100) for form in drawn_forms("float32", seed)]
    kinds = {kind for form in found for kind in Part.kinds if kind in form.mask}
    assert kinds == set(Part.kinds) - {"given"}
    for name in ("array", "bias", "softcap", "sinks", "scale", "kv_heads", "value_dim"):
        assert any(getattr(form, name) for form in found), name
    assert any(form.scale is not None and form.scale < 0 for form in found)


@pytest.mark.parametrize("form", [*forms.BY_NAME.values(), *forms.BACKWARD, *forms.BACKWARD_LONG])
def test_every_fixed_form_is_what_its_text_says(form: Form) -> None:
    """And no two of one table share a name, from which their arrays are drawn."""
    assert Form.parse(f"{form.name}: {form.text}") == form
    names = [one.name for one in (*forms.FORWARD, *forms.LONG, *forms.PATHS)]
    assert len(names) == len(set(names))


def test_a_question_is_told_with_its_whole_condition() -> None:
    """Dtype, name and every field that is not at its default."""
    form = Form.parse("mine: b2 h4/2 n5x9 d8v3 causal bias=1hqk- softcap=3.0 sinks upstream=signs")
    question = pose(form, "bfloat16", 0)
    assert question is not None
    assert question.text == f"gradients in bfloat16, mine ({form.text})"
    assert question.problem.group == 2 and question.problem.output_shape == (2, 4, 5, 3)
    assert question.problem.sinks is not None and question.problem.softcap == 3.0
    again = pose(Form.parse(f"mine: {form.text} draw=1"), "bfloat16", 0)
    assert again is not None and not np.array_equal(again.problem.query, question.problem.query)


def test_what_is_no_condition_is_told() -> None:
    with pytest.raises(ValueError, match="a condition has no 'colour=red'"):
        Form.parse("mine: b1 colour=red")
