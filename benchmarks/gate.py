"""Does the gate cry wolf, and does it find what was put in? Identical sides, and slow-downs of 3 and 5 %.

``python benchmarks gate [same slower-3 slower-5] [--beside idle|cpu|memory] [--trials 60] [--out DIR]``, on a machine
that does nothing else. Both sides are one kernel in PyTorch; HEAD waits after each call for a part of its time. Every
gate is appended to DIR/gate.jsonl as soon as it is there, and an interrupted benchmark goes on where it stopped;
DIR/gate.md is written whole from that file. A gate takes ten to twenty seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table_of

from attnlab.backends.contender import huge_pages_refused
from attnlab.environment import environment
from attnlab.runs.gate import STATUS, gate
from attnlab.text import finite
from attnlab.workload.workload import Workload

#: by part, how long HEAD waits in per cent of the kernel's own time
SLOWED = {"same": "0", "slower-3": "3", "slower-5": "5"}
#: about a millisecond a call
WORKLOAD = Workload(heads=8, queries=256, keys=256)


def gates(store: Store, part: str, beside: str, trials: int) -> None:
    """Gates of the kernel that waits against the one that does not."""
    pages = "default" if huge_pages_refused() else "huge"
    where = {"cpu": environment()["cpu"], "day": str(date.today()), "pages": pages}
    for number in range(trials):
        key = {"section": part, "beside": beside, "trial": number, **where}
        if store.lacks(**key):
            found = gate(("slowed", "0"), ("slowed", SLOWED[part]), ["torch_eager"], [WORKLOAD])
            (line,) = found.lines
            known = finite({name: getattr(line, name) for name in ("ratio", "low", "high")}, named=False)
            known |= {"seconds": found.seconds, "why": [one.what for one in line.reasons]}
            store.add(**key, status=STATUS[found.found], **known)


def of_kind(some: pd.DataFrame) -> dict[str, object]:
    """What gates of one kind found."""
    high = some.high[some.status == 0]
    return {
        "gates": len(some),
        **{kind: (some.status == status).sum() for kind, status in STATUS.items()},
        "ratio, median": f"{some.ratio.median():.3f}",
        "none above, median": f"{high.median() - 1:.1%}" if len(high) else "–",
        "seconds, median": f"{some.seconds.median():.0f}",
    }


def told(store: Store) -> Iterator[str]:
    """All that is stored."""
    yield f"`torch_eager` at {WORKLOAD.label}, called from Python; the default margin of 3 %."
    names = {"section": "HEAD", "beside": "condition", "cpu": "machine"}
    rows = pd.DataFrame(store.rows).rename(columns=names)
    yield table_of(rows, ["HEAD", "condition", "machine", "day", "pages"], of_kind)


def main() -> None:
    """Run the parts asked for and write the page."""
    parser = command_line(__doc__, out=HOME, parts=SLOWED)
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=60)
    asked = parser.parse_args()
    store = Store(asked.out / "gate.jsonl")
    with load_beside(asked.beside):
        for part in asked.parts or SLOWED:
            gates(store, part, asked.beside, asked.trials)
    publish("Does the gate cry wolf?", "gate", *told(store), out=asked.out / "gate.md")
