"""Who rounds the outputs of parts of the keys before it merges them is right where it says so, and no one else is."""

from __future__ import annotations

import numpy as np
import pytest

from attnlab.backends.discovery import backend_of, load
from attnlab.errors import Declined
from attnlab.gate.gate import FORWARD, Answers, examine
from attnlab.gate.questions import Question
from attnlab.gate.reference import OUTPUT
from attnlab.problem.dtypes import round_to
from attnlab.problem.problem import places
from attnlab.theory.log_sum_budget import log_sums


def in_two(question: Question) -> Answers:
    """Two halves, each rounded to the inputs' format, merged in float64."""
    problem = question.problem
    if question.splits > 1 or problem.sinks is not None:
        raise Declined("whole keys without sinks only")
    cuts = places(problem.shape.keys, 2) if problem.shape.keys > 1 else []
    found = [log_sums(part) for _, part in problem.parts(cuts)]
    logarithms = np.stack([one.log_sum for one in found])
    top = np.where(np.isfinite(logarithms).any(axis=0), logarithms.max(axis=0), 0.0)
    weights = np.exp(logarithms - top)
    total = weights.sum(axis=0)
    shares = weights / np.where(total > 0, total, 1.0)
    merged = sum(
        share * round_to(one.output, problem.dtype) for share, one in zip(shares, found, strict=True)
    )
    return {OUTPUT: round_to(np.asarray(merged), problem.dtype)}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_parts_are_right_where_they_are_said(dtype: str) -> None:
    assert examine(in_two, dtype, directions=(FORWARD,), parts=2).fault is None
    unsaid = examine(in_two, dtype, directions=(FORWARD,)).fault
    assert unsaid is not None and "predicted standard deviations" in unsaid


def test_parts_do_not_excuse_a_wrong_answer() -> None:
    """Five units in the last place of a half-precision format."""

    def off(question: Question) -> Answers:
        answer = in_two(question)[OUTPUT]
        return {OUTPUT: round_to(answer * (1 + 5 * 2.0**-8), question.dtype)}

    assert examine(off, "bfloat16", directions=(FORWARD,), parts=2).fault


def test_a_ring_says_its_parts() -> None:
    """Two stretches on every rank; one process alone merges nothing."""
    assert load("torch_ring", (), {"processes": "3"}).parts == 6
    assert load("torch_ring", (), {"processes": "1"}).parts == load("torch_eager").parts == 1


@pytest.mark.parametrize("said", [0, 1.5, True, "2"])
def test_parts_are_a_whole_number(said: object) -> None:
    from types import ModuleType

    module = ModuleType("mine")
    vars(module).update(LIBRARY="numpy", PARTS=said, attend=lambda query, key, value, *, causal, scale: query)
    with pytest.raises(ValueError, match=r"mine: PARTS must be a whole number from 1 on, got "):
        backend_of("mine", module)
