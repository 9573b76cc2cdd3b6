"""Do the claims' verdicts hang on the seed? The whole ledger with several seeds, side by side.

``python benchmarks seeds [ID]... [--seeds 0,1,2] [--backends A,B]`` writes ``docs/claims-by-seed.md``. A seed takes
as long as ``attnlab claims`` does, some minutes on two cores, most of them for the training runs.
"""

from __future__ import annotations

from collections import defaultdict

from common import REPOSITORY, command_line, say

from attnlab.lab.claims import run_claims


def main() -> int:
    """Judge the claims with every seed and write the page; 1 where a verdict hangs on the seed."""
    parser = command_line(__doc__, out=REPOSITORY / "docs" / "claims-by-seed.md")
    parser.add_argument("ids", nargs="*", metavar="ID", help="all claims by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--backends", help="all that are there by default")
    asked = parser.parse_args()
    backends = asked.backends.split(",") if asked.backends else None
    ledgers = []
    for seed in map(int, asked.seeds.split(",")):
        say(f"seed {seed}")
        ledgers.append(run_claims(asked.ids, seed=seed, backends=backends, on_event=say))
    found: dict[str, list[str]] = defaultdict(list)
    for entry in ledgers[0].entries:
        verdicts = dict.fromkeys(str(ledger[entry.id].verdict) for ledger in ledgers)
        found[" or ".join(verdicts)].append(f"`{entry.id}`")
    differ = sum(len(ids) for verdict, ids in found.items() if " or " in verdict)
    seeds, count = asked.seeds.replace(",", ", "), len(ledgers[0].entries)
    said = (
        f"Every claim of the ledger with the seeds {seeds}: {differ} of {count} verdicts "
        "differ. No claim is decided by a time. What each says, and the figure that decides it, is in "
        "[the ledger](../reports/reference/numerics/numerics.md). Made by `python benchmarks seeds`."
    )
    lists = (f"**{verdict}**: {', '.join(ids)}." for verdict, ids in found.items())
    asked.out.write_text("\n\n".join(["# The claims by seed", said, *lists]) + "\n", encoding="utf-8")
    return int(differ > 0)
