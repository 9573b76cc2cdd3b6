"""Questions about ln Z: right answers pass, and every fault is reported."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from attnlab.backends.discovery import load
from attnlab.correctness.check import Answers, examine
from attnlab.correctness.expected import expect
from attnlab.correctness.questions import Question
from attnlab.correctness.weighing import judge
from attnlab.workload.input_generation import inputs_of
from attnlab.workload.inputs import Inputs
from attnlab.workload.masks import EVERYTHING
from attnlab.workload.number_formats import DTYPES, round_to
from attnlab.workload.workload import LOG_SUM, OUTPUT, Workload

Array = NDArray[np.float64]
#: from the right ln Z and the inputs to another ln Z
Change = Callable[[Array, Inputs], Array]
FAULTS: dict[str, Change] = {
    "to base 2": lambda z, p: z / np.log(2),
    "0 where nothing is seen": lambda z, p: np.where(np.isneginf(z), 0.0, z),
    "sinks are forgotten": lambda z, p: exact(p.with_(sinks=None))[1],
    "masked keys are counted": lambda z, p: exact(p.with_(mask=EVERYTHING))[1],
    "a hundredth more": lambda z, p: z + 1e-2,
}


def exact(inputs: Inputs) -> tuple[Array, Array]:
    """The exact output and ln Z."""
    found = expect(inputs, log_sum=True)
    return found[OUTPUT].output, np.where(found[LOG_SUM].infinite, -np.inf, found[LOG_SUM].output)


def asked(change: Change) -> Callable[[Question], Answers]:
    """A black box that answers with the changed ln Z, and rounds once."""

    def ask(question: Question) -> Answers:
        inputs = question.inputs
        output, log_sum = exact(inputs)
        narrow = np.float64 if inputs.dtype == "float64" else np.float32
        z = change(log_sum, inputs)[..., 0].astype(narrow)
        return {OUTPUT: round_to(output, inputs.dtype), LOG_SUM: z}

    return ask


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_right_ln_z_passes_and_one_that_was_stored_coarsely_does_not(dtype: str) -> None:
    """Parts that are merged with a coarse ln Z have wrong weights: a bfloat16 below 8 is wrong by up to 0.016."""
    found = examine(asked(lambda z, p: z), dtype, kinds=(LOG_SUM,))
    assert found.passed, found.fault
    assert 17 <= found.asked <= 18  # float16 does not hold the largest logits
    assert found.precision[LOG_SUM].kind == "full precision inside"
    stored = {"float64": "float32", "float16": "float16"}.get(dtype, "bfloat16")
    coarse = asked(lambda z, p: round_to(z, stored).astype(np.float64))
    assert examine(coarse, dtype, kinds=(LOG_SUM,)).passed is False


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_ln_z_is_told(fault: str) -> None:
    dtype = DTYPES[list(FAULTS).index(fault) % len(DTYPES)]
    found = examine(asked(FAULTS[fault]), dtype, kinds=(LOG_SUM,))
    assert found.passed is False and (found.fault or "").startswith("ln Z in ")


def test_equal_terms_below_a_sink_may_round_alike() -> None:
    """In a long sum their errors add up linearly, which is allowed. A larger error in ln Z still fails."""
    workload = Workload(heads=6, queries=1, keys=500, head_dim=2, dtype="float64", scale=0.0, sinks=True)
    workload = workload.with_(direction="forward_with_log_sum")
    inputs, backend = inputs_of(workload).with_(sinks=np.linspace(0.5, 2, 6)), load("naive_loop")
    answers = backend.named(workload, backend.bind(workload, inputs)())
    found = judge(workload, inputs, [0], answers, None)
    assert found.passed, found.reason
    assert not judge(workload, inputs, [0], {**answers, LOG_SUM: answers[LOG_SUM] * (1 + 1e-13)}, None).passed
