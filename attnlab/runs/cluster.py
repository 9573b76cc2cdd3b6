"""A plan over many machines: every shard is an ``attnlab run`` of its own, started by submitit on Slurm or here.

A shard's run lies in a folder of its own below ``--out``. The same command again starts only what is missing: shards
that have no run yet, and those whose run was interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attnlab.errors import Unavailable
from attnlab.runs.store import RUN_FILE, read_run
from attnlab.text import one_line

#: where the output of jobs goes, below ``--out``
_LOGS = "jobs"
#: a job ends after so long; the same command again goes on with it
_MINUTES = 24 * 60
_GPUS = "CUDA_VISIBLE_DEVICES"
_PROGRAM = (sys.executable, "-m", "attnlab")


def missing(arguments: Sequence[str], shards: int, out: Path) -> Iterator[tuple[str, list[str]]]:
    """The shards that are not complete: a name, and the arguments of ``attnlab`` that carry it out.

    arguments : those of ``attnlab run`` without shards, cluster and folder. Raises ValueError for a folder of a shard
    that holds a run which cannot be read.
    """
    for number in range(1, shards + 1):
        folder = out / f"shard-{number:0{len(str(shards))}d}"
        if not (folder / RUN_FILE).is_file():
            shard = ["--shard", f"{number}/{shards}", "--out", str(folder), "--quiet"]
            yield folder.name, ["run", *arguments, *shard]
        elif not read_run(folder).complete:
            yield folder.name, ["run", "--resume", str(folder)]


def carry_out(
    jobs: Sequence[tuple[str, list[str]]],
    out: Path,
    cluster: str,
    *,
    parameters: Mapping[str, str] | None = None,
    tell: Callable[[str], None] = lambda text: None,
    program: Sequence[str] = _PROGRAM,
) -> dict[str, str]:
    """Run the `jobs` of `missing`, and return what went wrong, by name.

    cluster : ``slurm``, where each job has a node for itself, or ``local``, one job after another: two that measure on
    one machine would slow each other. parameters : further ones of Slurm, as ``partition``. `tell` hears of each job
    that ends. An interrupt cancels what has not ended. Raises Unavailable without submitit, or without Slurm.
    """
    try:
        import submitit
    except ImportError:
        raise Unavailable("--shards needs submitit: pip install 'attnlab[cluster]'") from None
    if cluster == "slurm" and submitit.SlurmExecutor.affinity() < 0:
        raise Unavailable(
            "--cluster slurm needs Slurm's srun and sbatch here; --cluster local runs the shards here"
        )
    executor = submitit.AutoExecutor(folder=out / _LOGS, cluster=cluster)
    if cluster == "local":  # where submitit hides every GPU
        seen = os.environ.get(_GPUS)
        program = ["env", *(["-u", _GPUS] if seen is None else [f"{_GPUS}={seen}"]), *program]
    executor.update_parameters(name="attnlab", timeout_min=_MINUTES)
    if cluster == "slurm":
        executor.update_parameters(slurm_exclusive=True, slurm_additional_parameters=dict(parameters or {}))
    started: list[tuple[str, submitit.Job[str]]] = []
    failed: dict[str, str] = {}

    def start(name: str, words: list[str]) -> None:
        function = submitit.helpers.CommandFunction([*program, *words], verbose=False)
        started.append((name, executor.submit(function)))

    def see(name: str, job: submitit.Job[str]) -> None:
        try:
            job.result()
        except Exception as fault:  # submitit raises many kinds; each is one failed shard
            failed[name] = one_line((job.stderr() or str(fault)).strip().splitlines()[-1])
        tell(f"{name} {'failed' if name in failed else 'is complete'}; its output: {job.paths.stdout}")

    try:
        for name, words in jobs:
            start(name, words)
            if cluster == "local":
                see(*started[-1])
        for name, job in started if cluster == "slurm" else ():
            see(name, job)
    except KeyboardInterrupt:
        for _, job in started:
            job.cancel()
        raise
    return failed
