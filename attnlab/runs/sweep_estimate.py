"""What a plan will take, machine hours and money: the starts and the calls of all races, added up.

A call takes what it took where it was measured, in between by interpolation over FLOPs; a race takes what its limits
give to rounds of such calls, and a start for every process, as long as starts took in the races that were measured.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from attnlab.environment import fingerprint
from attnlab.problem.result import Outcome, Result
from attnlab.problem.workload import Workload
from attnlab.race.limits import LEAST_ROUNDS, Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run

#: with fewer races there is nothing to compare a prediction with
LEAST_RACES = 5


@dataclass(frozen=True)
class Costs:
    """What races cost. `overhead`: seconds that a shard takes beside its races. `machines`: the kinds that measured.

    `start` : seconds of a race for every process of it, beside its rounds. `median` and `total` : how far the sum of
    starts and calls is off for the races that were measured, as median of the relative errors and all of them together.
    """

    results: Sequence[Result]
    overhead: float
    machines: tuple[str, ...]
    start: float = 0.0
    median: float = 0.0
    total: float = 0.0

    def of_plan(self, plan: Plan) -> list[float]:
        """Seconds of each workload of `plan`. Raises ValueError for contenders that were not measured."""
        spelt, contenders = resolve(plan)
        names = [one.name for one in contenders]
        unseen = sorted(set(names) - {one.contender for one in self.results})
        if unseen:
            raise ValueError(
                f"nothing is known of what {', '.join(unseen)} takes: no run that is learned from has raced it; "
                "give one with --from"
            )
        return [max(1e-3, sum(self.race(one, names, spelt.limits))) for one in spelt.workloads]

    def race(self, workload: Workload, names: Sequence[str], limits: Limits) -> tuple[float, float]:
        """Seconds that go into the rounds of a race, and into the starts of its processes."""
        known = (self.call(name, workload) for name in names)
        calls = [one for one in known if one is not None and one <= limits.longest_call(len(names))]
        settle = limits.settle_seconds
        a_round = sum(
            max(one, limits.turn_seconds) + (settle if one < limits.settle_below_seconds else 0.0)
            for one in calls
        )
        planned = min(limits.workload_seconds, limits.max_rounds * a_round)
        rounds = min(limits.utmost_seconds, max(LEAST_ROUNDS * limits.processes * a_round, planned))
        return rounds, self.start * limits.processes * len(calls)

    def call(self, name: str, workload: Workload) -> float | None:
        """Seconds of a call of the contender, None where it has declined most workloads of this kind."""
        near = self._asked.get((name, _kind(workload))) or self._asked[name, None]
        points = sorted(
            (one.workload.flops, one.latency.median)
            for one in near
            if one.outcome is Outcome.MEASURED and one.latency is not None
        )
        if 2 * len(points) < len(near) or not points:
            return None
        flops, seconds = np.log(np.array(points, float).T)
        found = float(np.exp(np.interp(np.log(workload.flops), flops, seconds)))
        return found * max(1.0, workload.flops / points[-1][0])

    @cached_property
    def _asked(self) -> dict[tuple[str, object], list[Result]]:
        """The results of each contender, those of each kind and all of them."""
        found: dict[tuple[str, object], list[Result]] = {}
        for one in self.results:
            for kind in (_kind(one.workload), None):
                found.setdefault((one.contender, kind), []).append(one)
        return found


def _kind(one: Workload) -> tuple[object, ...]:
    """Calls of one kind predict each other."""
    return one.direction, one.dtype, one.device, one.storage, one.d_model is None, one.queries == 1, one.mask


def learned(runs: Sequence[Run]) -> Costs:
    """What races, and shards beside their races, cost by `runs`.

    Beside its races a run starts processes, most of them in its first race; measures ceilings and writes its report:
    the median of all runs. Raises ValueError where they hold fewer than five races.
    """
    races: list[tuple[list[Result], Limits]] = []
    overheads = []
    for run in runs:
        whole = run.results[: run.whole()]
        found = [list(group) for _, group in groupby(whole, key=lambda one: one.workload)]
        timed = [one[0].race_seconds for one in found if one[0].race_seconds is not None]
        if not timed:
            continue
        races += [(one, run.plan.limits) for one in found if one[0].race_seconds is not None]
        spent = sum(seconds for activity, seconds in run.account.items() if activity != "numerics")
        overheads.append(max(0.0, spent - sum(timed)) + max(0.0, timed[0] - float(np.median(timed))))
    if len(races) < LEAST_RACES:
        raise ValueError(
            f"an estimate needs a run of this version with {LEAST_RACES} races or more, got {len(races)}: "
            "give further runs with --from"
        )
    machines = tuple(dict.fromkeys(fingerprint(run.environment) for run in runs))
    costs = Costs([one for race, _ in races for one in race], float(np.median(overheads)), machines)

    def summed(costs: Costs) -> np.ndarray:
        asked = ((race[0].workload, [one.contender for one in race], limits) for race, limits in races)
        return np.array([costs.race(*one) for one in asked])

    took = np.array([race[0].race_seconds for race, _ in races], float)
    rounds, starts = summed(replace(costs, start=1.0)).T
    costs = replace(costs, start=max(0.0, float(np.median((took - rounds) / np.maximum(starts, 1)))))
    predicted = summed(costs).sum(axis=1)
    off = float(np.median(np.abs(predicted / took - 1)))
    return replace(costs, median=off, total=float(predicted.sum() / took.sum() - 1))


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
    if min(count, len(plan.workloads)) < LEAST_RACES:
        raise ValueError(
            f"an estimate needs {LEAST_RACES} races or more, got a sample of {count} of a plan of "
            f"{len(plan.workloads)}: give runs to learn from with --from"
        )
    order = sorted(plan.workloads, key=lambda one: one.flops)
    places = sorted({round(one) for one in np.linspace(0, len(order) - 1, min(count, len(order)))})
    return replace(plan, workloads=tuple(order[place] for place in places), origins=(), experiments=())
