"""A fleet that was never there: machines that differ and die, shards of measured lengths, and when all is done.

Event by event: a machine that is free takes the shard that has most left. What it has finished when it dies stays, the
workload in flight is lost, and the shard goes back to the others; the machine comes back after a while. A shard whose
same workload has ended so many jobs is given up, as `attnlab.runs.sweep_work` does.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from attnlab.runs.sweep_work import MOST_DEATHS

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Machines: how many, and how they differ and die. All in seconds.

    spread : of the logarithm of their speeds (normal, mean 0). between_deaths : of one machine, on average, drawn from
    an exponential distribution. repair : until it is back. overhead : what every job takes beside its races. fatal :
    the part of workloads that end every job that tries them.
    """

    machines: int = 1000
    spread: float = 0.2
    between_deaths: float = 100 * 3600.0
    repair: float = 1800.0
    overhead: float = 60.0
    fatal: float = 0.0
    seed: int = 0


@dataclass
class Outcome:
    """What became of a sweep, in seconds. `tail` is when for the first time no shard waited, `end` when the last ended.

    busy : of all machine time until the tail, dead machines included, the part in which a shard was on a machine.
    useful : the part that went into races that count. ideal : the end if all work were cut into grains without loss.
    """

    end: float = 0.0
    tail: float = 0.0
    busy: float = 0.0
    useful: float = 0.0
    ideal: float = 0.0
    deaths: int = 0
    done: int = 0
    given_up: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass
class _Work:
    """One shard on its way: how many of its workloads are done, and how many jobs the next one has ended."""

    seconds: Floats
    fatal: NDArray[np.bool_]
    done: int = 0
    ended: int = 0

    @property
    def left(self) -> float:
        return float(self.seconds[self.done :].sum())


@dataclass(order=True)
class _Attempt:
    """A job on a machine until `until`."""

    until: float
    machine: int
    shard: int = field(compare=False)
    started: float = field(compare=False)
    finished: int = field(compare=False)
    died: bool = field(compare=False)


def simulate(shards: Sequence[Floats], fleet: Fleet) -> Outcome:
    """Carry out `shards`, each the seconds of its workloads on a machine of speed 1."""
    chance = np.random.default_rng(fleet.seed)
    speeds = np.exp(fleet.spread * chance.standard_normal(fleet.machines))
    work = [_Work(one, chance.random(len(one)) < fleet.fatal) for one in shards]
    waiting = [(-one.left, number) for number, one in enumerate(work)]
    heapq.heapify(waiting)
    free = [(0.0, machine) for machine in range(fleet.machines)]
    running: list[_Attempt] = []
    ended: list[tuple[float, float, float]] = []  # from, until, and seconds of races that count
    told, counted, clock = Outcome(), np.zeros(len(shards), int), 0.0
    told.tail = math.inf
    while waiting or running:
        while waiting and free and (not running or free[0][0] <= running[0].until):
            since, machine = heapq.heappop(free)
            now = max(since, clock)  # a shard may have come back after the machine was free
            _, number = heapq.heappop(waiting)
            heapq.heappush(
                running, _attempt(work[number], number, machine, now, speeds[machine], fleet, chance)
            )
            if not waiting:
                told.tail = min(told.tail, now)
        one = heapq.heappop(running)
        clock = one.until
        shard = work[one.shard]
        useful = float(shard.seconds[shard.done : one.finished].sum()) / speeds[one.machine]
        ended.append((one.started, one.until, useful))
        counted[one.shard] += one.finished - shard.done
        shard.ended = 0 if one.finished > shard.done else shard.ended
        shard.done = one.finished
        told.end = max(told.end, one.until)
        back = one.until
        if one.died:
            told.deaths += 1
            shard.ended += 1
            fatal = shard.done < len(shard.fatal) and shard.fatal[shard.done]
            back += 0.0 if fatal else fleet.repair
            if shard.ended >= MOST_DEATHS:
                told.given_up += 1
            else:
                heapq.heappush(waiting, (-shard.left, one.shard))
        heapq.heappush(free, (back, one.machine))
    whole = fleet.machines * told.tail
    told.busy = (
        sum(max(0.0, min(until, told.tail) - begun) for begun, until, _ in ended) / whole if whole else 1.0
    )
    told.useful = (
        sum(
            useful * max(0.0, min(until, told.tail) - begun) / (until - begun)
            for begun, until, useful in ended
        )
        / whole
        if whole
        else 1.0
    )
    told.ideal = sum(float(one.sum()) for one in shards) / float(speeds.sum())
    told.done = int(counted.sum())
    told.doubled = int(sum(max(0, count - len(one)) for count, one in zip(counted, shards, strict=True)))
    told.lost = sum(len(one.seconds) - one.done for one in work if one.ended < MOST_DEATHS)
    return told


def _attempt(
    work: _Work, shard: int, machine: int, now: float, speed: float, fleet: Fleet, chance: np.random.Generator
) -> _Attempt:
    """What one job will come to: it ends, or its machine or a fatal workload ends it before."""
    ends = now + fleet.overhead / speed + np.cumsum(work.seconds[work.done :]) / speed
    death = now + chance.exponential(fleet.between_deaths)
    fatal = np.flatnonzero(work.fatal[work.done :])
    if len(fatal):
        death = min(death, float(ends[fatal[0]]))
    finished = int(np.searchsorted(ends, death, side="left"))
    died = finished < len(ends)
    until = death if died else float(ends[-1])
    return _Attempt(until, machine, shard, now, work.done + finished, died)
