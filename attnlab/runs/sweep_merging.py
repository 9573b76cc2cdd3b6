"""The results of all shards, put together: as one set, and as one run for every kind of machine."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from attnlab.problem.result import Result
from attnlab.race.environment import fingerprint
from attnlab.runs.results_file import RESULTS
from attnlab.runs.store import RUN_FILE, Run, read_run
from attnlab.runs.sweep_folder import PLAN_FILE, Sweep
from attnlab.text import without_home

#: where the runs of kinds of machines are written, made from the shards' runs
MACHINES = "machines"
_NUMERICS = "numerics.json"


class _Line(msgspec.Struct):
    """What of a result says whose it is; the samples are passed over."""

    contender: str
    workload: msgspec.Raw


@dataclass(frozen=True)
class _Stored:
    """A run as it lies on the disk: ``run.json``, and the lines of each workload that all contenders have one of.

    last : of its shard; what an earlier one was cut off in, a later one has.
    """

    folder: Path
    told: dict[str, Any]
    lines: Mapping[str, Sequence[bytes]]
    last: bool


def results(sweep: Sweep) -> Iterator[Result]:
    """Every result once, by shard. Raises ValueError where two runs of a shard answer one workload."""
    for stored in _all(sweep):
        for lines in stored.lines.values():
            yield from (Result.from_json(line.decode()) for line in lines)


def by_machine(sweep: Sweep) -> dict[str, Run]:
    """One run for every kind of machine, by its fingerprint, over the workloads that were raced there.

    Of a sweep that is not complete, those are in its plan too that the last run of a shard is yet to race.
    Raises ValueError as `results`.
    """
    return {machine: read_run(folder) for machine, folder in write_machines(sweep).items()}


def write_machines(sweep: Sweep) -> dict[str, Path]:
    """The folders of these runs: ``machines/FINGERPRINT`` of the sweep, written anew.

    A race is of one machine, so verdicts are as in the shards; two hosts of one kind count as one machine. The
    environment is that of the first run there. Lines of results are copied as they are. Raises ValueError as `results`.
    """
    found: dict[str, list[_Stored]] = {}
    for stored in _all(sweep):
        if stored.lines:
            found.setdefault(fingerprint(stored.told["environment"]), []).append(stored)
    plan, shards = str(sweep.folder / PLAN_FILE), str(len(sweep.told.sizes))
    command = without_home(shlex.join(["attnlab", "sweep", plan, "--shards", shards]))
    return {
        machine: _merge(sweep.folder / MACHINES / machine, runs, command) for machine, runs in found.items()
    }


def _all(sweep: Sweep) -> Iterator[_Stored]:
    for shard in sweep.shards:
        answered: set[str] = set()
        runs = shard.runs()
        for folder in runs:
            stored = _read(folder, last=folder == runs[-1])
            doubled = answered & stored.lines.keys()
            if doubled:
                raise ValueError(
                    f"{shard.folder}: two of its runs have results of the workload {min(doubled)}"
                )
            answered |= stored.lines.keys()
            yield stored


def _read(folder: Path, *, last: bool) -> _Stored:
    try:
        told = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
        expected = Counter(told["contenders"])
        lines: dict[str, Sequence[bytes]] = {}
        for key, group in groupby(_lines(folder / RESULTS), key=lambda one: one[0]):
            some = list(group)
            if Counter(contender for _, contender, _ in some) != expected:
                break  # cut off: what follows the last whole workload
            lines[key] = [line for *_, line in some]
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise ValueError(f"the run {folder} cannot be read: {type(fault).__name__}: {fault}") from None
    return _Stored(folder, told, lines, last)


def _lines(file: Path) -> Iterator[tuple[str, str, bytes]]:
    """Whose each whole line is: its workload, written in one way, and its contender."""
    decode = msgspec.json.Decoder(_Line).decode
    if not file.exists():
        return
    with file.open("rb") as handle:
        for line in handle:
            if line.endswith(b"\n"):
                found = decode(line)
                yield _key(msgspec.json.decode(found.workload)), found.contender, line


def _key(workload: Mapping[str, Any]) -> str:
    return json.dumps(workload, sort_keys=True)


def _merge(folder: Path, runs: Sequence[_Stored], command: str) -> Path:
    """The runs as one, in `folder`; `command` repeats them."""
    folder.mkdir(parents=True, exist_ok=True)
    told = dict(runs[0].told)
    plan, workloads, origins = dict(told["plan"]), [], []
    for run in runs:
        asked = run.told["plan"]
        named = asked["origins"] or [""] * len(asked["workloads"])
        asked_of_it = zip(asked["workloads"], named, strict=True)
        pairs = [pair for pair in asked_of_it if run.last or _key(pair[0]) in run.lines]
        workloads += [one for one, _ in pairs]
        origins += [one for _, one in pairs] if asked["origins"] else []
    plan |= {"workloads": workloads, "origins": origins}
    plan["experiments"] = max((run.told["plan"]["experiments"] for run in runs), key=len)
    account: Counter[str] = Counter()
    for run in runs:
        account.update(run.told["account"])
    ceilings = {(one["device"], one["dtype"]): one for run in runs for one in run.told["ceilings"]}
    told |= {
        "plan": plan,
        "account": dict(account),
        "ceilings": list(ceilings.values()),
        "invariance": max((run.told["invariance"] for run in runs), key=len),
        "command": command,
        "started": min(run.told["started"] for run in runs),
        "complete": all(run.told["complete"] or not run.last for run in runs),
    }
    with (folder / RESULTS).open("wb") as handle:
        for run in runs:
            for lines in run.lines.values():
                handle.writelines(lines)
    findings = [one for run in runs for one in _findings(run.folder)]
    (folder / _NUMERICS).write_text(json.dumps(findings), encoding="utf-8")
    (folder / RUN_FILE).write_text(json.dumps(told) + "\n", encoding="utf-8")
    return folder


def _findings(folder: Path) -> list[Any]:
    try:
        found: list[Any] = json.loads((folder / _NUMERICS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return found
