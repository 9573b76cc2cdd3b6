"""Seeing a sweep through: jobs for what has none, until every shard is complete or has another outcome."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from attnlab.errors import Unavailable
from attnlab.runs.interrupts import terminable
from attnlab.runs.sweep_folder import Shard
from attnlab.runs.sweep_jobs import Cluster
from attnlab.runs.sweep_progress import OUTCOMES, Status, status
from attnlab.runs.sweep_work import MOST_DEATHS, end, judge

#: how often jobs are looked at, in seconds: seldom, because on this host somebody measures meanwhile
_LOOKS = {"slurm": 10.0, "local": 2.0}
#: Slurm may be away for so many looks
_PATIENCE = 30


@dataclass
class Following:
    """The jobs of one sweep, watched by one process. `tell` is called with the status at every look."""

    cluster: Cluster
    tell: Callable[[Status], None] = lambda found: None
    looks: float | None = None
    #: by shard: results when its last job was submitted, and jobs submitted since there are so many
    _results: dict[int, int] = field(default_factory=dict)
    _tries: dict[int, int] = field(default_factory=dict)

    def see_through(self) -> Status:
        """Until the sweep is over. An interrupt, SIGTERM too, asks the jobs to end; what they have done is kept.

        Raises KeyboardInterrupt then, when they have ended; a second interrupt does not wait for them.
        """
        with terminable():
            try:
                return self._until_over()
            except KeyboardInterrupt:
                self.cluster.end()
                raise

    def _until_over(self) -> Status:
        away = 0
        while True:
            try:
                self.submit()
                away = 0
            except Unavailable:  # a controller that is started again
                away += 1
                if away > _PATIENCE:
                    raise
            found = status(self.cluster.sweep)
            self.tell(found)
            if found.over:
                return found
            time.sleep(_LOOKS[self.cluster.asked.cluster] if self.looks is None else self.looks)

    def submit(self) -> None:
        """Jobs for all shards that have none and no outcome."""
        series, there = self.cluster.sweep.told.series, self.cluster.alive()
        idle = [
            one
            for one in self.cluster.sweep.shards
            if one.number not in there and one.outcome(series) is None and not self._given_up(one)
        ]
        for number in self.cluster.submit([one.number for one in idle]):
            self._tries[number] = self._tries_of(self.cluster.sweep.shard(number)) + 1
            self._results[number] = self.cluster.sweep.shard(number).lines()

    def _given_up(self, shard: Shard) -> bool:
        """Whether another job for it would be in vain; its outcome is noted then."""
        series = self.cluster.sweep.told.series
        if shard.journal() and judge(shard, series) is not None:
            return True
        tries = self._tries_of(shard)
        if tries <= MOST_DEATHS:  # one job more than those that a journal tells of
            return False
        log = self.cluster.log(shard.number)
        reason = f"{tries} jobs ended without a result; what the last printed is in {log}"
        end(shard, series, "failed", reason)
        return True

    def _tries_of(self, shard: Shard) -> int:
        """Jobs that were submitted for it since it had its last result."""
        same = shard.lines() == self._results.get(shard.number)
        return self._tries.get(shard.number, 0) if same else 0


def summary(found: Status) -> str:
    """One line: how many workloads and shards are done, and the time left."""
    counted = [
        f"{number} {name}"
        for name in (*OUTCOMES, "running", "waiting", "stopped", "open")
        if (number := found.count(name))
    ]
    return f"{found.done} of {found.size} workloads; shards: {', '.join(counted)}{_time_left(found)}"


def _time_left(found: Status) -> str:
    if found.over:
        return ""
    if found.seconds_left is None:
        return "; time left not known yet"
    if found.seconds_left == 0:  # of races: what a run does behind its last one, nobody has foretold
        return (
            f"; all is raced, the last runs {'are ending' if found.count('running') else 'have yet to end'}"
        )
    return f"; about {duration(found.seconds_left)} left"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"
