"""What survives: faults in every phase, kills at random, malformed input, and thousands of workloads in one run.

``python benchmarks robustness [PART ...] [--kills 200] [--lines 12000] [--changes 20000]
[--races 2000] [--workloads 2000]``; the parts are `matrix`, `cheats`, `honest`, `soak`, `fuzz`, `damage`, `leaks` and
`store`, all by default. Each part adds its figures to ``benchmarks/robustness.json``, and ``benchmarks/robustness.md``
is written whole from that file. `soak` takes about eleven seconds a kill, `damage` and `cheats` about ten minutes,
`leaks` two, the others one to five minutes.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from common import HOME, REPOSITORY, alike, command_line, publish, say, table
from random_damage import Figures, damage, fuzz, soak

from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import unasked
from attnlab.environment import environment
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.runs.execute import run
from attnlab.runs.plan import Plan
from attnlab.runs.store import held, read_run, require_run
from attnlab.workload.result import Result
from attnlab.workload.vocabulary import DIRECTIONS, DTYPES, STORAGES
from attnlab.workload.workload import Workload

sys.path.extend([str(REPOSITORY / "tests" / name) for name in ("robustness", "report")])

from cheats import CHEATS, LIMITS, gains, groups, workload_for, write
from matrix import DEADLINE, FAULTS, GOOD, PHASES, QUICK, contender, expected, race, race_killed

#: results of the run that is gone on with
RESULTS = 10_000
#: of the workloads that misbehaving backends are raced on
SEEDS = 3
STORE = HOME / "robustness.json"


def matrix(asked: Namespace) -> Iterator[Figures]:
    """A worker that fails, or the parent that it is forked from, in every phase"""
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
            rows[fault][phase] = _noted(result) if right else f"**{result.outcome}**"
    with tempfile.TemporaryDirectory(prefix="attnlab-killed-") as folder:
        found, still = race_killed(Path(folder), QUICK)
    rows["killed, by somebody else, once"] = {phase: _noted(one) for phase, one in found.items()}
    left += still
    yield {"rows": rows, "harmed": harmed, "left": left, "deadline_s": DEADLINE}


def _noted(result: Result) -> str:
    return f"{result.outcome} (noted)" if result.outcome == "measured" and result.reason else result.outcome


def cheats(asked: Namespace) -> Iterator[Figures]:
    """Backends that misbehave, beside an honest copy of the same computation"""
    found: dict[str, set[str]] = {name: set() for name in CHEATS}
    won, races, started = [], 0, time.monotonic()
    for seed in range(SEEDS):
        for number, names in enumerate(groups(CHEATS)):
            say(f"cheats: seed {seed}, {names[0]} to {names[-1]}")
            # the routing of a stored run chooses among those of PyTorch alone
            library = ("numpy", "torch")[(seed + number) % 2]
            with tempfile.TemporaryDirectory(prefix="attnlab-cheats-") as folder:
                for way, results in _asked(Path(folder), names, library, seed):
                    races += 1
                    won += [f"{name} ({way}, {library}: {said})" for name, said in gains(results).items()]
                    for one in results:
                        if one.backend in found:
                            found[one.backend].add(_by(one))
    rows = {
        name: {"what it does": CHEATS[name][0], "found by": "; ".join(sorted(by))}
        for name, by in found.items()
    }
    seconds = round(time.monotonic() - started)
    yield {"rows": rows, "backends": len(rows), "races": races, "won": won, "seconds": seconds}


def _asked(
    folder: Path, names: Sequence[str], library: str, seed: int
) -> Iterator[tuple[str, Sequence[Result]]]:
    """The results of a race in each of the ways to have one."""
    contenders = write(folder, names, library)
    workload, here = workload_for(names[0], seed), (str(folder),)
    yield "compare", compare(*contenders, workload=workload, folders=here, limits=LIMITS).results
    plan = Plan(
        workloads=(workload,), contenders=tuple(contenders), folders=here, limits=LIMITS, experiments=(),
        control=False, memory=False, ceilings=False,
    )  # fmt: skip
    stored = run(plan, folder / "stored")
    yield "run", stored.results


def honest(asked: Namespace) -> Iterator[Figures]:
    """Honest backends, raced on drawn workloads: nobody is to be refused"""
    limits = Limits(
        processes=1,
        most_processes=1,
        min_rounds=8,
        max_rounds=8,
        workload_seconds=1,
        turn_seconds=2e-4,
        settle_seconds=1e-4,
    )
    names, wrong, generator = unasked(), list[str](), random.Random(0)
    counts: Counter[str] = Counter()
    with Conductor(parse_all(names), limits=limits, memory=False) as conductor:
        for number in itertools.count():
            workload = _drawn(generator, number)
            for one in conductor.race(workload) if workload else ():
                counts[one.outcome] += 1
                wrong += [f"{one.contender}, {workload}: {one.reason}"] if one.outcome == "wrong" else []
            if number % 20 == 0:
                say(f"honest: {dict(counts)}")
            if counts["measured"] >= asked.races:
                break
    yield {"backends": len(names), "told": dict(counts), "wrong": wrong}


def _drawn(generator: random.Random, seed: int) -> Workload | None:
    """A small workload with whatever may be asked; None where what was drawn contradicts itself."""
    heads, kept = generator.choice(((1, 1), (2, 2), (4, 2), (8, 1))), generator.choice(range(8))
    queries, keys = generator.choice(((1, 300), (64, 64), (96, 33), (200, 200), (33, 96)))
    further: dict[str, Any] = {
        0: {"causal": "top_left"},
        1: {"causal": "bottom_right", "softcap": 5.0},
        2: {"window": (16, 16)},
        3: {"bias": generator.choice(("normal", "alibi"))},
        4: {"sinks": True},
        5: {"storage": generator.choice(list(STORAGES))},
        6: {"d_model": heads[0] * 32},
    }.get(kept, {})
    # most backends have one of each alone
    dtype, direction = (
        generator.choice([*DTYPES, *["float32"] * 8]),
        generator.choice([*DIRECTIONS, *["forward"] * 8]),
    )
    batch, layout = generator.choice((1, 2)), generator.choice(("bhsd", "bshd"))
    try:
        return Workload(
            batch=batch, heads=heads[0], kv_heads=heads[1], queries=queries, keys=keys, head_dim=32, layout=layout,
            seed=seed, dtype=dtype, direction=direction, **further,
        )  # fmt: skip
    except ValueError:
        return None


def _by(result: Result) -> str:
    """What refused a backend, in a few words."""
    said = result.reason or ""
    if result.outcome == "measured":
        return "no gain: its true speed"
    known = {
        "on the clock, on inputs": "an answer on the clock",
        "from memory": "a call on changed inputs",
        "replaced": "its replacing a function",
        "clock disagrees": "the conductor's clock",
        "returned": "what it returned",
    }
    return next((by for words, by in known.items() if words in said), "the check before the race")


def leaks(asked: Namespace) -> Iterator[Figures]:
    """Many workloads in one run"""
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
    yield {"workloads": asked.workloads, "seconds": seconds, "early": figures[0], "late": figures[1]}


def store(asked: Namespace) -> Iterator[Figures]:
    """What keeping costs, in a run of many results"""
    # those of the reference run, told apart by the seed of their workloads
    reference = read_run(REPOSITORY / "reports" / "reference")
    races = {one.workload: [] for one in reference.results}
    for one in reference.results:
        races[one.workload].append(one)
    seeds = range(RESULTS // len(reference.results) + 2)
    planned = {workload.with_(seed=seed): old for seed in seeds for workload, old in races.items()}
    kept, spent = 0, []
    with tempfile.TemporaryDirectory(prefix="attnlab-store-") as folder:
        plan = replace(reference.plan, workloads=tuple(planned))
        run = replace(reference, folder=Path(folder), plan=plan, results=[], complete=False)
        run.save()
        for workload, old in planned.items():
            if kept < RESULTS:
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
            assert len(again.results) == kept
        reading = time.perf_counter() - started
    measuring, append = sum(reference.account.values()), sum(spent) / len(spent)
    share = (append * len(races) + 4 * saving) / measuring
    found = {"results": kept, "left": left, "resume_s": round(reading, 2), "share": share}
    yield {**found, "append_ms": 1e3 * append, "measuring_s": round(measuring)}


#: each tells its figures, some of them more than once while they grow; the first line of a docstring is a title
PARTS = {one.__name__: one for one in (matrix, cheats, honest, soak, fuzz, damage, leaks, store)}


# -- the page ---------------------------------------------------------------------------------------------------------

#: what the figures are called where their names do not say it
_SAID = {
    "lost": "results lost, of those that an unbroken run has",
    "doubled": "results doubled",
    "different": "results that an unbroken run does not have",
    "broken": "runs in which `attnlab doctor` found something broken",
    "left": "left",
    "told": "became of them",
    "wrong": "of them refused as wrong",
    "won": "backends that were found faster than the honest one",
    "harmed": "good backends harmed by their neighbour",
    "early": "MiB, open files and processes of the conductor after a tenth of the workloads",
    "late": "the same after all of them",
    "resume_s": "seconds that reading takes before `--resume` starts",
    "append_ms": "milliseconds to append the results of one workload, flushed to the disk",
    "share": "of the reference run's time, for all that is kept",
}


#: what is said of a table of rows
_ROWS = {
    "matrix": "The outcome of every fault in every phase; in bold what is not as expected.",
    "cheats": "Raced by `compare`, by a stored run, whose routes `fastest` takes, and by the pytest plugin.",
}


def told(name: str, found: Figures) -> Iterator[str]:
    """A part's figures, as tables."""
    yield f"## {PARTS[name].__doc__}"
    if rows := found.pop("rows", None):
        yield _ROWS[name]
        head = ("backend" if name == "cheats" else "fault", *next(iter(rows.values())))
        yield table(head, alike((fault.replace("_", " "), *row.values()) for fault, row in rows.items()))
    figures = [(_SAID.get(key, key.replace("_", " ")), _written(value)) for key, value in found.items()]
    yield table(("figure", "found"), figures)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{one} {key}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_written, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure the parts that are named, all by default, and write the page whenever figures come."""
    parser = command_line(__doc__, out=REPOSITORY / "benchmarks" / "robustness.md")
    parser.add_argument("parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lines", type=int, default=12_000)
    parser.add_argument("--changes", type=int, default=20_000)
    parser.add_argument("--races", type=int, default=2_000)
    parser.add_argument("--workloads", type=int, default=2_000)
    asked = parser.parse_args()
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8"))
    for part, found in ((name, found) for name in asked.parts for found in PARTS[name](asked)):
        figures[part] = {**found, "at": f"{datetime.now(UTC).date()}, {environment()['cpu']}"}
        STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        page(figures, asked.out)


def page(figures: Figures, out: Path) -> None:
    """The page of all parts that were measured so far."""
    parts = [text for one in PARTS if one in figures for text in told(one, dict(figures[one]))]
    said = (
        "`tests/robustness` holds the same faults as tests. The line above is of the part measured last; `at` tells of "
        "each when it was, and on which processor where that is known."
    )
    publish("What survives", "robustness", said, *parts, out=out)
