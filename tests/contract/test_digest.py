"""Equal questions have equal inputs, and a digest that says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from strategies import workloads

from attnlab.errors import Declined
from attnlab.problem.inputs import problem_of
from attnlab.problem.problem import digest, pack, unpack
from attnlab.problem.workload import Workload

SMALL = Workload(
    batch=2, heads=4, kv_heads=2, queries=5, keys=7, head_dim=8, bias="normal", sinks=True, seed=3
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "SMALL"),
        ({"dtype": "bfloat16"}, "BFLOAT16"),
        ({"distribution": "outliers"}, "OUTLIERS"),
    ],
)
def test_inputs_are_the_same_on_every_platform(changes: dict[str, str], expected: str) -> None:
    """As they were when this was written, bit for bit."""
    assert digest(problem_of(SMALL.with_(**changes))) == DIGESTS[expected]


DIGESTS = {
    "SMALL": "c24a6d887d024528",
    "BFLOAT16": "b4832945f0db98ce",
    "OUTLIERS": "18eaeb05464bd4ef",
}


@given(workloads())
def test_equal_workloads_have_one_digest_and_a_packed_problem_keeps_it(workload: Workload) -> None:
    """Drawn twice, and sent to another process."""
    try:
        problem = problem_of(workload)
    except Declined:  # no such numbers in its dtype
        assume(False)
    assert digest(problem) == digest(problem_of(workload)) == digest(unpack(*pack(problem)))


def test_any_change_changes_the_digest() -> None:
    """One bit of one array, the scale, the mask."""
    problem = problem_of(SMALL)
    key = problem.key.copy()
    key[-1, -1, -1, -1] = np.nextafter(key[-1, -1, -1, -1], np.inf)
    others = [problem.with_(key=key), problem.with_(scale=0.5), problem_of(SMALL.with_(causal=True))]
    assert len({digest(one) for one in (problem, *others)}) == 4
