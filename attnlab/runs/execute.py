"""Carry out a plan: races and ceilings. Each result is stored in a folder as soon as it is measured.

A plan may be spread over many machines. Every shard is a separate ``attnlab run``, started by submitit on Slurm, or on
this machine. Its run lies in a separate folder below ``--out``. If the command is repeated, it starts only what is
missing: shards that have no run yet, and those whose run was interrupted.
"""

from __future__ import annotations

import importlib
import math
import random
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attnlab.backends.contender import Contender, parse_all
from attnlab.backends.discovery import backends, block_only, on_request
from attnlab.environment import environment, unchanged
from attnlab.errors import NotStored, Unavailable
from attnlab.race.ceilings import measure_ceiling
from attnlab.race.conductor import Conductor
from attnlab.runs.plan import EVERYBODY, Plan
from attnlab.runs.store import RUN_FILE, Run, claimed, held, read_run, require_run
from attnlab.system import terminable
from attnlab.text import one_line
from attnlab.workload.result import Outcome, Result
from attnlab.workload.workload import Workload

#: called with False after a lap over the workloads, with True when the run has ended; it may write a report
OnLap = Callable[[Run, bool], object]
#: least number of seconds between two reports of a run that is going on
_BETWEEN_REPORTS = 90.0
DEFAULT_FOLDER = Path("reports/latest")
#: the default baseline if contenders are not chosen by name and it takes part; else the first contender is
USUAL_BASELINE = "torch_eager"


class Progress:
    """Shows the progress of a run; this base class shows nothing."""

    def stage(self, text: str, *, done: int, total: int) -> None:
        """`done` of `total` visits are over (before and after the laps: workloads); `text` is what comes now."""

    def detail(self, text: str) -> None:
        """What happens within the current stage."""

    def begins(self, run: Run) -> None:
        """Called before `run` is measured: it has its plan, and its earlier results."""


def run(
    plan: Plan,
    folder: Path | str | None = None,
    *,
    command: str = "",
    progress: Progress | None = None,
    on_lap: OnLap = lambda *_: None,
) -> Run:
    """Measure `plan` into `folder` (by default ``reports/latest``) and return the run.

    Results are on disk as soon as a visit is done. `on_lap` is called after the first lap over the workloads, after
    some of the later ones, and at the end; another run can take the folder only when it has returned. An interrupt
    (Ctrl-C, SIGTERM) ends the measurement, not the call: the run is returned with `complete` False, and `resume`
    continues it. If the default folder holds a run, that is moved aside, under the time of its last change; any other
    folder must be new or empty.

    Raises ValueError for an unknown backend, for a folder that cannot be used, and if another run writes to the folder;
    NotStored if the disk is full.
    """
    plan, contenders = resolve(plan)
    with claimed(folder, DEFAULT_FOLDER, RUN_FILE) as place:
        record = Run(
            folder=place,
            plan=plan,
            environment={},
            contenders=tuple(one.name for one in contenders),
            baseline=plan.baseline or contenders[0].name,
            command=command,
            id=secrets.token_hex(8),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        record.save()  # from here on the folder is ours
        _carry_out(record, contenders, progress or Progress(), on_lap)
    return record


def resume(folder: Path | str, *, progress: Progress | None = None, on_lap: OnLap = lambda *_: None) -> Run:
    """Continue the run in `folder` and return it. What was not visited yet comes first, then further laps.

    Raises ValueError if the conditions have changed (processor, cores, system, libraries, settings), and if another
    process writes to the folder; NotStored as `run`.
    """
    folder = require_run(folder)
    with held(folder):
        record = read_run(folder)
        _, contenders = resolve(record.plan)
        record.complete = False
        _carry_out(record, contenders, progress or Progress(), on_lap)
    return record


def _carry_out(record: Run, contenders: Sequence[Contender], progress: Progress, on_lap: OnLap) -> None:
    ended = False
    try:
        with suppress(KeyboardInterrupt), terminable():
            _measure(record, contenders, progress, on_lap)
            ended = True
        record.save()  # as incomplete: the process may be killed before all is written
        record.complete = ended and not record.left()
        on_lap(record, True)
        record.save()
    except NotStored as fault:
        total, again = len(record.plan.workloads), f"attnlab run --resume {shlex.quote(str(record.folder))}"
        kept = f"{total - len(record.left())} of {total} workloads are measured and kept"
        raise NotStored(f"{fault}; {kept}: make room, and go on with: {again}") from None


def resolve(plan: Plan) -> tuple[Plan, tuple[Contender, ...]]:
    """The plan with its contenders, its baseline and its A/A control filled in, and the parsed contenders.

    Raises ValueError for an unknown backend.
    """
    names, usual = list(plan.contenders), None
    if not names or names == [EVERYBODY]:
        names = [name for name, reason in _able(plan).items() if names or reason is None]
        usual = USUAL_BASELINE if USUAL_BASELINE in names else None
    for one in parse_all(names):
        one.require(plan.folders)
    baseline = plan.baseline or usual or names[0]
    twice = baseline.partition("#")[0]
    if plan.control and names.count(twice) == 1:
        names.insert(names.index(twice) + 1, twice)
    spelt = Plan(**{**plan.__dict__, "contenders": tuple(names), "baseline": baseline})
    return spelt, parse_all(names)


def _able(plan: Plan) -> dict[str, str | None]:
    """All backends, each with the reason why it races only if it is named, or None.

    Backends that only compute blocks are left out if no workload is a block.
    """
    blocks = any(one.d_model is not None for one in plan.workloads)
    names = (name for name in backends(plan.folders) if blocks or not block_only(name, plan.folders))
    return {name: on_request(name, plan.folders) for name in names}


def _measure(record: Run, contenders: Sequence[Contender], progress: Progress, on_lap: OnLap) -> None:
    plan, before = record.plan, record.environment
    total, left = len(plan.workloads), record.left()
    how: dict[str, Any] = {"limits": plan.limits, "memory": plan.memory, "on_event": progress.detail}
    conductor = Conductor(contenders, baseline=record.baseline, folders=plan.folders, **how)
    conductor.account = record.account
    progress.begins(record)
    progress.stage("starting the contenders", done=total - len(left), total=total)
    with conductor:
        with accounted(record, "environment"):  # while nurseries import; a report needs these modules
            found = environment()
            for name in ("pandas", "matplotlib.figure"):
                importlib.import_module(name)
            unchanged(before, found)
        if not before:
            raced = {one.partition("[")[0].partition("#")[0] for one in record.contenders}
            left_out = {name: why for name, why in _able(plan).items() if why and name not in raced}
            record.environment = {**found, "raced_only_by_name": left_out}
            record.save()
        conductor.wait()
        _visit(record, conductor, progress, on_lap)
    if plan.ceilings and any(one.outcome is Outcome.MEASURED for one in record.results):
        progress.stage("ceilings: matrix products and copies", done=total, total=total)
        with accounted(record, "ceilings"):
            formats = {(one.device, one.dtype) for one in plan.workloads}
            formats |= {(one.workload.device, one.computes_in) for one in record.results if one.computes_in}
            known = {(one.device, one.dtype) for one in record.ceilings}
            found_now = (measure_ceiling(*one, afresh=plan.afresh) for one in sorted(formats - known))
            record.ceilings += filter(None, found_now)
        record.save()


def _visit(record: Run, conductor: Conductor, progress: Progress, on_lap: OnLap) -> None:
    """Make laps over the workloads, in random order: first those without results, then those with an open question.

    Laps end when the seconds of all workloads together are spent, but not before each has its least number of visits.
    Memory is measured after the first lap. The results of a visit are on disk before the next one begins. `on_lap` is
    called after a lap if more is to come, and not more often than every 90 s.
    """
    plan, limits = record.plan, record.plan.limits
    until = time.monotonic() + limits.workload_seconds * len(plan.workloads)
    visits = dict.fromkeys(plan.workloads, 0)  # made to each so far
    for one in record.results:
        numbers = one.latency.visits.values() if one.latency else ()
        visits[one.workload] = max(visits.get(one.workload, 0), 1 + max(numbers, default=-1))
    took = dict.fromkeys(visits, 0.0)
    reported, memory = -math.inf, plan.memory
    conductor.remember(record.results)
    while True:
        answers: dict[Workload, list[Result]] = {}
        for one in record.results:
            answers.setdefault(one.workload, []).append(one)
        lap: list[tuple[Workload, list[str] | None]] = [(one, None) for one in record.left()] or [
            (workload, open_)
            for workload, some in answers.items()
            if (open_ := conductor.asked(some))
            and (visits[workload] < limits.visits or time.monotonic() + took[workload] < until)
        ]
        lacking = [w for w, some in answers.items() if memory and not any(one.peak_bytes for one in some)]
        if not (lap or lacking):
            return
        # report the first lap, and some later ones
        if any(took.values()) and time.monotonic() - reported > _BETWEEN_REPORTS:
            record.save()
            on_lap(record, False)
            reported = time.monotonic()
        before = sum(visits.values())
        if lacking and not record.left():
            memory = False
            progress.stage("peak memory", done=before, total=before + len(lap))
            for workload in lacking:
                _keep(record, conductor, conductor.visit(workload, number=visits[workload], timed=False))
        random.SystemRandom().shuffle(lap)
        for at, (workload, names) in enumerate(lap):
            number, started = visits[workload], time.monotonic()
            if number >= limits.visits and started + took[workload] > until:
                continue
            done = sum(visits.values())
            total = max(done + len(lap) - at, limits.visits * len(plan.workloads))
            progress.stage(workload.label, done=done, total=total)
            _keep(record, conductor, conductor.visit(workload, names, number=number))
            visits[workload], took[workload] = number + 1, time.monotonic() - started
        if sum(visits.values()) == before:
            return  # workloads without results are left, but no time for another visit


def _keep(record: Run, conductor: Conductor, found: Sequence[Result]) -> None:
    told, known = record.environment, record.environment.get("contenders", {})
    unchanged(told, {**told, "contenders": conductor.facts})  # fails if libraries or files have changed
    if known | conductor.facts != known:
        record.environment = {**told, "contenders": known | conductor.facts}
        record.save()  # first: a kill must not leave results without their versions
    record.append(found)


@contextmanager
def accounted(record: Run, activity: str) -> Iterator[None]:
    """Add the seconds that are spent within to those of an activity of the run."""
    started = time.monotonic()
    try:
        yield
    finally:
        record.account[activity] = record.account.get(activity, 0.0) + time.monotonic() - started


#: the time limit of a job on a cluster; the same command again continues it
_MINUTES = 24 * 60
AGAIN = "repeat the command to run what is missing"


def missing(plan: Plan, arguments: Sequence[str], shards: int, out: Path) -> Iterator[tuple[str, list[str]]]:
    """The shards of `plan` that are not complete: a name, and the arguments of ``attnlab`` that carry the shard out.

    arguments : those of ``attnlab run`` without shards, cluster and folder. Raises ValueError if there are more shards
    than workloads, and if a shard's folder holds a run that cannot be read or belongs to another plan.
    """
    for number in range(1, shards + 1):
        part = plan.shard(f"{number}/{shards}")
        folder = out / f"shard-{number:0{len(str(shards))}d}"
        if not (folder / RUN_FILE).is_file():
            shard = ["--shard", f"{number}/{shards}", "--out", str(folder), "--quiet"]
            yield folder.name, ["run", *arguments, *shard]
            continue
        found = read_run(folder)
        if found.plan != resolve(part)[0]:
            raise ValueError(f"{folder} holds a run of another plan; give another folder with --out")
        if not found.complete:
            yield folder.name, ["run", "--resume", str(folder)]


def carry_out(
    jobs: Iterable[tuple[str, list[str]]],
    out: Path,
    *,
    slurm: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    program: Sequence[str] = (sys.executable, "-m", "attnlab"),
) -> list[str]:
    """Run the `jobs` of `missing` and return the names of those that failed; `tell` is called with one line for each.

    slurm : parameters for Slurm, such as ``partition``. Each job has a node for itself, and its output goes to ``jobs``
    below `out`. If None, the jobs run on this machine, one after another: at the same time they would slow each other
    down. An interrupt (Ctrl-C; on this machine also SIGTERM) cancels what has not ended; a job on this machine first
    writes its report. Raises Unavailable with `slurm` if submitit or Slurm is missing.
    """
    failed = []
    if slurm is None:
        for name, words in jobs:
            # separate process group: Ctrl-C in a terminal reaches only this process, which ends the child once
            with terminable(), subprocess.Popen([*program, *words], process_group=0) as child:
                try:
                    child.wait()
                except KeyboardInterrupt:
                    child.terminate()
                    child.wait()
                    raise KeyboardInterrupt(AGAIN) from None
            if child.returncode:
                failed.append(name)
                tell(f"{name} failed")
        return failed
    try:
        import submitit
    except ImportError:
        raise Unavailable("--cluster slurm needs submitit: pip install 'attnlab[cluster]'") from None
    if submitit.SlurmExecutor.affinity() < 0:
        raise Unavailable("--cluster slurm needs Slurm's srun and sbatch here; --cluster local needs neither")
    executor = submitit.AutoExecutor(folder=out / "jobs", cluster="slurm")
    executor.update_parameters(name="attnlab", timeout_min=_MINUTES, slurm_exclusive=True)
    executor.update_parameters(slurm_additional_parameters=dict(slurm))
    started: dict[str, submitit.Job[str]] = {}
    try:
        for name, words in jobs:
            function = submitit.helpers.CommandFunction([*program, *words], verbose=False)
            started[name] = executor.submit(function)
        for name, job in started.items():
            try:
                job.result()
            except Exception as fault:  # submitit raises many kinds; each is one failed shard
                failed.append(name)
                tell(f"{name} failed: {one_line(str(fault))}; its output: {job.paths.stderr}")
    except KeyboardInterrupt:
        for job in started.values():
            job.cancel()
        raise KeyboardInterrupt(AGAIN) from None
    return failed
