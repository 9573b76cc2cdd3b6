"""A sweep in one folder: the plan, its shards, what happened to each, and their runs.

    sweep.json             format, version of attnlab, numbers, predicted seconds; written whole
    plan.toml              the whole plan: `attnlab run --plan` of it is the same without a sweep
    shards/0007/plan.toml  the plan of one shard; `attnlab run --plan` of it is what its job does
    shards/0007/run-1      what came of it: a plain run; run-2 where another kind of machine went on
    shards/0007/journal.jsonl  what happened, a line an event, appended
    jobs/                  what submitit keeps, with the logs

Nothing but files: any number of hosts that see the folder can work on it, and any program can read it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from attnlab.errors import NotStored
from attnlab.plain import decode
from attnlab.problem.workload import Workload
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan, plan_text, read_plan
from attnlab.runs.results_file import RESULTS
from attnlab.runs.store import RUN_FILE, Run, read_run
from attnlab.runs.sweep_cutting import cut

FORMAT = 1
SWEEP_FILE, PLAN_FILE, JOURNAL = "sweep.json", "plan.toml", "journal.jsonl"


@dataclass(frozen=True)
class Told:
    """What ``sweep.json`` says beside its format.

    sizes : workloads of each shard. seconds : what each shard is predicted to take, or none. series : how often the
    sweep was begun or gone on with; a shard that ended without being complete has another try in the next series.
    """

    attnlab: str
    cut: str
    contenders: int
    sizes: tuple[int, ...]
    seconds: tuple[float, ...] = ()
    series: int = 1


@dataclass(frozen=True)
class Shard:
    """One part of the plan, in a folder of its own."""

    folder: Path
    number: int

    @cached_property
    def plan(self) -> Plan:
        """Raises ValueError where its file is no plan."""
        return Plan.grid(**read_plan(self.folder / PLAN_FILE))

    def runs(self) -> list[Path]:
        """The folders of its runs, the first one first."""
        numbered = [(int(one.parent.name[4:]), one.parent) for one in self.folder.glob(f"run-*/{RUN_FILE}")]
        return [folder for _, folder in sorted(numbered)]

    def next_run(self) -> Path:
        """A folder that is not there yet."""
        number = 1
        while (self.folder / f"run-{number}").exists():
            number += 1
        return self.folder / f"run-{number}"

    def left(self) -> list[Workload]:
        """The workloads that no run of it has all results of, in the plan's order."""
        done = {one.workload for folder in self.runs() for one in whole_results(read_run(folder))}
        return [one for one in self.plan.workloads if one not in done]

    def lines(self) -> int:
        """How many results its runs hold: counted, not read."""
        return sum(_lines(folder / RESULTS) for folder in self.runs())

    def note(self, event: str, **told: Any) -> None:
        """Append an event to the journal, on the disk before this returns."""
        append_line(self.folder / JOURNAL, json.dumps({"event": event, **told}))

    def journal(self) -> list[dict[str, Any]]:
        """All events, the first one first; a line that was cut off by a kill is passed over."""
        try:
            lines = (self.folder / JOURNAL).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [one for one in map(_event, lines) if one is not None]

    def outcome(self, series: int) -> dict[str, Any] | None:
        """The event that ended it: complete, or in this series killed, refused or failed; None while it goes on."""
        for one in reversed(self.journal()):
            ended = one["event"] == "outcome"
            if ended and (one["outcome"] == "complete" or one["series"] == series):
                return dict(one)
        return None


@dataclass(frozen=True)
class Sweep:
    """A plan cut into shards, in one folder."""

    folder: Path
    told: Told

    @property
    def shards(self) -> list[Shard]:
        """All of them, by number."""
        return [self.shard(number) for number in range(len(self.told.sizes))]

    def shard(self, number: int) -> Shard:
        """Raises ValueError where there is none of that number."""
        if not 0 <= number < len(self.told.sizes):
            raise ValueError(f"{self.folder} has shards 0 to {len(self.told.sizes) - 1}, got {number}")
        return Shard(self.folder / "shards" / f"{number:04d}", number)

    def runs(self) -> list[Path]:
        """The folders of all runs, by shard: what `attnlab collect` and any reader of runs takes."""
        return [run for shard in self.shards for run in shard.runs()]

    def begin_again(self) -> Sweep:
        """The same in the next series: what ended without being complete is tried again."""
        told = Told(**{**asdict(self.told), "series": self.told.series + 1})
        _write(self.folder, told)
        return Sweep(self.folder, told)


def whole_results(run: Run) -> list[Any]:
    """The results of those workloads that every contender has one of; what was cut off is left out."""
    return run.results[: run.whole()]


def new_sweep(
    plan: Plan,
    folder: Path | str,
    shards: int,
    seconds: Sequence[float] | None = None,
    *,
    text: str | None = None,
) -> Sweep:
    """Cut `plan` into `shards` in `folder`, which must be new or empty, and return the sweep.

    Contenders and baseline are spelt out, as a run does: every shard has the same. Raises ValueError for an unknown
    backend and for a folder that cannot be used.
    """
    folder, (spelt, contenders) = Path(folder), resolve(plan)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        again = "; go on with --resume" if (folder / SWEEP_FILE).is_file() else ""
        raise ValueError(
            f"the output folder {folder} already holds something{again}, or give a new one with --out"
        )
    parts = cut(spelt, shards, seconds)
    by_workload = dict(zip(spelt.workloads, seconds or (), strict=False))
    predicted = tuple(sum(by_workload[one] for one in part.workloads) for part in parts) if seconds else ()
    told = Told(
        attnlab=version("attnlab"),
        cut=datetime.now(UTC).isoformat(timespec="seconds"),
        contenders=len(contenders),
        sizes=tuple(len(one.workloads) for one in parts),
        seconds=predicted,
    )
    sweep = Sweep(folder, told)
    try:
        for number, part in enumerate(parts):
            place = sweep.shard(number).folder
            place.mkdir(parents=True)
            (place / PLAN_FILE).write_text(plan_text(part), encoding="utf-8")
        (folder / PLAN_FILE).write_text(plan_text(spelt), encoding="utf-8")
        _write(folder, told)
    except OSError as fault:
        raise ValueError(f"the output folder {folder} cannot be written to: {fault.strerror}") from None
    return sweep


def append_line(file: Path, text: str) -> None:
    """Append `text` as a line of its own, on the disk before this returns: also behind one that was cut off.

    Raises NotStored where it cannot be written, as on a full disk.
    """
    line = f"{text}\n".encode()
    try:
        with file.open("a+b", buffering=0) as handle:
            size = handle.tell()
            if size and os.pread(handle.fileno(), 1, size - 1) != b"\n":
                line = b"\n" + line
            if handle.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle.fileno())
    except OSError as fault:
        raise NotStored(f"{file} cannot be written to: {fault.strerror}") from None


def read_sweep(folder: Path | str) -> Sweep:
    """The sweep in `folder`. Raises ValueError where there is none, or one of another format."""
    folder = Path(folder)
    try:
        data = json.loads((folder / SWEEP_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no sweep: there is no {SWEEP_FILE} in it") from None
    except (OSError, ValueError, RecursionError) as fault:
        raise ValueError(f"{folder / SWEEP_FILE} cannot be read: {fault}") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(
            f"{folder / SWEEP_FILE} is not of format {FORMAT}; cut the plan again with this version"
        )
    return Sweep(folder, decode(data, Told, str(folder / SWEEP_FILE)))


def require_version(sweep: Sweep) -> None:
    """Raises ValueError, naming both, where the sweep was cut by another version of attnlab than this one."""
    here = version("attnlab")
    if sweep.told.attnlab != here:
        raise ValueError(
            f"the sweep in {sweep.folder} is of attnlab {sweep.told.attnlab}, and this is attnlab {here}: "
            "install that version here, or cut the plan anew with this one"
        )


def _write(folder: Path, told: Told) -> None:
    fresh = folder / f"{SWEEP_FILE}.new"
    fresh.write_text(json.dumps({"format": FORMAT, **asdict(told)}) + "\n", encoding="utf-8")
    fresh.replace(folder / SWEEP_FILE)


def _event(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _lines(file: Path) -> int:
    try:
        with file.open("rb") as handle:
            return sum(block.count(b"\n") for block in _blocks(handle))
    except FileNotFoundError:
        return 0


def _blocks(handle: Any) -> Iterator[bytes]:
    while block := handle.read(2**20):
        yield block
