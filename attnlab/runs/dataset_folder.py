"""A dataset's folder: which files are its own, what version they are of, and how one is written.

``TABLE/machine=NAME/date=DAY/RUN-PART.parquet``, in the way of Hive. Files are only ever added: one is written under
another name, flushed to the disk and renamed. The file of the runs comes last of a part, and the part counts from then
on; what a crash leaves before it is written again by the next collection, under the same name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from attnlab.errors import NotStored
from attnlab.libraries.host import required
from attnlab.runs.dataset_schema import TABLES, VERSION, VERSION_KEY
from attnlab.runs.lock import locked
from attnlab.runs.store import flush_folder, write_json
from attnlab.text import one_line

MARKER, LOCK, REPORTS = "dataset.json", "dataset.lock", "reports"
#: how long another collection into the same dataset is waited for
_PATIENCE = 600.0
_PLACE = re.compile(r"(\w+)/machine=[a-z0-9-]+/date=(\d{4}-\d{2}-\d{2})/([0-9a-f]{16})-(\d{4,})\.parquet")

Part = tuple[str, int]


@dataclass
class Dataset:
    """The files of each table by (run, part), and those that are none of its own, or damaged."""

    path: Path
    files: dict[str, dict[Part, Path]] = field(default_factory=lambda: {table: {} for table in TABLES})
    foreign: list[Path] = field(default_factory=list)

    def parts(self, run: str) -> list[int]:
        """The parts that the dataset holds of a run, ascending."""
        return sorted(part for one, part in self.files["runs"] if one == run)

    def results(self, run: str) -> list[Path]:
        """The files of the results of a run, by part."""
        found = self.files["results"]
        return [found[run, part] for part in self.parts(run) if (run, part) in found]

    def counted(self, table: str) -> list[Path]:
        """The files of a table whose part is whole, in the order of their names."""
        return [file for part, file in sorted(self.files[table].items()) if part in self.files["runs"]]

    def look_into(self, table: str) -> None:
        """Look into each file of a table: one that is not attnlab's for all its name, or damaged, becomes `foreign`.

        Raises ValueError where one is of another version.
        """
        pq = required("pyarrow.parquet", "pyarrow", extra="dataset")
        for part, file in sorted(self.files[table].items()):
            try:
                schema = pq.read_schema(file)
            except (OSError, ValueError):  # ArrowInvalid is one
                schema = None
            version = ((schema and schema.metadata) or {}).get(VERSION_KEY.encode())
            if version is None:
                self.foreign.append(file)
                del self.files[table][part]
                continue
            _require(int(version) if version.isdigit() else version.decode(errors="replace"), file)
            if unknown := sorted(set(schema.names) - {one.name for one in TABLES[table]}):
                raise ValueError(
                    f"{file} has a column that this version of attnlab does not know, {one_line(unknown[0], 60)}: "
                    "upgrade attnlab to read it"
                )


def is_dataset(path: Path | str) -> bool:
    """Whether `path` is the folder of a dataset, of whatever version."""
    return (Path(path) / MARKER).is_file()


def open_dataset(path: Path | str) -> Dataset:
    """The dataset in `path`. Raises ValueError where there is none, or one of another version."""
    found = Dataset(Path(path))
    if not is_dataset(path):
        raise ValueError(f"{path} holds no dataset: there is no {MARKER} in it; attnlab collect makes one")
    try:
        version = json.loads((found.path / MARKER).read_text(encoding="utf-8"))[VERSION_KEY]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{found.path / MARKER} cannot be read: it does not tell the version") from None
    _require(version, found.path)
    for file in sorted(Path(folder, name) for folder, _, names in os.walk(found.path) for name in names):
        inside = file.relative_to(found.path).as_posix()
        if inside in (MARKER, LOCK) or inside.startswith(f"{REPORTS}/") or inside.endswith(".new"):
            continue
        table, part = _place(inside)
        if table not in TABLES or part in found.files[table]:  # a copy at another machine or day counts once
            found.foreign.append(file)
        else:
            found.files[table][part] = file
    return found


def _place(inside: str) -> tuple[str, Part]:
    """The table and the part that a file is of; no table for one that lies where none of ours does."""
    if ours := _PLACE.fullmatch(inside):
        with contextlib.suppress(ValueError):
            date.fromisoformat(ours[2])
            return ours[1], (ours[3], int(ours[4]))
    return "", ("", 0)


@contextlib.contextmanager
def collecting(path: Path) -> Iterator[Dataset]:
    """The dataset in `path`, made where that is new or empty, and held: one collection at a time adds to it.

    Raises ValueError for a folder that holds something else, NotStored.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(
            f"{path} cannot be a dataset's folder: {fault.strerror}; give another with --into"
        ) from None
    busy = f"others have been collecting into {path} for {_PATIENCE:.0f} s; try again"
    with locked(path / LOCK, busy=busy, seconds=_PATIENCE):
        if not is_dataset(path):
            left = Path(MARKER).with_suffix(".new").name  # of a collection that was killed
            if {one.name for one in path.iterdir()} - {LOCK, left}:
                raise ValueError(f"{path} holds something else than a dataset; give a new folder with --into")
            write_json(path / MARKER, {VERSION_KEY: VERSION})
        yield open_dataset(path)


def write(table: Any, file: Path) -> None:
    """Write a `pyarrow.Table` as `file`, on the disk before this returns. Raises NotStored."""
    pq = required("pyarrow.parquet", "pyarrow", extra="dataset")
    fresh = file.with_name(f".{file.name}.new")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, fresh, compression="zstd", write_page_checksum=True)
        with fresh.open("rb") as handle:
            os.fsync(handle.fileno())
        fresh.replace(file)
        flush_folder(file.parent)
    except OSError as fault:
        said = fault.strerror or one_line(str(fault))
        raise NotStored(f"{file} cannot be written: {said}; what the dataset holds stays") from None


def read(file: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a file, all columns that it has or those named. Raises ValueError where it is damaged."""
    pq = required("pyarrow.parquet", "pyarrow", extra="dataset")
    try:
        found = pq.ParquetFile(file, page_checksum_verification=True).read(columns=columns)
        rows: list[dict[str, Any]] = found.select(columns or found.schema.names).to_pylist()
    except (OSError, ValueError, KeyError) as fault:
        raise ValueError(
            f"{file} is damaged: {one_line(str(fault), 120)}; remove it, and collect its run again"
        ) from None
    return rows


def _require(version: Any, where: Path) -> None:
    if version != VERSION:
        raise ValueError(
            f"{where} is of version {one_line(str(version), 20)} of the dataset's schema, and this attnlab reads "
            f"version {VERSION}: upgrade attnlab to read it"
        )
