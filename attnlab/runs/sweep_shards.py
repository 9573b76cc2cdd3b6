"""A sweep in one folder: the plan cut into shards, what happened to each, and their runs.

    sweep.json             format, version of attnlab, numbers, predicted seconds; written whole
    plan.toml              the whole plan: `attnlab run --plan` of it is the same without a sweep
    shards/0007/plan.toml  the plan of one shard; `attnlab run --plan` of it is what its job does
    shards/0007/run-1      what came of it: a plain run; run-2 where another kind of machine went on
    shards/0007/journal.jsonl  what happened, a line an event, appended
    jobs/                  what submitit keeps, with the logs

Nothing but files: any number of hosts that see the folder can work on it, and any program can read it.

A shard is whole workloads: all contenders of a race stay on one machine. Workloads that differ in their lengths alone
stand together, so that how time grows with length is mostly seen on one machine.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from attnlab.errors import NotStored
from attnlab.plain import decode
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan, read_plan
from attnlab.runs.results_file import RESULTS
from attnlab.runs.store import RUN_FILE, read_run

FORMAT = 1
SWEEP_FILE, PLAN_FILE, JOURNAL = "sweep.json", "plan.toml", "journal.jsonl"
#: what may differ between two lengths of one kind of workload
_SIZES = ("queries", "keys", "key_lengths", "seed")


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
        found = [one.parent for one in self.folder.glob(f"run-*/{RUN_FILE}")]
        return sorted(found, key=lambda one: int(one.name.removeprefix("run-")))

    def results(self) -> list[Result]:
        """Those of whole workloads, of all its runs."""
        return [one for run in map(read_run, self.runs()) for one in run.results[: run.whole()]]

    def left(self) -> list[Workload]:
        """The workloads that no run of it has all results of, in the plan's order."""
        done = {one.workload for one in self.results()}
        return [one for one in self.plan.workloads if one not in done]

    def lines(self) -> int:
        """How many results its runs hold: counted, not read."""
        found = 0
        for file in self.folder.glob(f"run-*/{RESULTS}"):
            with file.open("rb") as handle:
                found += sum(line.endswith(b"\n") for line in handle)
        return found

    def note(self, event: str, **told: Any) -> None:
        """Append an event to the journal, on the disk before this returns."""
        append_line(self.folder / JOURNAL, json.dumps({"event": event, **told}))

    def journal(self) -> list[dict[str, Any]]:
        """All events, the first one first; a line that was cut off by a kill is passed over."""
        return [one for one in read_lines(self.folder / JOURNAL) if isinstance(one, dict) and "event" in one]

    def outcome(self, series: int) -> dict[str, Any] | None:
        """The event that ended it: complete, or in this series killed, refused or failed; None while it goes on."""
        ends = (one for one in reversed(self.journal()) if one["event"] == "outcome")
        return next((one for one in ends if one["outcome"] == "complete" or one["series"] == series), None)


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
        return Sweep(self.folder, dataclasses.replace(self.told, series=self.told.series + 1))._saved()

    def require_version(self) -> None:
        """Raises ValueError, naming both, where the sweep was cut by another version of attnlab than this one."""
        here = version("attnlab")
        if self.told.attnlab != here:
            raise ValueError(
                f"the sweep in {self.folder} is of attnlab {self.told.attnlab}, and this is attnlab {here}: "
                "install that version here, or cut the plan anew with this one"
            )

    def _saved(self) -> Sweep:
        fresh = self.folder / f"{SWEEP_FILE}.new"
        fresh.write_text(json.dumps({"format": FORMAT, **asdict(self.told)}) + "\n", encoding="utf-8")
        fresh.replace(self.folder / SWEEP_FILE)
        return self


def new_sweep(plan: Plan, folder: Path | str, shards: int, seconds: Sequence[float] | None = None) -> Sweep:
    """Cut `plan` into `shards` in `folder`, which must be new or empty, and return the sweep.

    seconds : what each workload is predicted to take, in the plan's order. Contenders and baseline are spelt out, as a
    run does: every shard has the same. Raises ValueError for an unknown backend and for a folder that cannot be used.
    """
    folder, (spelt, contenders) = Path(folder), resolve(plan)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        again = "; go on with --resume" if (folder / SWEEP_FILE).is_file() else ""
        raise ValueError(
            f"the output folder {folder} already holds something{again}, or give a new one with --out"
        )
    parts = cut(spelt, shards, seconds)
    taken = dict(zip(spelt.workloads, seconds or (), strict=False))
    told = Told(
        attnlab=version("attnlab"),
        cut=datetime.now(UTC).isoformat(timespec="seconds"),
        contenders=len(contenders),
        sizes=tuple(len(one.workloads) for one in parts),
        seconds=tuple(sum(taken[one] for one in part.workloads) for part in parts) if seconds else (),
    )
    sweep = Sweep(folder, told)
    try:
        for shard, part in zip(sweep.shards, parts, strict=True):
            shard.folder.mkdir(parents=True)
            (shard.folder / PLAN_FILE).write_text(plan_text(part), encoding="utf-8")
        (folder / PLAN_FILE).write_text(plan_text(spelt), encoding="utf-8")
        return sweep._saved()
    except OSError as fault:
        raise ValueError(f"the output folder {folder} cannot be written to: {fault.strerror}") from None


def read_sweep(folder: Path | str) -> Sweep:
    """The sweep in `folder`. Raises ValueError where there is none, or one of another format."""
    file = Path(folder) / SWEEP_FILE
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no sweep: there is no {SWEEP_FILE} in it") from None
    except (OSError, ValueError, RecursionError) as fault:
        raise ValueError(f"{file} cannot be read: {fault}") from None
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
        raise ValueError(f"{file} is not of format {FORMAT}; cut the plan again with this version")
    return Sweep(Path(folder), decode(data, Told, str(file)))


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


def read_lines(file: Path) -> list[Any]:
    """What the lines of `file` hold as JSON, without those that were cut off; nothing where there is no file."""
    found = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # by a kill, or a full disk
            continue
    return found


# -- plans -------------------------------------------------------------------------------------------


def joined(plans: Mapping[str, Plan]) -> Plan:
    """The workloads of all `plans`, each once, as one plan. Raises ValueError, naming it, for one that differs else."""
    (named, first), *others = plans.items()
    for name, other in others:
        alike = dataclasses.replace(other, workloads=first.workloads, origins=first.origins)
        for one in dataclasses.fields(Plan):
            if getattr(alike, one.name) != getattr(first, one.name):
                raise ValueError(
                    f"plans of one sweep may differ in their workloads alone, and {name} has other {one.name} than "
                    f"{named}: make them alike, or two sweeps"
                )
    origins: dict[Workload, str] = {}
    for plan in plans.values():
        for workload, origin in zip(plan.workloads, plan.origins or ("",) * len(plan.workloads), strict=True):
            origins.setdefault(workload, origin)
    return dataclasses.replace(first, **_with_origins(origins))


def cut(plan: Plan, shards: int, seconds: Sequence[float] | None = None) -> list[Plan]:
    """`plan` as at most so many plans, none of them empty, that hold each of its workloads once.

    seconds : what each workload is predicted to take, in the plan's order; by default all alike. No shard is longer
    than an equal part by more than one workload. The numerical chapter, which no machine changes, is left to the first
    shard; contenders and everything else are the plan's. Raises ValueError for less than one shard, and for seconds
    that are not one a workload.
    """
    if shards < 1:
        raise ValueError(f"a plan is cut into one shard or more, got {shards}")
    costs = np.ones(len(plan.workloads)) if seconds is None else np.asarray(seconds, float)
    if costs.shape != (len(plan.workloads),) or not (costs > 0).all():
        raise ValueError(f"seconds must be {len(plan.workloads)} numbers above 0, one a workload")
    kinds: dict[object, list[int]] = {}  # those of one kind stand side by side
    for place, workload in enumerate(plan.workloads):
        kind = tuple(value for name, value in vars(workload).items() if name not in _SIZES)
        kinds.setdefault(kind, []).append(place)
    order = [place for some in kinds.values() for place in some]
    middle = np.cumsum(costs[order]) - costs[order] / 2  # of each workload, on a line of all of them
    part = np.minimum((middle * shards / costs.sum()).astype(int), shards - 1)
    chosen = np.split(np.array(order), np.flatnonzero(np.diff(part)) + 1)
    return [
        only(plan, [plan.workloads[place] for place in some], chapter=number == 0)
        for number, some in enumerate(chosen)
    ]


def only(plan: Plan, workloads: Sequence[Workload], *, chapter: bool) -> Plan:
    """`plan` with these of its workloads, and with its numerical chapter or without."""
    origins = dict(zip(plan.workloads, plan.origins or ("",) * len(plan.workloads), strict=True))
    told = _with_origins({one: origins[one] for one in workloads})
    return dataclasses.replace(plan, **told, experiments=plan.experiments if chapter else ())


def _with_origins(origins: Mapping[Workload, str]) -> dict[str, Any]:
    told = tuple(origins.values()) if any(origins.values()) else ()
    return {"workloads": tuple(origins), "origins": told}


def plan_text(plan: Plan) -> str:
    """TOML that `attnlab run --plan` reads as this very plan, its workloads listed one by one.

    Folders of backends are written as absolute paths, so that the file may lie anywhere.
    """
    whole = {
        "backends": plan.contenders,
        "baseline": plan.baseline,
        "implementations": [str(Path(one).resolve()) for one in plan.folders],
        **{name: getattr(plan, name) for name in ("self_test", "memory", "ceilings")},
        "experiments": plan.experiments or ("none",),
        "origins": plan.origins,
    }
    defaults = {one.name: one.default for one in dataclasses.fields(Workload)}
    tables: list[tuple[str, dict[str, Any]]] = [("", whole), ("[limits]", vars(plan.limits))]
    for workload in plan.workloads:
        told = {name: getattr(workload, name) for name in defaults}
        tables.append(("[[workloads]]", {name: one for name, one in told.items() if one != defaults[name]}))
    lines = []
    for head, table in tables:
        lines += [
            head,
            *(f"{name} = {_toml(one)}" for name, one in table.items() if one not in (None, (), [])),
        ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A value in TOML: numbers and lists are as in JSON, and a text is with its letters as they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
