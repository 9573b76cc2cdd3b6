"""Small sweeps for the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from attnlab.problem.result import Result

PLAN = """
lengths = [8, 16, 32]
heads = [1, 2]
head_dim = 4
backends = ["numpy_vectorized", "numpy_blocked"]
baseline = "numpy_vectorized"
self_test = false
memory = false
ceilings = false
experiments = ["none"]
[limits]
processes = 1
most_processes = 1
min_rounds = 2
max_rounds = 2
workload_seconds = 1
turn_seconds = 0.0001
"""


def plan_file(folder: Path, text: str = PLAN) -> Path:
    """A plan of six workloads and two contenders."""
    file = folder / "plan.toml"
    file.write_text(text, encoding="utf-8")
    return file


def cells(results: Iterable[Result]) -> Counter[tuple[str, str, str]]:
    """Who answered what, and how; how often."""
    return Counter((one.workload.label, one.contender, str(one.outcome)) for one in results)
