"""Are the gains that ``attnlab tune`` promises there again? Each backend is tuned twice, one run after the other.

``python benchmarks tuning [BACKEND]...`` takes three minutes a run at most. A gain of the first run is confirmed where
the second finds one too, for the same settings in processes of its own, and the two intervals have ratios in common.
"""

from __future__ import annotations

import json
from typing import Any

from common import HOME, attnlab, command_line, publish, say, table, yes

from attnlab.workload.workload import Workload


def told(*words: str) -> tuple[float, Any]:
    """Seconds of a command, and the document that it printed."""
    seconds, done = attnlab(*words, "--json")
    say(f"{' '.join(words)}: {seconds:.0f} s")
    return seconds, json.loads(done.stdout)


def ratio(one: dict[str, Any]) -> str:
    """``0.904 [0.835, 0.978] faster``."""
    return f"{one['ratio']:.3f} [{one['ratio_low'] or 0:.3f}, {one['ratio_high'] or 0:.3f}] {one['verdict']}"


def main() -> int:
    """Tune each backend twice and write the page; 1 where a gain of the first run is not there again."""
    parser = command_line(__doc__, out=HOME / "tuning.md")
    parser.add_argument("backends", nargs="*", default=["numpy_vectorized", "torch_sdpa", "torch_eager"])
    asked = parser.parse_args()
    runs, rows, lost = [], [], 0
    for backend in asked.backends:
        found = [told("tune", backend) for _ in range(2)]
        (_, first), (_, second) = found
        for number, (seconds, one) in enumerate(found, 1):
            runs.append(
                [backend, number, f"{seconds:.0f}", one["chosen"] or f"none ({one['raced']} came nearest)"]
            )
        for comparison in first["confirmed"]:
            one, workload = comparison["contenders"][1], Workload.from_dict(comparison["workload"])
            others = [each for each in second["confirmed"] if each["workload"] == comparison["workload"]]
            if second["raced"] != one["name"]:  # the second run chose others: these settings once more
                words = ["compare", backend, one["name"], *workload.options(), "--seconds", "4"]
                others = [told(*words)[1]]
            other = others[0]["contenders"][1]
            common = one["ratio_low"] <= other["ratio_high"] and other["ratio_low"] <= one["ratio_high"]
            gain, confirmed = one["verdict"] == "faster", other["verdict"] == "faster" and common
            lost += gain and not confirmed
            rows.append(
                [one["name"], workload.queries, ratio(one), ratio(other), yes(confirmed) if gain else "–"]
            )
    head = ["contender", "n", "first run: ratio, verdict", "second run", "gain confirmed"]
    shown = table(["backend", "run", "seconds", "chosen"], runs), table(head, rows)
    publish("The gains of `attnlab tune`, asked twice", "tuning", *shown, out=asked.out)
    return int(lost > 0)
