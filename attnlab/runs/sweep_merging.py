"""The results of all shards, put together as one run for every kind of machine."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import replace

from attnlab.environment import fingerprint
from attnlab.problem.workload import Workload
from attnlab.runs.results_file import RESULTS
from attnlab.runs.store import Run, read_run
from attnlab.runs.sweep_shards import PLAN_FILE, Sweep, only
from attnlab.text import without_home

#: where the runs of kinds of machines are written, made from the shards' runs
MACHINES = "machines"


def by_machine(sweep: Sweep) -> dict[str, Run]:
    """One run for every kind of machine, by its fingerprint, over the workloads that were raced there.

    Written anew into ``machines/FINGERPRINT`` of the sweep. A race is of one machine, so verdicts are as in the shards;
    two hosts of one kind count as one machine. The environment is that of the first run there. Of a sweep that is not
    complete, those workloads are in its plan too that the last run of a shard is yet to race.
    Raises ValueError where two runs of a shard answer one workload.
    """
    found: dict[str, list[Run]] = {}
    for shard in sweep.shards:
        answered: set[Workload] = set()
        folders = shard.runs()
        for folder in folders:
            run, last = read_run(folder), folder == folders[-1]
            run.results = run.results[: run.whole()]  # what it was cut off in, a later run of the shard has
            done = dict.fromkeys(one.workload for one in run.results)
            if not answered.isdisjoint(done):
                raise ValueError(f"{shard.folder}: two of its runs have results of one workload")
            answered.update(done)
            if done:
                run.complete = run.complete or not last
                if not last:
                    run.plan = only(run.plan, list(done), chapter=True)
                found.setdefault(fingerprint(run.environment), []).append(run)
    words = ["attnlab", "sweep", str(sweep.folder / PLAN_FILE), "--shards", str(len(sweep.told.sizes))]
    return {
        machine: _merged(sweep, machine, runs, without_home(shlex.join(words)))
        for machine, runs in found.items()
    }


def _merged(sweep: Sweep, machine: str, runs: list[Run], command: str) -> Run:
    plans = [run.plan for run in runs]
    account: Counter[str] = Counter()
    for run in runs:
        account.update(run.account)
    plan = replace(
        plans[0],
        workloads=tuple(one for plan in plans for one in plan.workloads),
        origins=tuple(one for plan in plans for one in plan.origins or ("",) * len(plan.workloads)),
        experiments=max((plan.experiments for plan in plans), key=len),
    )
    found = replace(
        runs[0],
        folder=sweep.folder / MACHINES / machine,
        plan=plan if any(plan.origins) else replace(plan, origins=()),
        command=command,
        started=min(run.started for run in runs),
        complete=all(run.complete for run in runs),
        account=dict(account),
        ceilings=list({(one.device, one.dtype): one for run in runs for one in run.ceilings}.values()),
        invariance=max((run.invariance for run in runs), key=len),
        findings=[one for run in runs for one in run.findings],
        results=[],
        torn=False,
    )
    found.folder.mkdir(parents=True, exist_ok=True)
    (found.folder / RESULTS).unlink(missing_ok=True)
    for run in runs:
        found.append(run.results)
    found.save()
    return found
