"""Change points of a machine's history: how often where nothing changed, and how small a change is found?

``python benchmarks history [--histories 200] [--seed 0] [--out FILE.md]``; some seconds. Promised: of 200 histories of
50 runs in which nothing changed at most 2 % show a change point, with white noise, with heavy tails (Student's t with
three degrees of freedom), and where neighbouring runs have a correlation of 0.3; and a step of 5 % in the middle,
within noise of 2 %, is found in 95 %. Exits with 1 where that is not kept.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from common import HOME, command_line, publish, table, yes

from attnlab.stats.change_points import ALPHA, CORRELATION, FEWEST, LEAST, change_points

RUNS, NOISE, MOST, FOUND = (20, 50, 100), 0.02, 0.02, 0.95
#: what changes, and the runs of 50 that it holds for
CHANGES = {
    "from run 25 on": (25, 50),
    "in the last 5 runs": (45, 50),
    "in the last 8 runs": (42, 50),
    "in runs 20 to 29": (20, 30),
}
STEPS = (0.03, 0.05, 0.10)


def drawn(kind: str, histories: int, runs: int, random: np.random.Generator) -> Any:
    """Histories without a change, whose standard deviation is 1; wandering ones by the correlation in their name."""
    if kind.startswith("t3"):
        return random.standard_t(3, (histories, runs)) / math.sqrt(3)
    found = random.standard_normal((histories, runs))
    correlation = float(kind.partition(" ")[2] or 0)
    for at in range(1, runs):
        found[:, at] = correlation * found[:, at - 1] + math.sqrt(1 - correlation**2) * found[:, at]
    return found


def main() -> int:
    """Simulate, and write the page."""
    parser = command_line(__doc__, out=HOME / "history.md")
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    random, count = np.random.default_rng(chosen.seed), chosen.histories
    alarms, kept = [], []
    for kind in ("white", "t3, heavy tails", "AR 0.3", "AR 0.6"):
        shares = [
            sum(map(bool, map(change_points, drawn(kind, count, runs, random)))) / count for runs in RUNS
        ]
        promised = kind != "AR 0.6"
        kept += [shares[1] <= MOST] if promised else []
        held = yes(shares[1] <= MOST) if promised else "not promised"
        alarms.append((kind, *(f"{share:.1%}" for share in shares), held))
    power = []
    for kind in ("white", "t3, heavy tails", "AR 0.3"):
        for said, (low, high) in CHANGES.items():
            for step in STEPS:
                figures = NOISE * drawn(kind, count, 50, random)
                figures[:, low:high] += math.log1p(step)
                found = list(map(change_points, figures))
                ends = [one for one in (low, high) if one < 50]
                near = [all(any(abs(at - end) <= 2 for at in some) for end in ends) for some in found]
                more = [len(some) > len(ends) for some in found]
                shares = [sum(map(bool, some)) / count for some in (found, near, more)]
                power.append((kind, said, f"{step:.0%}", *(f"{share:.0%}" for share in shares)))
                if (kind, low, high, step) == ("white", 25, 50, 0.05):
                    kept.append(shares[0] >= FOUND)
    publish(
        "Change points: false alarms, and what is found",
        "history",
        f"Simulated: {count} histories a row, seed {chosen.seed}. The level of the test is {ALPHA:.1%} a history, its "
        f"threshold that of noise with a correlation of {CORRELATION:g} between neighbouring runs; a level lasts "
        f"{LEAST} runs at least, and a history of fewer than {FEWEST} shows no change.",
        "## Histories in which nothing changed: how many show a change point",
        table(("noise", *(f"{runs} runs" for runs in RUNS), f"at most {MOST:.0%} of 50 runs"), alarms),
        f"## A change within noise of {NOISE:.0%}, 50 runs",
        table(
            ("noise", "change", "by", "found", "each end within 2 runs", "more change points than ends"),
            power,
        ),
        f"Promised: {FOUND:.0%} of steps of 5 % in the middle of white noise are found: {yes(kept[-1])}.",
        out=chosen.out,
    )
    return int(not all(kept))
