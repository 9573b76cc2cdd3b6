"""When to stop measuring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. Seconds throughout.

    A workload is raced for at least `min_rounds` rounds and until every verdict against the baseline is
    decided, but no longer than `workload_seconds`; where that leaves too few rounds for any interval, up to
    `extra_seconds` more. A contender whose call is predicted to take over `call_seconds` is not tried, and
    one whose answer does not come within `deadline_seconds` is killed.
    A turn is timed for at least `turn_seconds`, after untimed calls for as long, which a call of over
    `settle_below_seconds` does without. Differences up to `noise_margin` count as none.
    """

    min_rounds: int = 30
    max_rounds: int = 300
    workload_seconds: float = 4.0
    extra_seconds: float = 15.0
    call_seconds: float = 1.0
    deadline_seconds: float = 60.0
    turn_seconds: float = 0.005
    settle_below_seconds: float = 0.1
    noise_margin: float = 0.01
