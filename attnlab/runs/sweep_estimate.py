"""What a plan will take: machine hours and money, from races that were measured.

Two fits, both by non-negative least squares (Lawson and Hanson 1974, chapter 23) of relative errors, weighted anew by
their own predictions (McCullagh and Nelder 1989, chapter 8): the time of one call of each contender, from least bytes
and FLOPs; and the time of a whole race, from what its budget gives to rounds at such calls, from the calls beside the
rounds, and from what every contender and every race costs by itself. How far that is off is measured on races that
were left out of both fits.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.environment import fingerprint
from attnlab.race.limits import LEAST_ROUNDS, Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run

#: with fewer races there is nothing to leave out
LEAST_RACES = 4
_PARTS = 10
#: fits after the first: by then predictions move by less than they are off
_FITS = 6

Floats = NDArray[np.float64]
#: workloads of one kind: contenders decline them alike, and calls of one predict those of another
Kind = tuple[object, ...]


@dataclass(frozen=True)
class Race:
    """One workload that was raced in `seconds`, all in all: the seconds of a call by contender, None where it left."""

    workload: Workload
    limits: Limits
    calls: Mapping[str, float | None]
    seconds: float


@dataclass(frozen=True)
class Error:
    """How far predictions of races were off that no fit had seen: relative errors, and that of their sum."""

    races: int
    median: float
    worst_of_ten: float
    total: float


@dataclass(frozen=True)
class Estimate:
    """What a plan will take on machines like the one that was measured.

    seconds : of each workload, in the plan's order. shard_seconds : of each shard, with its start. hours : of all
    machines together. wall_hours : until the last shard has ended, on `machines`. money : in the price's currency.
    """

    seconds: tuple[float, ...]
    shard_seconds: tuple[float, ...]
    machines: int
    hours: float
    wall_hours: float
    money: float | None
    error: Error


def races_of(run: Run) -> list[Race]:
    """All races of `run` that were stored with their times. The first one holds the start of most processes."""
    found = []
    for workload, group in groupby(run.results[: run.whole()], key=lambda one: one.workload):
        results = list(group)
        seconds = results[0].race_seconds
        if seconds is not None:
            calls = {one.contender: _call_seconds(one) for one in results}
            found.append(Race(workload, run.plan.limits, calls, seconds))
    return found


def _call_seconds(result: Result) -> float | None:
    latency = result.latency
    return latency.median if latency is not None and result.outcome is Outcome.MEASURED else None


class Costs:
    """What races cost, learned from `races`; `overhead` is what a shard takes beside them, in seconds.

    machines : the kinds of machines that they were on.
    """

    def __init__(self, races: Sequence[Race], overhead: float = 0.0, machines: Sequence[str] = ()) -> None:
        self.races, self.overhead, self.machines = races, overhead, machines
        self._calls = _Calls(races)
        names = sorted({name for race in races for name in race.calls})
        design = np.concatenate([self._design([one.workload], names, one.limits) for one in races])
        self._weights = _fit(design, np.array([one.seconds for one in races]))

    @property
    def names(self) -> set[str]:
        """The contenders that were seen."""
        return self._calls.names

    def predict(self, workloads: Sequence[Workload], contenders: Sequence[str], limits: Limits) -> Floats:
        """Seconds of the race over each workload. Raises ValueError for contenders that no race has seen."""
        unseen = [one for one in contenders if one not in self.names]
        if unseen:
            raise ValueError(
                f"nothing is known of what {', '.join(unseen)} takes: no run that is learned from has raced it; "
                "give one with --from"
            )
        found: Floats = self._design(workloads, contenders, limits) @ self._weights
        return np.maximum(found, 1e-3)

    def of_plan(self, plan: Plan) -> list[float]:
        """Seconds of each workload of `plan`."""
        spelt, contenders = resolve(plan)
        return list(map(float, self.predict(spelt.workloads, [one.name for one in contenders], spelt.limits)))

    def error(self) -> Error:
        """Each race predicted by fits to the others: a tenth of them is left out at a time, or one."""
        parts = min(_PARTS, len(self.races))
        predicted = np.empty(len(self.races))
        for part in range(parts):
            out = list(range(part, len(self.races), parts))
            known = Costs([one for place, one in enumerate(self.races) if place % parts != part])
            for place in out:
                race = self.races[place]
                names = [name for name in race.calls if name in known.names]
                predicted[place] = known.predict([race.workload], names, race.limits)[0]
        seconds = np.array([one.seconds for one in self.races])
        off = np.abs(predicted / seconds - 1)
        total = float(predicted.sum() / seconds.sum() - 1)
        return Error(len(seconds), float(np.median(off)), float(np.quantile(off, 0.9)), total)

    def _design(self, workloads: Sequence[Workload], names: Sequence[str], limits: Limits) -> Floats:
        """What the time of a race is made of, (workloads, terms)."""
        calls, present = self._calls.of(workloads, names)
        present = np.where(calls > limits.longest_call(len(names)), 0.0, present)  # it is not tried
        settle = np.where(calls < limits.settle_below_seconds, limits.settle_seconds, 0.0)
        a_round = (present * (np.maximum(calls, limits.turn_seconds) + settle)).sum(axis=1)
        planned = np.minimum(limits.workload_seconds, limits.max_rounds * a_round)
        least = LEAST_ROUNDS * limits.processes * a_round
        rounds = np.minimum(limits.utmost_seconds, np.maximum(least, planned))
        fewest = np.minimum(rounds, limits.min_rounds * a_round)
        beside = limits.processes * (present * calls).sum(axis=1)
        entered = limits.processes * present.sum(axis=1)
        flops = np.array([one.flops for one in workloads], float)
        return np.stack([np.ones(len(workloads)), entered, rounds, fewest, beside, flops], axis=1)


class _Calls:
    """How long one call of each contender takes, and how likely it takes part, by kind of workload."""

    def __init__(self, races: Sequence[Race]) -> None:
        seen: dict[tuple[str, Kind | None], list[tuple[Workload, float | None]]] = {}
        for race in races:
            for name, seconds in race.calls.items():
                for kind in (_kind(race.workload), None):  # of a kind that nobody has seen: by all
                    seen.setdefault((name, kind), []).append((race.workload, seconds))
        self.names = {name for name, _ in seen}
        self._known = {key: _learned(pairs) for key, pairs in seen.items()}

    def of(self, workloads: Sequence[Workload], names: Sequence[str]) -> tuple[Floats, Floats]:
        """Seconds a call and the part of such workloads that each takes part in, both (workloads, names)."""
        kinds, sizes = [_kind(one) for one in workloads], _sizes(workloads)
        calls, present = np.zeros((2, len(workloads), len(names)))
        for kind in set(kinds):
            rows = np.array([one == kind for one in kinds])
            for column, name in enumerate(names):
                weights, share = self._known.get((name, kind), self._known[name, None])
                calls[rows, column] = sizes[rows] @ weights
                present[rows, column] = share
        return calls, present


def _learned(pairs: Sequence[tuple[Workload, float | None]]) -> tuple[Floats, float]:
    """The weights of a call's time, and the part of workloads that the contender was measured on."""
    measured = [(one, seconds) for one, seconds in pairs if seconds is not None]
    if not measured:
        return np.zeros(3), 0.0
    weights = _fit(_sizes([one for one, _ in measured]), np.array([seconds for _, seconds in measured]))
    return weights, len(measured) / len(pairs)


def _kind(one: Workload) -> Kind:
    conditions = bool(one.causal), one.window is not None, one.mask, one.bias, one.sinks, one.softcap is None
    return (
        one.direction,
        one.dtype,
        one.device,
        one.storage,
        one.d_model is None,
        one.queries == 1,
        conditions,
    )


def _sizes(workloads: Sequence[Workload]) -> Floats:
    return np.array([(1.0, one.least_bytes, one.flops) for one in workloads])


def _fit(terms: Floats, seconds: Floats) -> Floats:
    """Weights from 0 up whose relative errors are least, in squares.

    Relative to what is predicted, by fits one after the other, each to the last one's predictions: relative to what was
    measured, races that took long by chance would count for too little, and all of them together come out too low.
    """
    weights = _fit_relative_to(seconds, terms, seconds)
    for _ in range(_FITS):
        predicted = np.maximum(terms @ weights, seconds.min() / 10)  # never nothing
        weights = _fit_relative_to(predicted, terms, seconds)
    return weights


def _fit_relative_to(sizes: Floats, terms: Floats, seconds: Floats) -> Floats:
    from scipy.optimize import nnls

    weighted = terms / sizes[:, None]
    scale = np.linalg.norm(weighted, axis=0)  # columns of like size, for the solver's tolerance
    scale[scale == 0] = 1.0
    weights: Floats = nnls(weighted / scale, seconds / sizes)[0] / scale
    return weights


def learned(runs: Sequence[Run]) -> Costs:
    """What races, and shards beside their races, cost by `runs`.

    Beside its races a run starts processes, most of them in its first race, which is left out of the fits for that;
    measures ceilings, asks for the same bits again and writes its report: the median of all runs.

    Raises ValueError where they hold fewer than four races that are not the first of their run.
    """
    raced = [(run, found) for run in runs if (found := races_of(run))]
    races = [one for _, found in raced for one in found[1:]]
    if len(races) < LEAST_RACES:
        raise ValueError(
            f"an estimate needs a run of this version with {LEAST_RACES + 1} races or more, got "
            f"{len(races) + len(raced)}: give further runs with --from"
        )
    kinds = dict.fromkeys(fingerprint(run.environment) for run, _ in raced)
    costs, beside = Costs(races, machines=tuple(kinds)), []
    for run, found in raced:
        account = sum(seconds for activity, seconds in run.account.items() if activity != "numerics")
        first = found[0]
        names = [name for name in first.calls if name in costs.names]
        usual = float(costs.predict([first.workload], names, first.limits)[0])
        beside.append(max(0.0, account - sum(one.seconds for one in found)) + max(0.0, first.seconds - usual))
    costs.overhead = float(np.median(beside))
    return costs


def estimate(
    costs: Costs, plan: Plan, parts: Sequence[Plan], *, machines: int = 1, price: float | None = None
) -> Estimate:
    """What `plan` takes that is cut into `parts`, on so many machines at a price an hour, None for no price."""
    spelt, _ = resolve(plan)
    seconds = costs.of_plan(plan)
    by_workload = dict(zip(spelt.workloads, seconds, strict=True))
    shards = [costs.overhead + sum(by_workload[one] for one in part.workloads) for part in parts]
    hours = sum(shards) / 3600
    return Estimate(
        seconds=tuple(seconds),
        shard_seconds=tuple(shards),
        machines=machines,
        hours=hours,
        wall_hours=wall_seconds(shards, machines) / 3600,
        money=None if price is None else hours * price,
        error=costs.error(),
    )


def wall_seconds(shards: Sequence[float], machines: int) -> float:
    """When the last shard ends where every machine that is free takes the longest that is left (Graham 1969)."""
    free = [0.0] * max(1, machines)
    for seconds in sorted(shards, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def sample(plan: Plan, count: int) -> Plan:
    """So many workloads of `plan`, evenly from the least FLOPs to the most, without the numerical chapter.

    Raises ValueError for less than `learned` needs.
    """
    if min(count, len(plan.workloads)) < LEAST_RACES + 1:
        raise ValueError(
            f"an estimate needs {LEAST_RACES + 1} races or more, got a sample of {count} of a plan of "
            f"{len(plan.workloads)}: give runs to learn from with --from"
        )
    order = sorted(range(len(plan.workloads)), key=lambda place: plan.workloads[place].flops)
    places = sorted({round(one) for one in np.linspace(0, len(order) - 1, min(count, len(order)))})
    chosen = tuple(plan.workloads[order[place]] for place in places)
    return replace(plan, workloads=chosen, origins=(), experiments=())
