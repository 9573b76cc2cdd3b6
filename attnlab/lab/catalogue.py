"""The experiments by their names, and the findings of a run as a chapter of its report.

An experiment is a file of `attnlab/lab/experiments`: its name is that of the file.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attnlab.backends.discovery import require, unasked
from attnlab.lab.experiment import Experiment, generator, run
from attnlab.lab.finding import Finding
from attnlab.plain import suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: in the order in which they are read; a file that is not named here comes after them
_ORDER = (
    *("formula", "variance_scaling", "saturation", "random_energy", "vanishing_gradient", "thermodynamics"),
    *("length", "overflow", "error_growth", "heads", "block"),
)
#: what every run's report shows; the others take longer and are asked for
CHAPTER = ("variance_scaling", "saturation")
#: the findings of a run's folder, a list
CHAPTER_FILE = "numerics.json"
_FOUND = {file.stem for file in Path(__file__).with_name("experiments").glob("[a-z]*.py")}
EXPERIMENTS = (*_ORDER, *sorted(_FOUND - set(_ORDER)))


def experiments() -> dict[str, str]:
    """Every experiment's name and question, in the order in which they are read."""
    return {name: _docstring(name)[0] for name in EXPERIMENTS}


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
    found: Experiment = importlib.import_module(f"attnlab.lab.experiments.{name}").EXPERIMENT
    return found


def _docstring(name: str) -> list[str]:
    """The question and the theory of an experiment, a paragraph each: its module's docstring."""
    module = importlib.import_module(f"attnlab.lab.experiments.{name}")
    return [" ".join(part.split()) for part in (module.__doc__ or "").split("\n\n")]


def run_experiment(
    name: str, backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> Finding:
    """What the experiment called `name` finds through `backends`.

    backends : names, all that are found where None. folders : where to look for more of them. Every library computes
    with one thread. Raises ValueError for an unknown experiment or backend or a bad seed, before anything has run.
    """
    one = experiment(name)
    check_request(backends, seed, folders)
    asked = unasked(folders) if backends is None else backends
    return run(name, one, _docstring(name)[0], asked, seed, folders)


def check_request(backends: Sequence[str] | None, seed: int, folders: Sequence[Path | str] = ()) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    generator(seed)
    for name in backends or ():
        require(name, folders)


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


class Section(NamedTuple):
    """What a page shows of one finding: its texts, and its figures with what each says.

    theory and lesson are empty for an experiment that this version does not know.
    """

    finding: Finding
    theory: str
    lesson: str
    figures: dict[str, tuple[Figure, str]]


def chapter(findings: Sequence[Finding]) -> list[Section]:
    """A section for each finding; its figures by the name of their file, without ending."""
    from attnlab.lab.draw import draw

    sections = []
    for one in findings:
        if one.experiment not in EXPERIMENTS:
            sections.append(Section(one, "", "", {}))
            continue
        known = experiment(one.experiment)
        drawn = {
            f"{one.experiment}-{at}": (draw(chart, one.rows), chart.title)
            for at, chart in enumerate(known.charts)
        }
        figures = {name: (figure, says) for name, (figure, says) in drawn.items() if figure is not None}
        sections.append(Section(one, "\n\n".join(_docstring(one.experiment)[1:]), known.lesson, figures))
    return sections
