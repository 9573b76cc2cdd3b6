"""One file for each experiment: what varies, what is measured, what theory predicts. Here: which there are, and a run.

The name of an experiment is that of its file.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnlab.backends.discovery import require, unasked
from attnlab.lab.experiment import Experiment, Finding, generator, run
from attnlab.text import suggestion

#: in the order in which they are read; a file that is not named here comes after them
_ORDER = (
    *("formula", "variance_scaling", "saturation", "vanishing_gradient", "thermodynamics"),
    *("precision", "heads"),
)
#: what every run's report shows; the others take longer and are asked for
CHAPTER = ("variance_scaling", "saturation")
#: the findings of a run's folder, a list
CHAPTER_FILE = "numerics.json"
_FOUND = {file.stem for file in Path(__file__).parent.glob("[a-z]*.py")}
EXPERIMENTS = (*_ORDER, *sorted(_FOUND - set(_ORDER)))


def load_experiment(name: str) -> Experiment:
    """The experiment called `name`, its file imported now. Raises ValueError for an unknown name."""
    chosen_experiments([name])
    found: Experiment = importlib.import_module(f"{__name__}.{name}").EXPERIMENT
    return found


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


def run_experiment(
    name: str, backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> Finding:
    """What the experiment called `name` finds through `backends`.

    backends : names, all that are found where None. folders : where to look for more of them. Every library computes
    with one thread. Raises ValueError for an unknown experiment or backend or a bad seed, before anything has run.
    """
    one = load_experiment(name)
    check_request(backends, seed, folders)
    return run(name, one, unasked(folders) if backends is None else backends, seed, folders)


def check_request(
    backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    generator(seed)
    for name in backends or ():
        require(name, folders)


def run_chapter(
    folder: Path,
    names: Sequence[str] = CHAPTER,
    on_event: Callable[[str], None] = lambda text: None,
    **how: Any,
) -> list[Finding]:
    """Run the experiments `names` that ``numerics.json`` in `folder` does not hold yet, and keep each at once.

    Returns all findings of the file. `on_event` is told the name of each experiment as it begins. how : backends, seed
    and folders, as for `run_experiment`. Raises ValueError as that does, before anything has run, and OSError where the
    folder cannot be written to.
    """
    wanted = chosen_experiments(names)
    check_request(**how)
    found = read_chapter(folder)
    for name in wanted:
        if all(one.experiment != name for one in found):
            on_event(name)
            found.append(run_experiment(name, **how))
            new = folder / f"{CHAPTER_FILE}.new"
            new.write_text(json.dumps([one.to_dict() for one in found]), encoding="utf-8")
            new.replace(folder / CHAPTER_FILE)
    return found


def read_chapter(folder: Path) -> list[Finding]:
    """The findings that `folder` holds; none where it has no ``numerics.json``. Raises ValueError for a damaged one."""
    file = folder / CHAPTER_FILE
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [Finding.from_dict(one) for one in found]
