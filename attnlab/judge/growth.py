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

from attnlab.judge.analysis import Analysis, Cell, Group
from attnlab.judge.nonnegative import Floats, solve
from attnlab.judge.resampling import Levels
from attnlab.problem.result import Measurement
from attnlab.subprocesses import Aside
from attnlab.system import cores

#: a fit that misses a measured time by more than this is given no label
WORST = 0.10
#: with fewer lengths than this three coefficients fit anything
LEAST_LENGTHS = 4
#: the part of the rounds of a process that lies below its time
LEVEL = 0.1
#: another model must leave at most this part of the plain one's error of left-out lengths; and a step, be this large
_CLEARLY = 0.5
_LEAST_STEP = 1.25
_RESAMPLES = 200

#: seconds a call, by process, then by round
Samples = Sequence[Sequence[float]]


class Timed(NamedTuple):
    """What one `fit` takes."""

    samples: Mapping[int, Samples]
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
        """measured / predicted - 1."""
        return self.measured / self.predicted - 1


@dataclass(frozen=True)
class Growth:
    """`coefficients` a (s), b (s per position), c (s per pair), each with its 95 % interval; c is that of long lengths.

    The intervals come from resampling processes and the rounds within, and hold the noise only, not what the model
    lacks. `step` is where c changes, if it does; `kept` whether pairs are those that the mask keeps, instead of n².
    `largest_error` is the largest relative error of the fit; `exponents` are log2(t(2n) / t(n)) by n.
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
class _Model:
    """Which terms t is made of: 1 and n where `terms` names them, and the pairs, in two parts where `split` is set.

    `split` is how many of the lengths lie below the step; `pairs` the work by length.
    """

    pairs: Mapping[int, float]
    kept: bool = False
    terms: tuple[int, ...] = (0, 1)
    split: tuple[int, int] | None = None

    def columns(self, lengths: Sequence[int]) -> Floats:
        """The value of each term, (lengths, terms); those that the model lacks are 0."""
        found: Floats = _all_columns([self], lengths)[0]
        return found


def _all_columns(models: Sequence[_Model], lengths: Sequence[int]) -> Floats:
    """Those of models of the same pairs: (models, lengths, terms)."""
    n, pairs = np.array(lengths, float), np.array([models[0].pairs[one] for one in lengths], float)
    last = np.array([math.inf if one.split is None else one.split[0] for one in models])
    above = n > last[:, None]
    full = np.zeros((len(models), len(lengths), 4))
    for term, values in enumerate((1.0, n)):
        full[:, :, term] = np.array([term in one.terms for one in models])[:, None] * values
    full[:, :, 2], full[:, :, 3] = np.where(above, 0, pairs), np.where(above, pairs, 0)
    return full


def rounds_of(latency: Measurement) -> list[list[float]]:
    """The samples (s) by process, without disturbed rounds; with them, where no others are there."""
    process, samples = latency.processes, latency.by_round()
    kept = {index: one for index, one in samples.items() if index not in latency.disturbed_rounds} or samples
    found: dict[int, list[float]] = {}
    for index, one in kept.items():
        found.setdefault(process[index], []).append(one)
    return list(found.values())


def fit(
    samples: Mapping[int, Samples],
    *,
    kept: Mapping[int, float] | None = None,
    pace: Mapping[int, float] | None = None,
    seed: int = 0,
) -> Growth | None:
    """The fit to `samples` (seconds, by length, then process, then round); None for fewer than four lengths.

    kept : the pairs of one head that a mask keeps, by length, where these are not n²
    pace : what a fixed piece of work took while each length was measured, in any unit
    seed : of the resampling

    Non-negative least squares (Lawson and Hanson 1974, chapter 23). Kept pairs, or a step, are taken only where they
    halve the root mean square error with which lengths left out are predicted (Stone 1974, on cross-validation). A step
    needs two lengths on each side, a cost of a pair that rises by a quarter, and by a quarter more than the `pace` did;
    no model with one has more parameters, its place included, than lengths less two. The intervals are percentiles
    over processes drawn again with replacement, and over rounds drawn again within each (Davison and Hinkley 1997,
    section 3.8). Raises ValueError for a length without samples.
    """
    lengths = sorted(samples)
    if len(lengths) < LEAST_LENGTHS:
        return None
    if not all(any(map(len, samples[n])) for n in lengths):
        raise ValueError("a length has no samples")
    levels = Levels([samples[n] for n in lengths], LEVEL)
    times = levels.medians()
    model = _choose(lengths, times, kept, pace)
    terms = model.columns(lengths)
    best = _solve(terms, times)
    resampled = _together(_solve_all(terms, levels.resampled(_RESAMPLES, seed)), model)
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    values, fitted = _together(best[None], model)[0], terms @ best
    last = np.array([1.0, lengths[-1], model.pairs[lengths[-1]]]) * values / fitted[-1]
    known = dict(zip(lengths, times, strict=True))
    return Growth(
        coefficients=(float(values[0]), float(values[1]), float(values[2])),
        intervals=tuple((float(a), float(b)) for a, b in zip(low, high, strict=True)),
        largest_error=float(np.abs(fitted / times - 1).max()),
        exponents={n: math.log2(known[2 * n] / known[n]) for n in lengths if 2 * n in known},
        shares=(float(last[0]), float(last[1]), float(last[2])),
        step=None if model.split is None else Step(*model.split, float(best[2]), float(best[3])),
        kept=model.kept,
        forecast=_forecast(lengths, times, kept, pace),
    )


def _together(solutions: Floats, model: _Model) -> Floats:
    """a, b and the c of the longest lengths, (solutions, 3)."""
    return solutions[:, [0, 1, 2 if model.split is None else 3]]


def _forecast(
    lengths: Sequence[int], times: Floats, kept: Mapping[int, float] | None, pace: Mapping[int, float] | None
) -> Forecast | None:
    """The longest length by a model chosen from, and fitted to, all others."""
    if len(lengths) <= LEAST_LENGTHS:
        return None
    others = lengths[:-1]
    model = _choose(others, times[:-1], kept, pace, last=lengths[-1])
    best = _solve(model.columns(others), times[:-1])
    predicted = float((model.columns(lengths[-1:]) @ best)[0])
    return Forecast(lengths[-1], predicted, float(times[-1]))


def _choose(
    lengths: Sequence[int],
    times: Floats,
    kept: Mapping[int, float] | None = None,
    pace: Mapping[int, float] | None = None,
    *,
    last: int | None = None,
) -> _Model:
    """The plain model, unless another leaves half its error; `last` is a further length that it must know."""
    known = (*lengths, *(() if last is None else (last,)))
    plain = _Model({n: float(n) ** 2 for n in known})
    error = _left_out(plain, lengths, times)
    if kept is not None and _another(kept, known):
        masked = _Model(kept, kept=True, terms=(0,))  # under a window, kept pairs are a + b n themselves
        other = _left_out(masked, lengths, times)
        if other <= _CLEARLY * error:
            plain, error = masked, other
    stepped = _stepped(plain, lengths, times, pace, most_error=_CLEARLY * error)
    errors = [(_left_out(one, lengths, times), one) for one in stepped]
    least, model = min(errors, key=lambda item: item[0], default=(math.inf, plain))
    return model if least <= _CLEARLY * error else plain


def _another(kept: Mapping[int, float], lengths: Sequence[int]) -> bool:
    """Whether kept pairs are another term than n and n² are: not a multiple of either to within 5 %."""
    for power in (1, 2):
        shares = [kept[n] / n**power for n in lengths]
        if max(shares) <= 1.05 * min(shares):
            return False
    return min(kept[n] for n in lengths) > 0


def _stepped(
    plain: _Model,
    lengths: Sequence[int],
    times: Floats,
    pace: Mapping[int, float] | None,
    *,
    most_error: float,
) -> list[_Model]:
    """Models with a step, wherever two lengths lie on either side, as rich as the number of lengths allows.

    Without those whose error of left-out lengths must be above `most_error`: no length is predicted better without it
    than with it, since each of the two fits is the best to its lengths.
    """
    allowed = len(lengths) - 2 - 3  # two costs of a pair, and where they change
    splits = range(2, len(lengths) - 1)
    if allowed < 0 or not splits:
        return []
    models = [
        _Model(plain.pairs, plain.kept, terms, (lengths[index - 1], lengths[index]))
        for index in splits
        for terms in itertools.combinations(plain.terms, min(len(plain.terms), allowed))
    ]
    weighted = _all_columns(models, lengths) / times[:, None]
    solutions = solve(weighted, np.ones(weighted.shape[:2]))
    missed = np.abs((weighted @ solutions[..., None])[..., 0] - 1)
    least_errors = np.sqrt((np.log1p(missed) ** 2).mean(axis=1)) * (1 - 1e-9)  # safe from rounding
    below, above = solutions[:, 2], solutions[:, 3]
    hopeful = (below > 0) & (above >= _LEAST_STEP * below) & (least_errors <= most_error)
    return [
        models[at]
        for at in np.flatnonzero(hopeful).tolist()
        if above[at] >= _LEAST_STEP * _slowed(pace, lengths, models[at]) * below[at]
    ]


def _slowed(pace: Mapping[int, float] | None, lengths: Sequence[int], model: _Model) -> float:
    """How many times as slow the machine was above the model's step as below; 1 where it was faster."""
    if pace is None or model.split is None:
        return 1.0
    index = lengths.index(model.split[1])
    below, above = (np.median([pace[n] for n in some]) for some in (lengths[:index], lengths[index:]))
    return max(1.0, float(above / below))


def _left_out(model: _Model, lengths: Sequence[int], times: Floats) -> float:
    """Root mean square of ln(predicted / measured), each length being predicted by a fit to the others."""
    weighted = model.columns(lengths) / times[:, None]
    others = 1.0 - np.eye(len(lengths))
    solutions = solve(others[..., None] * weighted, others)
    predicted = (weighted * solutions).sum(axis=1)  # as parts of what was measured
    if predicted.min() <= 0:
        return math.inf
    return float(np.sqrt((np.log(predicted) ** 2).mean()))


def _solve(terms: Floats, times: Floats) -> Floats:
    """The coefficients of the fit to `times`, the residuals being relative to them."""
    found: Floats = _solve_all(terms, times[None])[0]
    return found


def _solve_all(terms: Floats, times: Floats) -> Floats:
    """The same for each row of `times`, (fits, lengths)."""
    return solve(terms / times[..., None], np.ones(times.shape))


# -- of all contenders of a run ----------------------------------------------------------------------

#: by contender and head count
Fits = Mapping[tuple[str, int], Growth]
#: so many fits take longer than a process of their own does to start
MANY = 200


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
    return [fit(one.samples, kept=one.kept, pace=one.pace) for one in every]


def _timed(analysis: Analysis, group: Group) -> Iterator[tuple[tuple[str, int], Timed]]:
    """By contender and head count, the rounds of each length that was measured, and what helps to read them."""
    pairs = {at: _pairs_of_a_head(cell) for at, cell in group.cells.items() if cell.measured}
    for name in filter(group.measured.__contains__, analysis.names):
        for count in group.heads:
            answers = {n: group.cells[count, n].measured.get(name) for n in group.grid[count]}
            times = {n: one.latency for n, one in answers.items() if one is not None and one.latency}
            pace = {n: known for n in times if (known := group.cells[count, n].pace) is not None}
            yield (
                (name, count),
                Timed(
                    {n: rounds_of(latency) for n, latency in times.items()},
                    kept={n: pairs[count, n] for n in times},
                    pace=pace if len(pace) == len(times) else None,
                ),
            )


def _pairs_of_a_head(cell: Cell) -> float:
    return cell.workload.pairs / (cell.workload.batch * cell.workload.heads)
