"""The gate of ln Z, right ones pass, and every fault is told."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.backends.discovery import backend_of, load
from attnlab.correctness.gate import EVERYTHING, FORWARD, Answers, examine
from attnlab.correctness.questions import Question
from attnlab.correctness.tables import LOG_SUMS
from attnlab.errors import Declined
from attnlab.lab.theory import log_sums
from attnlab.workload.inputs import Inputs
from attnlab.workload.masks import EVERYTHING as ALL
from attnlab.workload.vocabulary import DTYPES, LOG_SUM, OUTPUT, round_to

Array = NDArray[np.float64]
#: output and ln Z in float64
Attention = Callable[[Inputs], tuple[Array, Array]]


def whole(problem: Inputs) -> tuple[Array, Array]:
    found = log_sums(problem)
    return found.output, found.log_sum


def other(change: Callable[[Array, Inputs], Array]) -> Attention:
    """Another ln Z, of the right one and the problem."""

    def attention(problem: Inputs) -> tuple[Array, Array]:
        output, z = whole(problem)
        return output, change(z, problem)

    return attention


FAULTS: dict[str, Attention] = {
    "to base 2": other(lambda z, p: z / np.log(2)),
    "0 where nothing is seen": other(lambda z, p: np.where(np.isneginf(z), 0.0, z)),
    "sinks are forgotten": other(lambda z, p: log_sums(p.with_(sinks=None)).log_sum),
    "masked keys are counted": other(lambda z, p: log_sums(p.with_(mask=ALL)).log_sum),
    "a hundredth more": other(lambda z, p: z + 1e-2),
}


def asked(attention: Attention, stored: str | None = None) -> Callable[[Question], Answers]:
    """As a black box that rounds once; ln Z to the format `stored`, where one is given, before its own."""

    def ask(question: Question) -> Answers:
        if not question.form.log_sum:
            raise Declined("only ln Z is asked for here")
        problem = question.problem
        output, z = attention(problem)
        narrow = np.float64 if problem.dtype == "float64" else np.float32
        z = z if stored is None else round_to(z, stored).astype(np.float64)
        return {OUTPUT: round_to(output, problem.dtype), LOG_SUM: z[..., 0].astype(narrow)}

    return ask


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_ln_z_passes_and_one_that_was_stored_coarsely_does_not(dtype: str) -> None:
    """Parts that are merged by it would be weighted wrongly: a bfloat16 of 8 is off by up to 0.016."""
    found = examine(asked(whole), dtype, directions=(LOG_SUM,))
    assert found.passed, found.fault
    assert len(LOG_SUMS) - 2 <= found.asked <= len(LOG_SUMS)  # float16 does not hold the largest logits
    assert found.precision[LOG_SUM].kind == "full precision inside"
    coarse = asked(whole, {"float64": "float32", "float16": "float16"}.get(dtype, "bfloat16"))
    assert examine(coarse, dtype, directions=(LOG_SUM,)).passed is False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ln_z_is_told(fault: str) -> None:
    dtype = DTYPES[list(FAULTS).index(fault) % len(DTYPES)]
    found = examine(asked(FAULTS[fault]), dtype, directions=(LOG_SUM,))
    assert found.passed is False and (found.fault or "").startswith("ln Z in ")


def test_who_gives_none_is_asked_a_few_times_and_goes_on_to_gradients() -> None:
    """As with gradients: what declines the plainest questions, of several shapes, is not asked the rest."""
    seen: list[str] = []

    def ask(question: Question) -> Answers:
        seen.append(question.kind)
        if question.kind != FORWARD:
            raise Declined(f"no {question.kind}")
        return {OUTPUT: round_to(question.reference.output, question.dtype)}

    found = examine(ask, "float64", directions=EVERYTHING)
    assert found.passed and seen.count(LOG_SUM) == seen.count("backward") == 4
    assert found.refusal == {LOG_SUM: f"no {LOG_SUM}", "backward": "no backward"}


@pytest.mark.parametrize("said", [0, 1.5, True, "2"])
def test_parts_are_a_whole_number(said: object) -> None:
    """A ring says its own: two stretches on every rank; one process alone merges nothing."""
    assert load("torch_ring", (), {"processes": "3"}).parts == 6
    assert load("torch_ring", (), {"processes": "1"}).parts == load("torch_eager").parts == 1
    module: Any = ModuleType("mine")
    vars(module).update(LIBRARY="numpy", PARTS=said, attend=lambda query, key, value, *, causal, scale: query)
    with pytest.raises(ValueError, match=r"mine: PARTS must be a whole number from 1 on, got "):
        backend_of("mine", module)
