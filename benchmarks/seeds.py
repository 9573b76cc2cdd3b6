"""Do the claims' verdicts hang on the seed? The whole ledger with several seeds, side by side.

``python benchmarks/seeds.py [ID]... [--seeds 0,1,2] [--backends A,B]`` writes ``docs/claims-by-seed.md``. A seed takes
as long as ``attnlab claims`` does, some minutes on two cores, most of them for the training runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from attnlab.experiments.claim import Ledger
from attnlab.experiments.claims import run_claims
from attnlab.report.layout import markdown

PAGE = Path(__file__).parents[1] / "docs" / "claims-by-seed.md"


def page(ledgers: Mapping[int, Ledger]) -> str:
    """The ledgers by seed as a page: how many verdicts differ, each claim's verdicts, and a deciding figure."""
    first = next(iter(ledgers.values()))
    seeds = ", ".join(str(seed) for seed in ledgers)
    rows, differ = [], 0
    for entry in first.entries:
        found = {seed: ledger[entry.id] for seed, ledger in ledgers.items()}
        verdicts = [str(one.verdict) for one in found.values()]
        differ += len(set(verdicts)) > 1
        rows.append([f"`{entry.id}`", ", ".join(dict.fromkeys(verdicts)), entry.deciding_figure])
    return "\n\n".join(
        [
            "# The claims by seed",
            f"Every claim of the ledger with the seeds {seeds}: {differ} of {len(rows)} verdicts differ. "
            "No claim is decided by a time. Made by `python benchmarks/seeds.py`.",
            markdown(["claim", "verdict", f"deciding figure with seed {next(iter(ledgers))}"], rows, left=3),
        ]
    )


def main() -> int:
    """Judge the claims with every seed and write the page; 1 where a verdict hangs on the seed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="all claims by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--backends", help="all that are there by default")
    asked = parser.parse_args()
    backends = asked.backends.split(",") if asked.backends else None
    ledgers = {}
    for seed in map(int, asked.seeds.split(",")):
        print(f"seed {seed}", file=sys.stderr, flush=True)
        ledgers[seed] = run_claims(
            asked.ids, seed=seed, backends=backends, on_event=lambda text: print(f"  {text}", file=sys.stderr)
        )
        PAGE.write_text(page(ledgers) + "\n", encoding="utf-8")
    verdicts = [[entry.verdict for entry in ledger.entries] for ledger in ledgers.values()]
    return int(any(found != verdicts[0] for found in verdicts))


if __name__ == "__main__":
    sys.exit(main())
