"""Does the interval over few visits cover? Recorded visits, and intervals over some of them.

``python benchmarks visits [--record SECONDS]``. Recording visits three workloads in laps and appends a line for each
contender and visit to visits.jsonl. The page is made from all that is recorded: how often an interval over k visits in
a row, and over k visits drawn from the whole recording, contains the median of all of them.
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
from attnlab.stats.intervals import Verdict, compare, quantile
from attnlab.workload.result import Measurement
from attnlab.workload.workload import Workload

SHAPES = ((4, 1024), (16, 256), (1, 2048))
NAMES = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")
COUNTS = (1, 2, 3, 5, 8, 20)
Row = dict[str, Any]
#: of each visit so many are recorded, and the first so many count
RECORDED, ROUNDS = 12, 8
#: visits that are drawn from a recording, at random
DRAWS = 40


def record(store: Store, seconds: float) -> None:
    """Visits in laps for so many seconds, after those that are on record."""
    until, cpu = time.monotonic() + seconds, environment()["cpu"]
    number = max((row["visit"] for row in store.rows), default=-1) + 1
    limits = Limits(rounds=RECORDED, visit_seconds=3.0)
    with Conductor(parse_all(NAMES), limits=limits, memory=False) as conductor:
        while time.monotonic() < until:
            for heads, n in random.sample(SHAPES, len(SHAPES)):
                for one in conductor.visit(Workload(heads=heads, queries=n, keys=n), number=number):
                    if one.latency is None:
                        continue
                    columns, samples = one.latency.columns, one.latency.samples
                    key = {"cpu": cpu, "moment": round(columns["moment"][0], 1), "heads": heads, "n": n}
                    rounds, disturbed = ([int(x) % 1000 for x in columns[y]] for y in ("round", "disturbed"))
                    told = {"round": rounds, "disturbed": disturbed}
                    told["seconds"] = [float(f"{each:.4g}") for each in samples]
                    store.add(**key, contender=one.contender, visit=number, **told)
            number += 1


def joined(rows: Sequence[Row]) -> Measurement:
    """One measurement of one contender's visits, of the first rounds of each."""
    kept = [(row, at) for row in rows for at, number in enumerate(row["round"]) if number < ROUNDS]
    columns = {
        "round": tuple(1000.0 * row["visit"] + row["round"][at] for row, at in kept),
        "visit": tuple(float(row["visit"]) for row, _ in kept),
        "disturbed": tuple(float(row["disturbed"][at]) for row, at in kept),
    }
    return Measurement("latency", "s", tuple(row["seconds"][at] for row, at in kept), columns)


def verdict(visits: Sequence[tuple[Row, Row]]) -> Verdict:
    """On the second contender against the first, over these visits."""
    return compare(joined([base for base, _ in visits]), joined([other for _, other in visits]))


def coverage(rows: Sequence[Row]) -> str:
    """A table: by interval and number of visits the share that covers, and the median half-width."""
    generator = random.Random(2026)
    hits = list[Row]()
    for shape, (base, other) in product(SHAPES, combinations(NAMES, 2)):
        mine = [row for row in rows if (row["heads"], row["n"]) == shape]
        first, second = ({x["visit"]: x for x in mine if x["contender"] == one} for one in (base, other))
        both = [(first[at], second[at]) for at in sorted(first.keys() & second.keys())]
        both = [one for one in both if verdict([one]).visits]  # not those of which every round was disturbed
        figures = [math.log(verdict([one]).ratio) for one in both]
        middle, places = statistics.median(figures), range(len(both))
        for count in (one for one in COUNTS if one <= len(both) // 2):
            in_a_row = [places[at : at + count] for at in range(0, len(both) - count + 1, max(1, count // 2))]
            spread = [generator.sample(places, count) for _ in range(DRAWS)]
            for how, some in [*product(["in a row"], in_a_row), *product(["spread"], spread)]:
                told, mine = verdict([both[at] for at in some]), [figures[at] for at in some]
                if told.low > 0:
                    spans = {"attnlab's": (math.log(told.low), math.log(told.high))}
                    if count > 1:
                        center = statistics.fmean(mine)
                        half = quantile(count - 1, 0.05) * statistics.stdev(mine) / math.sqrt(count)
                        spans["Student's"] = center - half, center + half
                    for way, (low, high) in spans.items():
                        hit = {"hit": low <= middle <= high, "half": (high - low) / 2}
                        hits.append({"interval": way, "visits": how, "how many": count, **hit})
    by = ["interval", "visits", "how many"]
    return table_of(pd.DataFrame(hits).sort_values(by), by, covered)


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
    machines = sorted({row["cpu"] for row in store.rows})
    count = len({(row["heads"], row["n"], row["visit"]) for row in store.rows})
    said = f"{count} visits on {', '.join(machines)}, the first {ROUNDS} rounds of each."
    page = asked.out / "visits.md"
    publish("Does the interval cover?", "visits", said, coverage(store.rows), out=page)
