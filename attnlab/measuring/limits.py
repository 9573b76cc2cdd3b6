"""When to stop measuring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. Seconds throughout.

    A workload is raced in `processes` fresh processes of each contender, one set after the other, and in more, up to
    `most_processes` if these are more, while a verdict against the baseline is undecided. It has at least `min_rounds`
    rounds in all and at most `max_rounds`, shared by the planned processes, but no more than fit into
    `workload_seconds`; where that leaves less than two rounds a process, up to `extra_seconds` more. A contender whose
    call is predicted to take over `call_seconds` is not tried, and one whose answer does not come within
    `deadline_seconds` is killed.
    A turn is timed for at least `turn_seconds`, after untimed calls for `settle_seconds`, which a call of over
    `settle_below_seconds` does without. A turn whose threads waited for a core for more than the part `run_delay` of
    its time does not count and is taken again. Differences up to `noise_margin` count as none.
    """

    processes: int = 5
    most_processes: int = 5
    min_rounds: int = 30
    max_rounds: int = 300
    workload_seconds: float = 3.0
    extra_seconds: float = 15.0
    call_seconds: float = 1.0
    deadline_seconds: float = 60.0
    turn_seconds: float = 0.015
    settle_seconds: float = 0.005
    settle_below_seconds: float = 0.1
    run_delay: float = 0.02
    noise_margin: float = 0.01
