"""What survives: faults in every phase, cheats, kills at random, malformed input, and thousands of workloads in a run.

``python benchmarks robustness [PART ...] [--kills 200] [--changes 20000] [--races 2000] [--workloads 2000]``; the parts
are `matrix`, `cheats`, `honest`, `soak`, `fuzz` and `leaks`, all by default. Each part adds its figures to
``benchmarks/robustness.json``, and ``benchmarks/robustness.md`` is written whole from that file. `soak` takes about ten
seconds a kill, `cheats` ten minutes, the others one to five minutes.
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
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from cheats import CHEATS
from common import HOME, REPOSITORY, alike, command_line, publish, say, table
from random_damage import Figures, fuzz, soak

from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import unasked
from attnlab.environment import environment
from attnlab.race.admission import Limits
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.stats.intervals import Kind, verdicts_against
from attnlab.workload.number_formats import DTYPES
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import DIRECTIONS, STORAGES, Workload

sys.path += [str(REPOSITORY / "tests" / folder) for folder in ("robustness", "implementations", "")]

from matrix import FAULTS, GOOD, PHASES, contender, expected, race_all
from test_public_cases import NEIGHBOURS, RACED

#: of the workloads that cheats are raced on
SEEDS = 3
#: of races in which speed is not asked for
SHORT = Limits(visits=1, most_visits=1, rounds=2, workload_seconds=1, turn_seconds=1e-4, warm_seconds=1e-3)
STORE = HOME / "robustness.json"
#: a backend that cheats, or the honest one, of one thread: beside other programs one thread finds a core now and then
BACKEND = '''"""{name}"""
import sys
sys.path.append({home!r})
import {library}
from cheats import attention
LIBRARY = "{library}"
attend = attention("{name}", LIBRARY, {folder!r})
'''
#: less is no gain: of a hundred races of two that are as fast, a few call one faster, by a part of this
GAIN = 0.05
LIMITS = Limits(visits=3, most_visits=3, workload_seconds=60.0, call_seconds=1e3)
HONEST = "honest"
#: those that only show at a shape of which a part of the rows is checked
LARGE = {"rows_that_are_sampled": {"heads": 8, "queries": 256, "keys": 512}}


def matrix(asked: Namespace) -> Iterator[Figures]:
    """A worker that fails, in every phase"""
    rows: dict[str, dict[str, str]] = {fault: {} for fault in FAULTS}
    harmed, left = [], 0
    for phase in PHASES:
        say(f"faults: {phase}")
        trial = race_all(dict.fromkeys(FAULTS, phase))
        left += trial.left
        harmed += [f"{phase}: {name}" for name in GOOD if trial.results[name].outcome != "measured"]
        for fault in FAULTS:
            result, (outcome, words) = trial.results[contender(fault, phase)], expected(fault, phase)
            right = result.outcome == outcome and words in (result.reason or "")
            noted = " (noted)" if result.outcome is Outcome.MEASURED and result.reason else ""
            rows[fault][phase] = f"{result.outcome}{noted}" if right else f"**{result.outcome}**"
    yield {"rows": rows, "harmed": harmed, "left": left}


def cheats(asked: Namespace) -> Iterator[Figures]:
    """Backends that misbehave, beside an honest copy of the same computation"""
    found: dict[str, set[str]] = {name: set() for name in CHEATS}
    won, races, started = list[str](), 0, time.monotonic()
    others = [name for name in CHEATS if name not in LARGE]
    groups = [others[at : at + 12] for at in range(0, len(others), 12)] + [list(LARGE)]
    for seed, (number, names) in itertools.product(range(SEEDS), enumerate(groups)):
        say(f"cheats: seed {seed}, {names[0]} to {names[-1]}")
        library = ("numpy", "torch")[(seed + number) % 2]
        shape = {"heads": 2, "queries": 384, "keys": 384, **LARGE.get(names[0], {})}
        with tempfile.TemporaryDirectory(prefix="attnlab-cheats-") as folder:
            for name in (HONEST, *names):
                text = BACKEND.format(name=name, home=str(HOME), library=library, folder=folder)
                (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
            contenders, workload = (
                [f"{one}[threads=1]" for one in (HONEST, *names)],
                Workload(**shape, seed=seed),
            )
            told = compare(*contenders, workload=workload, folders=[folder], limits=LIMITS).results
        base, races = next(one for one in told if one.backend == HONEST), races + 1
        assert base.outcome is Outcome.MEASURED, base.reason
        verdicts = verdicts_against(told, base.contender, margin=GAIN)
        for one in told:
            verdict = verdicts.get(one.contender)
            if verdict and verdict.kind is Kind.FASTER:
                won.append(f"{one.backend} ({library}: {1 / verdict.ratio:.2f} times as fast)")
                found[one.backend].add("**not found**")
            elif one.backend in found:
                found[one.backend].add(_by(one))
    rows = {
        name: {"what it does": CHEATS[name], "found by": "; ".join(sorted(by))} for name, by in found.items()
    }
    seconds = round(time.monotonic() - started)
    yield {"rows": rows, "backends": len(rows), "races": races, "won": won, "seconds": seconds}


def _by(result: Result) -> str:
    """What became of a cheat: its outcome and the first words of the reason."""
    if result.outcome is Outcome.MEASURED:
        return "no gain: its true speed"
    return f"{result.outcome}: {(result.reason or '').partition(':')[0][:60]}"


def honest(asked: Namespace) -> Iterator[Figures]:
    """Honest backends, raced on workloads of public bug reports, then on drawn ones: none is to be refused"""
    names, wrong, generator = unasked(), list[str](), random.Random(0)
    counts: Counter[str] = Counter()
    with Conductor(parse_all(names), limits=SHORT, memory=False) as conductor:
        for number in itertools.count():
            workload = _public(number) if number < 2 * len(RACED) else _drawn(generator, number)
            for one in conductor.race(workload) if workload else ():
                counts[one.outcome] += 1
                wrong += [f"{one.contender}, {workload}: {one.reason}"] if one.outcome == "wrong" else []
            if number % 20 == 0:
                say(f"honest: {dict(counts)}")
            if counts["measured"] >= asked.races:
                break
    yield {"backends": len(names), "told": dict(counts), "wrong": wrong}


def _public(number: int) -> Workload | None:
    """One of `RACED`, or a neighbour of it; None where that contradicts itself."""
    at, further = divmod(number, 2)
    change = NEIGHBOURS[at % len(NEIGHBOURS)] if further else {}
    with suppress(ValueError):
        return Workload(**{"heads": 2, "head_dim": 16, **RACED[at], **change})
    return None


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
    drawn = {
        "dtype": generator.choice([*DTYPES, *["float32"] * 8]),
        "direction": generator.choice([*DIRECTIONS, *["forward"] * 8]),
        "batch": generator.choice((1, 2)),
        "layout": generator.choice(("bhsd", "bshd")),
    }
    sizes = {"heads": heads[0], "kv_heads": heads[1], "queries": queries, "keys": keys, "head_dim": 32}
    with suppress(ValueError):
        return Workload(**sizes, **drawn, **further, seed=seed)
    return None


def leaks(asked: Namespace) -> Iterator[Figures]:
    """Many workloads in one run"""
    own, figures, started = psutil.Process(), [], time.monotonic()
    shapes = [(heads, length) for heads in (1, 2, 4) for length in range(4, 36)]
    with Conductor(parse_all(["numpy_vectorized", "numpy_blocked"]), limits=SHORT) as conductor:
        for number in range(asked.workloads):
            heads, length = shapes[number % len(shapes)]
            conductor.race(Workload(heads=heads, queries=length, keys=length, head_dim=8, seed=number))
            if number + 1 in (asked.workloads // 10, asked.workloads):
                children = len(own.children(recursive=True))
                figures.append([own.memory_info().rss / 2**20, own.num_fds(), children])
                say(f"leaks: {number + 1} workloads, {figures[-1]}")
    seconds = round(time.monotonic() - started)
    yield {"workloads": asked.workloads, "seconds": seconds, "early": figures[0], "late": figures[-1]}


#: each tells its figures, some of them more than once while they grow; the first line of a docstring is a title
PARTS = {one.__name__: one for one in (matrix, cheats, honest, soak, fuzz, leaks)}
#: what the figures are called where their names do not say it
_SAID = {
    "lost": "results lost, of those that an unbroken run has",
    "doubled": "results doubled",
    "different": "results that an unbroken run does not have",
    "told": "became of them",
    "wrong": "of them refused as wrong",
    "won": "backends that were found faster than the honest one",
    "harmed": "good backends harmed by their neighbour",
    "left": "processes left",
    "early": "MiB, open files and processes of the conductor after a tenth of the workloads",
    "late": "the same after all of them",
}


def told(name: str, found: Figures) -> Iterator[str]:
    """A part's figures, as tables."""
    yield f"## {PARTS[name].__doc__}"
    if rows := found.pop("rows", None):
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
    parser = command_line(__doc__, out=HOME / "robustness.md", parts=PARTS)
    for name, usual in {"kills": 200, "changes": 20_000, "races": 2_000, "workloads": 2_000}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    asked = parser.parse_args()
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8"))
    for part, found in ((name, found) for name in asked.parts or PARTS for found in PARTS[name](asked)):
        figures[part] = {**found, "at": f"{datetime.now(UTC).date()}, {environment()['cpu']}"}
        STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        said = "`tests/robustness` holds the same faults as tests. `at` says when and on which processor each was."
        parts = [text for one in PARTS if one in figures for text in told(one, dict(figures[one]))]
        publish("What survives", "robustness", said, *parts, out=asked.out)
