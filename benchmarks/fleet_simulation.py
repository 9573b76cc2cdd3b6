"""A thousand machines that differ and die, and fifty thousand workloads: how busy are they, and when is all done?

    python benchmarks/fleet_simulation.py RUN [RUN ...]     # writes docs/sweep-simulation.md

The machines are simulated (`attnlab.runs.sweep_simulation`), event by event; the lengths of workloads are measured:
drawn again, with replacement, from the races of the runs given, as is what a run takes beside its races. The plan is
really cut, written and put together, with the results of these runs, and that is timed on this machine.
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.problem.workload import Workload
from attnlab.runs.plan import Plan
from attnlab.runs.store import RUN_FILE, Run, read_run
from attnlab.runs.sweep_cutting import cut
from attnlab.runs.sweep_estimate import learned
from attnlab.runs.sweep_folder import new_sweep
from attnlab.runs.sweep_merging import write_machines
from attnlab.runs.sweep_simulation import Fleet, Outcome, simulate

PAGE = Path(__file__).parents[1] / "docs" / "sweep-simulation.md"
WORKLOADS, SEED = 50_000, 14
#: workloads to a shard
SIZES = (4, 8, 16, 25)
#: shards whose results are really put together
COLLECTED = 250


def many(count: int) -> Plan:
    """A grid of so many workloads: lengths × heads × dimensions × masks × seeds."""
    found: list[Workload] = []
    for seed in range(count):
        for direction in ("forward", "training"):
            for causal in (False, "top_left"):
                for head_dim in (64, 128):
                    for heads in (1, 4, 16):
                        for length in (64, 128, 256, 512, 1024):
                            found.append(
                                Workload(
                                    queries=length, keys=length, heads=heads, head_dim=head_dim, causal=causal,
                                    direction=direction, seed=seed,
                                )
                            )  # fmt: skip
                            if len(found) == count:
                                return Plan(workloads=tuple(found), contenders=("torch_eager", "torch_sdpa"))
    raise AssertionError


def cutting(plan: Plan, seconds: list[float]) -> tuple[float, float]:
    """Milliseconds a workload to cut the plan alone, and to write all its shards too."""
    started = time.perf_counter()
    cut(plan, len(plan.workloads) // 16, seconds)
    alone = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        new_sweep(plan, Path(folder) / "sweep", len(plan.workloads) // 16, seconds)
        return tuple(1e3 * one / len(plan.workloads) for one in (alone, time.perf_counter() - started))  # type: ignore[return-value]


def collecting(run: Run) -> tuple[float, int]:
    """Milliseconds a workload to put shards together that hold the results of `run`, and how many contenders it has."""
    told = json.loads((run.folder / RUN_FILE).read_text(encoding="utf-8"))
    lines = [
        json.loads(line) for line in (run.folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    plan = Plan(workloads=run.plan.workloads, contenders=("torch_eager",))
    with tempfile.TemporaryDirectory() as folder:
        sweep = new_sweep(plan, Path(folder) / "sweep", 1)
        sizes, shards = (len(run.plan.workloads),) * COLLECTED, Path(folder) / "sweep" / "shards"
        sweep = replace(sweep, told=replace(sweep.told, sizes=sizes))
        for number in range(COLLECTED):
            _shard(shards / f"{number:04d}" / "run-1", told, lines, seed=number)
        started = time.perf_counter()
        write_machines(sweep)
        return 1e3 * (time.perf_counter() - started) / sum(sizes), len(told["contenders"])


def _shard(folder: Path, told: dict[str, Any], lines: list[dict[str, Any]], seed: int) -> None:
    """A run like the one that was measured, over other workloads: those with another seed."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = {**told["plan"], "workloads": [{**one, "seed": seed} for one in told["plan"]["workloads"]]}
    (folder / RUN_FILE).write_text(json.dumps({**told, "plan": plan}), encoding="utf-8")
    with (folder / "results.jsonl").open("w", encoding="utf-8") as file:
        for one in lines:
            file.write(json.dumps({**one, "workload": {**one["workload"], "seed": seed}}) + "\n")


def row(size: int, shards: int, found: Outcome) -> str:
    """A line of the table."""
    cells = (
        size, shards, f"{found.tail / 60:.1f}", f"{found.busy:.1%}", f"{found.useful:.1%}", f"{found.end / 60:.1f}",
        f"{found.ideal / 60:.1f}", found.deaths, found.given_up, found.lost, found.doubled,
    )  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def paragraph(text: str) -> list[str]:
    """`text` in lines."""
    return textwrap.wrap(text, 110, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Simulate, time the cutting, write the page."""
    runs = [read_run(one) for one in sys.argv[1:]]
    if not runs:
        sys.exit("usage: fleet_simulation.py RUN ..., runs of this version, which keep the time of each race")
    costs = learned(runs)
    lengths, overhead = [one.seconds for one in costs.races], costs.overhead
    seconds = np.random.default_rng(SEED).choice(lengths, WORKLOADS)
    plan = many(WORKLOADS)
    alone, written = cutting(plan, seconds.tolist())
    together, contenders = collecting(runs[0])
    by_workload = dict(zip(plan.workloads, seconds, strict=True))
    harder = {"machines differ and die": Fleet(), "die ten times as often": Fleet(between_deaths=10 * 3600.0)}
    harder = {name: replace(one, overhead=overhead, fatal=1e-4, seed=SEED) for name, one in harder.items()}
    head = (
        "| workloads a shard | shards | tail begins (min) | busy until then | in races that count | all done (min) | "
        "ideal (min) | deaths | given up | lost | doubled |"
    )
    page = [
        "# A fleet, simulated",
        "",
        *paragraph(
            f"Made by `python benchmarks/fleet_simulation.py {' '.join(sys.argv[1:])}`. No machine was timed for this "
            f"page but where it says so: 1,000 machines are simulated, and {WORKLOADS:,} workloads whose lengths are "
            "drawn again from "
            f"{len(lengths)} measured races (median {np.median(lengths):.1f} s, least {min(lengths):.1f} s, longest "
            f"{max(lengths):.1f} s; {overhead:.0f} s a shard beside its races)."
        ),
        "",
        *paragraph(
            "Speeds differ with a standard deviation of 20 % (log-normal). A machine dies at random, on average once "
            "in 100 hours or in 10, and is back after 30 minutes; what its shard has finished stays, the workload in "
            "flight is lost. One workload of 10,000 ends every job that tries it: after three its shard is given up. "
            "A machine that is free takes the shard that has most left. The tail begins when no shard waits; *busy* "
            "is the part of all machine time until then, dead machines included, in which a machine has a shard; "
            "*ideal* is all work without loss or start."
        ),
    ]
    for name, fleet in harder.items():
        page += ["", f"## {name[0].upper()}{name[1:]}", "", head, "|" + "---:|" * 11]
        for size in SIZES:
            parts = cut(plan, WORKLOADS // size, seconds.tolist())
            shards = [np.array([by_workload[one] for one in part.workloads]) for part in parts]
            page.append(row(size, len(shards), simulate(shards, fleet)))
    page += [
        "",
        *paragraph(
            "A shard given up leaves the workloads behind the fatal one undone; `attnlab sweep --status` names it. "
            "*Lost* and *doubled* count workloads that are missing, or measured twice, for any other reason."
        ),
        "",
        "## Cutting and collecting",
        "",
        *paragraph(
            f"On the machine that this page was made on, roughly: cutting {WORKLOADS:,} workloads took {alone:.2f} ms "
            f"a workload, with all plan files written {written:.2f} ms; putting {COLLECTED} shards together took "
            f"{together:.2f} ms a workload of {contenders} contenders."
        ),
    ]
    PAGE.write_text("\n".join(page) + "\n", encoding="utf-8")
    print("\n".join(page))


if __name__ == "__main__":
    main()
