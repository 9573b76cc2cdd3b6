"""A plan cut into shards: whole workloads, of nearly equal cost, lengths of one kind side by side.

A race is never cut: all contenders of a workload stay in one shard. Workloads that differ in their lengths alone stand
together, so that how time grows with length is mostly seen on one machine.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from attnlab.problem.workload import Workload
from attnlab.runs.plan import Plan

#: workloads to a shard where nothing is said: starting the contenders and measuring ceilings takes as long as several
WORKLOADS_A_SHARD = 16
#: what may differ between two lengths of one kind
_SIZES = ("queries", "keys", "key_lengths", "seed")
_KIND = tuple(one.name for one in dataclasses.fields(Workload) if one.name not in _SIZES)


def joined(plans: Mapping[str, Plan]) -> Plan:
    """The workloads of all `plans`, each once, as one plan. Raises ValueError, naming it, for one that differs else."""
    (named, first), *others = plans.items()
    for name, other in others:
        for one in dataclasses.fields(Plan):
            if one.name not in ("workloads", "origins") and getattr(other, one.name) != getattr(
                first, one.name
            ):
                raise ValueError(
                    f"plans of one sweep may differ in their workloads alone, and {name} has other {one.name} than "
                    f"{named}: make them alike, or two sweeps"
                )
    origins: dict[Workload, str] = {}
    for plan in plans.values():
        for workload, origin in zip(plan.workloads, plan.origins or ("",) * len(plan.workloads), strict=True):
            origins.setdefault(workload, origin)
    told = tuple(origins.values()) if any(origins.values()) else ()
    return dataclasses.replace(first, workloads=tuple(origins), origins=told)


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
    order = side_by_side(plan.workloads)
    costs = costs[order]
    middle = np.cumsum(costs) - costs / 2  # of each workload, on a line of all of them
    part = np.minimum((middle * shards / costs.sum()).astype(int), shards - 1)
    chosen = np.split(np.array(order), np.flatnonzero(np.diff(part)) + 1)
    return [_part(plan, some.tolist(), first=number == 0) for number, some in enumerate(chosen)]


def shards_of(seconds: Sequence[float], hours: float) -> int:
    """How many shards of about so many hours workloads make that take `seconds`. Raises ValueError for no hours."""
    if not hours > 0:
        raise ValueError(f"--hours-per-shard must be above 0, got {hours:g}")
    return max(1, math.ceil(sum(seconds) / (3600 * hours)))


def side_by_side(workloads: Sequence[Workload]) -> list[int]:
    """The places of all workloads, those of one kind one after the other, kinds in the order of their first."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for place, one in enumerate(workloads):
        kinds.setdefault(tuple(getattr(one, name) for name in _KIND), []).append(place)
    return [place for some in kinds.values() for place in some]


def _part(plan: Plan, places: Sequence[int], *, first: bool) -> Plan:
    """The plan of the workloads at these places."""
    fields = {one.name: getattr(plan, one.name) for one in dataclasses.fields(plan)}
    fields["workloads"] = tuple(plan.workloads[place] for place in places)
    if plan.origins:
        fields["origins"] = tuple(plan.origins[place] for place in places)
    if not first:
        fields["experiments"] = ()
    return Plan(**fields)
