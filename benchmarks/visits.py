"""Does the interval over few visits cover? Recorded visits, and intervals over some of them.

``python benchmarks visits [--record SECONDS]``. Recording visits three workloads in laps and appends a line for each
contender and visit to visits.jsonl. The page is made from all that is recorded: how often an interval over k visits in
a row, over every fourth, and over k visits drawn from the whole recording, contains the median of all of them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pandas as pd
from common import HOME, Store, command_line, publish, table_of

from attnlab.backends.contender import parse_all
from attnlab.environment import environment
from attnlab.race.admission import Limits
from attnlab.race.conductor import Conductor
from attnlab.stats.intervals import BETWEEN, Sitting, Verdict, compare, over_sittings, quantile
from attnlab.workload.result import Measurement
from attnlab.workload.workload import Workload

SHAPES = ((4, 1024), (16, 256), (1, 2048))
NAMES = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")
COUNTS = (1, 2, 3, 5, 8, 20)
Row = dict[str, Any]
BY = ["interval", "visits", "how many"]
#: of each visit so many are recorded, and the first so many count
RECORDED, ROUNDS = 12, 8
#: visits that are drawn from a recording at random, and others by how many visits lie between
DRAWS, STEPS = 40, {"in a row": 1, "every fourth": 4}


def record(store: Store, seconds: float) -> None:
    """Visits in laps for so many seconds, after those that are on record."""
    until, cpu = time.monotonic() + seconds, environment()["cpu"]
    number = max((row["visit"] for row in store.rows), default=-1) + 1
    with Conductor(parse_all(NAMES), limits=Limits(rounds=RECORDED, visit_seconds=3.0)) as conductor:
        while time.monotonic() < until:
            for heads, n in random.sample(SHAPES, len(SHAPES)):
                found = conductor.visit(Workload(heads=heads, queries=n, keys=n), number=number)
                for one in (one for one in found if one.latency):
                    columns, samples = one.latency.columns, one.latency.samples
                    key = {"cpu": cpu, "moment": round(columns["moment"][0], 1), "heads": heads, "n": n}
                    rounds, disturbed = ([int(x) % 1000 for x in columns[y]] for y in ("round", "disturbed"))
                    told = {"visit": number, "round": rounds, "disturbed": disturbed}
                    seconds_each = [float(f"{x:.4g}") for x in samples]
                    store.add(**key, **told, contender=one.contender, seconds=seconds_each)
            number += 1


def joined(rows: Sequence[Row]) -> Measurement:
    """One measurement of one contender's visits, of the first rounds of each."""
    kept = [(row, at) for row in rows for at, number in enumerate(row["round"]) if number < ROUNDS]
    numbers = [(1000 * x["visit"] + x["round"][at], x["visit"], x["disturbed"][at]) for x, at in kept]
    columns = dict(zip(("round", "visit", "disturbed"), zip(*numbers, strict=True), strict=True))
    return Measurement("latency", "s", tuple(row["seconds"][at] for row, at in kept), columns)


def verdict(visits: Sequence[tuple[Row, Row]]) -> Verdict:
    """On the second contender against the first, over these visits."""
    return compare(joined([base for base, _ in visits]), joined([other for _, other in visits]))


def coverage(rows: Sequence[Row]) -> str:
    """A table: by interval and number of visits the share that covers, and the median half-width."""
    generator, hits = random.Random(2026), list[Row]()
    for shape, (base, other) in product(SHAPES, combinations(NAMES, 2)):
        mine = [row for row in rows if (row["heads"], row["n"]) == shape]
        first, second = ({x["visit"]: x for x in mine if x["contender"] == one} for one in (base, other))
        both = [(first[at], second[at]) for at in sorted(first.keys() & second.keys())]
        both = [one for one in both if verdict([one]).visits]  # not those of which every round was disturbed
        figures = [math.log(verdict([one]).ratio) for one in both]
        middle, places = statistics.median(figures), range(len(both))
        for count in (one for one in COUNTS if one <= len(both) // 2):
            chosen = [("drawn", generator.sample(places, count)) for _ in range(DRAWS)]
            for how, step in STEPS.items():
                starts = range(0, len(both) - step * (count - 1), max(1, count // 2))
                chosen += [(how, [*places[at : at + step * count : step]]) for at in starts]
            for how, some in chosen:
                told, mine = verdict([both[at] for at in some]), [figures[at] for at in some]
                if told.low > 0:
                    x = Sitting(
                        "", math.log(told.ratio), told.spread / told.visits**0.5, told.freedom, told.visits
                    )
                    found = {"attnlab's": told, "for one sitting": over_sittings(told, [x], BETWEEN)}
                    spans = {way: (math.log(one.low), math.log(one.high)) for way, one in found.items()}
                    if count > 1:
                        center = statistics.fmean(mine)
                        half = quantile(count - 1, 0.05) * statistics.stdev(mine) / math.sqrt(count)
                        spans["Student's"] = center - half, center + half
                    for way, (low, high) in spans.items():
                        hit = {"hit": low <= middle <= high, "half": (high - low) / 2}
                        hits.append({"interval": way, "visits": how, "how many": count, **hit})
    return table_of(pd.DataFrame(hits).sort_values(BY), BY, covered)


def covered(some: pd.DataFrame) -> dict[str, object]:
    """How many intervals of one kind contain the median of all, and how wide they are."""
    shares = {"contain the median of all": some.hit.mean(), "half-width, median": some.half.median()}
    return {**{name: f"{share:.1%}" for name, share in shares.items()}, "intervals": len(some)}


def main() -> None:
    """Record, if asked to, and write the page."""
    parser = command_line(__doc__, out=HOME)
    parser.add_argument("--record", type=float, default=0.0, metavar="SECONDS")
    asked = parser.parse_args()
    store = Store(asked.out / "visits.jsonl")
    if asked.record:
        record(store, asked.record)
    count = len({(row["heads"], row["n"], row["visit"]) for row in store.rows})
    cpus = ", ".join(sorted({row["cpu"] for row in store.rows}))
    said = f"{count} visits on {cpus}, {ROUNDS} rounds of each. Visits in a row begin some 8 s apart."
    publish("Does the interval cover?", "visits", said, coverage(store.rows), out=asked.out / "visits.md")
