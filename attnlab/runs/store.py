"""A run in one folder: what was asked, where, and every answer, appended as it came.

``run.json`` holds the plan, the environment and the account of time; ``results.jsonl`` a line a result, whole workloads
appended in one write and flushed to the disk before it returns; ``numerics.json`` the experiments. A crash may cut off
the end of the results: the last line, or the last workload, of whose contenders some have no line yet; a disk or an
editor may damage anything. So each line ends with its checksum, and ``run.json`` has its own and those of the findings.
Readers pass over what is not whole and tell it; before a run is gone on with, what does not make a whole workload is
set aside into ``results.torn``, each line behind its number.

The folder is new, empty, or our own default one, whose former content is kept beside it. What is promised of these
files stands in ``docs/store.md``.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from attnlab.errors import NotStored
from attnlab.lab.finding import Finding
from attnlab.plain import decode
from attnlab.runs.lock import LOCK, held, is_held
from attnlab.runs.plan import Plan
from attnlab.stats.analysis import Analysis, analyse
from attnlab.text import counted, one_line, read_text
from attnlab.workload.result import Ceiling, Invariance, Result
from attnlab.workload.workload import Workload

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
RUN_FILE, RESULTS, TORN = "run.json", "results.jsonl", "results.torn"
_NUMERICS, _NUMERICS_TORN = "numerics.json", "numerics.torn"
#: the checksum of a line, or of ``run.json``: CRC-32 of the text without it, that of `json.dumps`
_CRC = "crc32"
_SEAL = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\n$')
#: why a line is no result; of those that are not whole so many are named, each in so many letters
_CUT_OFF, _NAMED, _LETTERS = "it was cut off", 4, 200
#: bytes of a result's line; one of a thousand rounds has some 100 kB
_MOST_OF_A_LINE = 2**26
#: of a file that is read whole; findings are its largest, with some 5 MB
_MOST_BYTES = 2**27


@dataclass
class Run:
    """A plan, an environment and the results, in one folder.

    folder, plan : where it is stored, and what was asked.
    environment : what of the machine, the system and the libraries changes figures.
    id : tells this run from every other, wherever its folder is moved; empty in runs of before it was recorded.
    contenders : the names that results are filed under, in the plan's order.
    baseline, command : who the others are compared with; what repeats the run.
    started, complete : when it began, in UTC; False for a run that was interrupted.
    account : the seconds that went into each activity.
    results : one for each contender and workload.
    findings : of the numerical chapter's experiments.
    """

    folder: Path
    plan: Plan
    environment: Mapping[str, Any]
    contenders: tuple[str, ...]
    baseline: str
    command: str = ""
    id: str = ""
    started: str = ""
    complete: bool = False
    account: dict[str, float] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)
    invariance: list[Invariance] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    #: of each finding, in their order; None in a run that began before files had checksums
    checksums: list[str] | None = field(default_factory=list)
    #: by file, what of it was found not to be whole, and why
    torn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: what a later version wrote into the file beside all this: kept as it is
    further: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = counted(len(self.plan.workloads), "workload"), counted(len(self.contenders), "contender")
        state = "complete" if self.complete else "interrupted"
        return f"Run({self.folder}: {', '.join(counts)}, {counted(len(self.results), 'result')}, {state})"

    def append(self, results: Sequence[Result]) -> None:
        """Keep the `results` of one workload, on disk before this returns. Raises NotStored."""
        lines = (one.to_json().removesuffix("}") for one in results)
        sealed = (f'{line}, "{_CRC}": "{_checksum(line + "}")}"}}\n' for line in lines)
        append(self.folder / RESULTS, "".join(sealed).encode())
        self.results.extend(results)

    def set_aside(self) -> None:
        """Keep the lines of whole workloads; all others go to the end of ``results.torn``, each behind its number.

        Of findings that are not all whole the file goes to ``numerics.torn``.
        Raises NotStored where that cannot be written; nothing is lost then.
        """
        file, kept = self.folder / RESULTS, self.whole()
        whole = {one.workload for one in kept}
        rest: dict[int, bytes] = {}
        for number, line, found in _lines(file, self.checksums is not None):
            if isinstance(found, str) or found.workload not in whole:
                rest[number] = rest.get(number, b"%d: " % number) + line
        try:
            if rest:
                append(self.folder / TORN, b"".join(one.removesuffix(b"\n") + b"\n" for one in rest.values()))
                fresh = file.with_suffix(".new")
                with fresh.open("wb") as handle:
                    handle.writelines(line for number, line in _numbered(file) if number not in rest)
                    handle.flush()
                    os.fsync(handle.fileno())
                fresh.replace(file)
            if _NUMERICS in self.torn:
                (self.folder / _NUMERICS).replace(self.folder / _NUMERICS_TORN)
            flush_folder(self.folder)
        except OSError as fault:
            raise NotStored(f"{file} cannot be written: {fault.strerror}; nothing was changed") from None
        self.results, self.torn = kept, {}

    def save(self) -> None:
        """Write everything but the results, which are on disk already. Replaces files whole. Raises NotStored."""
        findings = [finding.to_dict() for finding in self.findings]
        if self.checksums is not None:
            self.checksums = [_checksum(json.dumps(one)) for one in findings]
        told = self.told()
        write_json(self.folder / RUN_FILE, {**told, _CRC: _checksum(json.dumps(told))})
        write_json(self.folder / _NUMERICS, findings)

    def told(self) -> dict[str, Any]:
        """The content of ``run.json``: plain data, all but results and findings. `told_run` is the inverse."""
        told = {name: getattr(self, name) for name in _TOLD}
        return {"format": FORMAT, **self.further, **msgspec.to_builtins(told)}

    def whole(self) -> list[Result]:
        """The results that make whole workloads: one of every contender."""
        names: dict[Workload, set[str]] = {}
        for one in self.results:
            names.setdefault(one.workload, set()).add(one.contender)
        expected = set(self.contenders)
        return [one for one in self.results if names[one.workload] == expected]

    def left(self) -> list[Workload]:
        """The workloads of the plan that have no results yet, in its order."""
        done = {one.workload for one in self.results}
        return [one for one in self.plan.workloads if one not in done]

    def judged(self) -> Analysis:
        """What its results say: see `attnlab.stats.analysis.analyse`."""
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
        """A tidy table, one row a measurement, and one for each result that has none.

        Columns: the workload's fields, ``contender``, ``backend``, ``library``, ``outcome``, ``reason``, ``kernel``,
        ``computes_in``, ``relative_error``, ``quantity`` (latency, peak_memory, ...), ``unit`` (s, B), ``value``
        (median of the samples), ``least``, ``greatest``, ``samples`` (their number). `samples` gives the raw ones.
        """
        import pandas as pd

        rows = []
        for result in self.results:
            for one in result.measurements or (None,):
                told: dict[str, Any] = {"quantity": None, "unit": None, "samples": 0}
                if one is not None:
                    told = {"quantity": one.quantity, "unit": one.unit, "value": one.median}
                    told |= {"least": one.least, "greatest": max(one.samples), "samples": len(one.samples)}
                rows.append({**_common(result), **told})
        return pd.DataFrame(rows)

    def samples(self) -> pd.DataFrame:
        """A tidy table of every raw sample, with what was noted beside it (round, page faults, ...)."""
        import pandas as pd

        rows = []
        for result in self.results:
            for one in result.measurements:
                common = {**_common(result), "quantity": one.quantity, "unit": one.unit}
                for index, value in enumerate(one.samples):
                    noted = {name: column[index] for name, column in one.columns.items()}
                    rows.append({**common, "value": value, **noted})
        return pd.DataFrame(rows)


#: the fields of a run that stand in its file, and their types
_ELSEWHERE = ("folder", "results", "findings", "torn", "further")
_TOLD = {name: kind for name, kind in get_type_hints(Run).items() if name not in _ELSEWHERE}
_Told = make_dataclass("run", list(_TOLD.items()))


def _common(result: Result) -> dict[str, Any]:
    names = ("contender", "backend", "library", "outcome", "reason", "kernel", "computes_in")
    accuracy = result.accuracy
    return {
        **result.workload.to_dict(),
        **{name: getattr(result, name) for name in names},
        "outcome": str(result.outcome),
        "relative_error": None if accuracy is None else accuracy.relative_error,
    }


def read_run(folder: Path | str) -> Run:
    """The run stored in `folder`, complete or interrupted.

    What is not whole is left out, and `Run.torn` names it: lines, findings, and of a ``run.json`` that was changed what
    was measured for it. Raises ValueError where the folder holds no run, or one of another format.
    """
    file = require_run(folder) / RUN_FILE
    try:
        data = json.loads(read_text(file, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as fault:
        raise ValueError(f"{file} cannot be read: {fault}; restore it from a copy") from None
    require_format(data, file, FORMAT, "measure again with this version")
    seal = data.pop(_CRC, None)
    damaged = (seal or data.get("checksums") is not None) and seal != _checksum(json.dumps(data))
    try:
        run = told_run(data, file.parent)
    except (ValueError, TypeError) as fault:
        mend = "restore it from a copy" if damaged else "measure again"
        raise ValueError(f"{file} is no run of this version: {fault}; {mend}") from None
    torn: dict[str, list[str]] = {}
    if damaged:
        run.account, run.ceilings, run.invariance = {}, [], []
        torn[RUN_FILE] = ["it was changed after it was written: account, ceilings and same bits"]
    for number, _, found in _lines(file.with_name(RESULTS), run.checksums is not None):
        if isinstance(found, Result):
            run.results.append(found)
        else:
            torn.setdefault(RESULTS, []).append(f"line {number}: {found}")
    run.findings, faults = _read_findings(file.with_name(_NUMERICS), run.checksums or ())
    run.torn = torn | ({_NUMERICS: faults} if faults else {})
    return run


def require_format(data: Any, file: Path, known: int, remedy: str) -> None:
    """Raises ValueError where the content of `file` is not of the `known` format: a newer one needs a newer attnlab."""
    stored = data.get("format") if isinstance(data, dict) else None
    if isinstance(stored, int) and stored > known:
        remedy = f"it is of {stored}: upgrade attnlab to read it"
    if stored != known:
        raise ValueError(f"{file} is not of format {known}; {remedy}")


def torn_text(run: Run) -> list[str]:
    """A sentence for each file of `run` that is not whole: what is left out of it, and why."""
    told = []
    for name, faults in run.torn.items():
        more = [f"and {len(faults) - _NAMED} more"] if len(faults) > _NAMED else []
        shown = "; ".join([*(one_line(one, _LETTERS) for one in faults[:_NAMED]), *more])
        told.append(f"{name} is not whole, and what is damaged is left out: {shown}.")
    return told


def told_run(data: Mapping[str, Any], folder: Path) -> Run:
    """The run that the content of a ``run.json`` tells of, without its results and findings.

    Raises ValueError or TypeError for what is no run of this version.
    """
    further = {name: value for name, value in data.items() if name not in ("format", *_TOLD)}
    known = {name: value for name, value in data.items() if name in _TOLD}
    # which earlier runs did not have, or did not ask about
    known = {"id": "", "invariance": [], "checksums": None, **known}
    told: Any = decode({**known, "plan": Plan.from_dict(data.get("plan", {}))}, _Told, "its run")
    return Run(folder=folder, **vars(told), further=further)


def require_run(folder: Path | str) -> Path:
    """`folder`, which holds a run. Raises ValueError where it does not."""
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{folder} holds no run: there is no {RUN_FILE} in it")
    return folder


def _checksum(text: str | bytes) -> str:
    return f"{zlib.crc32(text.encode() if isinstance(text, str) else text):08x}"


def _numbered(file: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file by number, one that no result can be as long as in parts; none where there is no file.

    Raises ValueError where it cannot be read.
    """
    number = 1
    try:
        with file.open("rb") as handle:
            while line := handle.readline(_MOST_OF_A_LINE):
                yield number, line
                number += line.endswith(b"\n")
    except FileNotFoundError:
        return
    except OSError as fault:
        raise ValueError(f"{file} cannot be read: {fault.strerror}") from None


def _lines(file: Path, sealed: bool) -> Iterator[tuple[int, bytes, Result | str]]:
    """The lines of a file by number, each with its result, or why it holds none. `sealed`: each has a checksum."""
    for number, line in _numbered(file):
        seal = _SEAL.search(line[-40:])
        try:
            if not line.endswith(b"\n"):
                yield number, line, _CUT_OFF
            elif seal is None and sealed:
                yield number, line, "its checksum is missing"
            elif seal is not None and seal[1].decode() != _checksum(line[: -len(seal[0])] + b"}"):
                yield number, line, "its checksum is that of another text"
            else:
                yield number, line, Result.from_json(line.decode())
        except UnicodeDecodeError:
            yield number, line, "it is no text"
        except ValueError as fault:
            yield number, line, str(fault)


def _read_findings(file: Path, checksums: Sequence[str]) -> tuple[list[Finding], list[str]]:
    """The findings of a file that are whole, and what is wrong with the others."""
    found, faults = list[Finding](), list[str]()
    try:
        every = json.loads(read_text(file, _MOST_BYTES))
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError, RecursionError) as fault:
        return [], [f"it cannot be read: {fault}"]
    for at, one in enumerate(every if isinstance(every, list) else [every]):
        try:
            if at < len(checksums) and checksums[at] != _checksum(json.dumps(one)):
                raise ValueError("its checksum is that of another text")
            found.append(Finding.from_dict(one))
        except ValueError as fault:
            faults.append(f"finding {at + 1}: {fault}")
    return found, faults


def write_json(file: Path, plain: Any) -> None:
    """Write a file anew, on the disk before this returns; whoever reads it meanwhile finds the old one, whole.

    Raises NotStored.
    """
    fresh = file.with_suffix(".new")
    try:
        with fresh.open("w", encoding="utf-8") as handle:
            handle.write(json.dumps(plain, indent=1) + "\n")
            handle.flush()
            os.fsync(handle.fileno())
        fresh.replace(file)
        flush_folder(file.parent)
    except OSError as fault:
        raise NotStored(
            f"{file} cannot be written: {fault.strerror}; what was measured before it stays"
        ) from None


def append(file: Path, data: bytes) -> None:
    """Append whole lines, on the disk before this returns; behind a cut-off one they begin on a line of their own.

    Raises NotStored where that fails; the file is then as it was before.
    """
    try:
        with file.open("a+b", buffering=0) as handle:
            before = handle.tell()
            if before and os.pread(handle.fileno(), 1, before - 1) != b"\n":
                data = b"\n" + data
            rest = memoryview(data)
            try:
                while rest:  # mostly once
                    rest = rest[handle.write(rest) :]
                os.fsync(handle.fileno())
            except BaseException:  # an interrupt too: half a workload is worth nothing
                handle.truncate(before)
                raise
        if not before:
            flush_folder(file.parent)
    except OSError as fault:
        raise NotStored(f"{file} cannot be written: {fault.strerror}; what it holds stays") from None


def flush_folder(folder: Path) -> None:
    """Let the disk know which files there are: until then a file that is on it may have no name."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def claim(folder: Path | str | None, default: Path, marker: str) -> Path:
    """The folder to write to: `folder`, which must be new or empty, or `default`.

    What stands in the default folder is moved aside, under the time of its `marker` file, if it holds one; the
    marker is how a folder of ours is known. Raises ValueError for a folder that cannot be used.
    """
    place = default if folder is None else Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"the output folder {place} is a file; give another with --out")
    if place.is_dir() and any(place.iterdir()):
        if (place / LOCK).exists():
            with held(place):  # refuses where a run writes to it; a lock that nobody holds was left by a kill
                pass
        ours = (place / marker).is_file()
        if folder is not None or not ours:
            holds = "results" if ours else "something else than results of attnlab"
            raise ValueError(f"the output folder {place} already holds {holds}; give a new one with --out")
        stamp = datetime.fromtimestamp((place / marker).stat().st_mtime, UTC).strftime("%Y-%m-%d-%H%M%S")
        names = (f"{place.name}-{stamp}{more}" for more in chain([""], (f"-{n}" for n in count(2))))
        place.rename(next(one for one in map(place.with_name, names) if not one.exists()))
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"the output folder {place} cannot be made: {fault.strerror}") from None
    return place


# -- whether it is whole -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Complaint:
    """One thing that a reader of the run must know. `fault` is False where nothing is broken."""

    text: str
    fault: bool = True


def examine(folder: Path | str) -> list[Complaint]:
    """Everything that is wrong with the run in `folder`, or worth knowing; nothing is changed."""
    try:
        run = read_run(folder)
    except ValueError as fault:
        return [Complaint(str(fault))]
    return [*_state(run), *_results(run)]


def _state(run: Run) -> Iterator[Complaint]:
    total, left = len(run.plan.workloads), len(run.left())
    again = f"attnlab run --resume {run.folder}"
    writing = is_held(run.folder)
    if writing:
        yield Complaint("a run is writing to this folder now", fault=False)
    if not run.complete and not writing:
        how = f"interrupted with {left} of {total} workloads left"
        how = how if left else f"all {total} workloads are measured, and what follows them is not ended"
        yield Complaint(f"{how}; go on with: {again}", fault=False)
    elif left and not writing:
        yield Complaint(
            f"it is called complete, but {left} of {total} workloads have no result; measure again"
        )
    for text in torn_text(run) if not writing else ():
        # which is all that a kill does to a run
        harmless = not run.complete and all(
            one.endswith(_CUT_OFF) for some in run.torn.values() for one in some
        )
        mend = "" if RUN_FILE in run.torn else f" To measure it again: {again}"
        yield Complaint(f"{text}{mend}", fault=not harmless)
    for name in (TORN, _NUMERICS_TORN):
        if (run.folder / name).exists():
            yield Complaint(f"{name} holds what was set aside when the run was gone on with", fault=False)
    if run.further:
        named = ", ".join(sorted(run.further))
        yield Complaint(
            f"{RUN_FILE} holds entries that this version does not know: {named}; they are kept", fault=False
        )


def _results(run: Run) -> Iterator[Complaint]:
    places = Counter((one.workload, one.contender) for one in run.results)
    for (workload, contender), times in places.items():
        if times > 1:
            yield Complaint(f"{workload.label}: {contender} has {times} results; one is expected")
        if contender not in run.contenders:
            yield Complaint(f"{workload.label}: {contender} is no contender of this run's plan")
    planned = set(run.plan.workloads)
    answered = list(dict.fromkeys(one.workload for one in run.results))
    for workload in answered:
        if workload not in planned:
            yield Complaint(f"{workload.label} is no workload of this run's plan")
        missing = [name for name in run.contenders if (workload, name) not in places]
        if missing:
            last = workload == answered[-1] and not run.complete
            yield Complaint(f"{workload.label}: no result of {', '.join(missing)}", fault=not last)
