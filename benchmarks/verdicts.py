"""Are verdicts true, and do they repeat? False claims, planted slow-downs found, and the same command many times.

``python benchmarks verdicts [aa power repeats] [--beside idle|cpu|memory] [--trials 40] [--out DIR]``, on a
machine that does nothing else. Every result is appended to DIR/verdicts.jsonl as soon as it is there, and an
interrupted benchmark goes on where it stopped; DIR/verdicts.md is written whole from that file. A trial takes twenty
seconds, one of `aa` a minute.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table

from attnlab.race.compare import compare
from attnlab.stats.verdicts import Kind, verdicts_against
from attnlab.workload.workload import Workload

LENGTHS = (64, 256, 1024)
#: entered six times each: fifteen pairs that must not be told apart
TWINS = ("numpy_blocked", "numpy_vectorized", "torch_eager", "torch_sdpa", "torch_sdpa_math")
#: about 3 ms a call on two cores of 2026
THREE_MS = Workload(heads=8, queries=512, keys=512)
SLOWED = ("torch_sdpa", "torch_sdpa[slowed=3]")
SHAPES = ((4, 1024), (16, 256), (1, 2048))
REPEATED = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")


def verdicts(names: tuple[str, ...], workload: Workload) -> list[dict[str, Any]]:
    """One `attnlab compare`: a row for each verdict, of every pair where all names are one."""
    started = time.monotonic()
    found = compare(*names, workload=workload, afresh=True)
    told = [*found.verdicts.items()]
    if len(set(names)) == 1:
        measured = [one for one in found.results if one.latency]
        pairs = ((one, other) for one, other in combinations(measured, 2))
        told = [one for pair in pairs for one in verdicts_against(pair, pair[0].contender).items()]
    return [
        {
            "contender": name,
            "kind": str(one.kind),
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high if math.isfinite(one.high) else None,
            "seconds": time.monotonic() - started,
        }
        for name, one in told
    ]


def cases(section: str) -> Iterator[tuple[tuple[str, ...], Workload]]:
    """What one trial of a section races."""
    if section == "aa":
        yield from (((name,) * 6, Workload(heads=4, queries=n, keys=n)) for name in TWINS for n in LENGTHS)
    elif section == "power":
        yield SLOWED, THREE_MS
    else:
        yield from ((REPEATED, Workload(heads=h, queries=n, keys=n)) for h, n in SHAPES)


def told(store: Store) -> Iterator[str]:
    """The page: a table for each section that was measured."""
    rows = pd.DataFrame(store.rows)
    for section, some in rows.groupby("section", sort=False):
        if section != "repeats":
            right = Kind.SLOWER if section == "power" else None
            yield f"## {TITLES[str(section)]}"
            yield table(
                HEAD, [_row(key, ones, right) for key, ones in some.groupby(["beside", "names", "n"])]
            )
            continue
        yield f"## {TITLES['repeats']}"
        yield table(
            (
                "condition",
                "heads",
                "n",
                "contender",
                "calls",
                "pairs of intervals disjoint",
                "hold the median of all",
                "half-width",
            ),
            [(*key, *_repeated(ones)) for key, ones in some.groupby(["beside", "heads", "n", "contender"])],
        )


TITLES = {
    "aa": "One contender against itself, entered six times: faster or slower is a false claim",
    "power": f"A known slow-down: `{SLOWED[1]}` against `{SLOWED[0]}`",
    "repeats": f"The same command many times: {', '.join(REPEATED)}",
}
HEAD = (
    "condition",
    "contenders",
    "n",
    "verdicts",
    "claims",
    "wrong claims",
    "off 1 by, median",
    "seconds, median",
)


def _row(key: Any, some: pd.DataFrame, right: Kind | None) -> tuple[object, ...]:
    claims = some.kind[some.kind.isin([Kind.FASTER, Kind.SLOWER])]
    wrong = claims != right if right else claims.notna()
    off = (some.ratio - 1).abs().median()
    return *key, len(some), len(claims), int(wrong.sum()), f"{off:.2%}", f"{some.seconds.median():.0f}"


def _repeated(some: pd.DataFrame) -> tuple[object, ...]:
    spans = [one for one in zip(some.low, some.high, strict=True) if one[0] > 0 and pd.notna(one[1])]
    pairs = list(combinations(spans, 2))
    disjoint = sum(one[1] < other[0] or other[1] < one[0] for one, other in pairs)
    logs = some.ratio.map(math.log)
    half = pd.Series([math.sqrt(high / low) - 1 for low, high in spans]).median()
    others = [math.exp(logs.drop(at).median()) for at in logs.index]
    holding = sum(low <= one <= high for (low, high), one in zip(spans, others, strict=False))
    return len(some), f"{disjoint} of {len(pairs)}", f"{holding} of {len(spans)}", f"{half:.1%}"


def main() -> None:
    """Measure the sections asked for and write the page."""
    parser = command_line(__doc__, out=HOME / "verdicts")
    parser.add_argument("sections", nargs="*", choices=TITLES, default=list(TITLES))
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=40)
    asked = parser.parse_args()
    store = Store(asked.out / "verdicts.jsonl")
    with load_beside(asked.beside):
        for section in asked.sections:
            for trial in range(1 if section == "aa" else asked.trials):
                for names, workload in cases(section):
                    said = ", ".join(dict.fromkeys(names))
                    key = {"section": section, "beside": asked.beside, "names": said}
                    key |= {"heads": workload.heads, "n": workload.keys}
                    if store.lacks(**key, trial=trial):
                        moment = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
                        for row in verdicts(names, workload):
                            store.add(**key, trial=trial, moment=moment, **row)
    publish("Are verdicts true?", "verdicts", *told(store), out=asked.out / "verdicts.md")
