"""How often does an interval from a few visits contain the true speedup? Computed from recorded visits.

``python benchmarks visits [--record SECONDS]``. With ``--record``, three workloads are visited in laps, and a line for
each contender and visit is appended to visits.jsonl. The page visits.md is made from that file.
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
BY = ["interval", "which visits", "number of visits"]
#: rounds of a visit that are recorded; rounds of a visit that are used, the first ones
RECORDED, ROUNDS = 12, 8
#: how often visits are drawn at random; other ways to choose visits, each with its step from one visit to the next
DRAWS, STEPS = 40, {"in a row": 1, "every fourth": 4}


def record(store: Store, seconds: float) -> None:
    """Visit all shapes in laps for this time, and append to what is recorded."""
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
    """One measurement from these visits of one contender, with the first rounds of each."""
    kept = [(row, at) for row in rows for at, number in enumerate(row["round"]) if number < ROUNDS]
    numbers = [(1000 * x["visit"] + x["round"][at], x["visit"], x["disturbed"][at]) for x, at in kept]
    columns = dict(zip(("round", "visit", "disturbed"), zip(*numbers, strict=True), strict=True))
    return Measurement("latency", "s", tuple(row["seconds"][at] for row, at in kept), columns)


def verdict(visits: Sequence[tuple[Row, Row]]) -> Verdict:
    """The verdict on the second contender compared with the first, over these visits."""
    return compare(joined([base for base, _ in visits]), joined([other for _, other in visits]))


def coverage(rows: Sequence[Row]) -> pd.DataFrame:
    """A row for each interval: its kind, whether it contains the median of all visits, and half of its width."""
    generator, hits = random.Random(2026), list[Row]()
    for shape, (base, other) in product(SHAPES, combinations(NAMES, 2)):
        mine = [row for row in rows if (row["heads"], row["n"]) == shape]
        first, second = ({x["visit"]: x for x in mine if x["contender"] == one} for one in (base, other))
        both = [(first[at], second[at]) for at in sorted(first.keys() & second.keys())]
        both = [one for one in both if verdict([one]).visits]  # without visits of disturbed rounds only
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
                    found = {"attnlab's": told, "first sitting": over_sittings(told, [x], BETWEEN)}
                    spans = {way: (math.log(one.low), math.log(one.high)) for way, one in found.items()}
                    if count > 1:
                        center = statistics.fmean(mine)
                        half = quantile(count - 1, 0.05) * statistics.stdev(mine) / math.sqrt(count)
                        spans["Student's"] = center - half, center + half
                    for way, (low, high) in spans.items():
                        hit = {"hit": low <= middle <= high, "half": (high - low) / 2}
                        hits.append({**dict(zip(BY, (way, how, count), strict=True)), **hit})
    return pd.DataFrame(hits).sort_values(BY)


def covered(some: pd.DataFrame) -> dict[str, object]:
    """The share of intervals of one kind that contain the median of all visits, and half of their width."""
    shares = {"contain the speedup": some.hit.mean(), "half-width": some.half.median()}
    return {**{name: f"{share:.1%}" for name, share in shares.items()}, "intervals": len(some)}


def main() -> None:
    """Record if ``--record`` is given, and write the page."""
    parser = command_line(__doc__, out=HOME)
    parser.add_argument("--record", type=float, default=0.0, metavar="SECONDS")
    asked = parser.parse_args()
    store = Store(asked.out / "visits.jsonl")
    if asked.record:
        record(store, asked.record)
    count = len({(row["heads"], row["n"], row["visit"]) for row in store.rows})
    cpus = ", ".join(sorted({row["cpu"] for row in store.rows}))
    hits = coverage(store.rows)
    share = hits[hits["which visits"] == "in a row"].groupby(["interval", "number of visits"]).hit.mean()
    alone, wide = share["attnlab's"], share["first sitting"]
    said = (
        f"{count} visits were recorded on {cpus}. From one visit alone, attnlab's interval contained the true speedup "
        f"in {alone.iloc[0]:.1%}\nof the cases; from {alone.index[-1]} visits in a row, in {alone.iloc[-1]:.1%}. From "
        f"visits in a row, the wider interval of a first sitting\ncontained it in {wide.min():.1%} to {wide.max():.1%}."
    )
    title = "How often does an interval contain the true speedup?"
    publish(title, "visits", said, table_of(hits, BY, covered), out=asked.out / "visits.md")
