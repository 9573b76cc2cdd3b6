"""Do verdicts repeat? The same `compare` many times at three sizes: which intervals meet, and which hold the median.

``python benchmarks verdicts [repeats] [--beside idle|cpu|memory] [--trials 8] [--out DIR]``, on a machine that does
nothing else. Every call is appended to DIR/verdicts.jsonl as soon as it is there, and an interrupted benchmark goes on
where it stopped; DIR/verdicts.md is written whole from that file. A call takes twenty seconds. How often one of two
identical sides is called slower is measured by ``python benchmarks gate same``.
"""

from __future__ import annotations

import math
import time
from itertools import combinations
from typing import Any

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table

from attnlab.race.compare import compare
from attnlab.workload.workload import Workload

SHAPES = ((4, 1024), (16, 256), (1, 2048))
NAMES = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")
HEAD = (
    "condition",
    "heads",
    "n",
    "contender",
    "calls",
    "pairs of intervals disjoint",
    "hold the median of the others",
)
HEAD += ("half-width",)


def verdicts(workload: Workload) -> list[dict[str, Any]]:
    """One `attnlab compare`: a row for each verdict."""
    started = time.monotonic()
    found = compare(*NAMES, workload=workload, afresh=True)
    return [
        {
            "contender": name,
            "kind": str(one.kind),
            "ratio": one.ratio,
            "low": one.low,
            "high": one.high if math.isfinite(one.high) else None,
            "seconds": time.monotonic() - started,
        }
        for name, one in found.verdicts.items()
    ]


def repeated(some: pd.DataFrame) -> tuple[object, ...]:
    """How the intervals of calls on one question lie to each other; the median is that of the other calls."""
    spans = [one for one in zip(some.low, some.high, strict=True) if one[0] > 0 and pd.notna(one[1])]
    pairs = list(combinations(spans, 2))
    disjoint = sum(one[1] < other[0] or other[1] < one[0] for one, other in pairs)
    logs = some.ratio.map(math.log)
    half = pd.Series([math.sqrt(high / low) - 1 for low, high in spans]).median()
    others = [math.exp(logs.drop(at).median()) for at in logs.index]
    holding = sum(low <= one <= high for (low, high), one in zip(spans, others, strict=False))
    return len(some), f"{disjoint} of {len(pairs)}", f"{holding} of {len(spans)}", f"{half:.1%}"


def main() -> None:
    """Measure and write the page."""
    parser = command_line(__doc__, out=HOME / "verdicts")
    parser.add_argument("section", nargs="?", choices=["repeats"], default="repeats")
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=8)
    asked = parser.parse_args()
    store = Store(asked.out / "verdicts.jsonl")
    with load_beside(asked.beside):
        for trial in range(asked.trials):
            for heads, n in SHAPES:
                key = {"section": asked.section, "beside": asked.beside, "names": ", ".join(NAMES)}
                key |= {"heads": heads, "n": n, "trial": trial}
                if store.lacks(**key):
                    moment = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
                    for row in verdicts(Workload(heads=heads, queries=n, keys=n)):
                        store.add(**key, moment=moment, **row)
    by_question = pd.DataFrame(store.rows).groupby(["beside", "heads", "n", "contender"])
    said = f"The same command many times: {', '.join(NAMES)}."
    page = table(HEAD, [(*key, *repeated(ones)) for key, ones in by_question])
    publish("Do verdicts repeat?", "verdicts", said, page, out=asked.out / "verdicts.md")
