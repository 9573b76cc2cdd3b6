"""What survives: faults in every phase, kills at random, malformed input, and thousands of workloads in one run.

``python benchmarks robustness [PART ...] [--kills 200] [--lines 12000] [--workloads 2000]``; the parts are `matrix`,
`soak`, `fuzz`, `leaks` and `store`, all of them by default. Each part adds its figures to
``benchmarks/robustness.json``, and ``docs/robustness.md`` is written whole from that file. `soak` takes about eleven
seconds a kill, `leaks` about two minutes, the others one to three minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from common import HOME, REPOSITORY, command_line, page, say, table
from random_damage import Figures, fuzz, soak

from attnlab.backends.contender import parse_all
from attnlab.problem.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.runs.lock import held
from attnlab.runs.store import read_run, require_run

sys.path.insert(0, str(REPOSITORY / "tests" / "robustness"))

from matrix import DEADLINE, FAULTS, GOOD, PHASES, contender, expected, race

#: results of the run that is gone on with
RESULTS = 10_000
STORE, PAGE = HOME / "robustness.json", REPOSITORY / "docs" / "robustness.md"


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


def leaks(asked: argparse.Namespace) -> Figures:
    """One conductor over so many workloads: its memory, open files and processes at the start and in the end."""
    few = {"processes": 1, "most_processes": 1, "min_rounds": 2, "max_rounds": 2}
    limits = Limits(**few, workload_seconds=0.01, turn_seconds=1e-4)
    own, figures, started = psutil.Process(), [], time.monotonic()
    shapes = [(heads, length) for heads in (1, 2, 4) for length in range(4, 36)]
    with Conductor(parse_all(["numpy_vectorized", "numpy_blocked"]), limits=limits) as conductor:
        for number in range(asked.workloads):
            heads, length = shapes[number % len(shapes)]
            conductor.race(Workload(heads=heads, queries=length, keys=length, head_dim=8, seed=number))
            if number + 1 in (asked.workloads // 10, asked.workloads):
                children = len(own.children(recursive=True))
                figures.append([own.memory_info().rss / 2**20, own.num_fds(), children])
                say(f"leaks: {number + 1} workloads, {figures[-1]}")
    seconds = round(time.monotonic() - started)
    return {"workloads": asked.workloads, "seconds": seconds, "early": figures[0], "late": figures[1]}


def store(asked: argparse.Namespace) -> Figures:
    """What going on with 10,000 results costs before the first race, and what keeping costs of a run's time.

    Both with the results of the reference run, told apart by the seed of their workloads.
    """
    reference = read_run(REPOSITORY / "reports" / "reference")
    workloads, spent = list(dict.fromkeys(one.workload for one in reference.results)), []
    seeds = range(-(-RESULTS // len(reference.results)) + 1)
    planned = tuple(one.with_(seed=seed) for seed in seeds for one in workloads)
    with tempfile.TemporaryDirectory(prefix="attnlab-store-") as folder:
        plan = replace(reference.plan, workloads=planned)
        run = replace(reference, folder=Path(folder), plan=plan, results=[], findings=[], complete=False)
        run.save()
        kept = 0
        for place, workload in enumerate(planned):
            if kept < RESULTS:
                old = [one for one in reference.results if one.workload == workloads[place % len(workloads)]]
                started = time.perf_counter()
                run.append([replace(one, workload=workload) for one in old])
                spent.append(time.perf_counter() - started)
                kept += len(old)
        started = time.perf_counter()
        run.save()
        saving = time.perf_counter() - started
        started = time.perf_counter()
        with held(require_run(folder)):
            again = read_run(folder)
            left = len(again.left())
            assert again.whole() == len(again.results) == kept
        reading = time.perf_counter() - started
    measuring, append = sum(reference.account.values()), sum(spent) / len(spent)
    share = (append * len(workloads) + 4 * saving) / measuring
    found = {"results": kept, "left": left, "resume_s": round(reading, 2), "share": share}
    return {**found, "append_ms": 1e3 * append, "measuring_s": round(measuring)}


# -- the page ---------------------------------------------------------------------------------------------------------


def _matrix_told(found: Figures) -> Iterator[str]:
    cells = [cell for row in found["rows"].values() for cell in row.values()]
    wrong = sum("**" in cell for cell in cells)
    phases = list(next(iter(found["rows"].values())))
    yield "## A worker that fails, in every phase"
    yield (
        f"{len(cells)} cells, {len(cells) - wrong} with the outcome that is expected. Each phase is one race of all "
        f"faults beside two good backends, whose results were whole in {'not ' if found['harmed'] else ''}all of them; "
        f"{found['left']} processes were left. A fault while memory is measured leaves the speed, with a note. "
        f"Deadline {found['deadline_s']:g} s."
    )
    rows = [[fault.replace("_", " "), *map(row.get, phases)] for fault, row in found["rows"].items()]
    yield table(["fault", *phases], rows)


def _soak_told(found: Figures) -> Iterator[str]:
    kills = ", ".join(f"{count} of a {who}" for who, count in sorted(found["kills"].items()))
    yield "## Killed at random, and gone on with"
    yield (
        f"{sum(found['kills'].values())} times SIGKILL ({kills}) at random moments of {found['runs']} runs of "
        f"{found['cells']} results each, gone on with by `attnlab run --resume` until complete. Against an "
        f"unbroken run: {found['lost']} results lost, {found['doubled']} doubled, {found['different']} that it does "
        f"not have; {found['broken']} runs in which `attnlab doctor` found something broken; {found['left']} processes "
        "left."
    )


def _fuzz_told(found: Figures) -> Iterator[str]:
    told = found["told"]
    crashes = sum(count for name, count in told.items() if name.startswith("crash"))
    yield "## Malformed input"
    yield (
        f"{sum(told.values())} damaged result lines, workloads, run files, plan files and contenders: "
        f"{told.get('taken', 0)} were still readable, {told.get('refused', 0)} were refused in a line, {crashes} "
        f"crashed. The longest took {found['longest_s']:g} s; memory grew by {found['grown_mib']:g} MiB."
    )


def _leaks_told(found: Figures) -> Iterator[str]:
    (memory, files, children), (late_memory, late_files, late_children) = found["early"], found["late"]
    yield "## Many workloads in one run"
    yield (
        f"After {found['workloads'] // 10} of {found['workloads']} workloads the conductor held {memory:.1f} MiB, "
        f"{files} open files and {children} processes; after all of them {late_memory:.1f} MiB, {late_files} and "
        f"{late_children} ({found['seconds']} s)."
    )


def _store_told(found: Figures) -> Iterator[str]:
    yield "## What keeping costs"
    yield (
        f"A run with {found['results']:,} results is locked, read, checked and told what is left of it in "
        f"{found['resume_s']:g} s: so much later `--resume` starts. Appending the results of one workload, flushed to "
        f"the disk, takes {found['append_ms']:.1f} ms; with the files that are replaced at the stages of a run that is "
        f"{found['share']:.2%} of the {found['measuring_s']} s of the reference run."
    )


TOLD: dict[str, Callable[[Figures], Iterator[str]]] = {
    "matrix": _matrix_told,
    "soak": _soak_told,
    "fuzz": _fuzz_told,
    "leaks": _leaks_told,
    "store": _store_told,
}


def keep(name: str, found: Figures) -> None:
    """Put a part's figures into the store, and write the page from it."""
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    figures[name] = {**found, "at": datetime.now(UTC).strftime("%Y-%m-%d")}
    STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    parts = ["`tests/robustness` holds the same faults as tests."]
    for one in (one for one in TOLD if one in figures):
        parts += [*TOLD[one](figures[one]), f"Measured {figures[one]['at']}."]
    PAGE.write_text(page("What survives", "robustness", *parts), encoding="utf-8")


def main() -> None:
    """Measure the parts that are named, all by default, and write the page."""
    parser = command_line(__doc__)
    parser.add_argument("parts", nargs="*", choices=[*TOLD, []], metavar="PART", help=", ".join(TOLD))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lines", type=int, default=12_000)
    parser.add_argument("--workloads", type=int, default=2_000)
    asked = parser.parse_args()
    measures: dict[str, Callable[[argparse.Namespace], Figures]] = {
        "matrix": matrix,
        "soak": lambda asked: soak(asked.kills, partial(keep, "soak")),
        "fuzz": lambda asked: fuzz(asked.lines),
        "leaks": leaks,
        "store": store,
    }
    for name in asked.parts or TOLD:
        keep(name, measures[name](asked))


if __name__ == "__main__":
    main()
