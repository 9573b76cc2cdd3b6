"""Killing a sweep's jobs and daemons at random: is anything lost, is anything there twice?

    python benchmarks/sweep_kills.py [KILLS] [SEED]     # as root, with Slurm installed; prints what docs/sweeps.md says

A Slurm of two nodes is started on this host (tests/sweep/slurm.py), and a sweep on it. At random moments one thing of
it is killed, chosen at random: a run, a job, the step that Slurm keeps it in, a slurmd (which is started again a few
seconds later), the command that watches over it all; or a job is cancelled or requeued. After each kill all results on
disk are noted. In the end the set of results must be that of an unbroken run, and hold every result ever noted, as it
was. Things are killed only while a shard is measured, because a kill between two shards proves little; the plan is long
enough for all kills, and it is told how many attempts they cut off. It is no timing: it may run beside other programs.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "sweep"))

from slurm import NODES, Slurm, lacking  # noqa: E402 - beside the tests, whose fixture it is
from sweeping import PLAN, cells, cells_of  # noqa: E402

from attnlab.runs.execute import run  # noqa: E402
from attnlab.runs.plan import Plan, read_plan  # noqa: E402
from attnlab.runs.store import read_run  # noqa: E402
from attnlab.runs.sweep_folder import Sweep, read_sweep, status  # noqa: E402

#: long enough that most kills come while something is measured
SLOWER = {"max_rounds = 2": "max_rounds = 60", "turn_seconds = 0.0001": "turn_seconds = 0.02"}
LENGTHS = ", ".join(str(8 * one) for one in range(1, 61))
SHARDS = 4
#: seconds between two kills, at least and at most
BETWEEN = (2.0, 20.0)


class Kills:
    """What may be killed of a sweep in `folder` on `slurm`; each returns whether there was anything."""

    def __init__(self, slurm: Slurm, folder: Path, chance: random.Random) -> None:
        self.slurm, self.folder, self.chance = slurm, folder, chance
        self.watcher: subprocess.Popen[bytes] | None = None
        self.down: dict[str, float] = {}

    def a_run(self) -> bool:
        """The process of ``attnlab run``."""
        return self._kill(self._processes("attnlab", "run"))

    def a_job(self) -> bool:
        """The process that Slurm started for a shard."""
        return self._kill(self._processes("submitit.core._submit"))

    def a_step(self) -> bool:
        """Slurm's own process around that."""
        jobs = list(self._processes("submitit.core._submit"))
        return self._kill(up for job in jobs for up in job.parents() if up.name() == "slurmstepd")

    def a_slurmd(self) -> bool:
        """A node's daemon; `mend` starts it again."""
        there = [one for one in NODES if one not in self.down]
        if not there:
            return False
        node = self.chance.choice(there)
        self.slurm.stop(node)
        self.down[node] = time.monotonic() + self.chance.uniform(0.5, 12.0)
        return True

    def by_scancel(self) -> bool:
        """A job of the queue, cancelled."""
        return self._command("scancel")

    def by_requeue(self) -> bool:
        """A job of the queue, sent back to its beginning, as a preempted one is."""
        return self._command("scontrol", "requeue")

    def the_watcher(self) -> bool:
        """The process of ``attnlab sweep``."""
        if self.watcher is None or self.watcher.poll() is not None:
            return False
        self.watcher.kill()
        self.watcher.wait()
        return True

    def mend(self) -> None:
        """Start what has been down long enough, and the watcher where it is not there."""
        for node in [one for one, until in self.down.items() if time.monotonic() > until]:
            del self.down[node]
            self.slurm.start(node)
        if self.watcher is None or self.watcher.poll() is not None:
            words = ["sweep", "--resume", "--cluster", "slurm", "--out", str(self.folder)]
            self.watch(words)

    def watch(self, words: list[str]) -> None:
        """Start ``attnlab`` with these words."""
        with (self.folder.parent / "watcher.log").open("ab") as log:
            self.watcher = subprocess.Popen(
                [sys.executable, "-P", "-m", "attnlab", *words],
                env=self.slurm.environment(),
                stdout=log,
                stderr=log,
            )

    def _command(self, *words: str) -> bool:
        there = sorted(self.slurm.queue())
        if not there:
            return False
        done = subprocess.run(
            [*words, self.chance.choice(there)],
            env=self.slurm.environment(),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _processes(self, *words: str) -> Iterator[psutil.Process]:
        """Those of this sweep with all these words on their command line."""
        for one in psutil.process_iter():
            try:
                line = one.cmdline()
            except psutil.Error:
                continue
            if str(self.folder) in " ".join(line) and all(word in line for word in words):
                yield one

    def _kill(self, found: Iterator[psutil.Process]) -> bool:
        there = list(found)
        if not there:
            return False
        try:
            self.chance.choice(there).kill()
        except psutil.NoSuchProcess:
            return False
        return True


def noted(sweep: Sweep) -> set[str]:
    """Every result on disk that makes a whole workload, as its line."""
    return {one.to_json() for run in map(read_run, sweep.runs()) for one in run.results[: run.whole()]}


def measuring(sweep: Sweep) -> bool:
    """Whether a run of some shard is under way, with results already and others to come."""
    return any(one.state == "running" and 0 < one.done < one.size for one in status(sweep).states)


def killed(
    folder: Path, kills: int, chance: random.Random, tell: Callable[[str], None]
) -> tuple[Counter[str], int]:
    """Carry out the sweep, killing: how often what was killed, and how many results of those noted are not there."""
    count, seen = Counter[str](), set[str]()
    with Slurm(folder / "slurm") as slurm:
        out = folder / "sweep"
        what = Kills(slurm, out, chance)
        plan = str(folder / "plan.toml")
        what.watch(["sweep", plan, "--cluster", "slurm", "--shards", str(SHARDS), "--out", str(out)])
        names = ("a_run", "a_job", "a_step", "a_slurmd", "by_scancel", "by_requeue", "the_watcher")
        ways = [getattr(what, name) for name in names]
        while not (out / "sweep.json").exists():
            time.sleep(0.1)
        next_kill = time.monotonic() + chance.uniform(*BETWEEN)
        while True:
            time.sleep(0.2)
            sweep = read_sweep(out)
            if all(one.state == "complete" for one in status(sweep).states):
                break
            if count.total() < kills and time.monotonic() > next_kill and measuring(sweep):
                way = chance.choice(ways)
                if way():
                    count[way.__name__] += 1
                    seen |= noted(sweep)
                    tell(f"{count.total()}: {way.__name__}, {len(seen)} results so far")
                    next_kill = time.monotonic() + chance.uniform(*BETWEEN)
            what.mend()
        if what.watcher is not None:
            what.watcher.wait(60)
        return count, len(seen - noted(read_sweep(out)))


def main() -> None:
    """Kill, compare, write the page."""
    kills, seed = (int(one) for one in (sys.argv[1:] + ["20", "14"][len(sys.argv) - 1 :]))
    reason = lacking()
    if reason:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.toml"
        text = PLAN
        for before, after in {**SLOWER, "lengths = [8, 16, 32]": f"lengths = [{LENGTHS}]"}.items():
            text = text.replace(before, after)
        plan.write_text(text, encoding="utf-8")
        count, lost = killed(folder, kills, random.Random(seed), lambda text: print(text, flush=True))
        sweep = read_sweep(folder / "sweep")
        there = cells_of(sweep)
        unbroken = cells(run(Plan.grid(**read_plan(plan)), folder / "unbroken").results)
        events = [one for shard in sweep.shards for one in shard.journal()]
        starts = [one for one in events if one["event"] == "started"]
        ends = [one for one in events if one["event"] == "ended" and one["status"] == 0]
        told = {
            "kills": count.total(),
            "attempts": len(starts),
            "cut off": len(starts) - len(ends),
            "resumed": sum(one["resumed"] for one in starts),
            "series": sweep.told.series,
            "results": there.total(),
            "of an unbroken run": unbroken.total(),
            "lost": lost + (unbroken - there).total(),
            "there twice": there.total() - len(there),
        }
    for name, value in (count | told).items():
        print(f"{name.replace('_', ' ')}: {value}")
    tried = told["kills"] == kills and told["cut off"] > 0
    sys.exit(0 if tried and told["lost"] == told["there twice"] == 0 and there == unbroken else 1)


if __name__ == "__main__":
    main()
