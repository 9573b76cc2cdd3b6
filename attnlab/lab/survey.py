"""How an experiment asks backends, and what rows it makes of their answers.

Backends are opened once a number format; those that cannot be asked are named with the reason, and one that answers
with an error becomes a failed row instead of the end of the experiment.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.backends.backend import Backend
from attnlab.backends.contender import in_this_process
from attnlab.errors import Declined, Unavailable
from attnlab.lab.finding import Array, Row, Where
from attnlab.lab.observables import Attend, black_box, gradients
from attnlab.workload.declaring import MOST_SEED
from attnlab.workload.inputs import Inputs

#: the row that stands for a backend which raised an error
RAISED = "answered"


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    error: float


@dataclass(frozen=True)
class OpenBackend:
    """A backend ready to be asked. `slow` where only small sizes are affordable."""

    name: str
    backend: Backend
    attend: Attend
    slow: bool

    def row(self, quantity: str, where: Where, predicted: float | None, measured: float, **room: Any) -> Row:
        """`Row.compare` of what was measured through this backend."""
        return Row.compare(quantity, {"backend": self.name, **where}, predicted, measured, **room)

    def estimate(
        self, quantity: str, where: Where, found: Estimate, predicted: Estimate, slack: float = 0.0
    ) -> Row:
        """A row of what was measured against a prediction that has an error of its own."""
        error = math.hypot(found.error, predicted.error)
        return self.row(quantity, where, predicted.value, found.value, standard_error=error, slack=slack)

    def mean(
        self, quantity: str, where: Where, found: NDArray[Any], predicted: float | None, slack: float = 0.0
    ) -> Row:
        """The mean of `found`, (clusters, members), with the error of `mean_over_clusters`."""
        mean, error = mean_over_clusters(np.asarray(found, np.float64))
        return self.row(quantity, where, predicted, mean, standard_error=error, slack=slack)

    def gradients(self, problem: Inputs) -> Mapping[str, NDArray[Any]] | None:
        """`gradients` by its automatic differentiation; None where it has none: nothing to measure, nothing wrong."""
        try:
            return gradients(self.backend, problem)
        except Declined:
            return None


#: the rows that a backend gives with a seed
Measure = Callable[[OpenBackend, int], Iterable[Row]]


class Survey:
    """An experiment under way: the rows it has so far, and the facts it runs with."""

    def __init__(self, backends: Sequence[str], *, seed: int = 0, folders: Sequence[Path | str] = ()) -> None:
        self.seed, self.folders = seed, folders
        self.rows: list[Row] = []
        self.facts: dict[str, str | float] = {"seed": seed}
        self._backends = backends
        self._opened: dict[str, list[OpenBackend]] = {}
        #: of those that were opened, in any format
        self._names: dict[str, None] = {}

    def each(self, *measures: Measure, dtype: str = "float64") -> None:
        """Takes the rows of every measure through every backend in `dtype`, a backend at a time."""
        for one in self.opened(dtype):
            for measure in measures:
                self._take(one, measure)

    def one(self, measure: Measure, dtype: str = "float64") -> OpenBackend | None:
        """Takes the rows of `measure` through one backend, which is returned; None where there is none.

        PyTorch's fused attention, else the first that is not slow.
        """
        fast = [one for one in self.opened(dtype) if not one.slow]
        chosen = next((one for one in fast if one.name == "torch_sdpa"), fast[0] if fast else None)
        if chosen:
            self._take(chosen, measure)
        return chosen

    def _take(self, one: OpenBackend, measure: Measure) -> None:
        """The rows of `measure` through `one`, or one failed row that says what the backend did wrong.

        One that declines a question, or lacks what answers it, is asked nothing more of this measure; why goes into
        the facts.
        """
        rows: list[Row] = []
        try:
            for row in measure(one, self.seed):
                rows.append(row)
        except (Declined, Unavailable) as declined:
            self.facts.setdefault(f"without {one.name} in part", str(declined))
        except Exception as fault:  # a backend is other people's code and may raise anything
            reason = f"{type(fault).__name__}: {fault}"
            rows = [Row(RAISED, {"backend": one.name, "reason": reason}, 1.0, 0.0, 0.0, passed=False)]
        self.rows += rows

    def opened(self, dtype: str) -> list[OpenBackend]:
        """The backends that can compute in `dtype` here; why the others cannot goes into the facts.

        Raises ValueError for an unknown name.
        """
        if dtype in self._opened:
            return self._opened[dtype]
        first, found = not self._opened, self._opened.setdefault(dtype, [])
        *before, last = self._opened
        self.facts["dtype"] = f"{', '.join(before)} and {last}" if before else last
        for name in self._backends:
            try:
                backend = in_this_process(name, self.folders)
                attend = black_box(backend, dtype=dtype)
                found.append(OpenBackend(name, backend, attend, _is_slow(attend)))
            except (Declined, Unavailable) as reason:
                self.facts[f"without {name}" if first else f"without {name} in {dtype}"] = str(reason)
        self._names |= dict.fromkeys(one.name for one in found)
        self.facts["backends"] = ", ".join(self._names) or "none"
        return found


def _is_slow(attend: Attend) -> bool:
    """Whether `attend` runs more than a line of Python for each query-key pair, as a loop in Python does.

    Counted in its second call on 64 queries and 64 keys, as the first may set up: a clock would make the sizes hang on
    how fast or busy the machine is. Raises Declined and Unavailable.
    """
    ones, lines, tracing = np.ones((1, 1, 64, 64)), 0, sys.gettrace()

    def count(*event: Any) -> Any:
        nonlocal lines
        lines += event[1] == "line"
        return count

    try:
        for _ in range(2):
            lines = 0
            sys.settrace(count)
            attend(ones, ones, ones, causal=False, scale=1.0)
    except (Declined, Unavailable):
        raise
    except Exception:  # other people's code: what it does wrong is found and shown where it is measured
        return True
    finally:
        sys.settrace(tracing)
    return lines > ones.shape[2] ** 2


def agreement(rows: Sequence[Row], prediction: str) -> str:
    """The last sentence of a conclusion, without the stop: whether all `rows` meet `prediction`, or who does not."""
    failed = [row for row in rows if not row.passed]
    count = sum(row.compared for row in rows)
    if not failed:
        return f"All {count} comparisons meet {prediction}"
    names = sorted({str(row.where.get("backend", row.quantity)) for row in failed})
    return f"{len(failed)} of {count} comparisons miss {prediction} ({', '.join(names)})"


def generator(seed: int, *stream: int) -> np.random.Generator:
    """A random stream of its own for every part of an experiment, so that parts do not move each other.

    Raises ValueError for a seed that is no whole number from 0 to `MOST_SEED`.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed must be a whole number from 0 to {MOST_SEED}, got {seed!r}")
    return np.random.default_rng([seed, *stream])


@contextmanager
def one_thread() -> Iterator[None]:
    """Every thread pool of this process with one thread, and as it was afterwards.

    Experiments ask several libraries in turn, and a pool that spins while it waits takes the processor from the one at
    work: on two cores the saturation experiment took 12 s with one thread and 47 s with two.
    """
    import torch  # so that its pool is there to be limited
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def mean_over_clusters(found: Array) -> Estimate:
    """Mean of `found`, (clusters, members), and its standard error: the spread of cluster means, over √clusters.

    A cluster is for instance the rows of one head, which share its keys. The error is right however they depend on
    each other, as long as clusters are independent.
    """
    means = found.mean(axis=1)
    return Estimate(float(means.mean()), float(means.std(ddof=1)) / math.sqrt(len(means)))


def statistic_over_clusters(
    found: Array, statistic: Callable[[Array], float], resamples: int = 200
) -> Estimate:
    """`statistic` of all of `found`, (clusters, members), and its standard error by resampling whole clusters.

    The bootstrap (Efron and Tibshirani 1993, chapter 6), with resamples that are the same in every run. For
    quantiles and shares, which no mean over clusters gives.
    """
    rng = np.random.default_rng(0)
    drawn = [statistic(found[rng.integers(0, len(found), len(found))]) for _ in range(resamples)]
    return Estimate(statistic(found), float(np.std(drawn, ddof=1)))
