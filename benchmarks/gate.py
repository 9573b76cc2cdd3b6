"""Does the gate cry wolf, and does it find what was put in? Identical sides, and slow-downs of 3 and 5 %.

``python benchmarks gate [same planted simulated timed] [--beside idle|cpu|memory] [--trials 60]``, on a machine that
does nothing else. Sides are commits of a repository that is made for it, with one kernel in PyTorch. Every gate is
appended to DIR/gate.jsonl as soon as it is there, and an interrupted benchmark goes on where it stopped; DIR/gate.md
is written whole from that file. A gate takes ten to twenty seconds, `simulated` three minutes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import HOME, Store, command_line, publish, table

from attnlab.backends.contender import huge_pages_refused
from attnlab.backends.side import setting_of
from attnlab.environment import environment
from attnlab.race.selftest import background_load
from attnlab.runs.gate import STATUS, Kinds, Margins, gate
from attnlab.stats.verdicts import LOOK_ALPHA, half_width
from attnlab.workload.workload import Workload

KERNEL = '''"""Attention in PyTorch, written out, and then a wait."""

import time

import torch

LIBRARY = "torch"


def attend(query, key, value, *, causal, scale):
    start = time.perf_counter()
    scores = query @ key.transpose(-1, -2) * scale
    found = torch.softmax(scores, -1) @ value
    now = time.perf_counter()
    while time.perf_counter() < now + (now - start) * {percent} / 100:
        pass
    return found
'''
FUSED = """LIBRARY = "torch"
from torch.nn.functional import scaled_dot_product_attention

def attend(query, key, value, *, causal, scale):
    return scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
"""
#: about a millisecond a call
WORKLOAD = Workload(heads=8, queries=256, keys=256)
SIMULATED = 20_000


def repository(folder: Path) -> None:
    """Commits with one kernel as it is, twice, and with a wait of 3 and of 5 % of its time, each with a tag."""
    here = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        here |= {f"GIT_{role}_NAME": "benchmark", f"GIT_{role}_EMAIL": "benchmark@localhost"}
    (folder / "kernels").mkdir()
    (folder / "kernels" / "fused.py").write_text(FUSED)
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, percent in {"before": 0, "same": 0, "slower-3": 3, "slower-5": 5}.items():
        (folder / "kernels" / "mine.py").write_text(KERNEL.format(percent=percent))
        for words in (["add", "."], ["commit", "-q", "--allow-empty", "-m", tag], ["tag", tag]):
            subprocess.run([*git, *words], check=True, env=here)


def gates(store: Store, head: str, beside: str, trials: int) -> None:
    """Gates of `head` against the kernel before."""
    for number in range(trials):
        key = {"section": head, "beside": beside, "trial": number, **_where()}
        if store.lacks(**key):
            found = gate(setting_of("before"), setting_of(head), ["mine"], [WORKLOAD], folders=["kernels"])
            (line,) = found.lines
            known = {name: value if value == value else None for name, value in vars(line).items()}
            told = {name: known[name] for name in ("why", "ratio", "low", "high")}
            store.add(**key, status=STATUS[found.found], seconds=found.seconds, **told)


def _where() -> dict[str, Any]:
    """On what and when, and on which pages large arrays lie."""
    pages = "default" if huge_pages_refused() else "huge"
    return {"cpu": environment()["cpu"], "day": str(date.today()), "pages": pages}


def timed(store: Store) -> None:
    """A gate of two backends at three sizes, environments there, two commits alike."""
    sizes = [Workload(heads=8, queries=n, keys=n) for n in (128, 512, 1024)]
    found = gate(setting_of("before"), setting_of("same"), ["fused", "mine"], sizes, folders=["kernels"])
    why = [line.why for line in found.lines]
    said = {"status": STATUS[found.found], "seconds": found.seconds, "why": "; ".join(why)}
    store.add(section="timed", beside="idle", **_where(), **said)


def simulated(store: Store) -> None:
    """Gates of identical sides whose pairs scatter as the recorded ones do: how often both races say slower.

    Each pair of processes draws its log ratio from those that identical sides had, centred, for HEAD and for BASE's
    second entry alike; the rule is that of `attnlab.runs.gate.judged`, on pairs and not on rounds.
    """
    ratios = [row for row in store.rows if row["section"] == "same" and row["ratio"] and row["low"]]
    spreads = np.array([_spread(row) for row in ratios])
    generator, margins, counts = np.random.default_rng(0), Margins(), Counter[int]()
    for _ in range(SIMULATED):
        kinds = [_race(generator, float(generator.choice(spreads)), margins) for _ in range(2)]
        first, second = kinds
        final = first if first is Kinds.PASSED else second
        if second is Kinds.REGRESSION and first is not Kinds.REGRESSION:
            final = first if first is Kinds.PASSED else Kinds.NO_VERDICT
        counts[STATUS[final]] += 1
    store.add(
        section="simulated",
        beside="idle",
        counts=dict(counts),
        seconds=0.0,
        status=0,
        spread=float(np.median(spreads)),
    )


def _spread(row: dict[str, Any], pairs: int = 8) -> float:
    """Of the pairs' log ratios, from the interval that they gave."""
    return float(np.log(row["high"] / row["low"]) / 2 / half_width(1.0, pairs, LOOK_ALPHA / 2))


def _race(generator: np.random.Generator, spread: float, margins: Margins, pairs: int = 8) -> Kinds:
    """BASE, BASE again and HEAD, alike: each pair's log time with the recorded scatter."""
    times = generator.standard_t(5, (3, pairs)) * (spread / np.sqrt(2) / np.sqrt(5 / 3))
    spans = []
    for one, other in ((2, 0), (2, 1), (1, 0)):
        logs = times[one] - times[other]
        half = half_width(float(logs.std(ddof=1)), pairs, LOOK_ALPHA / 2)
        spans.append((np.exp(logs.mean() - half), np.exp(logs.mean() + half)))
    head, again, control = spans
    if control[0] > 1.01 or control[1] < 1 / 1.01:
        return Kinds.NO_VERDICT
    middle = min(np.sqrt(head[0] * head[1]), np.sqrt(again[0] * again[1]))
    if min(head[0], again[0]) > 1 and middle > 1 + margins.slower / 2 and head[1] > 1 + margins.slower:
        return Kinds.REGRESSION
    return Kinds.NO_VERDICT if head[1] > 1 + margins.unseen else Kinds.PASSED


def told(store: Store) -> Iterator[str]:
    """All that is stored."""
    columns = ["section", "beside", "cpu", "day", "pages", "status", "ratio", "high", "seconds"]
    rows = [row for row in store.rows if row["section"] not in ("simulated", "timed")]
    yield (
        f"One kernel in PyTorch at {WORKLOAD.label}, from two commits; the default margin of 3 %. "
        "Gates of default pages are of before gates took huge ones."
    )
    cells = []
    for where, some in pd.DataFrame(rows, columns=columns).groupby(columns[:5], sort=False):
        counts = [int((some.status == status).sum()) for status in (0, 1, 3)]
        seen = f"{some.high[some.status == 0].median() - 1:.1%}" if counts[0] else "–"
        ratio = f"{some.ratio.median():.3f}"
        cells.append((*where, len(some), *counts, ratio, seen, f"{some.seconds.median():.0f}"))
    head = (
        "HEAD",
        "condition",
        "machine",
        "day",
        "pages",
        "gates",
        "passed",
        "regression",
        "no verdict",
        "ratio, median",
    )
    yield table((*head, "none above, median", "seconds, median"), cells)
    whole = [
        f"{row['seconds']:.0f} s ({row['cpu']}, {row['day']}, {row['pages']} pages, exit {row['status']})"
        for row in store.rows
        if row["section"] == "timed"
    ]
    if whole:
        yield f"Two backends at three sizes, sides alike: {', '.join(whole)}."
    for row in store.rows:
        if row["section"] == "simulated":
            counts = {int(status): count for status, count in row["counts"].items()}
            yield (
                f"Simulated gates of identical sides, whose pairs scatter as those above (median {row['spread']:.1%}), "
                f"heavy-tailed: {counts.get(1, 0)} of {sum(counts.values()):,} exits with 1, {counts.get(3, 0)} with 3."
            )


def main() -> None:
    """Run the parts asked for and write the page."""
    parser = command_line(__doc__, out=HOME)
    parser.add_argument(
        "parts", nargs="*", choices=["same", "planted", "simulated", "timed"], default=["same"]
    )
    parser.add_argument("--beside", choices=("idle", "cpu", "memory"), default="idle")
    parser.add_argument("--trials", type=int, default=60)
    asked = parser.parse_args()
    store, out = Store(asked.out.resolve() / "gate.jsonl"), asked.out.resolve() / "gate.md"
    with tempfile.TemporaryDirectory() as folder, background_load(asked.beside, 7200.0):
        repository(Path(folder))
        os.chdir(folder)
        for part in asked.parts:
            if part == "same":
                gates(store, "same", asked.beside, asked.trials)
            elif part == "planted":
                for head in ("slower-5", "slower-3"):
                    gates(store, head, asked.beside, asked.trials)
            else:
                {"simulated": simulated, "timed": timed}[part](store)
        os.chdir(HOME)
    publish("Does the gate cry wolf?", "gate", *told(store), out=out)
