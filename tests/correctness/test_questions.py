"""Questions from the table and drawn at random: what they contain, and which a slow black box is not asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.correctness.check import SECONDS, SECONDS_IN_ALL, examine
from attnlab.correctness.questions import BACKWARD, COUNTS, FORWARD, KINDS, Question, drawn, pose
from attnlab.errors import Declined
from attnlab.workload.mask_kinds import Part
from attnlab.workload.number_formats import DTYPES, round_to
from attnlab.workload.workload import LOG_SUM, OUTPUT


@given(st.integers(0, 2**31), st.sampled_from(DTYPES), st.sampled_from([FORWARD, BACKWARD]))
@settings(max_examples=5)
def test_a_drawn_question_can_be_posed_and_posed_again(seed: int, dtype: str, kind: str) -> None:
    found = drawn(dtype, seed, kind)
    assert len(found) == COUNTS[kind] and found == drawn(dtype, seed, kind)
    for name, one in found.items():
        assert (question := pose(name, one, dtype, seed)) is None or question.inputs.dtype == dtype


def test_drawn_questions_have_every_kind_of_mask_and_every_part_of_the_contract() -> None:
    """Over a hundred seeds. A kind of mask that is added to the contract is tested without a change here."""
    found = [one for seed in range(100) for one in drawn("float32", seed).values()]
    masks = " ".join(one["mask"] for one in found)
    assert {kind for kind in Part.kinds if kind in masks} == set(Part.kinds) - {"given"}
    for name in ("array", "bias", "softcap", "sinks", "scale", "value_dim"):
        assert any(one.get(name) for one in found), name
    assert any(one["kv_heads"] < one["heads"] for one in found)


def exact(question: Question) -> dict[str, Any]:
    """The right output, rounded."""
    return {OUTPUT: round_to(question.expected[OUTPUT].output, question.inputs.dtype)}


def test_a_slow_one_is_asked_what_fits() -> None:
    """The clock is simulated, in seconds per pair. The slower first call does not count."""
    now, kinds = 100.0, Counter[str]()

    def ask(question: Question) -> dict[str, Any]:
        nonlocal now
        now += question.pairs * 1e-4 + (not kinds)
        kinds[question.kind] += 1
        return exact(question)

    found = examine(ask, "float64", kinds=(FORWARD,), clock=lambda: now)
    assert found.passed and found.asked == kinds[FORWARD] > 5 and found.left_out > 50
    assert SECONDS / 2 < now - 101 < SECONDS_IN_ALL + 3


def test_one_without_ln_z_is_asked_a_few_times_and_goes_on_to_gradients() -> None:
    """A black box that declines the plainest questions about ln Z, or about gradients, is not asked the other ones."""
    seen = Counter[str]()

    def ask(question: Question) -> dict[str, Any]:
        seen[question.kind] += 1
        if question.kind != FORWARD:
            raise Declined(f"no {question.kind}")
        return exact(question)

    found = examine(ask, "float64", kinds=KINDS, daily=True)
    assert found.passed and seen[LOG_SUM] == seen[BACKWARD] == 4
    assert found.refusal == {LOG_SUM: f"no {LOG_SUM}", BACKWARD: f"no {BACKWARD}"}
