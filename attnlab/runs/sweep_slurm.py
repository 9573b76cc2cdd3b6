"""A sweep seen through by jobs of Slurm's, which submitit starts: one a shard, watched by one process."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnlab.errors import Unavailable
from attnlab.libraries.host import required
from attnlab.runs.store import append
from attnlab.runs.sweep_folder import Status, Sweep, read_lines, status
from attnlab.runs.sweep_job import MOST_DEATHS, end_in_vain, stop, worked
from attnlab.system import terminable
from attnlab.text import one_line

JOBS, SUBMITTED = "jobs", "submitted.jsonl"
#: how often jobs are looked at, in seconds
_LOOKS = 10.0
#: Slurm may be away for so many looks
_PATIENCE = 30
#: Slurm takes arrays of 1,001 tasks unless it is set otherwise (MaxArraySize)
_ARRAY = 1000
#: a job whose time is over is begun again so often: what makes no progress has an outcome long before
_TIMEOUTS = 1000
#: jobs that were asked to end are waited for so long, in seconds: a run writes what it holds and its report
_ENDING_SECONDS = 60.0


class Job:
    """What submitit pickles and a job calls. On Slurm's signal before the time is over it stops and is requeued."""

    def __call__(self, folder: str, number: int) -> str:
        return worked(folder, number)

    def checkpoint(self, folder: str, number: int) -> Any:
        """What is to be begun again: the same, which goes on where it stopped."""
        stop(folder, number)
        return required("submitit", extra="sweep").helpers.DelayedSubmission(self, folder, number)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of the cluster. hours : the most that a job may take. further : options of sbatch, by name."""

    cluster: Literal["slurm", "local"] = "local"
    partition: str | None = None
    constraint: str | None = None
    hours: float = 24.0
    at_once: int = 1000
    further: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        slurm = {"--partition": self.partition, "--constraint": self.constraint, "--sbatch": self.further}
        for name, value in slurm.items():
            if value and self.cluster != "slurm":
                raise ValueError(f"{name} is for Slurm: give --cluster slurm too")

    def resume(self, folder: Path) -> str:
        """The command that goes on with the sweep in `folder` on the same cluster; its options are given again."""
        chosen = ["--cluster", self.cluster] if self.cluster != "local" else []
        return shlex.join(["attnlab", "sweep", "--resume", *chosen, "--out", str(folder)])


@dataclass
class Jobs:
    """The jobs of one sweep in Slurm, watched by one process.

    Raises ValueError where there is no Slurm, Unavailable without submitit.
    """

    sweep: Sweep
    asked: Asked
    #: by shard: how many workloads were done when its last job was submitted, and jobs submitted since then
    _tries: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._submitit = required("submitit", extra="sweep")
        for program in ("sbatch", "srun", "squeue", "scancel"):
            if shutil.which(program) is None:
                raise ValueError(
                    f"no Slurm here: there is no {program}; run this where sbatch works, or give --cluster local"
                )

    def see_through(self, tell: Callable[[Status], None], looks: float = _LOOKS) -> Status:
        """Jobs for what has none, until every shard is complete or has another outcome.

        tell : is given the status at every look; looks : seconds between two. An interrupt, SIGTERM too, asks the jobs
        to end; what they have done is kept. Raises KeyboardInterrupt then, when they have ended; a second interrupt
        does not wait for them.
        """
        away = 0
        with terminable():
            try:
                while True:
                    try:
                        self.submit()
                        away = 0
                    except Unavailable:  # a controller that is started again
                        away += 1
                        if away > _PATIENCE:
                            raise
                    found = status(self.sweep)
                    tell(found)
                    if found.over:
                        return found
                    time.sleep(looks)
            except KeyboardInterrupt:
                self.end()
                raise

    def submit(self) -> None:
        """Arrays of jobs for all shards that have none and no outcome. Raises ValueError with why Slurm refuses."""
        there, idle = self.alive(), list[int]()
        for one in self.sweep.shards:
            if one.number in there or one.outcome() is not None or end_in_vain(one):
                continue
            done, tries = self._tries.get(one.number, (0, 0))
            tries = tries if done == one.done() else 0
            if tries > MOST_DEATHS:  # one job more than those that a journal tells of
                logs = self.sweep.folder / JOBS
                one.end("failed", f"{tries} jobs ended without a result; what they printed is in {logs}")
                continue
            self._tries[one.number] = one.done(), tries + 1
            idle.append(one.number)
        for at in range(0, len(idle), _ARRAY):
            self._start(idle[at : at + _ARRAY])

    def alive(self) -> dict[int, str]:
        """The jobs that run or wait, as ``17_3``, by shard.

        Asked of squeue and not of sacct: not every Slurm keeps accounts. Raises Unavailable where it does not answer.
        """
        last = {int(shard): str(job) for shard, job in read_lines(self.sweep.folder / SUBMITTED)}
        if not last:
            return {}
        arrays = ",".join(sorted({one.partition("_")[0] for one in last.values()}))
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={arrays}"]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        if (
            found.returncode and "Invalid job id" not in found.stderr
        ):  # which it says of one that ended long ago
            raise Unavailable(f"Slurm does not answer: {one_line(found.stderr)}")
        there = set(found.stdout.split())
        return {shard: job for shard, job in last.items() if job in there}

    def end(self) -> None:
        """Ask all jobs of the sweep to end, and wait for those that run: they keep what they have done."""
        jobs = list(self.alive().values())
        for at in range(0, len(jobs), _ARRAY):
            subprocess.run(["scancel", *jobs[at : at + _ARRAY]], capture_output=True, check=False)
        until = time.monotonic() + _ENDING_SECONDS
        while self.alive() and time.monotonic() < until:
            time.sleep(0.2)

    def _start(self, numbers: Sequence[int]) -> None:
        folder = str(self.sweep.folder.resolve())
        executor = self._submitit.AutoExecutor(
            folder=f"{folder}/{JOBS}/%j", cluster="slurm", slurm_max_num_timeout=_TIMEOUTS
        )
        chosen = {"slurm_partition": self.asked.partition, "slurm_constraint": self.asked.constraint}
        executor.update_parameters(
            name=re.sub(r"[^A-Za-z0-9_.-]", "_", f"attnlab-{self.sweep.folder.name}"),
            timeout_min=max(1, round(60 * self.asked.hours)),
            slurm_exclusive=True,
            slurm_array_parallelism=max(1, min(len(numbers), self.asked.at_once)),
            slurm_srun_args=["--cpu-bind=none"],
            # the whole node and all of its memory; a node that fails gives its shard to another one
            slurm_additional_parameters={"requeue": True, "mem": 0, **self.asked.further},
            **{name: one for name, one in chosen.items() if one is not None},
        )
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # what sbatch says is in the fault too
                jobs = executor.map_array(Job(), [folder] * len(numbers), numbers)
        except (self._submitit.core.utils.FailedJobError, RuntimeError) as fault:
            said = [line for line in str(fault).splitlines() if "error" in line] or str(fault).splitlines()
            raise ValueError(
                f"Slurm takes no such job: {one_line('; '.join(dict.fromkeys(said)))}; nothing is lost, "
                f"go on with: {self.asked.resume(self.sweep.folder)}"
            ) from None
        lines = [json.dumps([number, job.job_id]) + "\n" for number, job in zip(numbers, jobs, strict=True)]
        append(self.sweep.folder / SUBMITTED, "".join(lines).encode())
