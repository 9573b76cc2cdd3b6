"""Do verdicts repeat? `attnlab compare` as typed, again and again: four backends, two equal sides, a planted 3 %.

``python benchmarks verdicts [repeats] [same] [slower-3] [--trials 8] [--beside idle|cpu|memory|sometimes] [--seconds
10] [--pause 0] [--python PATH ...] [--condition TEXT] [--out DIR]``, on a machine that does nothing else.

repeats : a trial is one call for each of three shapes, without earlier sittings; about 12 s a call.
same, slower-3 : a trial is three calls on one question, of which the second and third know the sittings before them;
the second side is the first again, or waits after each call for 3 % of its time. About 12 s a call.

``--pause`` waits so many seconds between trials. ``--python`` names interpreters whose attnlab is called, by turns: so
versions are compared. Each trial is kept in DIR/verdicts.jsonl, an interrupted benchmark goes on where it stopped, and
DIR/verdicts.md is made from that file. ``--condition`` is what the page calls it, and tells one series from another.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table_of

from attnlab.environment import environment

NAMES = ("torch_sdpa", "torch_eager", "numpy_blocked", "torch_sdpa_math")
SHAPES = ((4, 1024), (16, 256), (1, 2048))
#: by section the contenders, the shapes as heads and length, and how many calls a question has
SECTIONS = {
    "repeats": (NAMES, SHAPES, 1),
    "same": (("torch_eager", "torch_eager"), [(8, 256)], 3),
    "slower-3": (("torch_eager", "torch_eager[slowed=3]"), [(8, 256)], 3),
}
WHERE = ["condition", "machine", "heads", "n", "contender"]


def calls(python: str, names: tuple[str, ...], options: str, count: int) -> Iterator[dict[str, Any]]:
    """Calls on one question, in an empty cache folder at first: a row for each call and verdict."""
    with tempfile.TemporaryDirectory(prefix="attnlab-verdicts-") as folder:
        for number in range(count):
            started, moment = time.monotonic(), time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            command = [python, "-P", "-m", "attnlab", "compare", *names, "--json", *options.split()]
            done = subprocess.check_output(command, env={**os.environ, "ATTNLAB_CACHE": folder})
            spent = round(time.monotonic() - started, 2)
            for one in json.loads(done)["contenders"][1:]:
                span = {"ratio": one["ratio"], "low": one["ratio_low"], "high": one["ratio_high"]}
                known = {"call": number, "moment": moment, "seconds": spent, "kind": one["verdict"]}
                yield {**known, "contender": one["name"], **span}


def repeated(some: pd.DataFrame) -> dict[str, object]:
    """How the intervals of calls on one question lie to each other; the median is that of the other calls."""
    told = some.dropna(subset=["ratio", "low", "high"])
    spans, logs = list(zip(told.low, told.high, strict=True)), told.ratio.map(math.log)
    pairs = list(combinations(spans, 2))
    disjoint = sum(one[1] < other[0] or other[1] < one[0] for one, other in pairs)
    others = [math.exp(logs.drop(at).median()) for at in logs.index]
    holding = sum(low <= one <= high for (low, high), one in zip(spans, others, strict=True))
    return {
        "calls": len(some),
        "pairs of intervals disjoint": f"{disjoint} of {len(pairs)}",
        "hold the median of the others": f"{holding} of {len(spans)}",
        "half-width": half_width(told),
        "seconds a call": f"{some.seconds.median():.0f}",
    }


def found(some: pd.DataFrame) -> dict[str, object]:
    """What the calls on many questions of one kind said, and after the last call of each."""
    last = some.drop_duplicates("trial", keep="last")
    return {
        "questions": len(last),
        "calls": len(some),
        "calls that say slower": (some.kind == "slower").sum(),
        "that say faster": (some.kind == "faster").sum(),
        "third calls that say slower": (last.kind == "slower").sum(),
        "ratio after the third call": f"{last.ratio.median():.3f}",
        "half-width": half_width(last.dropna(subset="low")),
    }


def half_width(some: pd.DataFrame) -> str:
    """The median of the intervals' half-widths."""
    return f"{((some.high / some.low) ** 0.5 - 1).median():.1%}"


def told(rows: pd.DataFrame) -> Iterator[str]:
    """The tables of all that is stored."""
    rows = rows.sort_values(["section", *WHERE], kind="stable")
    if len(some := rows[rows.section == "repeats"]):
        yield f"## The same command many times\n\n{', '.join(NAMES)}, each call without earlier sittings."
        yield table_of(some, WHERE, repeated)
    if len(some := rows[rows.section != "repeats"]):
        yield "## Sittings that add up\n\nThree calls on each question. In `slower-3` one side takes 3 % longer."
        yield table_of(some, ["section", *WHERE], found)


def main() -> None:
    """Measure and write the page."""
    parser = command_line(__doc__, out=HOME / "verdicts", parts=SECTIONS)
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="for the visits of a call [10]")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between trials [0]")
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="interpreters with an attnlab")
    parser.add_argument("--condition", help="what the page calls it [--beside]")
    asked = parser.parse_args()
    store, cpu = Store(asked.out / "verdicts.jsonl"), environment()["cpu"]
    condition = asked.condition or asked.beside
    with load_beside(asked.beside):
        for trial in range(asked.trials):
            for section, python in product(asked.parts or SECTIONS, asked.python):
                names, shapes, count = SECTIONS[section]
                series = condition if len(asked.python) == 1 else f"{condition}, {python}"
                for heads, n in shapes:
                    key = {"section": section, "condition": series, "machine": cpu, "heads": heads, "n": n}
                    if store.lacks(**key, trial=trial):
                        options = f"--heads {heads} --length {n} --seconds {asked.seconds:g}"
                        for row in [*calls(python, names, options, count)]:  # all of a trial or none
                            store.add(**key, trial=trial, **row)
            time.sleep(asked.pause if trial + 1 < asked.trials else 0)
    publish("Do verdicts repeat?", "verdicts", *told(pd.DataFrame(store.rows)), out=asked.out / "verdicts.md")
