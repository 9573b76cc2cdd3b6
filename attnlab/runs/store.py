"""A run in one folder: its plan, its environment, and every result, appended as it arrives.

``run.json`` holds plan, environment, account of time and ceilings. ``results.jsonl`` holds one line for each contender
and visit to a workload; it is on the disk before `Run.append` returns. A kill can cut off the last line, and a disk or
an editor may damage any line. Damaged lines are skipped and reported by line number. ``numerics.json`` beside them
belongs to `attnlab.lab`.

`collect` writes many stored runs to one Parquet file: tidy rows for pandas, DuckDB or Polars.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import filelock
import msgspec

from attnlab.environment import fingerprint
from attnlab.errors import FieldError, NotStored, Unavailable
from attnlab.runs.plan import Plan
from attnlab.stats.analysis import Analysis, analyse
from attnlab.text import one_line, write_whole
from attnlab.workload.result import Ceiling, Result, merged
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd


#: the format of the files, and the last version that reads the format before it
FORMAT, FORMER_VERSION = 2, "attnlab 0.3.1"
#: fields of a workload that hold a name: another version of attnlab may know other names
_NAMED = ("mask", "storage", "direction", "dtype", "device", "bias", "layout", "distribution", "causal")
RUN_FILE, RESULTS, LOCK = "run.json", "results.jsonl", "run.lock"
#: columns of `Run.frame` that describe the contender and its outcome
_ANSWER = ("contender", "backend", "library", "outcome", "reason", "kernel", "computes_in")


@dataclass(kw_only=True)
class Record:
    """The content of ``run.json``.

    plan : what to measure.
    environment : facts about machine, system and libraries that change figures.
    id : distinguishes this run from every other, even if its folder is moved.
    contenders : the names of the contenders in the results, in the plan's order.
    baseline, command : the contender that the others are compared with; the command that repeats the run.
    started, complete : when it began, in UTC; False for a run that was interrupted.
    account : the seconds that each activity took.
    ceilings : the highest rates that the machine reached.
    """

    format: int = FORMAT
    plan: Plan
    environment: dict[str, Any]
    contenders: tuple[str, ...]
    baseline: str
    command: str = ""
    id: str = ""
    started: str = ""
    complete: bool = False
    account: dict[str, float] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)


class _Facts(TypedDict, total=False):
    versions: dict[str, str]
    pools: list[dict[str, Any]]


@dataclass(kw_only=True)
class Run(Record):
    """A run in `folder`: its record, and its `results`, one for each contender and workload.

    torn : by file, what could not be read, and why.
    """

    folder: Path
    results: list[Result] = field(default_factory=list)
    torn: dict[str, list[str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "interrupted"
        sizes = f"{len(self.plan.workloads)} workloads, {len(self.contenders)} contenders"
        return f"Run({self.folder}: {sizes}, {len(self.results)} results, {state})"

    def append(self, results: Sequence[Result]) -> None:
        """Store `results`, one line each; they are on the disk when this returns. Raises NotStored."""
        _append(self.folder / RESULTS, "".join(one.to_json() + "\n" for one in results).encode())
        self.results = _joined([*self.results, *results])

    def save(self) -> None:
        """Write everything but the results, which are on the disk already. Raises NotStored."""
        told = {one.name: getattr(self, one.name) for one in fields(Record)}
        write_whole(self.folder / RUN_FILE, msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")

    def left(self) -> list[Workload]:
        """The workloads of the plan at which a contender has no result yet, in the plan's order."""
        done = {(one.workload, one.contender) for one in self.results}
        return [one for one in self.plan.workloads if not {(one, name) for name in self.contenders} <= done]

    def judged(self) -> Analysis:
        """Its results, judged: see `attnlab.stats.analysis.analyse`."""
        return analyse(
            self.results,
            baseline=self.baseline,
            workloads=self.plan.workloads,
            origins=self.plan.origins,
            contenders=self.contenders,
            ceilings=self.ceilings,
            margin=self.plan.limits.noise_margin,
        )

    def frame(self) -> pd.DataFrame:
        """A tidy table with one row for each measurement, and one for each result without measurements.

        Columns: the workload's fields, ``contender``, ``backend``, ``library``, ``outcome``, ``reason``, ``kernel``,
        ``computes_in``, ``relative_error``, ``quantity`` (latency, peak_memory, ...), ``unit`` (s, B), ``value``
        (median of the samples), ``least``, ``greatest``, ``samples`` (their number).
        """
        import pandas as pd

        rows = []
        for result in self.results:
            answer = {name: getattr(result, name) for name in _ANSWER} | {"outcome": str(result.outcome)}
            error = None if result.accuracy is None else result.accuracy.relative_error
            for one in result.measurements or (None,):
                told: dict[str, Any] = {"quantity": None, "unit": None, "samples": 0}
                if one is not None:
                    ends = {"least": min(one.samples), "greatest": max(one.samples)}
                    told = {"quantity": one.quantity, "unit": one.unit, "value": one.median, **ends}
                    told["samples"] = len(one.samples)
                rows.append({**result.workload.to_dict(), **answer, "relative_error": error, **told})
        return pd.DataFrame(rows)


def read_run(folder: Path | str) -> Run:
    """The run stored in `folder`, complete or interrupted; `Run.torn` names the lines that could not be read.

    Raises ValueError, in one line, if the folder holds no run, or one of another format.
    """
    file = require_run(folder) / RUN_FILE
    results = file.with_name(RESULTS)
    try:
        data = msgspec.json.decode(file.read_bytes())
        lines = results.read_bytes().splitlines(keepends=True) if results.exists() else []
    except (OSError, ValueError, RecursionError) as fault:
        raise ValueError(f"{file} cannot be read: {fault}; restore it from a copy") from None
    stored = data.get("format") if isinstance(data, dict) else None
    if isinstance(stored, int) and stored != FORMAT:
        reads = "a later version of attnlab" if stored > FORMAT else FORMER_VERSION
        raise ValueError(f"{file} is of format {stored}, not {FORMAT}: {reads} reads it")
    try:
        record = msgspec.convert(data, Record)
        msgspec.convert(record.environment.get("contenders", {}), dict[str, _Facts])  # is read elsewhere
    except (ValueError, TypeError) as fault:
        if isinstance(fault.__cause__, FieldError) and fault.__cause__.field in _NAMED:
            by = f"attnlab {data.get('environment', {}).get('attnlab', 'of another version')}"
            said = one_line(str(fault.__cause__), 200)
            raise ValueError(f"{file}: read it with {by}, which wrote it; here {said}") from None
        raise ValueError(f"{file} is damaged: {one_line(str(fault))}; restore it from a copy") from None
    found, faults, workloads = list[Result](), list[str](), {*record.plan.workloads}
    for number, line in enumerate(lines, start=1):
        try:
            one = Result.from_json(line.decode())
            if one.workload not in workloads or one.contender not in record.contenders:
                raise ValueError(f"the plan has no {one.contender} at {one.workload.label}")
            found.append(one)
        except (ValueError, RecursionError) as fault:
            why = str(fault) if line.endswith(b"\n") else "it was cut off"
            faults.append(f"line {number}: {one_line(why, 200)}")
    torn = {RESULTS: faults} if faults else {}
    run = Run(folder=file.parent, results=_joined(found), torn=torn, **vars(record))
    run.complete = run.complete and not run.left()  # lines may have been lost
    return run


def require_run(folder: Path | str) -> Path:
    """`folder` as a path. Raises ValueError if it holds no run."""
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{folder} holds no run: there is no {RUN_FILE} in it")
    return folder


def _joined(results: Sequence[Result]) -> list[Result]:
    """One result for each contender and workload, over all visits; if a visit was made twice, the last one counts."""

    def visit(one: Result) -> tuple[Any, ...]:
        which = one.outcome if one.latency is None else min(one.latency.visits.values())
        return one.workload, one.contender, which

    return merged({visit(one): one for one in results}.values())


def _append(file: Path, data: bytes) -> None:
    """Append whole lines; they are on the disk when this returns. After a line that was cut off, they begin a new line.

    Raises NotStored if that fails; the file is then as it was before.
    """
    try:
        with file.open("a+b", buffering=0) as handle:
            before = handle.tell()
            if before and os.pread(handle.fileno(), 1, before - 1) != b"\n":
                data = b"\n" + data
            rest = memoryview(data)
            try:
                while rest:  # usually one write is enough
                    rest = rest[handle.write(rest) :]
                os.fsync(handle.fileno())
            except BaseException:  # also an interrupt
                handle.truncate(before)
                raise
    except OSError as fault:
        raise NotStored(f"{file} cannot be written: {fault.strerror}; what it holds stays") from None


@contextmanager
def claimed(folder: Path | str | None, default: Path, marker: str) -> Iterator[Path]:
    """Lock the folder to write to: `folder`, which must be new or empty, or `default`.

    If the default folder holds a run, which its `marker` file shows, it is moved aside, under the time of that file.
    Raises ValueError for a folder that cannot be used, or that another process writes to.
    """
    place = default if folder is None else Path(folder)

    def taken() -> bool:
        if not place.is_dir() or all(one.name == LOCK for one in place.iterdir()):
            return False
        ours = (place / marker).is_file()
        if ours and folder is None:
            return True
        holds = "results" if ours else "something else than results of attnlab"
        raise ValueError(f"the output folder {place} already holds {holds}; give a new one with --out")

    with ExitStack() as holding:
        try:
            taken()
            place.mkdir(parents=True, exist_ok=True)
            holding.enter_context(held(place))
            if taken():  # again, now that it is locked: another process may have used it
                begun = datetime.fromtimestamp((place / marker).stat().st_mtime, UTC)
                aside = f"{place.name}-{begun:%Y-%m-%d-%H%M%S}"
                names = (place.with_name(f"{aside}-{n}" if n else aside) for n in count())
                place.rename(next(one for one in names if not one.exists()))
                place.mkdir()
                holding.enter_context(held(place))
        except OSError as fault:
            raise ValueError(f"the output folder {place} cannot be used: {fault.strerror}") from None
        yield place


def held(folder: Path) -> AbstractContextManager[Any]:
    """Lock `folder` within a ``with``: one process writes to it. When a process is killed, its lock is released.

    Raises ValueError if another process holds the lock, or if the folder cannot be written to.
    """
    try:
        return filelock.FileLock(folder / LOCK, timeout=0).acquire()
    except filelock.Timeout:
        raise ValueError(f"another process is writing to {folder}; wait, or give another --out") from None
    except OSError as fault:
        raise ValueError(f"{folder} cannot be written to: {fault.strerror}") from None


def collect(folders: Iterable[Path], out: Path) -> tuple[int, int, list[str]]:
    """Write the measurements of all runs in and below `folders` to `out`. Returns how many runs and rows it holds.

    Also returns why folders and runs were left out, in one line each. A run that was found twice is written once.
    Raises ValueError if no run can be read, NotStored if `out` cannot be written, Unavailable without pyarrow.
    """
    import pandas as pd

    frames, skipped = dict[str, "pd.DataFrame"](), list[str]()
    for folder in folders:
        files = sorted(folder.rglob(RUN_FILE))
        if not files:
            skipped.append(f"{folder} holds no run: there is no {RUN_FILE} in it or below it")
        for file in files:
            try:
                run = read_run(file.parent)
            except ValueError as fault:
                skipped.append(str(fault))
                continue
            told = {"run": run.folder.resolve().name, "run_id": run.id, "started": run.started}
            told |= {"machine": fingerprint(run.environment), "baseline": run.baseline}
            parts = ("cpu", "system", "python", "attnlab")
            told |= {name: str(run.environment.get(name) or "") for name in parts}
            rows = run.frame()
            # a column must have one type: these hold tuples, or words and False
            mixed = [name for name in ("window", "key_lengths", "causal") if name in rows]
            rows[mixed] = rows[mixed].map(lambda one: None if one is None else str(one))
            frames.setdefault(run.id or str(run.folder.resolve()), pd.DataFrame(told, rows.index).join(rows))
    if not frames:
        raise ValueError(f"no run can be read: {'; '.join(skipped)}")
    every = pd.concat(frames.values(), ignore_index=True).convert_dtypes()
    try:
        every.to_parquet(out, index=False)
    except ImportError:
        raise Unavailable("collect needs pyarrow: pip install 'attnlab[collect]'") from None
    except OSError as fault:
        raise NotStored(f"{out} cannot be written: {fault.strerror or fault}; name another with -o") from None
    return len(frames), len(every), skipped
