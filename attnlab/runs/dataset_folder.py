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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from attnlab.errors import NotStored
from attnlab.libraries.host import required
from attnlab.runs.dataset_schema import TABLES, VERSION, VERSION_KEY, arrow
from attnlab.runs.results_file import flush_folder
from attnlab.text import one_line

MARKER, LOCK, REPORTS = "dataset.json", "dataset.lock", "reports"
#: how long another collection into the same dataset is waited for
_PATIENCE = 600.0
_NAME = re.compile(r"([0-9a-f]{16})-(\d{4,})\.parquet")
_FOLDERS = re.compile(r"machine=([a-z0-9-]+)/date=(\d{4}-\d{2}-\d{2})")

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

    def counted(self, table: str) -> list[Path]:
        """The files of a table whose part is whole, in the order of their names."""
        return [file for part, file in sorted(self.files[table].items()) if part in self.files["runs"]]

    def place(self, table: str, machine: str, day: str, run: str, part: int) -> Path:
        """Where that file lies."""
        return self.path / table / f"machine={machine}" / f"date={day}" / f"{run}-{part:04d}.parquet"

    def opened(self, table: str) -> Any:
        """The table as a `pyarrow.dataset.Dataset`, machine and date included, each file of it looked into.

        A file that is not attnlab's for all its name, or damaged, becomes `foreign`. Raises ValueError where one is of
        another version.
        """
        ds = required("pyarrow.dataset", "pyarrow", extra="dataset")
        pa = required("pyarrow", extra="dataset")
        folders = pa.schema([("machine", pa.string()), ("date", pa.date32())])
        whole = pa.schema([*arrow(table), *folders])
        form, kind = ds.ParquetFileFormat(), ds.partitioning(folders, flavor="hive")

        def made(files: Iterable[Path]) -> Any:
            options = {"partitioning": kind, "partition_base_dir": str(self.path / table)}
            return ds.dataset([str(one) for one in files], schema=whole, format=form, **options)

        files = self.counted(table)
        with ThreadPoolExecutor() as pool:
            own = list(pool.map(_is_own, files, made(files).get_fragments() if files else ()))
        if not all(own):
            strange = {file for file, yes in zip(files, own, strict=True) if not yes}
            self.foreign += sorted(strange)
            self.files[table] = {part: one for part, one in self.files[table].items() if one not in strange}
            files = self.counted(table)
        return made(files) if files else ds.dataset(whole.empty_table())


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
    for folder, folders, names in os.walk(found.path):
        folders.sort()
        inside = Path(folder).relative_to(found.path)
        if inside.parts[:1] == (REPORTS,):
            continue
        for name in sorted(names):
            if (not inside.parts and name in (MARKER, LOCK)) or name.endswith(".new"):
                continue
            table, part = _read_place(inside, name)
            if part is None or part in found.files[table]:  # a copy at another machine or day counts once
                found.foreign.append(Path(folder, name))
            else:
                found.files[table][part] = Path(folder, name)
    return found


def claim_dataset(path: Path | str) -> None:
    """Make `path`, a new or an empty folder, a dataset; one that is a dataset stays. Raises ValueError, NotStored."""
    place = Path(path)
    if is_dataset(place):
        return
    fresh = place / f"{MARKER}.new"  # may be left of a collection that was killed
    if place.is_file() or (place.is_dir() and {one.name for one in place.iterdir()} - {LOCK, fresh.name}):
        raise ValueError(f"{place} holds something else than a dataset; give a new folder with --into")
    with _stored(place):
        place.mkdir(parents=True, exist_ok=True)
        fresh.write_text(json.dumps({VERSION_KEY: VERSION}) + "\n", encoding="utf-8")
        fresh.replace(place / MARKER)


@contextlib.contextmanager
def collecting(path: Path) -> Iterator[None]:
    """Hold the dataset, so that one collection at a time adds to it; others wait. Raises ValueError, NotStored."""
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK, timeout=_PATIENCE)
    with _stored(path):
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"others have been collecting into {path} for {_PATIENCE:.0f} s; try again"
            ) from None
    try:
        yield
    finally:
        lock.release()


def write(table: Any, file: Path) -> None:
    """Write a `pyarrow.Table` as `file`, on the disk before this returns. Raises NotStored."""
    pq = required("pyarrow.parquet", "pyarrow", extra="dataset")
    fresh = file.with_name(f".{file.name}.new")
    with _stored(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, fresh, compression="zstd", write_page_checksum=True)
        with fresh.open("rb") as handle:
            os.fsync(handle.fileno())
        fresh.replace(file)
        flush_folder(file.parent)


def read(file: Path, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a file, all columns that it has or those named. Raises ValueError where it is damaged."""
    pq = required("pyarrow.parquet", "pyarrow", extra="dataset")
    try:
        found = pq.ParquetFile(file, page_checksum_verification=True).read(columns=columns)
        for name in columns or ():
            if name not in found.schema.names:
                raise ValueError(f"it has no column {name}")
        rows: list[dict[str, Any]] = found.to_pylist()
    except (OSError, ValueError) as fault:
        raise _damaged(file, one_line(str(fault), 120)) from None
    return rows


def read_state(file: Path, columns: list[str] | None = None) -> dict[str, Any]:
    """The one row of a file of the runs. Raises ValueError where it is damaged."""
    rows = read(file, columns)
    if len(rows) != 1:
        raise _damaged(file, f"it has {len(rows)} rows in place of one")
    return rows[0]


def _damaged(file: Path, why: str) -> ValueError:
    return ValueError(f"{file} is damaged: {why}; remove it, and collect its run again")


@contextlib.contextmanager
def _stored(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as fault:
        said = fault.strerror or one_line(str(fault))
        raise NotStored(f"{place} cannot be written: {said}; what the dataset holds stays") from None


def _read_place(inside: Path, name: str) -> tuple[str, Part | None]:
    """The table and the part that a file is of; None for the part of a file that lies where none of ours does."""
    table, _, folders = inside.as_posix().partition("/")
    named, lies = _NAME.fullmatch(name), _FOLDERS.fullmatch(folders)
    if table not in TABLES or named is None or lies is None:
        return table, None
    try:
        date.fromisoformat(lies[2])
    except ValueError:
        return table, None
    return table, (named[1], int(named[2]))


def _is_own(file: Path, fragment: Any) -> bool:
    """Whether attnlab wrote the file.

    Raises ValueError where a version did that this one cannot read.
    """
    try:
        schema = fragment.physical_schema
    except (OSError, ValueError):  # ArrowInvalid is one
        return False
    version = (schema.metadata or {}).get(VERSION_KEY.encode())
    if version is None:
        return False
    _require(int(version) if version.isdigit() else version.decode(errors="replace"), file)
    table = file.parts[-4]
    unknown = sorted(set(schema.names) - {one.name for one in TABLES[table]})
    if unknown:
        raise ValueError(
            f"{file} has a column that this version of attnlab does not know, {one_line(unknown[0], 60)}; "
            "read it with the version that wrote it"
        )
    return True


def _require(version: Any, where: Path) -> None:
    if version != VERSION:
        raise ValueError(
            f"{where} is of version {one_line(str(version), 20)} of the dataset's schema, this attnlab reads "
            f"version {VERSION}; read it with the version of attnlab that wrote it"
        )
