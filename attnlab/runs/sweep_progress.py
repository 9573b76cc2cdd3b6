"""How far a sweep has come, from its files alone: any host that sees the folder can tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnlab.runs.lock import is_held
from attnlab.runs.results_file import RESULTS
from attnlab.runs.sweep_shards import Shard, Sweep

OUTCOMES = ("complete", "killed", "refused", "failed")
#: a host whose clock is further from the files' than this, in seconds, is named: no duration is taken over two clocks
CLOCK_APART = 5.0
#: of shards that ended for one reason, so many are named
_NAMED = 5


@dataclass(frozen=True)
class State:
    """How far one shard has come: `done` of `size` workloads.

    state : complete, killed, refused or failed, with the reason; running, waiting (for its host), stopped (to be gone
    on with), or open. seconds : what its attempts took so far, as far as they were seen. clock_s : by how much the
    files' clock is ahead of that of `host`, where its last attempt was.
    """

    number: int
    size: int
    done: int
    state: str
    reason: str | None = None
    host: str | None = None
    machines: tuple[str, ...] = ()
    attempts: int = 0
    seconds: float = 0.0
    clock_s: float = 0.0


@dataclass(frozen=True)
class Status:
    """A sweep as a whole. `seconds_left` is None while nothing is known of how long a workload takes."""

    states: tuple[State, ...]

    @property
    def size(self) -> int:
        """All workloads."""
        return sum(one.size for one in self.states)

    @property
    def done(self) -> int:
        """Workloads with all their results."""
        return sum(one.done for one in self.states)

    @property
    def over(self) -> bool:
        """Whether every shard is complete or has another outcome."""
        return all(one.state in OUTCOMES for one in self.states)

    @property
    def seconds_left(self) -> float | None:
        """With as many shards at work as now, at the pace so far, the start of contenders included."""
        left = sum(one.size - one.done for one in self.states if one.state not in OUTCOMES)
        seen = [one for one in self.states if one.seconds > 0 and one.done]
        if not left or not seen:
            return None if left else 0.0
        pace = sum(one.seconds for one in seen) / sum(one.done for one in seen)
        return pace * left / max(1, sum(one.state == "running" for one in self.states))

    def summary(self) -> str:
        """One line: how many workloads and shards are done, and the time left."""
        counts = Counter(one.state for one in self.states)
        order = (*OUTCOMES, "running", "waiting", "stopped", "open")
        counted = ", ".join(f"{counts[name]} {name}" for name in order if counts[name])
        text = f"{self.done} of {self.size} workloads; shards: {counted}"
        if self.over:
            return text
        if self.seconds_left is None:
            return f"{text}; time left not known yet"
        if self.seconds_left == 0:  # of races: what a run does behind its last one, nobody has foretold
            ends = "are ending" if counts["running"] else "have yet to end"
            return f"{text}; all is raced, the last runs {ends}"
        return f"{text}; about {duration(self.seconds_left)} left"

    def reasons(self) -> list[str]:
        """A line for every reason why shards ended without being complete, with those that it ended."""
        alike: dict[tuple[str, str], list[State]] = {}
        for one in self.states:
            if one.reason:
                alike.setdefault((one.state, one.reason), []).append(one)
        return [
            f"{_named(some)} {state} with {Status(tuple(some)).done} of {Status(tuple(some)).size} workloads: {why}"
            for (state, why), some in alike.items()
        ]

    def clocks(self) -> list[str]:
        """A line for every host whose clock is far from that of the files."""
        apart = {one.host: one.clock_s for one in self.states if abs(one.clock_s) > CLOCK_APART}
        return [
            f"the clock of {host} is {abs(found):.0f} s {'behind' if found > 0 else 'ahead of'} that of the files: "
            "dates of its runs are off by that, durations are not"
            for host, found in apart.items()
        ]


def _named(some: Sequence[State]) -> str:
    """``shard 3``, ``12 shards (3, 5, 6, 9, 10, ...)``."""
    if len(some) == 1:
        return f"shard {some[0].number}"
    first = [str(one.number) for one in some[:_NAMED]]
    return f"{len(some)} shards ({', '.join(first + ['...'] * (len(some) > _NAMED))})"


def duration(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172800 else f"{seconds / 86400:.1f} days"


def status(sweep: Sweep) -> Status:
    """How far every shard has come. Results are counted, not read."""
    return Status(tuple(_state(sweep, shard) for shard in sweep.shards))


def _state(sweep: Sweep, shard: Shard) -> State:
    journal, outcome = shard.journal(), shard.outcome(sweep.told.series) or {}
    starts = [one for one in journal if one["event"] == "started"]
    last: dict[str, Any] = starts[-1] if starts else {}
    if outcome:
        state = outcome["outcome"]
    elif is_held(shard.folder):
        state = "running" if journal and journal[-1]["event"] == "started" else "waiting"
    else:
        state = "stopped" if journal else "open"
    size = sweep.told.sizes[shard.number]
    return State(
        number=shard.number,
        size=size,
        done=size if state == "complete" else min(size, shard.lines() // sweep.told.contenders),
        state=state,
        reason=outcome.get("reason"),
        host=last.get("node") or last.get("host"),
        machines=tuple(dict.fromkeys(one["machine"] for one in starts)),
        attempts=len(starts),
        seconds=_seconds(shard, journal),
        clock_s=last.get("clock_s", 0.0),
    )


def _seconds(shard: Shard, journal: Sequence[dict[str, Any]]) -> float:
    """What its attempts took: those that ended by their host's clock, others until their last result, by the files'."""
    total, begun = 0.0, None
    for one in [*journal, {"event": "started"}]:
        if one["event"] == "ended" and begun is not None:
            total, begun = total + max(0.0, one["time"] - begun["time"]), None
        elif one["event"] == "started":
            file = shard.folder / begun["run"] / RESULTS if begun is not None else None
            if begun is not None and file is not None and file.exists():
                total += max(0.0, file.stat().st_mtime - (begun["time"] + begun["clock_s"]))
            begun = one
    return total
