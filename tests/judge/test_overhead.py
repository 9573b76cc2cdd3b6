"""What `benchmarks/overhead.py` makes of its pairs of processes: by times written by hand."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attnlab.backends.contender import Contender
from attnlab.problem.workload import Workload

FILE = Path(__file__).parents[2] / "benchmarks" / "overhead.py"
ONE = Contender.parse("one")


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    """The module by its file: benchmarks are no package and are not installed."""
    spec = importlib.util.spec_from_file_location("overhead", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def test_the_length_whose_call_is_nearest_to_a_millisecond_is_taken(overhead: ModuleType) -> None:
    """By ratio; what is far longer is not tried."""
    tried = []

    def seconds(one: Contender, workload: Workload) -> float:
        tried.append(workload.keys)
        return 1e-3 * (workload.keys / 200) ** 2

    assert overhead.workload_for(ONE, seconds).keys == 256
    assert tried == [16, 32, 64, 128, 256, 512]


def test_pairs_are_taken_in_turn(overhead: ModuleType) -> None:
    order = []

    def way(name: str) -> object:
        def seconds(one: Contender, workload: Workload) -> float:
            order.append(name)
            return 1e-3

        return seconds

    row = overhead.measure(ONE, "numpy", 3, way("bare"), way("harness"))
    assert order[len(overhead.LENGTHS) :] == ["bare", "harness", "harness", "bare", "bare", "harness"]
    assert row.added() == (0.0, 0.0, 0.0)
    assert row.verdict() == "yes"


@pytest.mark.parametrize(
    ("added", "noise", "verdict"),
    [(0.01, 0.0001, "yes"), (0.05, 0.001, "NO"), (0.02, 0.05, "not decided"), (-0.03, 0.001, "yes")],
)
def test_the_promise_is_judged_by_the_whole_interval(
    overhead: ModuleType, added: float, noise: float, verdict: str
) -> None:
    steps = noise * np.array([-1.0, 1.0] * 6)
    bare = tuple(1e-3 * np.exp(0.2 * np.arange(12)))
    row = overhead.Row("one", "numpy", Workload(), bare, tuple(np.array(bare) * (1 + added) * np.exp(steps)))
    middle, low, high = row.added()
    assert math.isclose(middle, added, abs_tol=1e-12)
    # Student's 97.5 % quantile at 11 degrees of freedom is 2.201
    reach = 2.201 * noise * math.sqrt(12 / 11) / math.sqrt(12)
    assert math.isclose(math.log1p(high) - math.log1p(middle), reach, rel_tol=1e-3)
    assert math.isclose(math.log1p(middle) - math.log1p(low), reach, rel_tol=1e-3)
    assert row.verdict() == verdict


def test_one_pair_decides_nothing(overhead: ModuleType) -> None:
    row = overhead.Row("one", "numpy", Workload(), (1e-3,), (1e-3,))
    assert row.added() == (0.0, -1.0, math.inf)
    assert row.verdict() == "not decided"


def test_the_page_has_a_row_a_contender_and_says_who_was_not_measured(overhead: ModuleType) -> None:
    row = overhead.Row("one", "numpy", Workload(), (1e-3, 1e-3), (1.01e-3, 1.01e-3))
    shown = overhead.page([row], ["`two`: gone"], "here")
    assert "| `one` | numpy | 512 | 1.000 | 1.010 | +1.00% | +1.00% to +1.00% | 2 | yes |" in shown
    assert "Not measured: `two`: gone." in shown
