"""How a contender's time grows with length: overhead, a part per position, a part per pair, and where the latter steps.

    t(n) = a + b n + c p(n),  a, b, c >= 0,

p(n) being n², or the pairs that a mask keeps where these explain the times better. Where one c does not do, the cost
of a pair may step up once, between two measured lengths, as it does where the arrays leave a cache. Residuals are
relative to t, so that short calls count as much as long ones.

A length's time is the first decile of the rounds in each process, and the median of these. Slow spells of a machine
lengthen rounds and never shorten them (Chen and Revels 2016, "Robust benchmarking in noisy environments"), and their
share differs from length to length: medians of different lengths are those of different machines. For the same reason
no step down is fitted: those that medians showed were at one length for all contenders, where the machine had become
faster.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attnlab.stats.analysis import Analysis, Group
from attnlab.subprocesses import Aside
from attnlab.system import cores
from attnlab.workload.result import Measurement

Floats = NDArray[np.float64]
#: a fit that misses a measured time by more than this is given no label
WORST = 0.10
#: with fewer lengths than this three coefficients fit anything
LEAST_LENGTHS = 4
#: the part of the rounds of a process that lies below its time
LEVEL = 0.1
#: so many fits take longer than a process of their own does to start
MANY = 200
#: another model must leave at most this part of the plain one's error of left-out lengths; and a step, be this large
_CLEARLY = 0.5
_LEAST_STEP = 1.25
_RESAMPLES = 200


class Timed(NamedTuple):
    """What one `fit` takes; each by length.

    samples : seconds a call, by process, then by round. kept : the pairs of one head that a mask keeps, where these
    are not n². pace : what a fixed piece of work took while the length was measured, in any unit.
    """

    samples: Mapping[int, Sequence[Sequence[float]]]
    kept: Mapping[int, float] | None = None
    pace: Mapping[int, float] | None = None


@dataclass(frozen=True)
class Step:
    """The cost of a pair is `below` (s) up to length `last` and `above` from length `first` on, both measured."""

    last: int
    first: int
    below: float
    above: float

    @property
    def ratio(self) -> float:
        """How many times as much a pair costs above as below."""
        return self.above / self.below


@dataclass(frozen=True)
class Forecast:
    """The time at the longest length, `predicted` by a fit to all others, and `measured`, in seconds."""

    length: int
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Growth:
    """`coefficients` a (s), b (s per position), c (s per pair), each with its 95 % interval; c is that of long lengths.

    The intervals come from resampling processes, and hold the noise only, not what the model lacks; nan where a length
    has one process alone. `step` is where c changes, if it does; `kept` whether pairs are those that the mask keeps,
    instead of n². `largest_error` is the largest relative error of the fit; `exponents` are log2(t(2n) / t(n)) by n.
    `shares` are the parts of the three terms in the fitted time at the longest length. `forecast` is None for fewer
    than five lengths.
    """

    coefficients: tuple[float, float, float]
    intervals: tuple[tuple[float, float], ...]
    largest_error: float
    exponents: Mapping[int, float]
    shares: tuple[float, float, float]
    step: Step | None = None
    kept: bool = False
    forecast: Forecast | None = None

    @property
    def label(self) -> str | None:
        """Which term leads at the longest length; None where the fit is worse than 10 %."""
        if self.largest_error > WORST:
            return None
        leading = "kept pairs" if self.kept else "quadratic"
        return ("constant", "linear", leading)[int(np.argmax(self.shares))]


@dataclass(frozen=True)
class Model:
    """Which terms t is made of: 1 and n where `terms` names them, and `pairs` by length, in two parts if there is a
    `split`: the last length below the step and the first above.
    """

    pairs: Mapping[int, float]
    kept: bool = False
    terms: tuple[int, ...] = (0, 1)
    split: tuple[int, int] | None = None

    def columns(self, lengths: Sequence[int]) -> Floats:
        """The value of each term, (lengths, 4); those that the model lacks are 0."""
        n, pairs = np.array(lengths, float), np.array([self.pairs[one] for one in lengths])
        above = n > (math.inf if self.split is None else self.split[0])
        return np.stack(
            [
                (0 in self.terms) * n**0,
                (1 in self.terms) * n,
                np.where(above, 0, pairs),
                np.where(above, pairs, 0),
            ],
            axis=1,
        )

    def together(self, solution: Floats) -> Floats:
        """a, b and the c of the longest lengths."""
        return solution[[0, 1, 2 if self.split is None else 3]]


def fit(timed: Timed) -> Growth | None:
    """The fit to the samples; None for fewer than four lengths. Raises ValueError for a length without samples.

    Non-negative least squares (Lawson and Hanson 1974, chapter 23). Kept pairs, or a step, are taken only where they
    halve the root mean square error with which lengths left out are predicted (Stone 1974, on cross-validation). A step
    needs two lengths on each side, a cost of a pair that rises by a quarter, and by a quarter more than the pace did;
    no model with one has more parameters, its place included, than lengths less two. The intervals are percentiles
    over processes drawn again with replacement (Davison and Hinkley 1997, section 3.8).
    """
    lengths = sorted(timed.samples)
    if len(lengths) < LEAST_LENGTHS:
        return None
    processes = [np.array([_level(one) for one in timed.samples[n] if len(one)]) for n in lengths]
    if not all(map(len, processes)):
        raise ValueError("a length has no samples")
    times = np.array([np.median(one) for one in processes])
    model = choose(lengths, times, timed)
    terms = model.columns(lengths)
    best = solve(terms, times)
    low, high = np.full((2, 3), math.nan)
    if min(map(len, processes)) > 1:
        draw = np.random.default_rng(0).integers
        again = np.stack(
            [np.median(one[draw(len(one), size=(_RESAMPLES, len(one)))], axis=1) for one in processes], axis=1
        )
        low, high = np.quantile([model.together(solve(terms, one)) for one in again], [0.025, 0.975], axis=0)
    values, fitted = model.together(best), terms @ best
    known = dict(zip(lengths, times.tolist(), strict=True))
    a, b, c = (values * [1.0, lengths[-1], model.pairs[lengths[-1]]] / fitted[-1]).tolist()
    return Growth(
        coefficients=tuple(values.tolist()),
        intervals=tuple(zip(low.tolist(), high.tolist(), strict=True)),
        largest_error=float(np.abs(fitted / times - 1).max()),
        exponents={n: math.log2(known[2 * n] / known[n]) for n in lengths if 2 * n in known},
        shares=(a, b, c),
        step=None if model.split is None else Step(*model.split, float(best[2]), float(best[3])),
        kept=model.kept,
        forecast=_forecast(lengths, times, timed),
    )


def _level(rounds: Sequence[float]) -> float:
    """The time of a process; as `numpy.quantile` has it, in a tenth of its time."""
    ordered, at = sorted(rounds), LEVEL * (len(rounds) - 1)
    low = ordered[int(at)]
    return low + (ordered[math.ceil(at)] - low) * (at % 1)


def solve(terms: Floats, times: Floats) -> Floats:
    """The coefficients of the fit to `times`, the residuals being relative to them."""
    from scipy.optimize import nnls

    relative = terms / times[:, None]
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0
    found: Floats = nnls(relative / scale, np.ones(len(times)))[0] / scale
    return found


def _forecast(lengths: Sequence[int], times: Floats, timed: Timed) -> Forecast | None:
    """The longest length by a model chosen from, and fitted to, all others."""
    if len(lengths) <= LEAST_LENGTHS:
        return None
    others, last = lengths[:-1], lengths[-1]
    model = choose(others, times[:-1], timed)
    predicted = model.columns([last]) @ solve(model.columns(others), times[:-1])
    return Forecast(last, float(predicted[0]), float(times[-1]))


def choose(lengths: Sequence[int], times: Floats, timed: Timed) -> Model:
    """The plain model, unless another leaves half its error."""
    plain = Model({n: float(n) ** 2 for n in timed.samples})
    error = _left_out(plain, lengths, times)
    if timed.kept is not None and _another(timed.kept, timed.samples):
        masked = Model(timed.kept, kept=True, terms=(0,))  # under a window, kept pairs are a + b n themselves
        other = _left_out(masked, lengths, times)
        if other <= _CLEARLY * error:
            plain, error = masked, other
    stepped = _stepped(plain, lengths, times, timed.pace, _CLEARLY * error)
    errors = [(_left_out(one, lengths, times), one) for one in stepped]
    least, model = min(errors, key=lambda item: item[0], default=(math.inf, plain))
    return model if least <= _CLEARLY * error else plain


def _another(kept: Mapping[int, float], lengths: Iterable[int]) -> bool:
    """Whether kept pairs are another term than n and n² are: not a multiple of either to within 5 %."""
    shares = [[kept[n] / n**power for n in lengths] for power in (1, 2)]
    return all(max(some) > 1.05 * min(some) and min(some) > 0 for some in shares)


def _stepped(
    plain: Model, lengths: Sequence[int], times: Floats, pace: Mapping[int, float] | None, most_error: float
) -> Iterator[Model]:
    """Models with a step, wherever two lengths lie on either side, as rich as the number of lengths allows.

    Without those whose error of left-out lengths must be above `most_error`: no length is predicted better without it
    than with it, since each of the two fits is the best to its lengths.
    """
    allowed = len(lengths) - 2 - 3  # two costs of a pair, and where they change
    for index in range(2, len(lengths) - 1) if allowed >= 0 else ():
        split, slower = (lengths[index - 1], lengths[index]), 1.0
        if pace is not None:
            below, above = (np.median([pace[n] for n in some]) for some in (lengths[:index], lengths[index:]))
            slower = max(1.0, float(above / below))
        for terms in itertools.combinations(plain.terms, min(len(plain.terms), allowed)):
            model = Model(plain.pairs, plain.kept, terms, split)
            columns = model.columns(lengths)
            best = solve(columns, times)
            missed = np.abs(columns @ best / times - 1)
            hopeful = math.sqrt(float((np.log1p(missed) ** 2).mean())) * (1 - 1e-9) <= most_error
            if hopeful and best[2] > 0 and best[3] >= _LEAST_STEP * slower * best[2]:
                yield model


def _left_out(model: Model, lengths: Sequence[int], times: Floats) -> float:
    """Root mean square of ln(predicted / measured), each length being predicted by a fit to the others."""
    terms = model.columns(lengths)
    others = ~np.eye(len(lengths), dtype=bool)
    predicted = np.array(
        [row @ solve(terms[some], times[some]) for row, some in zip(terms, others, strict=True)]
    )
    if predicted.min() <= 0:
        return math.inf
    return float(np.sqrt((np.log(predicted / times) ** 2).mean()))


# -- of all contenders of a run ----------------------------------------------------------------------

#: by contender and head count
Fits = Mapping[tuple[str, int], Growth]


class Fitting:
    """The fits to all groups of `analysis`: many are begun at once, in a process of their own, few when asked for."""

    def __init__(self, analysis: Analysis) -> None:
        groups = [dict(_timed(analysis, group)) for group in analysis.groups]
        every = [one for group in groups for one in group.values()]
        aside = len(every) >= MANY and cores() > 1
        self._places = [list(group) for group in groups]
        self._fitted = Aside(_fit_all, every).result if aside else partial(_fit_all, every)

    @cached_property
    def found(self) -> tuple[Fits, ...]:
        """Those of each group; waits until they are there."""
        fitted = iter(self._fitted())
        every = [{at: next(fitted) for at in group} for group in self._places]
        return tuple({at: one for at, one in group.items() if one is not None} for group in every)


def _fit_all(every: Iterable[Timed]) -> list[Growth | None]:
    return list(map(fit, every))


def _timed(analysis: Analysis, group: Group) -> Iterator[tuple[tuple[str, int], Timed]]:
    """By contender and head count, the rounds of each length that was measured, and what helps to read them."""
    for name in filter(group.measured.__contains__, analysis.names):
        for count in group.heads:
            cells = {n: cell for n in group.grid[count] if name in (cell := group.cells[count, n]).measured}
            times = {n: cell.measured[name].latency for n, cell in cells.items()}
            pace = {n: cell.pace for n, cell in cells.items() if cell.pace is not None}
            yield (
                (name, count),
                Timed(
                    {n: rounds_of(one) for n, one in times.items() if one is not None},
                    {n: one.workload.pairs / one.workload.batch / count for n, one in cells.items()},
                    pace if len(pace) == len(times) else None,
                ),
            )


def rounds_of(latency: Measurement) -> list[list[float]]:
    """The samples (s) by process, without disturbed rounds; with them, where no others are there."""
    process, samples = latency.visits, latency.by_round()
    kept = {index: one for index, one in samples.items() if index not in latency.disturbed_rounds} or samples
    found: dict[int, list[float]] = {}
    for index, one in kept.items():
        found.setdefault(process[index], []).append(one)
    return list(found.values())
