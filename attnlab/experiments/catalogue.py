"""The experiments by name, with their titles and questions; the module of that name is imported when asked for.

An experiment is a module of `attnlab.experiments` that is listed here. It has ``measure(survey)``, which takes rows
through a `Survey`, ``conclusion(rows)``, a sentence made from them, and ``draw(finding)``, a Matplotlib figure.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from attnlab.experiments.finding import Finding, Row
from attnlab.experiments.survey import Survey, generator, one_thread
from attnlab.plain import suggestion

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Experiment(Protocol):
    """What an experiment's module offers."""

    def measure(self, survey: Survey) -> None:
        """Holds theory against measurement through the backends of `survey`, which keeps the rows."""

    def conclusion(self, rows: Sequence[Row]) -> str:
        """What was found, in a sentence."""

    def draw(self, finding: Finding) -> Figure:
        """What was found, in a figure."""


@dataclass(frozen=True)
class ExperimentInfo:
    """What an experiment is called and asks, for a list that imports nothing."""

    title: str
    question: str


#: in the order in which they are read
EXPERIMENTS: Mapping[str, ExperimentInfo] = {
    "formula": ExperimentInfo(
        "The formula, index by index",
        "What does softmax(scale · q kᵀ) v compute, and which shapes does it take?",
    ),
    "variance_scaling": ExperimentInfo(
        "The variance of the logits", "Does Var(q·k) grow as d_k, and does the scale 1/√d_k keep it at 1?"
    ),
    "saturation": ExperimentInfo(
        "Saturation of the softmax",
        "Does one key take all the weight as d_k grows, and does 1/√d_k prevent it?",
    ),
    "vanishing_gradient": ExperimentInfo(
        "The vanishing gradient",
        "Do the gradients through an unscaled softmax vanish: on average, or in a tail of the rows?",
    ),
    "thermodynamics": ExperimentInfo(
        "The softmax as thermodynamics",
        "Do the identities of statistical mechanics hold for every row of every backend?",
    ),
    "length": ExperimentInfo(
        "The softmax and the length of the sequence", "Can a softmax stay sharp as the sequence grows?"
    ),
    "overflow": ExperimentInfo(
        "Overflow and underflow", "Which backend overflows or underflows, in which format, at which logit?"
    ),
    "error_growth": ExperimentInfo(
        "The growth of the error", "How does the rounding error grow with n, d_k and the size of the logits?"
    ),
    "multihead": ExperimentInfo(
        "Initialisation and heads",
        "How large are logits at initialisation, and do heads interact or save arithmetic?",
    ),
    "training": ExperimentInfo(
        "Training with the factor and without",
        "Does a small transformer learn because of 1/√d_k, and what does as well?",
    ),
}


#: what every run's report shows; the others take longer and are asked for
CHAPTER = ("variance_scaling", "saturation")


def chosen_experiments(names: Sequence[str]) -> tuple[str, ...]:
    """The experiments that `names` stand for: ``all`` for every one, ``none`` for no one.

    Raises ValueError for an unknown name.
    """
    if tuple(names) in ((), ("none",)):
        return ()
    if tuple(names) == ("all",):
        return tuple(EXPERIMENTS)
    for name in names:
        known(name)
    return tuple(dict.fromkeys(names))


def known(name: str) -> ExperimentInfo:
    """What the experiment `name` is called and asks. Raises ValueError for an unknown name, naming the near ones."""
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment is called {name!r}; {suggestion(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def experiment(name: str) -> Experiment:
    """The experiment called `name`, its module imported now. Raises ValueError for an unknown name."""
    known(name)
    return cast(Experiment, importlib.import_module(f"attnlab.experiments.{name}"))


def run_experiments(
    names: Iterable[str] = (),
    backends: Sequence[str] | None = None,
    seed: int = 0,
    folders: Sequence[Path | str] = (),
) -> list[Finding]:
    """The findings of the experiments called `names`, all where none is named, through `backends`.

    backends : names, all that are found where None. folders : where to look for more of them.

    Every library computes with one thread meanwhile (`one_thread`), and each finding carries the
    seconds that it took. Raises ValueError for an unknown experiment or backend or a bad
    seed, before any has run.
    """
    from attnlab.backends.discovery import unasked

    chosen = tuple(dict.fromkeys(names or EXPERIMENTS))
    for name in chosen:
        known(name)
    check_request(backends, seed, folders)
    asked = unasked(folders) if backends is None else backends
    with one_thread():
        return [_run(name, Survey(asked, seed=seed, folders=folders)) for name in chosen]


def _run(name: str, survey: Survey) -> Finding:
    module, info, start = experiment(name), known(name), time.perf_counter()
    module.measure(survey)
    return Finding(
        experiment=name,
        title=info.title,
        question=info.question,
        conclusion=module.conclusion(survey.rows),
        rows=tuple(survey.rows),
        facts={**survey.facts, "seconds": round(time.perf_counter() - start, 2)},
    )


def check_request(backends: Sequence[str] | None, seed: int, folders: Sequence[Path | str] = ()) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    from attnlab.backends.discovery import require

    generator(seed)
    for name in backends or ():
        require(name, folders)


def figure(finding: Finding) -> Figure:
    """The finding drawn by its own experiment. Raises ValueError for one that is not in `EXPERIMENTS`."""
    return experiment(finding.experiment).draw(finding)
