"""Adding what runs hold to a dataset: whole races that it does not have yet, and the state of each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from attnlab.libraries.host import required
from attnlab.race.environment import fingerprint
from attnlab.runs.dataset_folder import (
    Dataset,
    claim_dataset,
    collecting,
    open_dataset,
    read,
    read_state,
    write,
)
from attnlab.runs.dataset_judging import verdicts
from attnlab.runs.dataset_rows import race_columns, race_id, row_of, run_id
from attnlab.runs.dataset_schema import arrow
from attnlab.runs.store import Run, read_run
from attnlab.system import without_garbage_collection


@dataclass(frozen=True)
class Collected:
    """What became of one folder: how many races were `added`, were `known` before, were unfinished and `left` out.

    `fault` is why nothing of it could be taken; everything else is 0 then.
    """

    folder: Path
    run: str = ""
    machine: str = ""
    added: int = 0
    known: int = 0
    left: int = 0
    fault: str | None = None


def collect(folders: Sequence[Path | str], into: Path | str) -> list[Collected]:
    """Add the runs in `folders` to the dataset `into`, which is made where there is none; one answer a folder.

    An interrupted run is taken as far as it is; collected again later, only what is new is added. A folder that cannot
    be read does not keep the others out. Raises ValueError for an `into` that holds something else, or a dataset of
    another version, Unavailable without the extra ``dataset``, NotStored where the disk is full.
    """
    required("pyarrow", extra="dataset")
    path = Path(into)
    if path.is_file():
        raise ValueError(f"{path} is a file; give a folder with --into")
    with collecting(path):
        claim_dataset(path)
        dataset = open_dataset(path)
        with without_garbage_collection():
            return [_one(Path(folder), dataset) for folder in folders]


def _one(folder: Path, dataset: Dataset) -> Collected:
    try:
        run = read_run(folder)
        return _add(run, _day(run), dataset)
    except (ValueError, OverflowError) as fault:  # a seed of more than 63 bits fits no column
        return Collected(folder, fault=str(fault))


def _day(run: Run) -> str:
    try:
        return datetime.fromisoformat(run.started).date().isoformat()
    except ValueError:
        raise ValueError(
            f"{run.folder} does not tell when it began, which the dataset files it under"
        ) from None


def _add(run: Run, day: str, dataset: Dataset) -> Collected:
    pa = required("pyarrow", extra="dataset")
    name, machine = run_id(run), fingerprint(run.environment)
    parts = dataset.parts(name)
    known = _races(dataset, name, parts)
    whole = run.results[: run.whole()]
    races = {workload: race_id(name, workload) for workload in dict.fromkeys(one.workload for one in whole)}
    fresh = {workload for workload, race in races.items() if race not in known}
    part = parts[-1] + 1 if parts else 1
    state = _state(run, name, part, len(known) + len(fresh))
    started = {one.workload for one in run.results} - set(races)
    told = Collected(run.folder, name, machine, len(fresh), len(races) - len(fresh), len(started))
    if not fresh and parts and _is_told(state, dataset.files["runs"][name, parts[-1]]):
        return told
    if fresh:
        new = [(place, one) for place, one in enumerate(whole) if one.workload in fresh]
        judged = verdicts(run, (one for _, one in new))
        asked = {workload: race_columns(name, workload) for workload in fresh}
        rows = [
            row_of(one, asked[one.workload], place) | judged.get((one.workload, one.contender), {})
            for place, one in new
        ]
        _write(
            "results", pa.Table.from_pylist(rows, schema=arrow("results")), dataset, machine, day, name, part
        )
    _write("runs", pa.Table.from_pylist([state], schema=arrow("runs")), dataset, machine, day, name, part)
    return told


def _write(table: str, rows: Any, dataset: Dataset, *where: Any) -> None:
    machine, day, name, part = where
    file = dataset.place(table, machine, day, name, part)
    write(rows, file)
    dataset.files[table][name, part] = file


def _races(dataset: Dataset, name: str, parts: Sequence[int]) -> set[str]:
    """The races of a run that the dataset holds."""
    files = (dataset.files["results"].get((name, part)) for part in parts)
    return {row["race"] for file in files if file is not None for row in read(file, ["race"])}


def _is_told(state: dict[str, Any], file: Path) -> bool:
    """Whether the last state that was collected is this one."""
    last = read_state(file, ["run_json", "numerics_json"])
    return bool(last == {name: state[name] for name in last})


def _state(run: Run, name: str, part: int, raced: int) -> dict[str, Any]:
    where = run.environment
    cores, gpus = where.get("cores"), where.get("gpus")
    return {
        "run": name,
        "part": part,
        "started": run.started,
        "complete": run.complete,
        "planned": len(run.plan.workloads),
        "raced": raced,
        "contenders": list(run.contenders),
        "baseline": run.baseline,
        "command": run.command,
        "attnlab": where.get("attnlab"),
        "cpu": where.get("cpu"),
        "cores": cores.get("logical") if isinstance(cores, dict) else None,
        "memory": where.get("memory_bytes"),
        "gpus": gpus if isinstance(gpus, list) else None,
        "system": where.get("system"),
        "python": where.get("python"),
        "run_json": json.dumps(run.told()),
        "numerics_json": json.dumps(msgspec.to_builtins(run.findings)),
    }
