"""A run in one folder: what was asked, where, and every answer, appended as it came.

``run.json`` holds the plan, the environment and the account of time; ``results.jsonl`` a line a result,
flushed before the next workload, so that nothing measured is lost; ``numerics.json`` the experiments. The folder is
new, empty, or our own default one, whose former content is kept beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from attnlab.contract.plain import decode
from attnlab.contract.result import Ceiling, Measurement, Result
from attnlab.measuring.invariance import Invariance
from attnlab.numerics.finding import Finding
from attnlab.program.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
RUN_FILE = "run.json"
_RESULTS, _NUMERICS = "results.jsonl", "numerics.json"


@dataclass
class Run:
    """A plan, an environment and the results, in one folder.

    `contenders` are the names results are filed under, in the plan's order. `account` is the seconds that went
    into each activity; `command` repeats the run; `complete` is False for one that was interrupted.
    """

    folder: Path
    plan: Plan
    environment: Mapping[str, Any]
    contenders: tuple[str, ...]
    baseline: str
    command: str = ""
    started: str = ""
    complete: bool = False
    account: dict[str, float] = field(default_factory=dict)
    ceilings: list[Ceiling] = field(default_factory=list)
    invariance: list[Invariance] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def append(self, results: list[Result]) -> None:
        """Keep `results`, on disk before this returns."""
        self.results.extend(results)
        with (self.folder / _RESULTS).open("a", encoding="utf-8") as file:
            file.writelines(result.to_json() + "\n" for result in results)
            file.flush()
            os.fsync(file.fileno())

    def save(self) -> None:
        """Write everything but the results, which are on disk already. Replaces files whole."""
        told = {name: getattr(self, name) for name in _TOLD}
        plain = {"format": FORMAT, **msgspec.to_builtins(told)}
        _replace(self.folder / RUN_FILE, plain)
        _replace(self.folder / _NUMERICS, [finding.to_dict() for finding in self.findings])

    def frame(self) -> pd.DataFrame:
        """A tidy table, one row a measurement, and one for each result that has none.

        Columns: the workload's fields, ``contender``, ``backend``, ``library``, ``outcome``, ``reason``, ``kernel``,
        ``computes_in``, ``relative_error``, ``quantity`` (latency, peak_memory, ...), ``unit`` (s, B), ``value``
        (median of the samples), ``least``, ``greatest``, ``samples`` (their number). `samples` gives the raw ones.
        """
        import pandas as pd

        return pd.DataFrame(
            {**_common(result), **_summary(one)}
            for result in self.results
            for one in result.measurements or (None,)
        )

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
_TOLD = {
    name: kind for name, kind in get_type_hints(Run).items() if name not in ("folder", "results", "findings")
}
_Told = make_dataclass("run", list(_TOLD.items()))


def _common(result: Result) -> dict[str, Any]:
    return {
        **result.workload.to_dict(),
        "contender": result.contender,
        "backend": result.backend,
        "library": result.library,
        "outcome": str(result.outcome),
        "reason": result.reason,
        "kernel": result.kernel,
        "computes_in": result.computes_in,
        "relative_error": None if result.accuracy is None else result.accuracy.relative_error,
    }


def _summary(one: Measurement | None) -> dict[str, Any]:
    if one is None:
        return {"quantity": None, "unit": None, "samples": 0}
    return {
        "quantity": one.quantity,
        "unit": one.unit,
        "value": one.median,
        "least": one.least,
        "greatest": max(one.samples),
        "samples": len(one.samples),
    }


def read_run(folder: Path | str) -> Run:
    """The run stored in `folder`, complete or interrupted.

    A last line that was cut off while it was written is left out. Raises ValueError where the folder holds no
    run, or one of another format.
    """
    folder = Path(folder)
    try:
        data = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{folder} holds no run: there is no {RUN_FILE} in it") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as fault:
        raise ValueError(f"{folder / RUN_FILE} cannot be read: {fault}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"{folder / RUN_FILE} is not of format {FORMAT}; measure again with this version")
    data.pop("format")
    data.setdefault("invariance", [])  # which earlier runs did not ask about
    try:
        told: Any = decode({**data, "plan": Plan.from_dict(data.get("plan", {}))}, _Told, "its run")
    except (ValueError, TypeError) as fault:
        raise ValueError(f"{folder / RUN_FILE} is no run of this version: {fault}; measure again") from None
    run = Run(folder=folder, **vars(told))
    run.results = _read_results(folder / _RESULTS)
    numerics = folder / _NUMERICS
    if numerics.exists():
        run.findings = [Finding.from_dict(one) for one in json.loads(numerics.read_text(encoding="utf-8"))]
    return run


def _read_results(file: Path) -> list[Result]:
    if not file.exists():
        return []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    results = []
    for number, line in enumerate(lines, start=1):
        if line.endswith("\n"):
            try:
                results.append(Result.from_json(line))
            except ValueError as fault:
                raise ValueError(f"{file}, line {number}: {fault}") from None
    return results


def _replace(file: Path, plain: Any) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)


def claim(folder: Path | str | None, default: Path, marker: str) -> Path:
    """The folder to write to: `folder`, which must be new or empty, or `default`.

    What stands in the default folder is moved aside, under the time of its `marker` file, if it holds one; the
    marker is how a folder of ours is known. Raises ValueError for a folder that cannot be used.
    """
    place = default if folder is None else Path(folder)
    if place.exists() and not place.is_dir():
        raise ValueError(f"the output folder {place} is a file; give another with --out")
    if place.is_dir() and any(place.iterdir()):
        ours = (place / marker).is_file()
        if folder is not None or not ours:
            holds = "results" if ours else "something else than results of attnlab"
            raise ValueError(f"the output folder {place} already holds {holds}; give a new one with --out")
        _move_aside(place, marker)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise ValueError(f"the output folder {place} cannot be made: {fault.strerror}") from None
    return place


def _move_aside(place: Path, marker: str) -> None:
    stamp = datetime.fromtimestamp((place / marker).stat().st_mtime, UTC).strftime("%Y-%m-%d-%H%M%S")
    aside, number = place.with_name(f"{place.name}-{stamp}"), 1
    while aside.exists():
        number += 1
        aside = place.with_name(f"{place.name}-{stamp}-{number}")
    place.rename(aside)
