"""How often does `gate` raise a false alarm, and does it find planted slowdowns of 3 and 5 %?

``python benchmarks gate [same slower-3 slower-5] [--beside idle|cpu|memory] [--trials 60] [--out DIR]``, on a machine
that does nothing else. Each run takes 20 to 50 seconds and is stored in DIR/gate.jsonl at once: an interrupted
benchmark continues where it stopped. DIR/gate.md is made from that file; ``--trials 0`` measures nothing.
"""

from __future__ import annotations

from datetime import date

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table_of

from attnlab.backends.contender import huge_pages_refused
from attnlab.environment import environment
from attnlab.runs.gate import STATUS, Kinds, gate
from attnlab.text import finite
from attnlab.workload.workload import Workload

#: for each part: how long HEAD waits after a call, in per cent of the call's time
SLOWED = {"same": "0", "slower-3": "3", "slower-5": "5"}
#: a call takes about one millisecond
WORKLOAD = Workload(heads=8, queries=256, keys=256)


def gates(store: Store, part: str, beside: str, trials: int) -> None:
    """Run `gate` with a HEAD that waits and a BASE that does not, and store what it found."""
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
    """What the runs of one kind found."""
    high = some.high[some.status == 0]
    return {
        "runs": len(some),
        **{kind: (some.status == status).sum() for kind, status in STATUS.items()},
        "time ratio": f"{some.ratio.median():.3f}",
        "largest slowdown not excluded": f"{high.median() - 1:.1%}" if len(high) else "–",
        "seconds": f"{some.seconds.median():.0f}",
    }


def result(rows: pd.DataFrame) -> str:
    """In how many runs on an idle machine a regression was reported."""
    alarms = (rows.status == STATUS[Kinds.REGRESSION])[rows.beside == "idle"].groupby(rows.section)
    found = dict.fromkeys(SLOWED, "0 of 0") | {part: f"{some.sum()} of {len(some)}" for part, some in alarms}
    said = f"On an idle machine, `gate` reported a regression in {found['same']} runs between identical versions.\nIt"
    return f"{said} found a slowdown of 5 % in {found['slower-5']} runs, and one of 3 % in {found['slower-3']} runs."


def main() -> None:
    """Run the named parts and write the page."""
    parser = command_line(__doc__, out=HOME, parts=SLOWED)
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=60)
    asked = parser.parse_args()
    store = Store(asked.out / "gate.jsonl")
    with load_beside(asked.beside):
        for part in asked.parts or SLOWED:
            gates(store, part, asked.beside, asked.trials)
    rows = pd.DataFrame(store.rows)
    by = {"section": "HEAD", "beside": "other programs", "cpu": "machine", "day": "day", "pages": "pages"}
    found = table_of(rows.rename(columns=by), [*by.values()], of_kind)
    title = "How often does `gate` raise a false alarm?"
    publish(title, "gate", result(rows), found, out=asked.out / "gate.md")
