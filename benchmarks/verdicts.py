"""Are verdicts true? False claims, differences found, and whether more time would have said the same.

``python benchmarks verdicts [aa power leads agreement] [--beside idle|cpu|memory] [--passes 1] [--trials 40]``, on a
machine that does nothing else. Every result is appended to DIR/verdicts.jsonl as soon as it is there, and an
interrupted benchmark goes on where it stopped; DIR/verdicts.md is written whole from that file. `aa` takes about eight
minutes a pass, a trial of `power` or `leads` ten seconds, `agreement` about twelve minutes; beside load twice that.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
from common import HOME, Store, command_line, publish, table

from attnlab.backends.contender import parse_all
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.selftest import background_load
from attnlab.runs.execute import run
from attnlab.runs.plan import Plan
from attnlab.stats.verdicts import Kind, verdicts_against
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

LENGTHS = (64, 128, 256, 512, 1024, 2048)
#: entered six times each: fifteen pairs that must not be told apart
TWINS = ("numpy_blocked", "numpy_vectorized", "torch_eager", "torch_sdpa", "torch_sdpa_math")
#: pairs of which the second is slower by far more than a fifth, also where both are disturbed alike
LEADS = [("torch_sdpa", "torch_eager", n) for n in (64, 256, 512, 1024)] + [
    ("torch_sdpa", "numpy_vectorized", 256)
]
#: about 3 ms a call on two cores of 2026
THREE_MS = Workload(batch=1, heads=8, queries=512, keys=512, head_dim=64)
POWER_BACKEND, POWER_PERCENT = "torch_sdpa", 3.0


def aa(store: Store, beside: str, passes: int) -> None:
    """Backends entered six times, six lengths, fresh processes for every backend and pass."""
    limits = Limits(workload_seconds=4.0, most_processes=8, further_above=0.0)
    for key in ({"pass": number, "backend": name} for number in range(passes) for name in TWINS):
        if store.lacks(section="aa", beside=beside, **key):
            names = parse_all([str(key["backend"])] * 6)
            with Conductor(names, limits=limits, memory=False) as conductor:
                for length in LENGTHS:
                    started = time.monotonic()
                    pairs = list(_pairs(conductor.race(Workload(heads=4, queries=length, keys=length))))
                    seconds = time.monotonic() - started
                    store.add(section="aa", beside=beside, **key, n=length, seconds=seconds, pairs=pairs)


def _pairs(results: list[Result]) -> Iterator[dict[str, Any]]:
    measured = [one for one in results if one.outcome is Outcome.MEASURED]
    for one, other in combinations(measured, 2):
        (verdict,) = verdicts_against([one, other], one.contender).values()
        figures = {"ratio": verdict.ratio, "low": verdict.low, "processes": verdict.processes}
        high = verdict.high if math.isfinite(verdict.high) else None
        yield {**figures, "high": high, "kind": str(verdict.kind), "left_out": verdict.disturbed}


def power(store: Store, beside: str, trials: int) -> None:
    """A known slow-down, as a user compares: fresh processes for every trial."""
    slowed = f"{POWER_BACKEND}[slowed={POWER_PERCENT:g}]"
    for number in range(trials):
        key = {"section": "power", "beside": beside, "trial": number}
        if store.lacks(**key):
            started = time.monotonic()
            verdict = compare(POWER_BACKEND, slowed, workload=THREE_MS).verdicts.get(slowed)
            kind, ratio = (str(verdict.kind), verdict.ratio) if verdict else (None, None)
            store.add(**key, seconds=time.monotonic() - started, kind=kind, ratio=ratio)


def leads(store: Store, beside: str, trials: int) -> None:
    """Pairs whose order is known, fresh processes for every trial."""
    for number in range(trials):
        for base, other, length in LEADS:
            key = {
                "section": "leads",
                "beside": beside,
                "trial": number,
                "backend": f"{other} over {base}",
                "n": length,
            }
            if store.lacks(**key):
                started = time.monotonic()
                verdict = compare(
                    base, other, workload=Workload(heads=8, queries=length, keys=length)
                ).verdicts[other]
                seconds = time.monotonic() - started
                store.add(**key, seconds=seconds, kind=str(verdict.kind), ratio=verdict.ratio)


def agreement(store: Store, beside: str, times: int) -> None:
    """The verdicts of a default run, and those of one with so many times its time for rounds."""
    for factor in (1, times):
        key = {"section": "agreement", "beside": beside, "factor": factor}
        if store.lacks(**key):
            limits = Limits(workload_seconds=Limits().workload_seconds * factor)
            plan = Plan.grid(limits=limits, experiments=("none",), ceilings=False, memory=False)
            with tempfile.TemporaryDirectory() as folder:
                found = run(plan, Path(folder) / "run")
            cells = []
            for cell in found.judged().cells:
                for one in cell.ranking.standings if cell.ranking else ():
                    best = "best" if one is cell.ranking.best else "None"
                    kind = str(one.against_best.kind) if one.against_best else best
                    cells.append([cell.workload.label, one.contender, kind, one.seconds])
            store.add(**key, cells=cells, seconds=sum(found.account.values()))


def told(store: Store) -> Iterator[str]:
    """All that is stored, in words and tables."""
    columns = ["section", "beside", "backend", "n", "pairs", "kind", "ratio", "seconds", "factor", "cells"]
    sections = dict(list(pd.DataFrame(store.rows, columns=columns).groupby("section", sort=False)))
    if "aa" in sections:
        yield from _aa_told(sections["aa"])
    if "power" in sections:
        yield f"## {POWER_PERCENT:g} % put in: `{POWER_BACKEND}` at {THREE_MS.label}, by `attnlab compare`"
        rows = []
        for beside, some in sections["power"].groupby("beside", sort=False):
            found, wrong = ((some.kind == kind).sum() for kind in (Kind.SLOWER, Kind.FASTER))
            seconds = (f"{some.seconds.median():.0f}", f"{some.seconds.max():.0f}")
            share = f"{found} ({found / len(some):.0%})"
            rows.append((beside, len(some), share, wrong, f"{some.ratio.median():.3f}", *seconds))
        head = ("condition", "trials", "found", "wrong sign", "ratio, median", "seconds, median", "longest")
        yield table(head, rows)
    if "leads" in sections:
        yield "## A lead of far more than 20 %: who is slower by `attnlab compare`, 8 heads"
        rows = []
        for (beside, pair, n), some in sections["leads"].groupby(["beside", "backend", "n"], sort=False):
            found, wrong = ((some.kind == kind).sum() for kind in (Kind.SLOWER, Kind.FASTER))
            ratio = f"{some.ratio[some.kind == Kind.SLOWER].median():.2f}"
            rows.append(
                (beside, pair, int(n), len(some), found, wrong, ratio, f"{some.seconds.median():.0f}")
            )
        head = ("condition", "pair", "n", "trials", "found", "wrong sign", "ratio, median", "seconds, median")
        yield table(head, rows)
    if "agreement" in sections:
        idle = sections["agreement"].query("beside == 'idle'").sort_values("factor")
        if len(idle) == 2:
            yield from _agreement_told(*idle.cells)


def _aa_told(rows: pd.DataFrame) -> Iterator[str]:
    """How often a contender was told apart from itself, by condition, and where."""
    pairs = rows.explode("pairs", ignore_index=True)[["beside", "backend", "n", "pairs"]].dropna()
    pairs = pairs.join(pd.DataFrame(pairs.pop("pairs").tolist(), index=pairs.index))
    pairs["claimed"] = pairs.kind.isin([Kind.FASTER, Kind.SLOWER])
    pairs["off"] = (pairs.ratio - 1).abs()
    yield "## One contender against itself: 4 heads, n = 64 to 2048"
    counts = []
    for beside, some in pairs.groupby("beside", sort=False):
        off = some.off[some.low > 0]
        spans = (f"{off.median():.2%}", f"{off.quantile(0.95, interpolation='higher'):.2%}")
        claimed = f"{some.claimed.sum()} ({some.claimed.mean():.1%})"
        undecided, none = (some.kind == "undecided").sum(), (some.low == 0).sum()
        counts.append((beside, len(some), claimed, undecided, none, *spans))
    head = ("condition", "comparisons", "false claims", "undecided", "no interval", "off 1 by, median")
    yield table((*head, "95th percentile"), counts)
    where = [
        (beside, backend, int(n), len(some), some.claimed.sum(), f"{some.off.max():.1%}")
        for (beside, backend, n), some in pairs.groupby(["beside", "backend", "n"], sort=False)
        if some.claimed.any()
    ]
    yield "Where it was called faster or slower than itself:" if where else "Nobody was ever told apart."
    if where:
        yield table(("condition", "backend", "n", "comparisons", "false claims", "off 1 by, at most"), where)


def _agreement_told(short: list[Any], long: list[Any]) -> Iterator[str]:
    """How far the verdicts of a default run are those of a longer one."""
    columns = ["label", "contender", "kind", "seconds"]
    one, other = (pd.DataFrame(cells, columns=columns) for cells in (short, long))
    both = one.merge(other, on=["label", "contender"], how="left", suffixes=("", "_longer"))
    slower = both[both.kind == Kind.SLOWER]
    agree = (slower.kind_longer == Kind.SLOWER).sum()
    behind = both.seconds > 1.15 * both.groupby("label").seconds.transform("min")
    missed = (behind & both.kind.isin([Kind.UNDECIDED, "None"])).sum()
    rows = [
        ("contenders decidedly slower than the fastest", len(slower)),
        ("of them also in the longer run", f"{agree} ({agree / max(1, len(slower)):.1%})"),
        ("over 15 % behind the fastest, and not told apart from it", missed),
    ]
    yield "## A default run against one with four times its time for rounds"
    yield table(("figure", "found"), rows)


def main() -> None:
    """Measure the sections asked for and write the page."""
    measures = {"aa": aa, "power": power, "leads": leads, "agreement": agreement}
    parser = command_line(__doc__, out=HOME / "verdicts")
    parser.add_argument("sections", nargs="*", choices=measures, default=list(measures))
    parser.add_argument("--beside", choices=("idle", "cpu", "memory"), default="idle")
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--trials", type=int, default=40)
    chosen = parser.parse_args()
    store = Store(chosen.out / "verdicts.jsonl")
    counts = {"aa": chosen.passes, "power": chosen.trials, "leads": chosen.trials // 8, "agreement": 4}
    with background_load(chosen.beside, 7200.0):
        for section in chosen.sections:
            measures[section](store, chosen.beside, counts[section])
    publish("Are verdicts true?", "verdicts", *told(store), out=chosen.out / "verdicts.md")
