"""Does the gate cry wolf, and does it find what was put in? Identical sides, and slow-downs of 3 and 5 %.

``python benchmarks gate [same slower-3 slower-5] [--beside idle|cpu|memory] [--trials 60] [--out DIR]``, on a machine
that does nothing else. Sides are commits of a repository that is made for it, with one kernel in PyTorch. Every gate
is appended to DIR/gate.jsonl as soon as it is there, and an interrupted benchmark goes on where it stopped; DIR/gate.md
is written whole from that file. A gate takes ten to twenty seconds.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pandas as pd
from common import HOME, LOADS, Store, command_line, load_beside, publish, table

from attnlab.backends.contender import huge_pages_refused, setting_of
from attnlab.environment import environment
from attnlab.runs.gate import STATUS, gate
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
#: by the tag of a commit, the wait in per cent of the kernel's own time
COMMITS = {"before": 0, "same": 0, "slower-3": 3, "slower-5": 5}
#: about a millisecond a call
WORKLOAD = Workload(heads=8, queries=256, keys=256)
HEAD = ("HEAD", "condition", "machine", "day", "pages", "gates", "passed", "regression", "no verdict")


def repository(folder: Path) -> None:
    """A commit with a tag for each of `COMMITS`."""
    here = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    for role in ("AUTHOR", "COMMITTER"):
        here |= {f"GIT_{role}_NAME": "benchmark", f"GIT_{role}_EMAIL": "benchmark@localhost"}
    (folder / "kernels").mkdir()
    git = ["git", "-C", str(folder)]
    subprocess.run([*git, "init", "-q"], check=True)
    for tag, percent in COMMITS.items():
        (folder / "kernels" / "mine.py").write_text(KERNEL.format(percent=percent))
        for words in (["add", "."], ["commit", "-q", "--allow-empty", "-m", tag], ["tag", tag]):
            subprocess.run([*git, *words], check=True, env=here)


def gates(store: Store, head: str, beside: str, trials: int) -> None:
    """Gates of `head` against the kernel before."""
    pages = "default" if huge_pages_refused() else "huge"
    where = {"cpu": environment()["cpu"], "day": str(date.today()), "pages": pages}
    for number in range(trials):
        key = {"section": head, "beside": beside, "trial": number, **where}
        if store.lacks(**key):
            found = gate(setting_of("before"), setting_of(head), ["mine"], [WORKLOAD], folders=["kernels"])
            (line,) = found.lines
            told = {name: getattr(line, name) for name in ("ratio", "low", "high")}
            known = {name: value if value == value else None for name, value in told.items()}
            known |= {"seconds": found.seconds, "why": [one.what for one in line.reasons]}
            store.add(**key, status=STATUS[found.found], **known)


def told(store: Store) -> Iterator[str]:
    """All that is stored."""
    yield f"One kernel in PyTorch at {WORKLOAD.label}, from two commits; the default margin of 3 %."
    yield "Rows before 2026-11-25 are of attnlab 0.3.1, whose race was another: they do not tell of today's."
    rows = pd.DataFrame([row for row in store.rows if row["section"] in COMMITS])
    keys, cells = ["section", "beside", "cpu", "day", "pages"], []
    for where, some in rows.groupby(keys, sort=False):
        counts = [int((some.status == status).sum()) for status in (0, 1, 3)]
        seen = f"{some.high[some.status == 0].median() - 1:.1%}" if counts[0] else "–"
        ends = (f"{some.ratio.median():.3f}", seen, f"{some.seconds.median():.0f}")
        cells.append((*where, len(some), *counts, *ends))
    yield table((*HEAD, "ratio, median", "none above, median", "seconds, median"), cells)


def main() -> None:
    """Run the parts asked for and write the page."""
    parser = command_line(__doc__, out=HOME, parts=[*COMMITS][1:])
    parser.add_argument("--beside", choices=LOADS, default="idle")
    parser.add_argument("--trials", type=int, default=60)
    asked = parser.parse_args()
    store, out = Store(asked.out.resolve() / "gate.jsonl"), asked.out.resolve() / "gate.md"
    with tempfile.TemporaryDirectory() as folder, load_beside(asked.beside):
        repository(Path(folder))
        os.chdir(folder)
        for part in asked.parts or [*COMMITS][1:]:
            gates(store, part, asked.beside, asked.trials)
        os.chdir(HOME)
    publish("Does the gate cry wolf?", "gate", *told(store), out=out)
