"""The results of all shards, put together: as one set, and as one run for every kind of machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnlab.contract.result import Result
from attnlab.contract.workload import Workload
from attnlab.program import results_file
from attnlab.program.environment import fingerprint
from attnlab.program.plan import Plan
from attnlab.program.store import Run, read_run
from attnlab.sweep.folder import Sweep, whole_results

#: where the runs of kinds of machines are written, made from the shards' runs
MACHINES = "machines"


def results(sweep: Sweep) -> Iterator[Result]:
    """Every result once, by shard. Raises ValueError where two runs answer one workload."""
    for shard in sweep.shards:
        answered: set[Workload] = set()
        for folder in shard.runs():
            found = whole_results(read_run(folder))
            here = {one.workload for one in found}
            if here & answered:
                doubled = next(iter(here & answered)).label
                raise ValueError(f"{shard.folder}: two of its runs have results of {doubled}")
            answered |= here
            yield from found


def by_machine(sweep: Sweep) -> dict[str, Run]:
    """One run for every kind of machine, by its fingerprint, over the workloads that were raced there.

    Written anew into ``machines/FINGERPRINT`` of the sweep. A race is of one machine, so verdicts are as in the shards;
    two hosts of one kind count as one machine. The environment is that of the first run there.
    """
    found: dict[str, list[Run]] = {}
    for folder in sweep.runs():
        run = read_run(folder)
        if run.results:
            found.setdefault(fingerprint(run.environment), []).append(run)
    return {machine: _merged(sweep.folder / MACHINES / machine, runs) for machine, runs in found.items()}


def _merged(folder: Path, runs: list[Run]) -> Run:
    """The runs as one, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    first = runs[0]
    answered = [(run, {one.workload for one in whole_results(run)}) for run in runs]
    pairs = [
        (one, origin)
        for run, there in answered
        for one, origin in zip(
            run.plan.workloads, run.plan.origins or [""] * len(run.plan.workloads), strict=True
        )
        if one in there
    ]
    fields = {**vars(first.plan), "workloads": tuple(one for one, _ in pairs)}
    fields["origins"] = tuple(origin for _, origin in pairs) if first.plan.origins else ()
    fields["experiments"] = max((run.plan.experiments for run in runs), key=len)
    merged = Run(
        folder=folder,
        plan=Plan(**fields),
        environment=first.environment,
        contenders=first.contenders,
        baseline=first.baseline,
        command="attnlab sweep",
        started=min(run.started for run in runs),
        complete=all(run.complete for run in runs),
        account={
            name: sum(run.account.get(name, 0.0) for run in runs) for run in runs for name in run.account
        },
        ceilings=list({(one.device, one.dtype): one for run in runs for one in run.ceilings}.values()),
        invariance=max((run.invariance for run in runs), key=len),
        findings=[one for run in runs for one in run.findings],
    )
    (folder / results_file.RESULTS).unlink(missing_ok=True)
    for run in runs:
        merged.append(whole_results(run))
    merged.save()
    return merged
