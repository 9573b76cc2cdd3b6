"""Does `compare` see through backends that cheat, and does it accept honest ones, on thousands of workloads?

``python benchmarks robustness [cheats] [honest] [--races 2000] [--beside idle|cpu|memory|sometimes]``. Each part stores
its figures in ``benchmarks/robustness.json``; ``benchmarks/robustness.md`` is made from that file.
"""

from __future__ import annotations

import itertools
import json
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

from cheats import CHEATS
from common import HOME, LOADS, REPOSITORY, alike, command_line, load_beside, publish, say, table

from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import unasked
from attnlab.environment import environment
from attnlab.race.admission import Limits
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.stats.intervals import Kind, verdicts_against
from attnlab.workload.result import Outcome
from attnlab.workload.workload import Workload

sys.path += [str(REPOSITORY / "tests" / folder) for folder in ("implementations", "")]

from test_public_cases import NEIGHBOURS, RACED

#: what a part measured, as it is stored: names and values
Figures = dict[str, Any]
#: for races whose times are not used
SHORT = Limits(visits=1, most_visits=1, rounds=2, workload_seconds=1, turn_seconds=1e-4, warm_seconds=1e-3)
STORE = HOME / "robustness.json"
#: the file of a backend that cheats, or of the honest one
BACKEND = '''"""{name}"""
import sys; sys.path.append({home!r})
import {library}
from cheats import attention
LIBRARY = "{library}"
attend = attention("{name}", LIBRARY)
'''
#: a cheat must be faster by this to count: with a smaller margin, a few of 100 races of equal backends have a winner
GAIN = 0.05
LIMITS = Limits(visits=3, most_visits=3, workload_seconds=60.0, call_seconds=1e3)
HONEST = "honest"
#: the two results at the top of the page
RESULTS = FASTER, REFUSED = "found faster than the honest copy", "refused as wrong"


def cheats(asked: Namespace) -> Figures:
    """Backends that cheat"""
    found: dict[str, set[str]] = {name: set() for name in CHEATS}
    won, races, started = list[str](), 0, time.monotonic()
    groups = [[*CHEATS][at : at + 12] for at in range(0, len(CHEATS), 12)]
    for seed, (number, names) in itertools.product(range(3), enumerate(groups)):
        say(f"cheats: seed {seed}, {names[0]} to {names[-1]}")
        library = ("numpy", "torch")[(seed + number) % 2]
        with tempfile.TemporaryDirectory(prefix="attnlab-cheats-") as folder:
            for name in (HONEST, *names):
                text = BACKEND.format(name=name, home=str(HOME), library=library)
                (Path(folder) / f"{name}.py").write_text(text, encoding="utf-8")
            # with one thread each: beside other programs, one thread finds a free core now and then
            contenders = [f"{one}[threads=1]" for one in (HONEST, *names)]
            asks = {"heads": 2, "length": 384, "folders": [folder], "limits": LIMITS, "afresh": True}
            results = compare(*contenders, **asks).results
        base, races = next(one for one in results if one.backend == HONEST), races + 1
        assert base.outcome is Outcome.MEASURED, base.reason
        verdicts = verdicts_against(results, base.contender, margin=GAIN)
        for one in results:
            verdict = verdicts.get(one.contender)
            if verdict and verdict.kind is Kind.FASTER:
                won.append(f"{one.backend} ({library}: {1 / verdict.ratio:.2f} times as fast)")
                found[one.backend].add("**not found**")
            elif one.backend in found and one.outcome is Outcome.MEASURED:
                found[one.backend].add("no gain: not called faster")
            elif one.backend in found:
                found[one.backend].add(f"{one.outcome}: {(one.reason or '').partition(':')[0][:60]}")
    rows = {
        one: {"what it does": CHEATS[one], "found by": "; ".join(sorted(by))} for one, by in found.items()
    }
    seconds, said = round(time.monotonic() - started), ", ".join(won) or "none"
    return {"rows": rows, "backends": len(rows), "races": races, FASTER: said, "seconds": seconds}


def honest(asked: Namespace) -> Figures:
    """Honest backends"""
    names, wrong, counts = unasked(), list[str](), Counter[str]()
    conducting = Conductor(parse_all(names), limits=SHORT, memory=False)
    with suppress(KeyboardInterrupt), conducting as conductor:  # what was found before stays
        cases = itertools.cycle(itertools.product(RACED, ({}, *NEIGHBOURS)))
        while counts["measured"] < asked.races:
            case, change = next(cases)
            with suppress(ValueError):  # a variation may contradict itself
                workload = Workload(**{"heads": 2, "head_dim": 16, **case, **change})
                for one in conductor.race(workload):
                    counts[one.outcome] += 1
                    wrong += [f"{one.contender}, {workload}: {one.reason}"] if one.outcome == "wrong" else []
            say(f"honest: {counts.total()}, of them measured {counts['measured']}")
    became = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return {"backends": len(names), "outcomes": became, REFUSED: ", ".join(wrong) or "none"}


#: each measures and returns its figures; its docstring is its title on the page
PARTS = {one.__name__: one for one in (cheats, honest)}


def told(title: str, found: Figures) -> Iterator[str]:
    """The title and the tables of a part."""
    yield f"## {title}"
    if rows := found.pop("rows", None):
        yield table(alike({"backend": name.replace("_", " "), **row} for name, row in rows.items()))
    yield table({"figure": key, "value": value} for key, value in found.items())


def main() -> None:
    """Measure the named parts, by default all, and write the page."""
    parser = command_line(__doc__, out=HOME / "robustness.md", parts=PARTS)
    parser.add_argument("--races", type=int, default=2_000, help="measurements of honest backends [2000]")
    parser.add_argument("--beside", choices=LOADS, default="idle")
    asked = parser.parse_args()
    figures: Figures = json.loads(STORE.read_text(encoding="utf-8"))
    with load_beside(asked.beside):
        for name in asked.parts or PARTS:
            part = name if asked.beside == "idle" else f"{name}, beside {asked.beside}"
            found = PARTS[name](asked)
            figures[part] = found | {"measured": f"{datetime.now(UTC).date()}, {environment()['cpu']}"}
            STORE.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    said, parts = list[str](), list[str]()
    for part, one in figures.items():
        name, _, beside = part.partition(", ")
        beside = beside.replace("sometimes", "a program that comes and goes")
        title = f"{PARTS[name].__doc__} {beside}".strip()
        said += [f"- {title} ({one['backends']}), {key}: {one[key]}." for key in RESULTS if key in one]
        parts += told(title, dict(one))
    title = "Do backends that cheat look faster, and are honest backends accepted?"
    publish(title, "robustness", "\n".join(said), *parts, out=asked.out)
