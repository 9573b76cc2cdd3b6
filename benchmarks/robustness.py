"""What survives: faults in every phase, kills at random, malformed input, and thousands of workloads in one run.

``python benchmarks/robustness.py [PART ...] [--kills 200] [--lines 12000] [--workloads 2000]``; the parts are `matrix`,
`soak`, `fuzz`, `leaks` and `store`, all of them by default.
Each part adds its figures to ``benchmarks/robustness.json`` and ``docs/robustness.md`` is written whole from that file.
`soak` takes about eleven seconds a kill, `leaks` about two minutes, the others one to three minutes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from robustness_parts import REPOSITORY, Figures, say
from robustness_parts.kills import soak
from robustness_parts.malformed import fuzz
from robustness_parts.page import page

from attnlab.backends.contender import parse_all
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.runs.lock import held
from attnlab.runs.store import read_run, require_run

from matrix import DEADLINE, FAULTS, GOOD, PHASES, contender, expected, race  # isort: skip

#: results of the run that is gone on with
RESULTS = 10_000
STORE, PAGE = Path(__file__).with_suffix(".json"), REPOSITORY / "docs" / "robustness.md"


# -- faults ---------------------------------------------------------------------------------------------------------


def matrix(asked: argparse.Namespace) -> Figures:
    """Every fault in every phase, beside two good backends."""
    rows: dict[str, dict[str, str]] = {fault: {} for fault in FAULTS}
    harmed, left = [], 0
    for phase in PHASES:
        say(f"faults: {phase}")
        trial = race(phase, list(FAULTS))
        left += trial.left
        harmed += [f"{phase}: {name}" for name in GOOD if trial.results[name].outcome != "measured"]
        for fault in FAULTS:
            result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
            right = result.outcome == outcome and words in (result.reason or "")
            noted = " (noted)" if outcome == "measured" and words else ""
            rows[fault][phase] = f"{result.outcome}{noted}" if right else f"**{result.outcome}**"
    return {"rows": rows, "harmed": harmed, "left": left, "deadline_s": DEADLINE}


# -- thousands of workloads -----------------------------------------------------------------------------------------


def leaks(asked: argparse.Namespace) -> Figures:
    """One conductor over so many workloads: its memory, open files and processes at the start and in the end."""
    limits = Limits(
        processes=1, most_processes=1, min_rounds=2, max_rounds=2, workload_seconds=0.01, turn_seconds=1e-4
    )
    names, own, figures = ["numpy_vectorized", "numpy_blocked"], psutil.Process(), []
    shapes = [(heads, length) for heads in (1, 2, 4) for length in range(4, 36)]
    started = time.monotonic()
    with Conductor(parse_all(names), limits=limits) as conductor:
        for number in range(asked.workloads):
            heads, length = shapes[number % len(shapes)]
            conductor.race(Workload(heads=heads, queries=length, keys=length, head_dim=8, seed=number))
            if number + 1 in (asked.workloads // 10, asked.workloads):
                children = len(own.children(recursive=True))
                figures.append([own.memory_info().rss / 2**20, own.num_fds(), children])
                say(f"leaks: {number + 1} workloads, {figures[-1]}")
    return {
        "workloads": asked.workloads,
        "seconds": round(time.monotonic() - started),
        "early": figures[0],
        "late": figures[1],
    }


# -- what keeping costs ---------------------------------------------------------------------------------------------


def store(asked: argparse.Namespace) -> Figures:
    """What going on with 10,000 results costs before the first race, and what keeping costs of a run's time.

    Both with the results of the reference run, told apart by the seed of their workloads.
    """
    reference = read_run(REPOSITORY / "reports" / "reference")
    by_workload: dict[Workload, list[Result]] = {}
    for result in reference.results:
        by_workload.setdefault(result.workload, []).append(result)
    workloads, kept = list(by_workload), 0
    with tempfile.TemporaryDirectory(prefix="attnlab-store-") as folder:
        planned = [
            one.with_(seed=seed)
            for seed in range(-(-RESULTS // len(reference.results)) + 1)
            for one in workloads
        ]
        plan = replace(reference.plan, workloads=tuple(planned))
        run = replace(reference, folder=Path(folder), plan=plan, results=[], findings=[], complete=False)
        run.save()
        spent: list[float] = []
        for one in planned:
            if kept >= RESULTS:
                break
            results = [replace(old, workload=one) for old in by_workload[one.with_(seed=workloads[0].seed)]]
            started = time.perf_counter()
            run.append(results)
            spent.append(time.perf_counter() - started)
            kept += len(results)
        started = time.perf_counter()
        run.save()
        saving = time.perf_counter() - started
        started = time.perf_counter()
        with held(require_run(folder)):
            again = read_run(folder)
            left = len(again.left())
            assert again.whole() == len(again.results) == kept
        reading = time.perf_counter() - started
    measuring = sum(reference.account.values())
    costs = sum(spent) / len(spent) * len(workloads) + 4 * saving
    return {
        "results": kept,
        "left": left,
        "resume_s": round(reading, 2),
        "share": costs / measuring,
        "append_ms": 1e3 * sum(spent) / len(spent),
        "measuring_s": round(measuring),
    }


def keep(name: str, found: Figures) -> None:
    """Put a part's figures into the store, and write the page from it."""
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    figures[name] = {**found, "at": datetime.now(UTC).strftime("%Y-%m-%d")}
    STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(figures), encoding="utf-8")


PARTS: dict[str, Callable[[argparse.Namespace], Figures]] = {
    "matrix": matrix,
    "soak": lambda asked: soak(asked.kills, partial(keep, "soak")),
    "fuzz": lambda asked: fuzz(asked.lines),
    "leaks": leaks,
    "store": store,
}


def main() -> None:
    """Measure the parts that are named, all by default, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lines", type=int, default=12_000)
    parser.add_argument("--workloads", type=int, default=2_000)
    asked = parser.parse_args()
    for name in asked.parts or PARTS:
        keep(name, PARTS[name](asked))


if __name__ == "__main__":
    main()
