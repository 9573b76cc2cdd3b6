"""Killing a sweep's jobs and daemons at random: is anything lost, is anything there twice?

    python benchmarks sweep_kills [--kills 20] [--seed 14]    # as root, with Slurm installed; see docs/sweeps.md

A Slurm of two nodes is started on this host (tests/sweep/slurm.py), and a sweep on it. At random moments one thing of
it is killed, chosen at random: a run, a job, the step that Slurm keeps it in, a slurmd (which is started again a few
seconds later), the command that watches over it all; or a job is cancelled or requeued. After each kill all results on
disk are noted. In the end the set of results must be that of an unbroken run, and hold every result ever noted, as it
was. Things are killed only while a shard is measured, because a kill between two shards proves little; the plan is long
enough for all kills, and it is told how many attempts they cut off. It is no timing: it may run beside other programs.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from common import ATTNLAB, REPOSITORY, command_line, publish, say, table

sys.path.insert(0, str(REPOSITORY / "tests" / "sweep"))

from slurm import NODES, Slurm, lacking
from sweeping import PLAN, cells, cells_of

from attnlab.runs.execute import run
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.store import read_run
from attnlab.runs.sweep_folder import Sweep, read_sweep, status

#: long enough that most kills come while something is measured
LONGER = {
    "max_rounds = 2": "max_rounds = 60",
    "turn_seconds = 0.0001": "turn_seconds = 0.02",
    "lengths = [8, 16, 32]": f"lengths = {[8 * one for one in range(1, 61)]}",
}
SHARDS = 4
#: seconds between two kills, at least and at most
BETWEEN = (2.0, 20.0)


class Kills:
    """What may be killed of a sweep in `folder` on `slurm`; each returns whether there was anything."""

    def __init__(self, slurm: Slurm, folder: Path, chance: random.Random) -> None:
        self.slurm, self.folder, self.chance = slurm, folder, chance
        self.watcher = self._watch(str(folder.parent / "plan.toml"), "--shards", str(SHARDS))
        self.down: dict[str, float] = {}

    def ways(self) -> dict[str, Callable[[], bool]]:
        """What is killed, or done to a job of the queue, by name."""
        return {
            "a run": lambda: self._kill(self._processes("attnlab", "run")),
            "a job": lambda: self._kill(self._processes("submitit.core._submit")),
            "a step": lambda: self._kill(self._steps()),
            "a slurmd": self._stop_a_node,
            "by scancel": lambda: self._command("scancel"),
            "by requeue": lambda: self._command("scontrol", "requeue"),
            "the watcher": self._end_watcher,
        }

    def _stop_a_node(self) -> bool:
        there = [one for one in NODES if one not in self.down]
        if not there:
            return False
        node = self.chance.choice(there)
        self.slurm.stop(node)
        self.down[node] = time.monotonic() + self.chance.uniform(0.5, 12.0)
        return True

    def _end_watcher(self) -> bool:
        if self.watcher.poll() is not None:
            return False
        self.watcher.kill()
        self.watcher.wait()
        return True

    def mend(self) -> None:
        """Start what has been down long enough, and the watcher where it is not there."""
        for node in [one for one, until in self.down.items() if time.monotonic() > until]:
            del self.down[node]
            self.slurm.start(node)
        if self.watcher.poll() is not None:
            self.watcher = self._watch("--resume")

    def _watch(self, *words: str) -> subprocess.Popen[bytes]:
        """Start ``attnlab sweep`` with these words."""
        words = ("sweep", *words, "--cluster", "slurm", "--out", str(self.folder))
        with (self.folder.parent / "watcher.log").open("ab") as log:
            return subprocess.Popen([*ATTNLAB, *words], env=self.slurm.environment(), stdout=log, stderr=log)

    def _command(self, *words: str) -> bool:
        there = sorted(self.slurm.queue())
        if not there:
            return False
        words = (*words, self.chance.choice(there))
        done = subprocess.run(words, env=self.slurm.environment(), capture_output=True)
        return done.returncode == 0

    def _processes(self, *words: str) -> Iterator[psutil.Process]:
        """Those of this sweep with all these words on their command line."""
        for one in psutil.process_iter(["cmdline"]):
            line = one.info["cmdline"] or []
            if str(self.folder) in " ".join(line) and all(word in line for word in words):
                yield one

    def _steps(self) -> Iterator[psutil.Process]:
        """Slurm's own processes around the jobs."""
        for job in self._processes("submitit.core._submit"):
            yield from (one for one in job.parents() if one.name() == "slurmstepd")

    def _kill(self, found: Iterator[psutil.Process]) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            self.chance.choice(list(found)).kill()
            return True
        return False


def noted(sweep: Sweep) -> set[str]:
    """Every result on disk that makes a whole workload, as its line."""
    return {one.to_json() for run in map(read_run, sweep.runs()) for one in run.whole()}


def killed(folder: Path, kills: int, chance: random.Random) -> tuple[Counter[str], int]:
    """Carry out the sweep, killing: how often what was killed, and how many results of those noted are not there."""
    count, seen, out = Counter[str](), set[str](), folder / "sweep"
    with Slurm(folder / "slurm") as slurm:
        what = Kills(slurm, out, chance)
        while not (out / "sweep.json").exists():
            time.sleep(0.1)
        next_kill, states = time.monotonic() + chance.uniform(*BETWEEN), status(read_sweep(out)).states
        while any(one.state != "complete" for one in states):
            # while a run of some shard is under way, with results already and others to come
            measuring = any(one.state == "running" and 0 < one.done < one.size for one in states)
            if count.total() < kills and time.monotonic() > next_kill and measuring:
                name, strike = chance.choice(list(what.ways().items()))
                if strike():
                    count[name] += 1
                    seen |= noted(read_sweep(out))
                    say(f"{count.total()}: {name}, {len(seen)} results so far")
                    next_kill = time.monotonic() + chance.uniform(*BETWEEN)
            what.mend()
            time.sleep(0.2)
            states = status(read_sweep(out)).states
        what.watcher.wait(60)
        return count, len(seen - noted(read_sweep(out)))


def main() -> int:
    """Kill, compare, tell; 1 where something is lost or twice there, or too little was killed."""
    parser = command_line(__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=14)
    asked = parser.parse_args()
    if reason := lacking():
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as name:
        plan, text = Path(name) / "plan.toml", PLAN
        for before, after in LONGER.items():
            text = text.replace(before, after)
        plan.write_text(text, encoding="utf-8")
        count, lost = killed(Path(name), asked.kills, random.Random(asked.seed))
        sweep = read_sweep(Path(name) / "sweep")
        there = cells_of(sweep)
        unbroken = cells(run(Plan.grid(**read_plan(plan)), Path(name) / "unbroken").results)
        events = [one for shard in sweep.shards for one in shard.journal()]
    starts = [one for one in events if one["event"] == "started"]
    cut_off = len(starts) - sum(one["event"] == "ended" and one["status"] == 0 for one in events)
    told = {
        "kills": count.total(),
        "attempts": len(starts),
        "cut off": cut_off,
        "resumed": sum(one["resumed"] for one in starts),
        "series": sweep.told.series,
        "results": there.total(),
        "of an unbroken run": unbroken.total(),
        "lost": lost + (unbroken - there).total(),
        "there twice": there.total() - len(there),
    }
    figures = table(("figure", "found"), [*(count | told).items()])
    publish("A sweep killed at random", "sweep_kills", figures, out=asked.out)
    tried = count.total() == asked.kills and cut_off > 0
    return int(not tried or lost > 0 or there != unbroken)
