"""The experiments by name: one module each, imported when asked for.

A module of `attnlab.numerics` is an experiment when it is listed here. It has ``TITLE``,
``run(backends, *, seed, folders) -> Finding`` and ``figure(finding) -> matplotlib Figure``.
"""

from __future__ import annotations

import difflib
import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from attnlab.numerics.contestants import generator
from attnlab.numerics.finding import Finding
from attnlab.numerics.threads import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Experiment(Protocol):
    """What an experiment's module offers."""

    TITLE: str

    def run(self, backends: Sequence[str], *, seed: int = 0, folders: Sequence[Path | str] = ()) -> Finding:
        """Theory held against measurement through `backends`."""

    def figure(self, finding: Finding) -> Figure:
        """The finding drawn."""


@dataclass(frozen=True)
class Entry:
    """An experiment's module and what it asks, for a list that imports nothing."""

    module: str
    question: str


#: in the order in which they are read
EXPERIMENTS: Mapping[str, Entry] = {
    "variance_scaling": Entry("variance_scaling", "Does the variance of the logits grow as d_k?"),
    "saturation": Entry("saturation", "Where does the softmax freeze?"),
    "vanishing_gradient": Entry(
        "vanishing_gradient", "Do gradients vanish without 1/√d_k, on average or in a tail?"
    ),
    "thermodynamics": Entry(
        "thermodynamics", "Do the identities of a Boltzmann distribution hold in every backend?"
    ),
    "length": Entry("dispersion", "Can a softmax stay sharp as the sequence grows?"),
    "overflow": Entry(
        "number_range", "Which backend overflows or underflows, in which format, at which logit?"
    ),
    "error_growth": Entry("error_growth", "How does the rounding error grow with n, d_k and the logits?"),
    "multihead": Entry(
        "multihead", "How large are logits at initialisation, and do heads interact or save work?"
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


def known(name: str) -> Entry:
    """The entry of the experiment `name`. Raises ValueError for an unknown name, naming the near ones."""
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(EXPERIMENTS)}"
        raise ValueError(f"no experiment is called {name!r}; {hint}")
    return EXPERIMENTS[name]


def experiment(name: str) -> Experiment:
    """The experiment called `name`, its module imported now. Raises ValueError for an unknown name."""
    return cast(Experiment, importlib.import_module(f"attnlab.numerics.{known(name).module}"))


def run_experiments(
    names: Iterable[str] = (),
    backends: Sequence[str] | None = None,
    seed: int = 0,
    folders: Sequence[Path | str] = (),
) -> list[Finding]:
    """The findings of the experiments called `names`, all where none is named, through `backends`.

    backends : names, all that are found where None. folders : where to look for more of them.

    Every library computes with one thread meanwhile (`attnlab.numerics.threads`), and each finding carries the
    seconds that it took. Raises ValueError for an unknown experiment or backend or a bad
    seed, before any has run.
    """
    from attnlab.contract.discovery import backends as all_backends

    chosen = [experiment(name) for name in dict.fromkeys(names or EXPERIMENTS)]
    check_request(backends, seed, folders)
    if backends is None:
        backends = all_backends(folders)
    found = []
    with one_thread():
        for one in chosen:
            start = time.perf_counter()
            finding = one.run(backends, seed=seed, folders=folders)
            facts = {**finding.facts, "seconds": round(time.perf_counter() - start, 2)}
            found.append(replace(finding, facts=facts))
    return found


def check_request(backends: Sequence[str] | None, seed: int, folders: Sequence[Path | str] = ()) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    from attnlab.contract.discovery import require

    generator(seed)
    for name in backends or ():
        require(name, folders)


def figure(finding: Finding) -> Figure:
    """The finding drawn by its own experiment. Raises ValueError for one that is not in `EXPERIMENTS`."""
    return experiment(finding.experiment).figure(finding)
