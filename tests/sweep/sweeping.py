"""Small sweeps for the tests, and what stands for ``attnlab run`` in them."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import Run, read_run
from attnlab.runs.sweep_folder import Sweep
from attnlab.workload.result import Measurement, Outcome, Result

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
HERE = {"cpu": "this one", "cores": {"logical": 2}, "memory_bytes": 2**33}
LATENCY = Measurement("latency", "s", (2.0, 1.0, 4.0), {"round": (0.0, 1.0, 2.0)})

needs_submitit = pytest.mark.skipif(
    importlib.util.find_spec("submitit") is None,
    reason="submitit is not installed; pip install 'attnlab[sweep]'",
)


def plan_file(folder: Path, text: str = PLAN) -> Path:
    """A plan of six workloads and two contenders."""
    file = folder / "plan.toml"
    file.write_text(text, encoding="utf-8")
    return file


def cells(results: Iterable[Result]) -> Counter[tuple[str, str, str]]:
    """Who answered what, and how; how often."""
    return Counter((one.workload.label, one.contender, str(one.outcome)) for one in results)


def cells_of(sweep: Sweep) -> Counter[tuple[str, str, str]]:
    """Those of all shards."""
    runs = map(read_run, sweep.runs())
    return cells(one for run in runs for one in run.whole())


class Fake:
    """Stands for ``attnlab run``: does so many workloads, then ends as told; the last way is kept to."""

    def __init__(self, here: dict[str, object], *ways: tuple[int | None, int]) -> None:
        self.here, self.ways, self.commands = here, list(ways), list[str]()
        self.torn = b""

    def __call__(self, command: Sequence[str], descriptors: Sequence[int]) -> tuple[int, str]:
        self.commands.append(command[5])
        count, exit_status = self.ways.pop(0) if len(self.ways) > 1 else self.ways[0]
        if command[5] == "--resume":
            run = read_run(command[6])
        else:
            found, folder = Plan.grid(**read_plan(Path(command[6]))), Path(command[8])
            folder.mkdir()
            run = Run(
                folder, found, dict(self.here), found.contenders, str(found.baseline), started="2026-01-01"
            )
            run.save()
        for one in run.left()[:count]:
            run.append(
                [Result(name, one, Outcome.MEASURED, measurements=(LATENCY,)) for name in run.contenders]
            )
        if self.torn:
            with (run.folder / "results.jsonl").open("ab") as file:
                file.write(self.torn)
            self.torn = b""
        if not run.left() and exit_status >= 0:
            run.complete = True
            run.save()
        return exit_status, "what it said last"
