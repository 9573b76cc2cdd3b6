"""Jobs through submitit: an array of Slurm's, or one process after the other on this host."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab.errors import Unavailable
from attnlab.libraries.host import required
from attnlab.runs.sweep_folder import Sweep, append_line
from attnlab.runs.sweep_progress import worked_on
from attnlab.runs.sweep_work import refuse, stop, work
from attnlab.text import one_line

CLUSTERS = ("slurm", "local")
JOBS, SUBMITTED = "jobs", "submitted.jsonl"
#: Slurm takes arrays of 1,001 tasks unless it is set otherwise (MaxArraySize)
_ARRAY = 1000
#: a job whose time is over is begun again so often: what makes no progress has an outcome long before
_TIMEOUTS = 1000
#: jobs that were asked to end are waited for so long, in seconds: a run writes what it holds and its report
_ENDING_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """What submitit pickles and a job calls. On Slurm's signal before the time is over it stops and is requeued.

    What a person must mend, another version of attnlab on that host before all, is the shard's outcome at once.

    variables : to be set, or for None unset: on this host submitit hides graphics cards that were not asked of it.
    """

    variables: Mapping[str, str | None] = field(default_factory=dict)

    def __call__(self, folder: str, number: int) -> str:
        for name, value in self.variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        try:
            return work(folder, number)
        except ValueError as fault:
            return refuse(folder, number, str(fault))

    def checkpoint(self, folder: str, number: int) -> Any:
        """What is to be begun again: the same, which goes on where it stopped."""
        stop(folder, number)
        return required("submitit", extra="sweep").helpers.DelayedSubmission(self, folder, number)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What is asked of the cluster. hours : the most that a job may take. further : options of sbatch, by name."""

    cluster: str = "local"
    partition: str | None = None
    constraint: str | None = None
    hours: float = 24.0
    at_once: int = 1000
    further: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise ValueError(f"--cluster must be one of {', '.join(CLUSTERS)}, got {self.cluster!r}")
        slurm = {"--partition": self.partition, "--constraint": self.constraint, "--sbatch": self.further}
        for name, value in slurm.items():
            if value and self.cluster != "slurm":
                raise ValueError(f"{name} is for Slurm: give --cluster slurm too")
        if not self.hours > 0:
            raise ValueError(f"--job-hours must be above 0, got {self.hours:g}")
        if self.at_once < 1:
            raise ValueError(f"--at-once must be above 0, got {self.at_once}")

    def resume(self, folder: Path) -> str:
        """The command that goes on with the sweep in `folder` on the same cluster, with the same options."""
        words = ["attnlab", "sweep", "--resume"]
        if self.cluster == "slurm":
            words += ["--cluster", "slurm"]
        for name in ("partition", "constraint"):
            words += [f"--{name}", getattr(self, name)] if getattr(self, name) else []
        words += ["--job-hours", f"{self.hours:g}"] if self.hours != Asked.hours else []
        words += ["--at-once", str(self.at_once)] if self.at_once != Asked.at_once else []
        for name, value in self.further.items():
            words += ["--sbatch", f"{name}={value}"]
        return shlex.join([*words, "--out", str(folder)])


@dataclass
class Cluster:
    """The jobs of one sweep. Raises ValueError where Slurm is asked for and not here, Unavailable without submitit."""

    sweep: Sweep
    asked: Asked
    #: of the jobs that this process started on this host
    _local: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._submitit = required("submitit", extra="sweep")
        if self.asked.cluster == "slurm":
            missing = [one for one in ("sbatch", "srun", "squeue", "scancel") if shutil.which(one) is None]
            if missing:
                raise ValueError(
                    f"no Slurm here: there is no {missing[0]}; run this where sbatch works, or give --cluster local"
                )

    def submit(self, numbers: Sequence[int]) -> Sequence[int]:
        """Jobs for these shards: in Slurm arrays; on this host for the first, because one measures at a time.

        Returns the shards that have a job now. Raises ValueError with what Slurm said where it refuses them.
        """
        if self.asked.cluster == "local":
            numbers = numbers[:1] if not self._local else ()
        for at in range(0, len(numbers), _ARRAY):
            self._submit(numbers[at : at + _ARRAY])
        return numbers

    def alive(self) -> set[int]:
        """The shards that a job runs for or waits for. Of this host those that anybody works on."""
        if self.asked.cluster == "local":
            self._local = {one: job for one, job in self._local.items() if not job.done()}
            return set(self._local) | {one.number for one in self.sweep.shards if worked_on(one)}
        there = _in_queue(sorted({one.partition("_")[0] for one in self.submitted().values()}))
        return {shard for shard, job in self.submitted().items() if job in there}

    def submitted(self) -> dict[int, str]:
        """The last job of every shard that had one."""
        try:
            lines = (self.sweep.folder / SUBMITTED).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        found = {}
        for line in lines:
            with contextlib.suppress(ValueError):  # one that was cut off, by a full disk
                shard, job = json.loads(line)
                found[int(shard)] = str(job)
        return found

    def end(self) -> None:
        """Ask all jobs of the sweep to end, and wait for those that run: they keep what they have done."""
        if self.asked.cluster == "slurm":
            there = self.alive()
            ids = [job for shard, job in self.submitted().items() if shard in there]
            for at in range(0, len(ids), _ARRAY):
                subprocess.run(["scancel", *ids[at : at + _ARRAY]], capture_output=True, check=False)
        for job in self._local.values():
            job._process.terminate()
        until = time.monotonic() + _ENDING_SECONDS
        while self.alive() and time.monotonic() < until:
            time.sleep(0.2)

    def log(self, shard: int) -> Path:
        """The folder of what its last job printed."""
        return self.sweep.folder / JOBS / self.submitted().get(shard, "")

    def _submit(self, numbers: Sequence[int]) -> None:
        folder = str(self.sweep.folder.resolve())
        executor = self._submitit.AutoExecutor(
            folder=f"{folder}/{JOBS}/%j", cluster=self.asked.cluster, slurm_max_num_timeout=_TIMEOUTS
        )
        executor.update_parameters(**self._parameters(len(numbers)))
        try:
            # what sbatch says is in the fault too, which is told in one line
            with _deaf_to_the_terminal(), contextlib.redirect_stderr(io.StringIO()):
                jobs = executor.map_array(self._job(), [folder] * len(numbers), numbers)
        except (self._submitit.core.utils.FailedJobError, RuntimeError) as fault:
            said = [line for line in str(fault).splitlines() if "error" in line] or str(fault).splitlines()
            raise ValueError(
                f"Slurm takes no such job: {one_line('; '.join(dict.fromkeys(said)))}; nothing is lost, "
                f"go on with: {Asked(cluster=self.asked.cluster).resume(self.sweep.folder)}"
            ) from None
        lines = [json.dumps([number, job.job_id]) for number, job in zip(numbers, jobs, strict=True)]
        append_line(self.sweep.folder / SUBMITTED, "\n".join(lines))
        if self.asked.cluster == "local":
            self._local = dict(zip(numbers, jobs, strict=True))

    def _job(self) -> Job:
        hidden = "CUDA_VISIBLE_DEVICES"
        return Job({hidden: os.environ.get(hidden)} if self.asked.cluster == "local" else {})

    def _parameters(self, count: int) -> dict[str, Any]:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", f"attnlab-{self.sweep.folder.name}")
        parameters: dict[str, Any] = {"name": name, "timeout_min": max(1, round(60 * self.asked.hours))}
        if self.asked.cluster == "slurm":
            # the whole node and all of its memory; a node that fails gives its shard to another one
            further = {"requeue": True, "mem": 0, **self.asked.further}
            parameters |= {
                "slurm_partition": self.asked.partition,
                "slurm_constraint": self.asked.constraint,
                "slurm_exclusive": True,
                "slurm_array_parallelism": max(1, min(count, self.asked.at_once)),
                "slurm_srun_args": ["--cpu-bind=none"],
                "slurm_additional_parameters": further,
            }
        return {name: one for name, one in parameters.items() if one is not None}


def _in_queue(jobs: Collection[str]) -> set[str]:
    """Those tasks of `jobs` that Slurm has not ended, as ``17_3`` or ``17``.

    Asked of squeue and not of sacct: not every Slurm keeps accounts. Raises Unavailable where Slurm does not answer.
    """
    if not jobs:
        return set()
    command = ["squeue", "--noheader", "--array", "--format=%i", f"--jobs={','.join(jobs)}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode and "Invalid job id" not in found.stderr:  # which it says of one that ended long ago
        raise Unavailable(f"Slurm does not answer: {one_line(found.stderr)}")
    return set(found.stdout.split())


@contextlib.contextmanager
def _deaf_to_the_terminal() -> Iterator[None]:
    """What is started within does not hear Ctrl-C: this process does, and asks it to end in order."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread, which alone hears it
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
