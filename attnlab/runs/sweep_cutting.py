"""A plan cut into shards of whole workloads, and what it will take: machine hours and money.

All contenders of a race stay on one machine. Workloads that differ in their lengths alone stand together, so that how
time grows with length is mostly seen on one machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnlab.environment import fingerprint
from attnlab.race.limits import LEAST_ROUNDS, Limits
from attnlab.runs.execute import resolve
from attnlab.runs.plan import Plan
from attnlab.runs.store import Run
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

#: what may differ between two lengths of one kind of workload
_SIZES = ("queries", "keys", "key_lengths", "seed")
#: results by contender and kind of workload, and by contender and None
Known = Mapping[tuple[str, object], Sequence[Result]]
#: with fewer races there is nothing to compare a prediction with
LEAST_RACES = 5


def joined(plans: Mapping[str, Plan]) -> Plan:
    """The workloads of all `plans`, each once, as one plan. Raises ValueError, naming it, for one that differs else."""
    (named, first), *others = plans.items()
    origins: dict[Workload, str] = {}
    for plan in plans.values():
        for workload, origin in origins_of(plan).items():
            origins.setdefault(workload, origin)
    for name, other in others:
        alike = dataclasses.replace(other, workloads=first.workloads, origins=first.origins)
        for one in dataclasses.fields(Plan):
            if getattr(alike, one.name) != getattr(first, one.name):
                raise ValueError(
                    f"plans of one sweep may differ in their workloads alone, and {name} has other {one.name} than "
                    f"{named}: make them alike, or two sweeps"
                )
    return asking(first, origins)


def cut(plan: Plan, shards: int, seconds: Sequence[float] | None = None) -> list[Plan]:
    """`plan` as at most so many plans, none of them empty, that hold each of its workloads once.

    seconds : what each workload is predicted to take, in the plan's order; by default all alike. No shard is longer
    than an equal part by more than one workload. The numerical chapter, which no machine changes, is left to the first
    shard; contenders and everything else are the plan's. Raises ValueError for less than one shard, and for seconds
    that are not one a workload.
    """
    if shards < 1:
        raise ValueError(f"a plan is cut into one shard or more, got {shards}")
    costs = np.ones(len(plan.workloads)) if seconds is None else np.asarray(seconds, float)
    if costs.shape != (len(plan.workloads),) or not (costs > 0).all():
        raise ValueError(f"seconds must be {len(plan.workloads)} numbers above 0, one a workload")
    kinds: dict[object, list[int]] = {}  # those of one kind stand side by side
    for place, workload in enumerate(plan.workloads):
        kind = tuple(value for name, value in vars(workload).items() if name not in _SIZES)
        kinds.setdefault(kind, []).append(place)
    order = [place for some in kinds.values() for place in some]
    middle = np.cumsum(costs[order]) - costs[order] / 2  # of each workload, on a line of all of them
    part = np.minimum((middle * shards / costs.sum()).astype(int), shards - 1)
    chosen = np.split(np.array(order), np.flatnonzero(np.diff(part)) + 1)
    return [
        only(plan, [plan.workloads[place] for place in some], chapter=number == 0)
        for number, some in enumerate(chosen)
    ]


def only(plan: Plan, workloads: Sequence[Workload], *, chapter: bool) -> Plan:
    """`plan` with these of its workloads, and with its numerical chapter or without."""
    origins = origins_of(plan)
    found = asking(plan, {one: origins[one] for one in workloads})
    return found if chapter else dataclasses.replace(found, experiments=())


def origins_of(plan: Plan) -> dict[Workload, str]:
    """The workloads of `plan`, each with the parts of presets that ask for it."""
    return dict(zip(plan.workloads, plan.origins or ("",) * len(plan.workloads), strict=True))


def asking(plan: Plan, origins: Mapping[Workload, str]) -> Plan:
    """`plan` with these workloads instead, each with the parts of presets that ask for it."""
    told = tuple(origins.values()) if any(origins.values()) else ()
    return dataclasses.replace(plan, workloads=tuple(origins), origins=told)


# -- what it will take -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What races cost, as far as they were measured.

    start : seconds of a race for every process of it, beside its rounds. overhead : seconds that a shard takes beside
    its races. off : by how much rounds and starts added up miss what the measured races took, as median of the relative
    errors. machines : the kinds of machines that measured.
    """

    known: Known
    start: float
    overhead: float
    off: float
    machines: tuple[str, ...]

    def of_plan(self, plan: Plan) -> list[float]:
        """Seconds of each workload of `plan`. Raises ValueError for contenders that were not measured."""
        spelt, contenders = resolve(plan)
        names = [one.name for one in contenders]
        if unseen := sorted(one for one in set(names) if (one, None) not in self.known):
            raise ValueError(
                f"nothing is known of what {', '.join(unseen)} takes: no run that is learned from has raced it; "
                "give one with --from"
            )
        races = (_race(self.known, names, one, spelt.limits) for one in spelt.workloads)
        return [max(1e-3, rounds + self.start * processes) for rounds, processes in races]


def learned(runs: Sequence[Run]) -> Costs:
    """What races, and shards beside their races, cost by `runs`.

    Beside its races a run starts processes, most of them in its first race; measures ceilings and writes its report:
    the median of all runs. Raises ValueError where they hold fewer than five races.
    """
    known: dict[tuple[str, object], list[Result]] = {}
    races: list[tuple[Run, Workload, float]] = []
    overheads = []
    for run in runs:
        whole = run.whole()
        for one in whole:
            for kind in (_kind(one.workload), None):
                known.setdefault((one.contender, kind), []).append(one)
        took = {one.workload: one.race_seconds for one in whole if one.race_seconds is not None}
        races += [(run, workload, seconds) for workload, seconds in took.items()]
        if seconds := list(took.values()):
            spent = sum(one for activity, one in run.account.items() if activity != "numerics")
            first = max(0.0, seconds[0] - float(np.median(seconds)))
            overheads.append(max(0.0, spent - sum(seconds)) + first)
    if len(races) < LEAST_RACES:
        raise ValueError(
            f"an estimate needs a run of this version with {LEAST_RACES} races or more, got {len(races)}: "
            "give further runs with --from"
        )
    parts = [_race(known, run.contenders, workload, run.plan.limits) for run, workload, _ in races]
    rounds, processes = np.array(parts).T
    measured = np.array([seconds for *_, seconds in races])
    start = max(0.0, float(np.median((measured - rounds) / np.maximum(processes, 1))))
    off = float(np.median(np.abs((rounds + start * processes) / measured - 1)))
    machines = tuple(dict.fromkeys(fingerprint(run.environment) for run in runs))
    return Costs(known, start, float(np.median(overheads)), off, machines)


def _race(known: Known, names: Sequence[str], workload: Workload, limits: Limits) -> tuple[float, float]:
    """Seconds that go into the rounds of a race, and how many processes it starts."""
    calls = [
        one for name in names if (one := _call(known, name, workload)) <= limits.longest_call(len(names))
    ]
    a_round = sum(
        max(one, limits.turn_seconds) + (limits.settle_seconds if one < limits.settle_below_seconds else 0.0)
        for one in calls
    )
    planned = min(limits.workload_seconds, limits.max_rounds * a_round)
    least = LEAST_ROUNDS * limits.processes * a_round
    return min(limits.utmost_seconds, max(least, planned)), float(limits.processes * len(calls))


def _call(known: Known, name: str, workload: Workload) -> float:
    """Seconds of a call, in between by interpolation over FLOPs; endless for who declined most such workloads."""
    near = known.get((name, _kind(workload))) or known[name, None]
    points = sorted((one.workload.flops, one.latency.median) for one in near if one.latency is not None)
    if 2 * len(points) < len(near) or not points:
        return math.inf
    flops, seconds = np.array(points, float).T
    found = float(np.exp(np.interp(np.log(workload.flops), np.log(flops), np.log(seconds))))
    return found * max(1.0, workload.flops / points[-1][0])


def _kind(one: Workload) -> tuple[object, ...]:
    """Calls of one kind predict each other."""
    return one.direction, one.dtype, one.device, one.storage, one.d_model is None, one.queries == 1, one.mask


def sample(plan: Plan, count: int) -> Plan:
    """So many workloads of `plan`, evenly from the least FLOPs to the most, without the numerical chapter.

    Raises ValueError for less than `learned` needs.
    """
    count = min(count, len(plan.workloads))
    if count < LEAST_RACES:
        raise ValueError(
            f"an estimate needs {LEAST_RACES} races or more, and a sample of {count} is too small: "
            "give runs to learn from with --from"
        )
    order = sorted(plan.workloads, key=lambda one: one.flops)
    return only(plan, [order[round(one)] for one in np.linspace(0, len(order) - 1, count)], chapter=False)
