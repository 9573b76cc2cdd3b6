"""What does a race take beside what it times, here and in another checkout of attnlab?

``python benchmarks harness_cost OTHER WHAT [--pairs 4]``, on a machine that does nothing else. OTHER is an interpreter
whose attnlab differs, and WHAT says how, in words. Races of fixed rounds of `torch_sdpa` and `torch_eager`, in fresh
processes, here and there in turns. Starting processes and the calls on the clock are left out: they vary by more.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from common import HOME, command_line, publish, say, table

from attnlab.workload.workload import Workload

#: and the rounds of each process
WORKLOADS = {
    Workload(heads=8, queries=512, keys=512): 12,
    Workload(heads=8, queries=1024, keys=1024): 6,
    Workload(heads=32, kv_heads=8, queries=1, keys=32768): 6,
}
RACE = """
import json, sys, time
from attnlab.backends.contender import parse_all
from attnlab.workload.workload import Workload
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
if __name__ == "__main__":
    asked, rounds = json.loads(sys.argv[1])
    every = {"processes": 5, "most_processes": 5, "min_rounds": 5 * rounds, "max_rounds": 5 * rounds}
    limits = Limits(**every, workload_seconds=1000.0, narrow=0.0, further_above=0.0, far_behind=100.0)
    with Conductor(parse_all(["torch_sdpa", "torch_eager"]), limits=limits, memory=False) as conductor:
        conductor.account.clear()
        started = time.monotonic()
        conductor.race(Workload.from_dict(asked))
        print(json.dumps({"all": time.monotonic() - started, **conductor.account}))
"""


def seconds(python: str, workload: Workload, rounds: int) -> dict[str, float]:
    """Of one race by that interpreter, by activity, and of all of it."""
    asked = json.dumps([workload.to_dict(), rounds])
    done = subprocess.run([python, "-P", "-c", RACE, asked], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Race in turns and write the page."""
    parser = command_line(__doc__, out=HOME / "harness_cost.md")
    parser.add_argument("other")
    parser.add_argument("what")
    parser.add_argument("--pairs", type=int, default=4)
    asked, rows = parser.parse_args(), []
    for workload, rounds in WORKLOADS.items():
        taken: dict[str, list[dict[str, float]]] = {sys.executable: [], asked.other: []}
        for number in range(asked.pairs):
            for python in list(taken)[:: -1 if number % 2 else 1]:
                say(f"{workload.label}: pair {number + 1}")
                taken[python].append(seconds(python, workload, rounds))
        here, there = (
            statistics.median(one["all"] - one["start-up"] - one["timed"] for one in every)
            for every in taken.values()
        )
        whole = statistics.median(one["all"] for one in taken[asked.other])
        rows.append(
            (f"`{workload.label}`", f"{here:.2f} s", f"{there:.2f} s", f"{(here - there) / whole:+.1%}")
        )
    said = (
        "Seconds of a race of `torch_sdpa` and `torch_eager`, without starting processes and without the calls on the "
        f"clock: here, and {asked.what}; medians of {asked.pairs} races each, in turns. What is added is a part of the "
        "whole race, start and timed calls included."
    )
    head = ("workload", "here", asked.what, "added")
    publish("What the harness takes", "harness_cost", said, table(head, rows), out=asked.out)
