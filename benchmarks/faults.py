"""How many planted faults does `check` find, and how often does it refuse a right answer?

``python benchmarks faults [--fault-seeds 5] [--right-seeds 5] [--jobs 2]``, with one thread per process
(``OMP_NUM_THREADS=1``), writes the tables and lists of ``benchmarks/faults.md``. Every seed draws new inputs and new
random conditions; no seed was chosen. With 0 seeds, a table stays as it is.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
import pandas as pd
from common import REPOSITORY, alike, command_line, say, table, table_of

sys.path.insert(0, str(REPOSITORY / "tests" / "correctness"))

from black_box import asked
from mutants import BY_MODULE, FAULTS
from mutants.fault import DTYPES as FAULT_DTYPES
from mutants.rounding import RIGHT

from attnlab.backends.discovery import backends, load
from attnlab.correctness.answering import Probe
from attnlab.correctness.check import Ask, Examined, examine
from attnlab.correctness.questions import BACKWARD, FORWARD
from attnlab.errors import Unavailable
from attnlab.workload.number_formats import DTYPES

PAGE = REPOSITORY / "benchmarks" / "faults.md"
Rows = list[dict[str, Any]]


# -- measuring, one seed and one number format per process -------------------------------------------------------------


def right_ones() -> dict[str, Callable[[], Ask]]:
    """The backends of attnlab that run on this machine, and the right variants in `mutants`."""
    found: dict[str, Callable[[], Ask]] = {}
    for name in backends():
        with suppress(Unavailable):
            load(name).open("cpu")
            found[f"`{name}`"] = lambda name=name: Probe(load(name)).ask
    return found | {name: partial(asked, one) for name, one in RIGHT.items()}


def planted(seed: int, dtype: str) -> Rows:
    """For each planted fault, the question that caught it, or None."""
    found = []
    for name, fault in FAULTS.items() if dtype in FAULT_DTYPES else ():
        wrong = examine(asked(fault.attention), dtype, seed=seed, kinds=(fault.direction,)).fault
        # "float32, NAME (condition): …"
        question = wrong.partition(", ")[2].partition(" (")[0] if wrong else None
        found.append({"seed": seed, "name": name, "dtype": dtype, "question": question})
    say(f"seed {seed}, {dtype}: {len(found)} faults")
    return found


def alarms(seed: int, dtype: str) -> Rows:
    """What was found in right implementations, by name."""
    found = []
    for name, make in right_ones().items():
        timed = {"clock": time.perf_counter} if name.startswith("`") else {}
        one = examine(make(), dtype, seed=seed, **timed)
        if one.asked or one.fault:
            found.append({"seed": seed, "name": name, "dtype": dtype, "result": one})
        if one.fault:
            say(f"ALARM {name} {dtype} seed {seed}: {one.fault}")
    say(f"seed {seed}, {dtype}: right implementations")
    return found


def faults_told(found: pd.DataFrame) -> Iterator[str]:
    """How many faults are caught, and all faults by kind."""
    seeds = found.seed.nunique()
    times = found.groupby(["name", "dtype"]).question.count()
    due = [(name, dtype) for name, fault in FAULTS.items() for dtype in fault.dtypes]
    missed = [f"{name} in {dtype}" for name, dtype in due if times[name, dtype] < seeds]
    yield (
        f"{len(FAULTS)} faults, each in every number format in which it exceeds rounding, are {len(due)} cases. Found "
        f"with every\nseed (seeds: {seeds}): {len(due) - len(missed)} cases. Missed: {'; '.join(missed) or 'none'}."
    )
    for of, faults in BY_MODULE.items():
        yield f"**{of}** ({len(faults)}): {'; '.join(fault.name for fault in faults)}."


def alarms_told(found: pd.DataFrame) -> Iterator[str]:
    """A row per group of right implementations with equal figures: classes, errors in budgets, and false alarms."""
    wrong, answers = (found.result.map(of).sum() for of in (lambda r: bool(r.fault), lambda r: r.asked))
    seeds = found.seed.nunique()
    yield f"False alarms: {wrong}, in {len(found)} checks with {answers:,} right answers (seeds: {seeds})."
    results: dict[Any, list[Examined]] = found.groupby(["name", "dtype"]).result.agg(list).to_dict()
    rows = [{"implementation": name} for name in found.name.unique()]
    for row in rows:
        row |= {dtype: _alarms(results.get((row["implementation"], dtype), [])) for dtype in DTYPES}
    yield table(alike(rows))


def _alarms(ones: list[Examined]) -> str:
    wrong = sum(one.fault is not None for one in ones)
    said = []
    for of in (FORWARD, BACKWARD):
        told = [one.precision[of] for one in ones if of in one.precision]
        if told:
            kind = Counter(one.kind for one in told).most_common(1)[0][0]
            said.append(f"{str(kind)[0].upper()}{sorted(one.ratio for one in told)[len(told) // 2]:.2f}")
    return (f"{wrong} alarms " if wrong else "") + "/".join(said)


def excuses() -> str:
    """The faults that are too small to count in a number format, by effect, with the largest share of the limit."""
    rows = [
        {"effect": one.why, "in": dtype, "fault": name, "share": one.effect / (one.allowed or np.inf)}
        for name, fault in FAULTS.items()
        for dtype, one in fault.excuses
    ]

    def told(some: pd.DataFrame) -> dict[str, object]:
        return {"largest share of the limit": f"{some.share.max():.2f}", "faults": "; ".join(some.fault)}

    return table_of(pd.DataFrame(rows), ["effect", "in"], told)


def filled(text: str, parts: Mapping[str, Iterable[str]]) -> str:
    """The page with these parts, each between its marks. The text around the marks is written by hand."""
    for name, paragraphs in parts.items():
        start, end = f"<!-- {name} -->\n", "\n<!-- end -->"
        before, _, rest = text.partition(start)
        text = f"{before}{start}\n" + "\n\n".join(paragraphs) + f"\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Measure, and write the page."""
    parser = command_line(__doc__, out=PAGE)
    parser.add_argument("--fault-seeds", type=int, default=5)
    parser.add_argument("--right-seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    parts: dict[str, Iterable[str]] = {"too small": [excuses()]}
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        for name, told, at, first, count in (
            ("faults", faults_told, planted, 0, chosen.fault_seeds),
            ("right", alarms_told, alarms, 1000, chosen.right_seeds),  # the two tables share no seed
        ):
            seeds = range(first, first + count)
            asked_for = list(product(seeds, DTYPES))
            if asked_for:
                rows = [row for some in pool.map(at, *zip(*asked_for, strict=True)) for row in some]
                parts[name] = [*told(pd.DataFrame(rows))]
            chosen.out.write_text(filled(PAGE.read_text(encoding="utf-8"), parts), encoding="utf-8")
