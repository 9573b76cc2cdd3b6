"""What an experiment declares, how it is run, and what it found: rows of measured and predicted values, as plain data.

Every other file here is an experiment of that name. Its docstring is the question (first line) and the theory. Its
``EXPERIMENT`` declares the rest. One function measures: it yields the rows of a backend. A backend that cannot be used
is listed with the reason. A backend that raises an error gets one failed row, and the experiment goes on.
"""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import EllipsisType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.backends.discovery import require, unasked
from attnlab.errors import Declined, Unavailable
from attnlab.lab.observables import Attend, Observables, black_box, observe
from attnlab.lab.theory import RandomEnergy
from attnlab.text import suggestion
from attnlab.workload.workload import MOST_SEED

#: a value within this number of standard errors of its prediction agrees with it
_STANDARD_ERRORS = 5.0
#: the conditions that identify a row: numbers and names
Where = Mapping[str, Any]
#: the quantity of the rows to pick, or several quantities; ... for any
Quantity = str | tuple[str, ...] | EllipsisType
#: the relation of a value without a prediction
MEASURED = "measured"
#: the quantity of the row of a backend that raised an error
RAISED = "answered"
#: the observables that the random energy model predicts, by their names in rows
QUANTITIES = {
    "entropy / ln n": "entropy",
    "largest weight": "largest_weight",
    "Σp²": "participation",
    "mean ‖J‖²": "jacobian_norm_squared",
    "ln Z": "log_partition",
    "largest logit": "largest_logit",
}
#: the conclusion if there are rows, but no sentence of the experiment has all of its numbers
_NO_FIGURES = "The figures that a summary needs were not measured."
#: the backend that measures what only one backend needs to measure, if it is available
_LEAD = "torch_sdpa"
#: the order of the experiments; files that are not named here come after these
_ORDER = (
    *("formula", "variance_scaling", "saturation", "vanishing_gradient", "thermodynamics"),
    *("precision", "heads"),
)
_FOUND = {file.stem for file in Path(__file__).parent.glob("[a-z]*.py")}
EXPERIMENTS = (*_ORDER, *sorted(_FOUND - set(_ORDER)))
Array = NDArray[np.float64]


class Row(msgspec.Struct, frozen=True):
    """One comparison. `where` holds its conditions (d_k, scaling, backend, ...).

    It passes if `measured` stands in `relation` to `predicted`, within five times `standard_error` or within `slack`
    (an allowance, for example for rounding), whichever is larger.
    """

    quantity: str
    where: dict[str, Any]
    predicted: float
    measured: float
    passed: bool
    standard_error: float = 0.0
    relation: str = "="
    slack: float = 0.0

    @classmethod
    def compare(
        cls,
        quantity: str,
        where: Where,
        predicted: float | None,
        measured: float,
        relation: str = "=",
        **room: float,
    ) -> Row:
        """A judged row; `room` : standard_error and slack. Without a prediction (None) `measured` must be finite."""
        if predicted is None:
            predicted, relation = measured, MEASURED
        plain = {name: one if isinstance(one, str | int) else float(one) for name, one in where.items()}
        room = {name: float(value) for name, value in room.items()}
        row = cls(quantity, plain, float(predicted), float(measured), False, relation=relation, **room)
        strict = relation in "<>"
        return msgspec.structs.replace(row, passed=row.excess < 0 or (row.excess == 0 and not strict))

    @property
    def compared(self) -> bool:
        """Whether it has a prediction."""
        return self.relation != MEASURED

    @property
    def room(self) -> float:
        """How far measured may be from predicted."""
        return max(_STANDARD_ERRORS * self.standard_error, self.slack)

    @property
    def excess(self) -> float:
        """How far `measured` is beyond its room, in units of the room unless that is 0; below 0: within; NaN: infinite.

        < and > must hold by more than the room.
        """
        room = self.room
        above = 0.0 if self.measured == self.predicted else self.measured - self.predicted
        beyond = {
            "=": abs(above) - room,
            "≤": above - room,
            "≥": -above - room,
            "<": above + room,
            ">": room - above,
            MEASURED: -math.inf if math.isfinite(self.measured) else math.inf,
        }[self.relation]
        if math.isnan(beyond):
            return math.inf
        return beyond / room if room else beyond


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one experiment found. `conclusion` is its sentences with the measured values.

    facts : seed, backends, seconds, date. missing : why a backend took no part, by the backend's name. asked : all
    backends that should take part.
    """

    experiment: str
    title: str
    question: str
    conclusion: str
    rows: tuple[Row, ...]
    facts: dict[str, str | int | float] = {}
    missing: dict[str, str] = {}
    asked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every row passed."""
        return all(row.passed for row in self.rows)

    @property
    def judged(self) -> list[Row]:
        """The rows with a prediction, and the rows that failed."""
        return [row for row in self.rows if row.compared or not row.passed]


def pick(rows: Iterable[Row], quantity: Quantity, **where: Any) -> list[Row]:
    """The rows of a quantity with these conditions; a tuple or a list means any of its values, ... means any value."""
    return [
        row
        for row in rows
        if all(
            has is not None
            if wanted is ...
            else has in wanted
            if isinstance(wanted, tuple | list)
            else bool(has == wanted)
            for has, wanted in [
                (row.quantity, quantity),
                *((row.where.get(name), wanted) for name, wanted in where.items()),
            ]
        )
    ]


Rows = Callable[[Sequence[Row]], list[Row]]
Number = Callable[[Sequence[Row]], float]


def of(quantity: Quantity, **where: Any) -> Rows:
    """For a chart: the rows of a quantity with these conditions, as `pick` takes them."""
    return lambda rows: pick(rows, quantity, **where)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One question as a figure, with the answer in its title. lines : the rows to draw, by label.

    x : the condition along the horizontal axis, x_label its name. by : in place of x, the condition that names the
    lines of a dot plot, in which the measured values lie along the horizontal axis. marks : vertical lines, by
    label. log_x, log_y : logarithmic axes.
    """

    title: str
    y: str
    lines: Mapping[str, Rows]
    x: str = ""
    x_label: str = ""
    by: str = ""
    log_x: bool = True
    log_y: bool = False
    marks: Mapping[str, float] = field(default_factory=dict)
    limits: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a file of `attnlab/lab/experiments` declares as ``EXPERIMENT``.

    about : the file's docstring. measure : yields the rows of one backend in one number format. dtypes : the formats to
    measure in. sentences : the conclusion, as format strings that `numbers` fill from the rows. A sentence that lacks a
    number is left out. lesson : what follows. sees_scale : whether some row fails if the scale is wrong by a tenth, as
    in most experiments. timed : whether times are measured, so that nothing else may compute at the same time.
    """

    about: str | None
    title: str
    measure: Callable[[Subject], Iterator[Row]]
    sentences: tuple[str, ...]
    numbers: Mapping[str, Number] = field(default_factory=dict)
    lesson: str = ""
    charts: tuple[Chart, ...] = ()
    dtypes: tuple[str, ...] = ("float64",)
    sees_scale: bool = True
    timed: bool = False

    @property
    def texts(self) -> tuple[str, str]:
        """The question and the theory: the first line of its docstring, and the rest."""
        question, _, theory = (self.about or "").partition("\n\n")
        return question, theory


def measured(quantity: Quantity, how: Any = np.mean, field: str = "measured", **where: Any) -> Number:
    """For a sentence: the mean of a field of these rows, or what `how` makes of it; NaN without rows."""
    return lambda rows: how([getattr(row, field) for row in pick(rows, quantity, **where)] or [math.nan])


def mean_over_clusters(found: NDArray[Any]) -> tuple[float, float]:
    """Mean of `found`, (clusters, members), and its standard error: the deviation of cluster means over √clusters.

    A cluster is for instance the rows of one head, which share its keys. The error is right for any dependence within
    clusters, if the clusters are independent.
    """
    means = np.asarray(found, np.float64).mean(axis=1)
    return float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means))


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A separate random stream for each part of an experiment, so that one part does not change another.

    Raises ValueError for a seed that is not a whole number from 0 to `MOST_SEED`.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {MOST_SEED}, got {seed!r}")
    return np.random.default_rng([seed, *stream])


@dataclass(frozen=True)
class Subject:
    """A backend that is ready to be called in one number format.

    slow : it gets small sizes only. lead : it measures what only one backend needs to measure.
    """

    name: str
    backend: Backend
    attend: Attend
    dtype: str
    seed: int
    slow: bool
    lead: bool

    def rng(self, *stream: int) -> np.random.Generator:
        """The random stream with this number; it is the same for every backend."""
        return generator(self.seed, *stream)

    def row(self, quantity: str, where: Where, predicted: float | None, measured: float, **room: Any) -> Row:
        """`Row.compare` of what was measured through this backend."""
        return Row.compare(quantity, {"backend": self.name, **where}, predicted, measured, **room)

    def mean(
        self, quantity: str, where: Where, found: NDArray[Any], predicted: float | None, slack: float = 0.0
    ) -> Row:
        """The mean of `found`, (clusters, members), with the error of `mean_over_clusters`."""
        mean, error = mean_over_clusters(found)
        return self.row(quantity, where, predicted, mean, standard_error=error, slack=slack)

    def observed(
        self, stream: Sequence[int], sizes: tuple[int, int, int], dim: int, scale: float, length: Any = None
    ) -> Observables:
        """Observables of rows of softmax(scale · q·k) over standard normal q and k, drawn from the random `stream`.

        sizes : heads, queries, keys. length : the length of every query, if given. The logits of a row are then
        independent normal numbers of standard deviation scale · length.
        """
        rng, (heads, queries, keys) = self.rng(*stream), sizes
        precision: Any = "float32" if self.dtype == "float32" else "float64"
        q, k = (rng.standard_normal((1, heads, n, dim), dtype=precision) for n in (queries, keys))
        if length is not None:
            q = (q * (length / np.linalg.norm(q, axis=-1, keepdims=True))).astype(precision)
        return observe(self.attend, q, k, scale=scale)

    def means(
        self, where: Where, seen: Observables, exact: RandomEnergy, *quantities: str, slack: float = 0.0
    ) -> Iterator[Row]:
        """Means of `QUANTITIES` over rows and their expectations; heads are the clusters, because they share no key."""
        for name in quantities:
            field, over = QUANTITIES[name], math.log(exact.n) if name == "entropy / ln n" else 1.0
            yield self.mean(name, where, getattr(seen, field)[0] / over, getattr(exact, field) / over, slack)


def run_experiment(
    name: str, backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> Finding:
    """What the experiment `name` finds through `backends`.

    backends : names; None for all that take part if none is named. folders : folders with more backends. PyTorch and
    BLAS compute with one thread. Raises ValueError for an unknown experiment or backend or a bad seed, before anything
    has run.
    """
    experiment = load_experiment(name)
    check_request(backends, seed, folders)
    rows: list[Row] = []
    missing: dict[str, str] = {}
    wanted = tuple(unasked(folders) if backends is None else backends)
    begun, asked, slow = time.perf_counter(), dict[str, None](), dict[str, bool]()
    with one_thread(), redirect_stdout(sys.stderr):  # a backend may print
        for dtype in experiment.dtypes:
            opened: list[tuple[str, Backend, Attend]] = []
            for one in wanted:
                try:
                    backend = in_this_process(one, folders)
                    attend = black_box(backend, dtype=dtype)
                    slow[one] = slow[one] if one in slow else _is_slow(attend)
                    opened.append((one, backend, attend))
                except (Declined, Unavailable) as reason:
                    missing.setdefault(one, str(reason))
            fast = [one for one, *_ in opened if not slow[one]]
            lead = _LEAD if _LEAD in fast else next(iter(fast), None)
            for one, backend, attend in opened:
                subject = Subject(one, backend, attend, dtype, seed, slow[one], one == lead)
                rows += _rows_of(experiment, subject, missing)
            asked |= dict.fromkeys(one for one, *_ in opened)
    numbers = {key: number(rows) for key, number in experiment.numbers.items()}
    known, said = {key: number for key, number in numbers.items() if not math.isnan(number)}, list[str]()
    for sentence in experiment.sentences:
        with suppress(KeyError):  # a number of the sentence was not measured
            said.append(sentence.format(**known))
    seconds, names = round(time.perf_counter() - begun, 2), ", ".join(asked) or "none"
    return Finding(
        experiment=name,
        title=experiment.title,
        question=experiment.texts[0],
        conclusion=" ".join(said) or (_NO_FIGURES if rows else "No backend could be measured."),
        rows=tuple(rows),
        facts={"seed": seed, "backends": names, "seconds": seconds, "date": str(datetime.now(UTC).date())},
        missing=missing,
        asked=wanted,
    )


def _rows_of(experiment: Experiment, subject: Subject, missing: dict[str, str]) -> list[Row]:
    """The rows of one backend, up to the first call that it declines; one failed row if it raises an error."""
    rows: list[Row] = []
    try:
        for row in experiment.measure(subject):
            rows.append(row)
    except (Declined, Unavailable) as declined:
        missing.setdefault(subject.name, str(declined))
    except Exception as fault:  # a backend is third-party code and may raise anything
        reason = f"{type(fault).__name__}: {fault}"
        rows = [subject.row(RAISED, {"reason": reason, "dtype": subject.dtype}, 1.0, 0.0)]
    return rows


def _is_slow(attend: Attend) -> bool:
    """Whether `attend` runs more than one line of Python for each query-key pair, as a loop in Python does.

    Lines are counted and not seconds, because the sizes must not depend on the load of the machine. The second call is
    counted, because the first may set things up. Raises Declined and Unavailable.
    """
    ones, lines, tracing = np.ones((1, 1, 64, 64)), 0, sys.gettrace()

    def count(*event: Any) -> Any:
        nonlocal lines
        lines += event[1] == "line"
        return count

    try:
        attend(ones, ones, ones, causal=False, scale=1.0)
        sys.settrace(count)
        attend(ones, ones, ones, causal=False, scale=1.0)
    except (Declined, Unavailable):
        raise
    except Exception:  # third-party code: its errors are reported when it is measured
        return True
    finally:
        sys.settrace(tracing)
    return lines > ones.shape[2] ** 2


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit every thread pool of this process to one thread, and restore it afterwards.

    Several libraries compute in turn. A pool that spins while it waits takes the processor from the library that
    computes: on two cores the saturation experiment took 12 s with one thread and 47 s with two.
    """
    import torch  # its thread pool must exist before it can be limited
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def load_experiment(name: str) -> Experiment:
    """The experiment `name`; its file is imported now. Raises ValueError for an unknown name."""
    chosen_experiments([name])
    found: Experiment = importlib.import_module(f"{__name__}.{name}").EXPERIMENT
    return found


def chosen_experiments(names: Sequence[str]) -> tuple[str, ...]:
    """The experiments that `names` stand for: ``all`` means every experiment, ``none`` or no name means none.

    Raises ValueError for an unknown name, and suggests similar ones.
    """
    if tuple(names) in ((), ("none",)):
        return ()
    if tuple(names) == ("all",):
        return EXPERIMENTS
    for name in names:
        if name not in EXPERIMENTS:
            raise ValueError(f"no experiment is called {name!r}; {suggestion(name, EXPERIMENTS)}")
    return tuple(dict.fromkeys(names))


def check_request(
    backends: Sequence[str] | None = None, seed: int = 0, folders: Sequence[Path | str] = ()
) -> None:
    """Raises ValueError for a bad seed or an unknown backend, before anything is measured."""
    generator(seed)
    for name in backends or ():
        require(name, folders)
