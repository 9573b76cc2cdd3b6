"""The results of any number of runs and machines in one place, as Parquet, that other programs read too.

`collect` adds what a run holds and the dataset does not, `runs` gives the runs back, `query` asks it in SQL. What lies
where, and what every column is, stands in ``docs/dataset.md``. Needs the extra ``attnlab[dataset]``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from attnlab.environment import fingerprint
from attnlab.experiments.finding import Finding
from attnlab.libraries.host import required
from attnlab.runs.dataset_folder import REPORTS, Dataset, collecting, is_dataset, open_dataset, read, write
from attnlab.runs.dataset_query import Answer, query
from attnlab.runs.dataset_rows import race_columns, race_id, result_of, row_of, run_id, verdicts
from attnlab.runs.dataset_schema import arrow
from attnlab.runs.store import Run, read_run, told_run
from attnlab.system import without_garbage_collection

__all__ = ["Answer", "Collected", "collect", "is_dataset", "query", "runs"]


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
    found = []
    with collecting(Path(into)) as dataset, without_garbage_collection():
        for folder in map(Path, folders):
            try:
                found.append(_add(read_run(folder), dataset))
            except (ValueError, OverflowError) as fault:  # a seed of more than 63 bits fits no column
                found.append(Collected(folder, fault=str(fault)))
    return found


def _add(run: Run, dataset: Dataset) -> Collected:
    pa = required("pyarrow", extra="dataset")
    try:
        day = datetime.fromisoformat(run.started).date().isoformat()
    except ValueError:
        raise ValueError(
            f"{run.folder} does not tell when it began, which the dataset files it under"
        ) from None
    name, machine = run_id(run), fingerprint(run.environment)
    parts = dataset.parts(name)
    held = [file for part in parts if (file := dataset.files["results"].get((name, part))) is not None]
    known = {row["race"] for file in held for row in read(file, ["race"])}
    whole = run.results[: run.whole()]
    races = {workload: race_id(name, workload) for workload in dict.fromkeys(one.workload for one in whole)}
    fresh = {workload for workload, race in races.items() if race not in known}
    part = parts[-1] + 1 if parts else 1
    state = _state(run, name, part, len(known) + len(fresh))
    started = {one.workload for one in run.results} - set(races)
    told = Collected(run.folder, name, machine, len(fresh), len(races) - len(fresh), len(started))
    tables: dict[str, list[dict[str, Any]]] = {"runs": [state]}
    if fresh:
        new = [(place, one) for place, one in enumerate(whole) if one.workload in fresh]
        judged = verdicts(run, [one for _, one in new])
        asked = {workload: race_columns(name, workload) for workload in fresh}
        rows = [
            row_of(one, asked[one.workload], place) | judged.get((one.workload, one.contender), {})
            for place, one in new
        ]
        tables = {"results": rows, **tables}
    elif parts:
        columns = ["run_json", "numerics_json"]
        if read(dataset.files["runs"][name, parts[-1]], columns) == [{one: state[one] for one in columns}]:
            return told
    for table, rows in tables.items():
        place = dataset.path / table / f"machine={machine}" / f"date={day}" / f"{name}-{part:04d}.parquet"
        write(pa.Table.from_pylist(rows, schema=arrow(table)), place)
        dataset.files[table][name, part] = place
    return told


def _state(run: Run, name: str, part: int, raced: int) -> dict[str, Any]:
    where = run.environment
    cores, gpus = where.get("cores"), where.get("gpus")
    return {
        "run": name,
        "part": part,
        "planned": len(run.plan.workloads),
        "raced": raced,
        "contenders": list(run.contenders),
        **{one: getattr(run, one) for one in ("started", "complete", "baseline", "command")},
        **{one: where.get(one) for one in ("attnlab", "cpu", "system", "python")},
        "cores": cores.get("logical") if isinstance(cores, dict) else None,
        "memory": where.get("memory_bytes"),
        "gpus": gpus if isinstance(gpus, list) else None,
        "run_json": json.dumps(run.told()),
        "numerics_json": json.dumps(msgspec.to_builtins(run.findings)),
    }


def runs(
    path: Path | str, only: Collection[str] = (), *, passed_over: list[Path] | None = None
) -> Iterator[Run]:
    """The runs of the dataset in `path`, one after the other by machine, day and id; `only` those with these ids.

    Each as it was when it was last collected, results in their order. Its folder is ``reports/ID`` in the dataset,
    which is not made. passed_over : a list that is given the files that are not attnlab's.

    Raises ValueError where there is no dataset or one of another version, and, after the last run that can be read,
    where a file of one is damaged or gone; Unavailable without the extra ``dataset``.
    """
    required("pyarrow", extra="dataset")
    dataset = open_dataset(path)
    for table in dataset.files:
        dataset.look_into(table)
    if passed_over is not None:
        passed_over += dataset.foreign
    names = {name: (file.parent.as_posix(), name) for (name, _), file in dataset.files["runs"].items()}
    faults: list[ValueError] = []
    for name in sorted(names, key=names.__getitem__):
        if not only or name in only:
            try:
                run = _run(dataset, name)
            except ValueError as fault:  # does not keep the others out
                faults.append(fault)
            else:
                yield run
    if faults:
        raise faults[0]


def _run(dataset: Dataset, name: str) -> Run:
    parts = dataset.parts(name)
    last = dataset.files["runs"][name, parts[-1]]
    files = [file for part in parts if (file := dataset.files["results"].get((name, part))) is not None]
    rows = [row for file in files for row in read(file)]
    states = read(last)
    raced = states[0]["raced"] if states else None
    if (found := len({row["race"] for row in rows})) != raced:
        raise ValueError(
            f"{dataset.path} holds {found} of the {raced} races that it had of run {name}: a file of it is damaged "
            "or gone; remove what is damaged, and collect the run again"
        )
    try:
        run = told_run(json.loads(states[0]["run_json"]), dataset.path / REPORTS / name)
        run.results = [result_of(row) for row in sorted(rows, key=lambda row: row["place"])]
        run.findings = [Finding.from_dict(one) for one in json.loads(states[0]["numerics_json"])]
    except (ValueError, TypeError, KeyError) as fault:
        raise ValueError(
            f"{last} cannot be read: {fault}; collect the run again into a new dataset"
        ) from None
    return run
