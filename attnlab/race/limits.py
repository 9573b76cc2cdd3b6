"""When to stop measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from attnlab.stats.verdicts import MARGIN
from attnlab.workload.declaring import MOST, UTMOST_PROCESSES, within

#: rounds that a process has, however long they take, while there is time; a call before the first of them is not timed
LEAST_ROUNDS = 2
#: calls that one request may make of a worker: those that are checked, or that memory is read from, and some to spare
_CALLS = 5
#: what limits may be at most, where that is not `MOST`
UTMOST = {"processes": UTMOST_PROCESSES, "most_processes": UTMOST_PROCESSES}
_MAY_BE_0 = frozenset(
    [
        "further_above",
        "extra_seconds",
        "settle_seconds",
        "settle_below_seconds",
        "run_delay",
        "noise_margin",
        "narrow",
    ]
)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. Seconds throughout.

    A workload is raced in `processes` processes of each contender, one in each set of processes, and in more, up to
    `most_processes` if these are more, where those leave something undecided: with `further_above` 0 a verdict
    against the baseline, else the lead of the fastest over the next implementation that may be as fast, where it is
    of more than that part. It has at least `min_rounds` rounds in all and at most `max_rounds`, shared by the planned
    processes, but no more than fit into `workload_seconds`, and no more once every interval that is asked for reaches
    no further than `narrow`; where that leaves less than two rounds a process, up to `extra_seconds` more. Who takes
    over `far_behind` times as long as the fastest has one round in three of the sets, beside that time. A contender
    whose call is predicted to take over `longest_call` is not tried: over `call_seconds`, or more where the time of a
    workload has room for that. One whose answer does not come within `deadline_seconds` is killed, and one whose
    process has not loaded its backend within `start_seconds`. A turn is timed for at least `turn_seconds` and two
    calls, after untimed calls for `settle_seconds`; a call of over `settle_below_seconds` does without these, and is
    timed alone. Calls whose threads waited for a core for more than the part `run_delay` of their time do not count;
    a turn of such calls alone is taken again. Differences up to `noise_margin` count as none. Raises ValueError for
    what is no such number.
    """

    processes: int = 5
    most_processes: int = 8
    further_above: float = 0.15
    far_behind: float = 4.0
    min_rounds: int = 30
    max_rounds: int = 300
    workload_seconds: float = 3.0
    extra_seconds: float = 15.0
    call_seconds: float = 1.0
    deadline_seconds: float = 60.0
    start_seconds: float = 120.0
    turn_seconds: float = 0.015
    settle_seconds: float = 0.005
    settle_below_seconds: float = 0.1
    run_delay: float = 0.02
    noise_margin: float = MARGIN
    narrow: float = 0.03

    def __post_init__(self) -> None:
        for one in fields(self):
            value, whole = getattr(self, one.name), isinstance(one.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"{one.name} must be {kind}, got {value!r}")
            if value != 0 or one.name not in _MAY_BE_0:
                within(one.name, value, UTMOST.get(one.name, MOST))

    @property
    def utmost_seconds(self) -> float:
        """For the rounds of a workload, the extra time included."""
        return self.workload_seconds + self.extra_seconds

    def longest_call(self, contenders: int) -> float:
        """Seconds that a call may take where so many contenders race.

        As many as leave all of them the least rounds in every process, or `call_seconds` if that is more.
        """
        calls = max(2, contenders) * self.processes * (LEAST_ROUNDS + 1)
        return max(self.call_seconds, self.utmost_seconds / calls)

    def typed(self, seconds: float) -> str:
        """What is typed to give the rounds of a workload so many seconds."""
        return f"--seconds {math.ceil(seconds)}"

    def allowing(self, call_seconds: float, contenders: int) -> str:
        """What is typed so that a call of so many seconds is tried."""
        utmost = call_seconds * max(2, contenders) * self.processes * (LEAST_ROUNDS + 1)
        return self.typed(max(1, utmost - self.extra_seconds))

    def deadline(self, contenders: int) -> float:
        """Seconds for an answer where so many contenders race: `deadline_seconds`, more where calls may be longer."""
        longest = self.longest_call(contenders)
        return max(self.deadline_seconds, _CALLS * longest if longest > self.call_seconds else 0.0)
