"""Does `compare` give the same answer when it is repeated? With four backends, equal sides, and a planted 3 %.

``python benchmarks verdicts [repeats] [same] [slower-3] [--trials 8] [--beside idle|cpu|memory|sometimes] [--seconds
10] [--pause 0] [--python PATH ...] [--condition TEXT] [--out DIR]``, on a machine that does nothing else. Trials are
stored in DIR/verdicts.jsonl at once: an interrupted benchmark continues where it stopped. DIR/verdicts.md is made from
that file; ``--trials 0`` measures nothing. ``--python`` names interpreters whose attnlab is run, in turn.

repeats : a trial is one command for each of three shapes, without earlier results; about 12 s per command.
same, slower-3 : a trial is three commands; the second and third use the results of those before. The second side is
the first one again, or waits after each call for 3 % of the call's time.
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
#: for each section: the contenders, the shapes as heads and tokens, and the number of commands in a trial
SECTIONS = {
    "repeats": (NAMES, SHAPES, 1),
    "same": (("torch_eager", "torch_eager"), [(8, 256)], 3),
    "slower-3": (("torch_eager", "torch_eager[slowed=3]"), [(8, 256)], 3),
}
MEANING = {"same": "A backend compared with itself", "slower-3": "A planted slowdown of 3 %"}
WHERE = ["condition", "machine", "heads", "tokens", "backend"]


def calls(python: str, names: tuple[str, ...], options: str, count: int) -> Iterator[dict[str, Any]]:
    """Run a command `count` times, at first with an empty cache folder: a row for each command and verdict."""
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


def overlaps(some: pd.DataFrame) -> tuple[int, int, int, int]:
    """Pairs of intervals that do not overlap, all pairs, intervals with the median of the others, all intervals."""
    told = some.dropna(subset=["ratio", "low", "high"])
    spans, logs = list(zip(told.low, told.high, strict=True)), told.ratio.map(math.log)
    pairs = list(combinations(spans, 2))
    disjoint = sum(one[1] < other[0] or other[1] < one[0] for one, other in pairs)
    others = [math.exp(logs.drop(at).median()) for at in logs.index]
    holding = sum(low <= one <= high for (low, high), one in zip(spans, others, strict=True))
    return disjoint, len(pairs), holding, len(spans)


def repeated(some: pd.DataFrame) -> dict[str, object]:
    """The row of a command that was repeated."""
    disjoint, pairs, holding, spans = overlaps(some)
    return {
        "commands": len(some),
        "do not overlap": f"{disjoint} of {pairs}",
        "contain the others' median": f"{holding} of {spans}",
        "half-width": half_width(some.dropna(subset=["ratio", "low", "high"])),
        "seconds": f"{some.seconds.median():.0f}",
    }


def found(some: pd.DataFrame) -> dict[str, object]:
    """The row of trials of one kind: what all of their commands said, and what the last one of each trial said."""
    last = some.drop_duplicates("trial", keep="last")
    return {
        "trials": len(last),
        "commands": len(some),
        "said slower": (some.kind == "slower").sum(),
        "said faster": (some.kind == "faster").sum(),
        "third said slower": (last.kind == "slower").sum(),
        "time ratio": f"{last.ratio.median():.3f}",
        "half-width": half_width(last.dropna(subset="low")),
    }


def half_width(some: pd.DataFrame) -> str:
    """The median of the half-widths of the intervals."""
    return f"{((some.high / some.low) ** 0.5 - 1).median():.1%}"


def told(rows: pd.DataFrame) -> Iterator[str]:
    """The results, and a table for each of the two parts."""
    rows = rows.rename(columns={"n": "tokens", "contender": "backend"})
    rows, said = rows.sort_values(["section", *WHERE], kind="stable"), list[str]()
    many, three = (rows[(rows.section == "repeats") == is_one] for is_one in (True, False))
    for name in many.condition.mode()[:1]:
        counts = [overlaps(some) for _, some in many[many.condition == name].groupby(WHERE)]
        disjoint, pairs, holding, spans = map(sum, zip(*counts, strict=True))
        said += [f"- The longest series, “{name}”: {disjoint} of {pairs} pairs of intervals do not overlap;"]
        said += [f"  {holding} of {spans} intervals contain the median of the other commands."]
    for section, some in three.groupby("section"):
        slower, faster = ((some.kind == kind).sum() for kind in ("slower", "faster"))
        said += [f"- {MEANING[section]}: {slower} of {len(some)} commands said slower, {faster} said faster."]
    yield "\n".join(said)
    yield f"## The same command, repeated\n\n{table_of(many, WHERE, repeated)}"
    yield f"## Commands that use earlier results\n\n{table_of(three, ['section', *WHERE], found)}"


def main() -> None:
    """Measure and write the page."""
    parser = command_line(__doc__, out=HOME / "verdicts", parts=SECTIONS)
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0, help="for the visits of a command [10]")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between trials [0]")
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="interpreters with an attnlab")
    parser.add_argument("--condition", help="name of the series on the page [--beside]")
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
                        for row in [*calls(python, names, options, count)]:  # a whole trial or nothing
                            store.add(**key, trial=trial, **row)
            time.sleep(asked.pause if trial + 1 < asked.trials else 0)
    result, *tables = told(pd.DataFrame(store.rows))
    title = "Does `compare` give the same answer when it is repeated?"
    publish(title, "verdicts", result, *tables, out=asked.out / "verdicts.md")
