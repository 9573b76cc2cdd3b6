"""Carrying out a plan: races, ceilings, experiments, and a folder in which nothing measured is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from attnlab.contract.discovery import backends
from attnlab.contract.library import library_names
from attnlab.contract.result import Ceiling, Outcome
from attnlab.measuring import ceilings
from attnlab.measuring.conductor import Conductor
from attnlab.measuring.contender import Contender, parse_all
from attnlab.measuring.worker_process import Died, Hung, Refused, WorkerProcess
from attnlab.program.environment import environment
from attnlab.program.plan import Plan
from attnlab.program.store import RUN_FILE, Run, claim

DEFAULT_FOLDER = Path("reports/latest")


class Progress:
    """Who is told how far a run has come; this one tells nobody."""

    def stage(self, text: str, *, done: int, total: int) -> None:
        """`done` of `total` workloads are measured; `text` is what comes now."""

    def detail(self, text: str) -> None:
        """What happens within the stage."""


def run(
    plan: Plan, folder: Path | str | None = None, *, command: str = "", progress: Progress | None = None
) -> Run:
    """Measure `plan` into `folder` (by default ``reports/latest``) and return the run.

    Results are on disk as soon as a workload is done. An interrupt (Ctrl-C) ends the measuring, not the call: the
    run comes back with `complete` False. The run of ours that stands in the default folder is
    moved aside, under its starting time; any other folder must be new or empty.

    Raises ValueError for an unknown backend and for a folder that cannot be used.
    """
    plan, contenders = resolve(plan)
    place = claim(folder, DEFAULT_FOLDER, RUN_FILE)
    record = Run(
        folder=place,
        plan=plan,
        environment={},
        contenders=tuple(one.name for one in contenders),
        baseline=plan.baseline or contenders[0].name,
        command=command,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    record.save()  # from here on the folder is ours
    try:
        _measure(record, contenders, progress or Progress())
        record.complete = True
    except KeyboardInterrupt:
        pass
    record.save()
    return record


def resolve(plan: Plan) -> tuple[Plan, tuple[Contender, ...]]:
    """The plan with its contenders, its baseline and its self-test spelt out, and the contenders parsed.

    Raises ValueError for an unknown backend.
    """
    names = list(plan.contenders) or backends(plan.folders)
    for one in parse_all(names):
        one.require(plan.folders)
    baseline = plan.baseline or ("torch_eager" if "torch_eager" in names else names[0])
    twice = baseline.partition("#")[0]
    if plan.self_test and names.count(twice) == 1:
        names.insert(names.index(twice) + 1, twice)
    spelt = Plan(**{**plan.__dict__, "contenders": tuple(names), "baseline": baseline})
    return spelt, parse_all(names)


def _measure(record: Run, contenders: Sequence[Contender], progress: Progress) -> None:
    plan = record.plan
    total = len(plan.workloads)
    with _accounted(record, "environment"):
        record.environment = environment()
    conductor = Conductor(
        contenders,
        baseline=record.baseline,
        folders=plan.folders,
        limits=plan.limits,
        memory=plan.memory,
        on_event=progress.detail,
    )
    progress.stage("starting the contenders", done=0, total=total)
    try:
        with conductor:
            facts = conductor.facts(plan.workloads[0].device)
            record.environment = {**record.environment, "contenders": facts}
            record.save()
            for done, workload in enumerate(plan.workloads):
                progress.stage(workload.label, done=done, total=total)
                record.append(conductor.race(workload))
            progress.stage("the same bits again", done=total, total=total)
            _ask_for_same_bits(record, conductor)
    finally:
        for activity, seconds in conductor.account.items():
            record.account[activity] = record.account.get(activity, 0.0) + seconds
    if not any(one.outcome is Outcome.MEASURED for one in record.results):
        return  # nothing to hold against a ceiling or against theory
    if plan.ceilings:
        progress.stage("ceilings: matrix products and copies", done=total, total=total)
        with _accounted(record, "ceilings"):
            formats = {(one.device, one.dtype) for one in plan.workloads}
            formats |= {(one.workload.device, one.computes_in) for one in record.results if one.computes_in}
            for device, dtype in sorted(formats):
                found = measure_ceiling(device, dtype)
                if found is not None:
                    record.ceilings.append(found)
        record.save()
    if plan.experiments:
        _experiment(record, progress)


def _ask_for_same_bits(record: Run, conductor: Conductor) -> None:
    """Of every contender that was measured, in each of the plan's number formats."""
    names = [one.contender for one in record.results if one.outcome is Outcome.MEASURED]
    dtypes = list(dict.fromkeys(one.dtype for one in record.plan.workloads))
    record.invariance = conductor.invariance(
        list(dict.fromkeys(names)), dtypes, record.plan.workloads[0].device
    )
    record.save()


def _experiment(record: Run, progress: Progress) -> None:
    """The numerical chapter, through every backend that this run has found right and in working order.

    Not through one that computes in a lower precision than its inputs': what is predicted is for that of the inputs.
    """
    from attnlab.numerics import catalogue

    total = len(record.plan.workloads)
    measured = (one for one in record.results if one.outcome is Outcome.MEASURED)
    sound = [one.backend for one in measured if one.computes_in is None]
    for name in record.plan.experiments:
        progress.stage(f"numerics: {name.replace('_', ' ')}", done=total, total=total)
        with _accounted(record, "numerics"):
            record.findings += catalogue.run_experiments(
                [name], list(dict.fromkeys(sound)), folders=record.plan.folders
            )
        record.save()


def measure_ceiling(device: str, dtype: str) -> Ceiling | None:
    """The best matrix-multiply rate and copy bandwidth over the libraries here, each in a fresh worker."""
    found: dict[str, dict[str, float] | None] = {}
    for library in library_names():
        worker = WorkerProcess(Contender(library, library))
        try:
            worker.start("ceiling", library=library, device=device, dtype=dtype)
            found[library] = worker.finish_start()["found"]
        except (Refused, Died, Hung):
            continue  # a library that is not here sets no ceiling
        finally:
            worker.end()
    return ceilings.best(device, dtype, found)


@contextmanager
def _accounted(record: Run, activity: str) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        record.account[activity] = record.account.get(activity, 0.0) + time.monotonic() - started
