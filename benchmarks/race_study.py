"""What a race rests on: scatter of forked and of fresh processes, and estimators of a pair's ratio, on recorded rounds.

``python benchmarks race_study [--beside idle|cpu] [--seconds 25] [--out DIR]``, on a machine that does nothing else.
Copies of two backends, and one slowed by known parts, race at the lengths of the default run in eight sets of
processes that are forked, and in eight whose every process starts by itself. DIR/race_study.jsonl keeps
the turns; DIR/race_study.md is written from it: ``--seconds 0`` measures nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any
from unittest import mock

import numpy as np
from common import HOME, Store, command_line, publish, table

from attnlab.backends.contender import parse_all
from attnlab.race import process_sets, race
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.selftest import background_load
from attnlab.stats.verdicts import LOOK_ALPHA, deviation, half_width
from attnlab.workload.workload import Workload

SIZES = ((1, 64), (4, 256), (16, 512), (4, 1024), (1, 2048))
CONTENDERS = (
    "torch_sdpa",
    "torch_sdpa",
    *(f"torch_sdpa[slowed={part}]" for part in (1, 3, 10)),
    *["torch_eager"] * 2,
)
#: pairs of contenders, and their true ratio
TRUTHS = {("torch_sdpa", f"torch_sdpa[slowed={part}]"): 1 + part / 100 for part in (1, 3, 10)}
TRUTHS |= {("torch_sdpa", "torch_sdpa#2"): 1.0, ("torch_eager", "torch_eager#2"): 1.0}
SETS, DRAWN = 8, 5
#: what of a turn may stand for it
TURNS = {"seconds": "calls that had their cores", "whole_s": "all calls", "least_s": "the fastest 2 ms"}


def _hodges_lehmann(x: Any, y: Any) -> float:
    ratios = y - x
    first, second = np.triu_indices(len(ratios))
    return float(np.median((ratios[first] + ratios[second]) / 2))


#: a pair's figure from the logarithms of both contenders' turns, round by round
PAIRS: dict[str, Callable[[Any, Any], float]] = {
    "median of ratios": lambda x, y: float(np.median(y - x)),
    "mean of ratios": lambda x, y: float(np.mean(y - x)),
    "Hodges-Lehmann": _hodges_lehmann,
    "medians": lambda x, y: float(np.median(y) - np.median(x)),
    "lower quartiles": lambda x, y: float(np.quantile(y, 0.25) - np.quantile(x, 0.25)),
    "least": lambda x, y: float(y.min() - x.min()),
}


def record(store: Store, beside: str, seconds: float) -> None:
    """The races: forked beside what is asked for, fresh processes idle alone."""
    limits = Limits(processes=SETS, most_processes=SETS, workload_seconds=seconds, max_rounds=10**6)
    for way in ("forked", "fresh") if beside == "idle" else ("forked",):
        key = {"way": way, "beside": beside}
        if not store.lacks(**key):
            continue
        with (
            mock.patch.object(race, "_LOOKS", ()),
            mock.patch.object(
                process_sets, "before_fork", process_sets.before_fork if way == "forked" else lambda *_: None
            ),
            Conductor(parse_all(list(CONTENDERS)), limits=limits, memory=False) as conductor,
        ):
            for heads, length in SIZES:
                for one in conductor.race(Workload(heads=heads, queries=length, keys=length)):
                    if one.latency is not None:
                        columns = {
                            name: one.latency.columns[name] for name in ("process", "round", "disturbed")
                        }
                        turns = {name: one.latency.columns[name] for name in TURNS if name != "seconds"}
                        samples = {"seconds": one.latency.samples, **turns, **columns}
                        kept = {
                            name: [float(f"{value:.5g}") for value in values]
                            for name, values in samples.items()
                        }
                        store.add(**key, n=length, contender=one.contender, turns=kept)


def _figures(
    first: dict[str, Any], other: dict[str, Any], turn: str, pair: Callable[[Any, Any], float]
) -> list[float]:
    """By set of processes, the pair's figure over the rounds that both had undisturbed."""
    sides = []
    for one in (first, other):
        rows = zip(one["process"], one["round"], one["disturbed"], one[turn], strict=True)
        sides.append({(process, count): math.log(value) for process, count, bad, value in rows if not bad})
    by_set: dict[float, list[tuple[float, float]]] = {}
    for at in sorted(sides[0].keys() & sides[1].keys()):
        by_set.setdefault(at[0], []).append((sides[0][at], sides[1][at]))
    return [pair(*np.array(both).T) for both in by_set.values() if len(both) > 1]


def told(store: Store) -> Iterator[str]:
    """Both questions, from what was recorded."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for row in store.rows:
        if "turns" in row:
            found.setdefault((row["beside"], row["way"], row["n"]), {})[row["contender"]] = row["turns"]
    yield "## Do forked processes scatter as fresh ones do?"
    yield "Standard deviation of ln(copy / copy) between sets of processes, and of the slowed ones about their truth:"
    rows = []
    for _, length in SIZES:
        cells = []
        for way in ("forked", "fresh"):
            turns = found.get(("idle", way, length), {})
            for names in (("torch_sdpa", "torch_sdpa#2"), ("torch_eager", "torch_eager#2")):
                figures = (
                    _figures(*(turns[name] for name in names), "seconds", PAIRS["median of ratios"])
                    if turns
                    else []
                )
                cells.append(
                    f"{deviation(figures, statistics.fmean(figures)):.2%}" if len(figures) > 1 else ""
                )
        rows.append((length, *cells))
    yield table(
        ("n", "torch_sdpa, forked", "torch_eager, forked", "torch_sdpa, fresh", "torch_eager, fresh"), rows
    )
    for beside in dict.fromkeys(key[0] for key in found):
        yield f"## Estimators, {beside}: half-width of the interval over {DRAWN} of {SETS} pairs, the median"
        rows = []
        for turn, title in TURNS.items():
            for name, pair in PAIRS.items():
                halves, missed, false, draws = [], 0, 0, 0
                for _, length in SIZES:
                    turns, mine = found.get((beside, "forked", length), {}), []
                    for (base, other), truth in TRUTHS.items():
                        figures = (
                            _figures(turns[base], turns[other], turn, pair)
                            if {base, other} <= turns.keys()
                            else []
                        )
                        for drawn in combinations(figures, DRAWN):
                            center = statistics.fmean(drawn)
                            half = half_width(deviation(drawn, center), DRAWN, LOOK_ALPHA)
                            mine.append(half)
                            draws, missed = draws + 1, missed + (abs(center - math.log(truth)) > half)
                            false += truth == 1 and abs(center) - half > math.log(1.01)
                    halves.append(f"{statistics.median(mine):.1%}" if mine else "")
                rows.append(
                    (title, name, *halves, f"{missed / max(1, draws):.1%}", f"{false / max(1, draws):.1%}")
                )
        yield table(
            ("of a turn", "of a pair", *(f"n = {n}" for _, n in SIZES), "missed the truth", "false claims"),
            rows,
        )


def main() -> None:
    """Record what is asked for and write the page."""
    parser = command_line(__doc__, out=HOME / "verdicts")
    parser.add_argument("--beside", choices=("idle", "cpu"), default="idle")
    parser.add_argument("--seconds", type=float, default=25.0)
    chosen = parser.parse_args()
    store = Store(chosen.out / "race_study.jsonl")
    if chosen.seconds:
        with background_load(chosen.beside, 3600.0):
            record(store, chosen.beside, chosen.seconds)
    publish("What a race rests on", "race_study", *told(store), out=chosen.out / "race_study.md")
