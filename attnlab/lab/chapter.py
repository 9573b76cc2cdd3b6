"""The chapter of a run: its experiments are run, two at a time if there is a second core, and their findings stored.

``numerics.json`` in the folder is a list of findings. It is written after each experiment, so that an interrupt loses
only the one or two experiments that are running. An experiment that measures times runs alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from attnlab.backends.discovery import unasked
from attnlab.lab.experiments import (
    Finding,
    check_request,
    chosen_experiments,
    load_experiment,
    run_experiment,
)
from attnlab.processes import Failed, Process
from attnlab.system import cores
from attnlab.text import finite, write_whole

#: the file of findings in a run's folder
CHAPTER_FILE = "numerics.json"


class Runner:
    """Runs experiments in a second process."""

    def run(self, name: str, how: dict[str, Any]) -> Finding:
        """As `run_experiment`."""
        return run_experiment(name, **how)


def run_chapter(
    folder: Path,
    names: Sequence[str],
    stage: Callable[..., None] = lambda name, *, done, total: None,
    **how: Any,
) -> list[Finding]:
    """Run the experiments `names` that ``numerics.json`` in `folder` does not hold yet, and store each finding at once.

    A finding with another seed or other backends is replaced. Returns all findings of the file. stage : is called with
    the name of each experiment as it begins, how many are `done`, and how many there are in `total`. how : backends,
    seed and folders, as for `run_experiment`. Raises ValueError as `run_experiment` does, before anything has run, and
    NotStored if the folder cannot be written to.
    """
    wanted = chosen_experiments(names)
    check_request(**how)
    how["folders"] = [str(one) for one in how.get("folders", ())]
    found, backends = {one.experiment: one for one in read_chapter(folder)}, how.get("backends")
    asked = {*(unasked(how["folders"]) if backends is None else backends)}
    left = [
        name
        for name in wanted
        if name not in found
        or (found[name].facts.get("seed"), {*found[name].asked}) != (how.get("seed", 0), asked)
    ]

    def begins(name: str) -> None:
        stage(name, done=len(wanted) - len(left), total=len(wanted))

    def keep(finding: Finding) -> None:
        found.pop(finding.experiment, None)
        found[finding.experiment] = finding
        left.remove(finding.experiment)
        plain = json.dumps(finite(msgspec.to_builtins([*found.values()])), ensure_ascii=False)
        write_whole(folder / CHAPTER_FILE, plain.encode() + b"\n")

    helper: Process | None = None
    try:
        while left:
            first, others, wait = left[0], left[1:2], None
            if others and cores() > 1 and not any(load_experiment(one).timed for one in (first, *others)):
                # if the second process cannot be started, or fails, this one runs all experiments
                with suppress(OSError, ValueError, Failed):
                    helper = helper or Process(f"{__name__}:Runner")
                    wait = helper.begin("run", answer=Finding, name=others[0], how=how)
            begins(first)
            keep(run_experiment(first, **how))
            if wait is not None:
                begins(others[0])
                with suppress(Failed):
                    keep(wait())
    finally:
        if helper is not None:
            helper.end()
    return [*found.values()]


def read_chapter(folder: Path) -> list[Finding]:
    """The findings in `folder`; none if it has no ``numerics.json``. Raises ValueError if that file is damaged."""
    file = folder / CHAPTER_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        return msgspec.convert(found, list[Finding], strict=False)
    except (ValueError, msgspec.ValidationError) as fault:
        raise ValueError(f"{file} holds no findings: {fault}; remove it") from None
