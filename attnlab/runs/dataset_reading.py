"""The runs of a dataset as the values that they were before: what a report or a page takes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from attnlab.experiments.finding import Finding
from attnlab.libraries.host import required
from attnlab.runs.dataset_folder import REPORTS, Dataset, open_dataset, read, read_state
from attnlab.runs.dataset_rows import result_of
from attnlab.runs.dataset_schema import arrow
from attnlab.runs.store import Run, told_run


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
        dataset.opened(table)
    if passed_over is not None:
        passed_over += dataset.foreign
    names = {name: file.parent for (name, _), file in dataset.files["runs"].items()}
    faults: list[ValueError] = []
    for name in sorted(names, key=lambda one: (names[one].as_posix(), one)):
        if only and name not in only:
            continue
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
    state = dict.fromkeys(arrow("runs").names) | read_state(last)
    rows = [
        row
        for part in parts
        if (file := dataset.files["results"].get((name, part))) is not None
        for row in _rows(file)
    ]
    found, raced = len({row["race"] for row in rows}), state["raced"]
    if found != raced:
        raise ValueError(
            f"{dataset.path} holds {found} of the {raced} races that it had of run {name}: a file of it is damaged "
            "or gone; remove what is damaged, and collect the run again"
        )
    try:
        run = told_run(json.loads(state["run_json"]), dataset.path / REPORTS / name)
        run.results = [result_of(row) for row in sorted(rows, key=lambda row: row["place"])]
        run.findings = [Finding.from_dict(one) for one in json.loads(state["numerics_json"])]
    except (ValueError, TypeError, KeyError) as fault:
        raise ValueError(
            f"{last} cannot be read: {fault}; collect the run again into a new dataset"
        ) from None
    return run


def _rows(file: Path) -> list[dict[str, Any]]:
    """The results in one file; columns that it does not have are None."""
    empty = dict.fromkeys(arrow("results").names)
    return [{**empty, **row} for row in read(file)]
