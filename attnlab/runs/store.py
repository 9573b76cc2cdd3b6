"""A run in one folder: what was asked, where, and every answer, appended as it came.

``run.json`` holds the plan, the environment and the account of time; ``results.jsonl`` a line a result, whole workloads
appended in one write and flushed to the disk before it returns; ``numerics.json`` the experiments. A crash may cut off
the end of the results: the last line, or the last workload, of whose contenders some have no line yet. Readers pass
over a line that is cut off and tell it; before a run is gone on with, what does not make a whole workload is set aside
into ``results.torn``.

The folder is new, empty, or our own default one, whose former content is kept beside it. What is promised of these
files stands in ``docs/store.md``.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from itertools import chain, count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from attnlab.errors import NotStored
from attnlab.experiments.finding import Finding
from attnlab.judge.analysis import Analysis, analyse
from attnlab.plain import decode
from attnlab.problem.result import Ceiling, Invariance, Result
from attnlab.problem.workload import Workload
from attnlab.runs.lock import LOCK, held, is_held
from attnlab.runs.plan import Plan
from attnlab.text import read_text

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
RUN_FILE, RESULTS, TORN = "run.json", "results.jsonl", "results.torn"
_NUMERICS = "numerics.json"
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
    #: whether the last line of the results was found cut off
    torn: bool = False
    #: what a later version wrote into the file beside all this: kept as it is
    further: Mapping[str, Any] = field(default_factory=dict)

    def append(self, results: Sequence[Result]) -> None:
        """Keep the `results` of one workload, on disk before this returns. Raises NotStored."""
        append(self.folder / RESULTS, "".join(one.to_json() + "\n" for one in results).encode())
        self.results.extend(results)

    def set_aside(self) -> None:
        """Keep the results of whole workloads; whatever follows them goes to the end of ``results.torn``.

        Raises NotStored where that cannot be written; nothing is lost then.
        """
        file, whole = self.folder / RESULTS, self.whole()
        if not file.exists():
            return  # nothing was measured yet
        try:
            with file.open("r+b") as handle:
                for _ in range(whole):
                    handle.readline()
                end, rest = handle.tell(), handle.read()
                if rest:
                    append(self.folder / TORN, rest if rest.endswith(b"\n") else rest + b"\n")
                    handle.truncate(end)
                    os.fsync(handle.fileno())
        except OSError as fault:
            raise NotStored(f"{file} cannot be written: {fault.strerror}; nothing was changed") from None
        del self.results[whole:]
        self.torn = False

    def save(self) -> None:
        """Write everything but the results, which are on disk already. Replaces files whole. Raises NotStored."""
        write_json(self.folder / RUN_FILE, self.told())
        write_json(self.folder / _NUMERICS, [finding.to_dict() for finding in self.findings])

    def told(self) -> dict[str, Any]:
        """The content of ``run.json``: plain data, all but results and findings. `told_run` is the inverse."""
        told = {name: getattr(self, name) for name in _TOLD}
        return {"format": FORMAT, **self.further, **msgspec.to_builtins(told)}

    def whole(self) -> int:
        """How many results, from the first on, make whole workloads: one of every contender."""
        kept, expected = 0, set(self.contenders)
        for _, group in groupby(self.results, key=lambda one: one.workload):
            names = [one.contender for one in group]
            if set(names) != expected:
                break
            kept += len(names)
        return kept

    def left(self) -> list[Workload]:
        """The workloads of the plan that have no results yet, in its order."""
        done = {one.workload for one in self.results}
        return [one for one in self.plan.workloads if one not in done]

    def judged(self) -> Analysis:
        """What its results say: see `attnlab.judge.analysis.analyse`."""
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

    A last line that was cut off while it was written is left out. Raises ValueError where the folder holds no
    run, or one of another format.
    """
    folder = require_run(folder)
    try:
        data = json.loads(read_text(folder / RUN_FILE, _MOST_BYTES))
    except (OSError, ValueError, RecursionError) as fault:
        raise ValueError(f"{folder / RUN_FILE} cannot be read: {fault}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{folder / RUN_FILE} is not of format {FORMAT}; measure again with this version")
    try:
        run = told_run(data, folder)
    except (ValueError, TypeError) as fault:
        raise ValueError(f"{folder / RUN_FILE} is no run of this version: {fault}; measure again") from None
    run.results, run.torn = _read_results(folder / RESULTS)
    run.findings = _read_findings(folder / _NUMERICS)
    return run


def told_run(data: Mapping[str, Any], folder: Path) -> Run:
    """The run that the content of a ``run.json`` tells of, without its results and findings.

    Raises ValueError or TypeError for what is no run of this version.
    """
    further = {name: value for name, value in data.items() if name not in ("format", *_TOLD)}
    known = {name: value for name, value in data.items() if name in _TOLD}
    known = {"id": "", "invariance": [], **known}  # which earlier runs did not have, or did not ask about
    told: Any = decode({**known, "plan": Plan.from_dict(data.get("plan", {}))}, _Told, "its run")
    return Run(folder=folder, **vars(told), further=further)


def require_run(folder: Path | str) -> Path:
    """`folder`, which holds a run. Raises ValueError where it does not."""
    folder = Path(folder)
    if not (folder / RUN_FILE).is_file():
        raise ValueError(f"{folder} holds no run: there is no {RUN_FILE} in it")
    return folder


def _read_results(file: Path) -> tuple[list[Result], bool]:
    """All results of a file, and whether its last line was cut off. Raises ValueError, naming it, for a wrong line."""
    found: list[Result] = []
    with file.open("rb") if file.exists() else io.BytesIO() as handle:
        while line := handle.readline(_MOST_OF_A_LINE):
            place = f"{file}, line {len(found) + 1}"
            if len(line) == _MOST_OF_A_LINE:
                raise ValueError(f"{place}: longer than {_MOST_OF_A_LINE:,} bytes, which no result is")
            if not line.endswith(b"\n"):
                return found, True
            try:
                found.append(Result.from_json(line.decode()))
            except ValueError as fault:
                raise ValueError(f"{place}: {fault}") from None
    return found, False


def _read_findings(file: Path) -> list[Finding]:
    try:
        return [Finding.from_dict(one) for one in json.loads(read_text(file, _MOST_BYTES))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        raise ValueError(
            f"{file} cannot be read: {type(fault).__name__}: {fault}; without this file the run has no such chapter"
        ) from None


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
        yield Complaint(
            f"interrupted with {left} of {total} workloads left; go on with: {again}", fault=False
        )
    elif left and not writing:
        yield Complaint(
            f"it is called complete, but {left} of {total} workloads have no result; measure again"
        )
    if run.torn and not writing:
        mend = "" if run.complete else f"; to measure it: {again}"
        text = f"the last line of the results was cut off, one answer is lost{mend}"
        yield Complaint(text, fault=run.complete)
    if (run.folder / TORN).exists():
        yield Complaint(f"{TORN} holds what was set aside when the run was gone on with", fault=False)
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
    for result in run.results:
        for one in result.measurements:
            if not all(math.isfinite(sample) and sample >= 0 for sample in one.samples):
                yield Complaint(
                    f"{result.workload.label}: {result.contender} has a {one.quantity} that is no number from 0 up"
                )
