"""Experiments that hold theory against measurement, through the backends: their names, and how they are run.

An experiment is a module of `attnlab.lab` that is listed here and defines an ``EXPERIMENT``: see
`attnlab.lab.finding.Experiment`.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnlab.backends.discovery import require, unasked
from attnlab.lab.finding import Experiment, Finding
from attnlab.lab.survey import Survey, generator, one_thread
from attnlab.plain import suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: in the order in which they are read
EXPERIMENTS = (
    *("formula", "variance_scaling", "saturation", "vanishing_gradient", "thermodynamics", "length"),
    *("overflow", "error_growth", "multihead", "training"),
)
#: what every run's report shows; the others take longer and are asked for
CHAPTER = ("variance_scaling", "saturation")


def chosen_experiments(names: Sequence[str]) -> tuple[str, ...]:
    """The experiments that `names` stand for: ``all`` for every one, ``none`` for no one.

    Raises ValueError for an unknown name, naming the near ones.
    """
    if tuple(names) in ((), ("none",)):
        return ()
    if tuple(names) == ("all",):
        return EXPERIMENTS
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"no experiment is called {name!r}; {suggestion(name, EXPERIMENTS)}")
    return tuple(dict.fromkeys(names))


def experiment(name: str) -> Experiment:
    """The experiment called `name`, its module imported now. Raises ValueError for an unknown name."""
    chosen_experiments([name])
    found: Experiment = importlib.import_module(f"attnlab.lab.{name}").EXPERIMENT
    return found


def run_experiment(
    name: str, backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> Finding:
    """What the experiment called `name` finds through `backends`.

    backends : names, all that are found where None. folders : where to look for more of them.

    Every library computes with one thread meanwhile (`one_thread`), and the finding carries the seconds that it took.
    Raises ValueError for an unknown experiment or backend or a bad seed, before anything has run.
    """
    one = experiment(name)
    check_request(backends, seed, folders)
    asked, start = unasked(folders) if backends is None else backends, time.perf_counter()
    survey = Survey(asked, seed=seed, folders=folders)
    with one_thread():
        one.measure(survey)
    said, seconds = one.conclusion(survey.rows), round(time.perf_counter() - start, 2)
    facts = {**survey.facts, "seconds": seconds}
    return Finding(name, one.title, one.question, said, tuple(survey.rows), facts)


def check_request(backends: Sequence[str] | None, seed: int, folders: Sequence[Path | str] = ()) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    generator(seed)
    for name in backends or ():
        require(name, folders)


def figure(finding: Finding) -> Figure:
    """The finding drawn by its own experiment. Raises ValueError for one that is not in `EXPERIMENTS`."""
    return experiment(finding.experiment).draw(finding)


# -- the numerical chapter of a run, a file in its folder ---------------------------------------------

#: the findings of a folder, a list
CHAPTER_FILE = "numerics.json"


def experiments() -> dict[str, str]:
    """Every experiment's name and question, in the order in which they are read."""
    return {name: experiment(name).question for name in EXPERIMENTS}


def run_chapter(
    folder: Path,
    names: Sequence[str] = CHAPTER,
    *,
    backends: Sequence[str] | None = None,
    seed: int = 0,
    folders: Sequence[Path | str] = (),
    on_event: Callable[[str], None] = lambda text: None,
) -> list[Finding]:
    """Run the experiments `names` that ``numerics.json`` in `folder` does not hold yet, and keep each at once.

    Returns all findings of the file. `on_event` is told the name of each experiment as it begins. Raises ValueError as
    `run_experiment` does, before anything has run, and OSError where the folder cannot be written to.
    """
    wanted = chosen_experiments(names)
    check_request(backends, seed, folders)
    found = read_chapter(folder)
    for name in wanted:
        if all(one.experiment != name for one in found):
            on_event(name)
            found.append(run_experiment(name, backends, seed, folders))
            new = folder / f"{CHAPTER_FILE}.new"
            new.write_text(json.dumps([one.to_dict() for one in found]), encoding="utf-8")
            new.replace(folder / CHAPTER_FILE)
    return found


def read_chapter(folder: Path) -> list[Finding]:
    """The findings that `folder` holds; none where it has no ``numerics.json``. Raises ValueError for a damaged one."""
    file = folder / CHAPTER_FILE
    if not file.exists():
        return []
    return [Finding.from_dict(one) for one in json.loads(file.read_text(encoding="utf-8"))]
