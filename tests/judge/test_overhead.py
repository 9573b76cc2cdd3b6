"""What `benchmarks/overhead.py` makes of its pairs of processes: by times written by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from overhead import added, row, workload_for

from attnlab.backend.contender import Contender
from attnlab.problem.workload import Workload


def test_the_length_whose_call_is_nearest_to_a_millisecond_is_taken() -> None:
    """By ratio; what is far longer is not tried."""
    tried = []

    def seconds(one: Contender, workload: Workload) -> float:
        tried.append(workload.keys)
        return 1e-3 * (workload.keys / 200) ** 2

    assert workload_for(Contender.parse("one"), seconds).keys == 256
    assert tried == [16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize(
    ("part", "noise", "verdict"),
    [(0.01, 0.0001, "yes"), (0.05, 0.001, "NO"), (0.02, 0.05, "not decided"), (-0.03, 0.001, "yes")],
)
def test_the_promise_is_judged_by_the_whole_interval(part: float, noise: float, verdict: str) -> None:
    bare = 1e-3 * np.exp(0.2 * np.arange(12))
    harness = bare * (1 + part) * np.exp(noise * np.array([-1.0, 1.0] * 6))
    middle, _, high = added(bare.tolist(), harness.tolist())
    assert math.isclose(middle, part, abs_tol=1e-12)
    # Student's 97.5 % quantile at 11 degrees of freedom is 2.201
    reach = 2.201 * noise * math.sqrt(12 / 11) / math.sqrt(12)
    assert math.isclose(math.log1p(high) - math.log1p(middle), reach, rel_tol=1e-3)
    assert row("one", Workload(), bare.tolist(), harness.tolist())[-1] == verdict


def test_one_pair_decides_nothing() -> None:
    assert added([1e-3], [1e-3]) == (0.0, -1.0, math.inf)
