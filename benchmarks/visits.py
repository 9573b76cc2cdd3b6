"""Which interval over few visits covers? Recorded visits, and three ways to make an interval of them.

``python benchmarks visits [--record SECONDS]``. Recording visits three workloads in laps and appends a line for each
contender and visit to visits.jsonl. The page is made from all that is recorded: how often an interval over k visits in
a row, and over k visits drawn from the whole recording, contains the median of all of them.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from common import HOME, Store, command_line, publish, table

from attnlab.backends.contender import parse_all
from attnlab.environment import environment
from attnlab.race.conductor import Conductor
from attnlab.stats.intervals import compare, quantile
from attnlab.workload.result import Measurement
from attnlab.workload.workload import Workload

SHAPES = ((4, 1024), (16, 256), (1, 2048))
NAMES = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")
COUNTS = (1, 2, 3, 5, 8, 20)
#: visits that are drawn from a recording, at random
DRAWS = 40


def record(store: Store, seconds: float) -> None:
    """Visits in laps for so many seconds, after those that are on record."""
    until, processor = time.monotonic() + seconds, environment()["cpu"]
    number = max((row["visit"] for row in store.rows), default=-1) + 1
    with Conductor(parse_all(NAMES), memory=False) as conductor:
        while time.monotonic() < until:
            for heads, n in random.sample(SHAPES, len(SHAPES)):
                for one in conductor.visit(Workload(heads=heads, queries=n, keys=n), number=number):
                    if one.latency:
                        columns = one.latency.columns
                        store.add(
                            cpu=processor,
                            moment=round(columns["moment"][0], 1),
                            heads=heads,
                            n=n,
                            contender=one.contender,
                            visit=number,
                            round=[int(each) % 1000 for each in columns["round"]],
                            seconds=[float(f"{each:.4g}") for each in one.latency.samples],
                            disturbed=[int(each) for each in columns["disturbed"]],
                        )
            number += 1


def pairs(
    rows: list[dict[str, Any]], rounds: int
) -> Iterator[tuple[str, list[Measurement], list[Measurement]]]:
    """A measurement for each visit of either contender of a pair, of the first `rounds` rounds."""
    for heads, n in SHAPES:
        seen: dict[str, dict[int, Measurement]] = {}
        for row in (one for one in rows if (one["heads"], one["n"]) == (heads, n)):
            kept = [at for at, number in enumerate(row["round"]) if number < rounds]
            columns = {
                "round": tuple(1000.0 * row["visit"] + row["round"][at] for at in kept),
                "visit": (float(row["visit"]),) * len(kept),
                "disturbed": tuple(float(row["disturbed"][at]) for at in kept),
            }
            one = Measurement("latency", "s", tuple(row["seconds"][at] for at in kept), columns)
            seen.setdefault(row["contender"], {})[row["visit"]] = one
        for base, other in combinations(NAMES, 2):
            both = sorted(seen.get(base, {}).keys() & seen.get(other, {}).keys())
            yield f"{heads} x {n}", [seen[base][at] for at in both], [seen[other][at] for at in both]


def joined(visits: list[Measurement]) -> Measurement:
    """One measurement of some visits."""
    names = visits[0].columns
    columns = {name: tuple(each for one in visits for each in one.columns[name]) for name in names}
    return Measurement("latency", "s", tuple(each for one in visits for each in one.samples), columns)


def coverage(rows: list[dict[str, Any]], rounds: int) -> Iterator[tuple[object, ...]]:
    """Rows of a table: by way and number of visits the share that covers, and the median half-width."""
    generator = random.Random(2026)
    found: dict[tuple[str, str, int], list[tuple[bool, float]]] = {}
    for _, base, other in pairs(rows, rounds):
        visits = [(*pair, compare(*pair)) for pair in zip(base, other, strict=True)]
        visits = [one for one in visits if one[2].visits]  # not those of which every round was disturbed
        base, other = [one for one, _, _ in visits], [one for _, one, _ in visits]
        figures = [math.log(one.ratio) for _, _, one in visits]
        middle = statistics.median(figures)
        for count in (one for one in COUNTS if one <= len(base) // 2):
            in_a_row = [range(at, at + count) for at in range(0, len(base) - count + 1, max(1, count // 2))]
            drawn = [generator.sample(range(len(base)), count) for _ in range(DRAWS)]
            for how, places in (("in a row", in_a_row), ("spread", drawn)):
                for some in places:
                    verdict = compare(joined([base[at] for at in some]), joined([other[at] for at in some]))
                    if verdict.low > 0:
                        spans = {"moderated": (math.log(verdict.low), math.log(verdict.high))}
                        if count > 1:
                            mine = [figures[at] for at in some]
                            half = quantile(count - 1, 0.05) * statistics.stdev(mine) / math.sqrt(count)
                            center = statistics.fmean(mine)
                            spans["Student"] = center - half, center + half
                            means = [statistics.fmean(generator.choices(mine, k=count)) for _ in range(200)]
                            spans["bootstrap of visits"] = tuple(statistics.quantiles(means, n=40)[::38])
                        for way, (low, high) in spans.items():
                            hit = low <= middle <= high, (high - low) / 2
                            found.setdefault((way, how, count), []).append(hit)
    for (way, how, count), ones in sorted(found.items()):
        share = sum(hit for hit, _ in ones) / len(ones)
        yield way, how, count, f"{share:.1%}", f"{statistics.median(half for _, half in ones):.1%}", len(ones)


def main() -> None:
    """Record, if asked to, and write the page."""
    parser = command_line(__doc__, out=HOME)
    parser.add_argument("--record", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--rounds", type=int, default=4, help="of each visit, the first so many count")
    asked = parser.parse_args()
    store = Store(asked.out / "visits.jsonl")
    if asked.record:
        record(store, asked.record)
    head = ("interval", "visits", "how many", "contain the median of all", "half-width, median", "intervals")
    machines = sorted({row["cpu"] for row in store.rows})
    count = len({(row["heads"], row["n"], row["visit"]) for row in store.rows})
    said = f"{count} visits on {', '.join(machines)}, the first {asked.rounds} rounds of each."
    publish(
        "Which interval covers?",
        "visits",
        said,
        table(head, coverage(store.rows, asked.rounds)),
        out=asked.out / "visits.md",
    )
