"""Are verdicts true? False claims, differences found, and whether more time would have said the same.

``python benchmarks/verdicts.py [aa power agreement] [--beside idle|cpu] [--passes 2] [--trials 30] [--out DIR]``, on a
machine that does nothing else. Every result is appended to DIR/verdicts.jsonl as soon as it is there, and an
interrupted benchmark goes on where it stopped; DIR/verdicts.md is written whole from that file. `aa` takes about six
minutes a pass, `power` fifteen seconds a trial, `agreement` about twelve minutes; beside the hog twice that.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from attnlab.backends.contender import parse_all
from attnlab.backends.discovery import backends
from attnlab.environment import environment
from attnlab.judge.pairing import Kind
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.compare import compare
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.race.selftest import background_load
from attnlab.report.analysis import analyse
from attnlab.runs.execute import run
from attnlab.runs.plan import Plan

LENGTHS = (64, 128, 256, 512, 1024, 2048)
#: about 3 ms a call on two cores of 2026
THREE_MS = Workload(batch=1, heads=8, queries=512, keys=512, head_dim=64)
POWER_BACKEND, POWER_PERCENT = "torch_sdpa", 3.0
#: three entries of each backend: three pairs that must not be told apart
_ENTRIES = 3
_LOAD_SECONDS = 7200.0
Row = dict[str, Any]


class Store:
    """Rows of one benchmark, appended as they come; `done` says whether a key was measured before."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "verdicts.jsonl"
        text = self.file.read_text(encoding="utf-8") if self.file.exists() else ""
        self.rows: list[Row] = [json.loads(line) for line in text.splitlines()]

    def done(self, **key: Any) -> bool:
        """Whether there is a row with these values."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.rows.append(row)
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def aa(store: Store, beside: str, passes: int) -> None:
    """Every backend entered three times, six lengths, fresh processes for every backend and pass."""
    limits = Limits(workload_seconds=4.0, most_processes=8, further_above=0.0)
    for number in range(passes):
        for name in backends():
            key = {"section": "aa", "beside": beside, "pass": number, "backend": name}
            if store.done(**key):
                continue
            print(f"aa {beside}, pass {number + 1}: {name}", file=sys.stderr)
            with Conductor(parse_all([name] * _ENTRIES), limits=limits, memory=False) as conductor:
                for length in LENGTHS:
                    workload = Workload(heads=4, queries=length, keys=length)
                    started = time.monotonic()
                    results = conductor.race(workload)
                    pairs = list(_pairs(results))
                    seconds = time.monotonic() - started
                    store.add({**key, "n": length, "seconds": seconds, "pairs": pairs})


def _pairs(results: list[Result]) -> Iterator[Row]:
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
        if store.done(**key):
            continue
        started = time.monotonic()
        found = compare([POWER_BACKEND, slowed], THREE_MS)
        seconds, verdict = time.monotonic() - started, found.verdicts.get(slowed)
        print(
            f"power {beside} {number + 1}: {verdict.kind if verdict else None}, {seconds:.0f} s",
            file=sys.stderr,
        )
        store.add(
            {
                **key,
                "seconds": seconds,
                "kind": str(verdict.kind) if verdict else None,
                "ratio": verdict.ratio if verdict else None,
                "processes": verdict.processes if verdict else 0,
            }
        )


def agreement(store: Store, beside: str, times: int) -> None:
    """The verdicts of a default run, and those of one with four times its time for rounds."""
    for factor in (1, times):
        if store.done(section="agreement", beside=beside, factor=factor):
            continue
        limits = Limits(workload_seconds=Limits().workload_seconds * factor)
        plan = Plan.grid(limits=limits, experiments=("none",), ceilings=False, memory=False)
        print(f"agreement {beside}: {factor} times the time", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            found = run(plan, Path(folder) / "run")
        analysis, cells = analyse(found), []
        for cell in analysis.cells:
            for one in cell.ranking.standings if cell.ranking else ():
                against = one.against_best
                kind = (
                    "best" if against is None and one is cell.ranking.best else str(against and against.kind)
                )
                cells.append([cell.workload.label, one.contender, kind, one.seconds])
        seconds = sum(found.account.values())
        store.add(
            {"section": "agreement", "beside": beside, "factor": factor, "cells": cells, "seconds": seconds}
        )


def page(store: Store) -> str:
    """All that is stored, in tables."""
    where = environment()
    parts = [
        "# Are verdicts true?",
        f"{where['cpu']}, {where['cores']['logical']} cores, {where['python']}. Made by `benchmarks/verdicts.py`.",
        *_aa_page(store),
        *_power_page(store),
        *_agreement_page(store),
    ]
    return "\n\n".join(parts) + "\n"


def _aa_page(store: Store) -> Iterator[str]:
    conditions = dict.fromkeys(row["beside"] for row in store.rows if row["section"] == "aa")
    table = [
        (
            "condition",
            "comparisons",
            "false claims",
            "undecided",
            "no interval",
            "off 1 by, median",
            "95th percentile",
        )
    ]
    detail = [("condition", "backend", "n", "comparisons", "false claims", "off 1 by, at most")]
    for beside in conditions:
        rows = [row for row in store.rows if row["section"] == "aa" and row["beside"] == beside]
        every = [pair for row in rows for pair in row["pairs"]]
        told = sorted(abs(pair["ratio"] - 1) for pair in every if pair["low"] > 0)
        false = sum(_claimed(pair) for pair in every)
        undecided = sum(pair["kind"] == Kind.UNDECIDED for pair in every)
        none = sum(pair["low"] == 0 for pair in every)
        figures = (
            (statistics.median(told), told[math.ceil(0.95 * len(told)) - 1]) if told else (math.nan,) * 2
        )
        shares = [f"{false} ({false / max(1, len(every)):.1%})", str(undecided), str(none)]
        table.append((beside, str(len(every)), *shares, *(f"{one:.2%}" for one in figures)))
        for name in dict.fromkeys(row["backend"] for row in rows):
            for n in LENGTHS:
                pairs = [p for row in rows if row["backend"] == name and row["n"] == n for p in row["pairs"]]
                if any(map(_claimed, pairs)):
                    worst = max(abs(pair["ratio"] - 1) for pair in pairs)
                    claims = str(sum(map(_claimed, pairs)))
                    detail.append((beside, name, str(n), str(len(pairs)), claims, f"{worst:.1%}"))
    if conditions:
        yield "## One contender against itself: 4 heads, n = 64 to 2048"
        yield markdown(table)
        yield (
            "Where it was called faster or slower than itself:"
            if len(detail) > 1
            else "Nobody was ever told apart."
        )
        if len(detail) > 1:
            yield markdown(detail)


def _power_page(store: Store) -> Iterator[str]:
    table = [("condition", "trials", "found", "wrong sign", "ratio, median", "seconds, median", "longest")]
    for beside in dict.fromkeys(row["beside"] for row in store.rows if row["section"] == "power"):
        rows = [row for row in store.rows if row["section"] == "power" and row["beside"] == beside]
        found, wrong = (sum(row["kind"] == kind for row in rows) for kind in (Kind.SLOWER, Kind.FASTER))
        ratios = [row["ratio"] for row in rows if row["ratio"]]
        times = [row["seconds"] for row in rows]
        spans = (f"{statistics.median(ratios):.3f}", f"{statistics.median(times):.0f}", f"{max(times):.0f}")
        table.append((beside, str(len(rows)), f"{found} ({found / len(rows):.0%})", str(wrong), *spans))
    if len(table) > 1:
        yield f"## {POWER_PERCENT:g} % put in: `{POWER_BACKEND}` at {THREE_MS.label}, by `attnlab compare`"
        yield markdown(table)


def _agreement_page(store: Store) -> Iterator[str]:
    runs = {
        row["factor"]: {(label, name): (kind, seconds) for label, name, kind, seconds in row["cells"]}
        for row in store.rows
        if row["section"] == "agreement" and row["beside"] == "idle"
    }
    if len(runs) < 2:
        return
    short, long = (runs[factor] for factor in sorted(runs))
    slower = {key for key, (kind, _) in short.items() if kind == Kind.SLOWER}
    agree = sum(key in long and long[key][0] == Kind.SLOWER for key in slower)
    fastest: dict[str, float] = {}
    for (label, _), (_, seconds) in short.items():
        fastest[label] = min(seconds, fastest.get(label, math.inf))
    untold = {key: seconds for key, (kind, seconds) in short.items() if kind in (Kind.UNDECIDED, "None")}
    missed = [key for key, seconds in untold.items() if seconds > 1.15 * fastest[key[0]]]
    yield "## A default run against one with four times its time for rounds"
    yield markdown(
        [
            ("figure", "found"),
            ("contenders decidedly slower than the fastest", str(len(slower))),
            ("of them also in the longer run", f"{agree} ({agree / max(1, len(slower)):.1%})"),
            ("over 15 % behind the fastest, and not told apart from it", str(len(missed))),
        ]
    )


def _claimed(pair: Row) -> bool:
    return pair["kind"] in (Kind.FASTER, Kind.SLOWER)


def markdown(table: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table, its first row the header."""
    head, *rows = table
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, tuple("---" for _ in head), *rows))


def main() -> None:
    """Measure the sections asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("sections", nargs="*", default=["aa", "power", "agreement"])
    parser.add_argument("--beside", choices=("idle", "cpu", "memory"), default="idle")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/verdicts"))
    chosen = parser.parse_args()
    store = Store(chosen.out)
    measures: dict[str, Callable[[], None]] = {
        "aa": lambda: aa(store, chosen.beside, chosen.passes),
        "power": lambda: power(store, chosen.beside, chosen.trials),
        "agreement": lambda: agreement(store, chosen.beside, 4),
    }
    with background_load(chosen.beside, _LOAD_SECONDS):
        for section in chosen.sections:
            measures[section]()
    text = page(store)
    (chosen.out / "verdicts.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
