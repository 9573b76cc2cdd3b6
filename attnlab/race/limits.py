"""How long to measure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from attnlab.stats.verdicts import MARGIN
from attnlab.workload.declaring import MOST, within

#: what limits may be at most, where that is not `MOST`
UTMOST = {"visits": 1000, "most_visits": 1000, "rounds": 1000}
_MAY_BE_0 = ("run_delay", "noise_margin")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. Seconds throughout.

    visits, most_visits : of a workload; more than the first only while a verdict is undecided.
    workload_seconds : after so many no further visit begins, once there are three. A run
    shares out the seconds of all its workloads.
    rounds : of a visit; a contender whose turns would take more than its part of `visit_seconds` has fewer.
    call_seconds : a contender whose call takes longer is left out. deadline_seconds : for one answer of a worker.
    start_seconds : to start one. turn_seconds : a turn lasts at least so long. warm_seconds : a worker computes so long
    before its first round. run_delay : a turn whose threads waited for a core for more than this part of it is
    disturbed. noise_margin : differences of up to this part count as none.
    Raises ValueError for what is no such number.
    """

    visits: int = 5
    most_visits: int = 8
    workload_seconds: float = 10.0
    rounds: int = 12
    visit_seconds: float = 3.0
    call_seconds: float = 1.0
    deadline_seconds: float = 60.0
    start_seconds: float = 120.0
    turn_seconds: float = 0.015
    warm_seconds: float = 0.1
    run_delay: float = 0.05
    noise_margin: float = MARGIN

    def __post_init__(self) -> None:
        for one in fields(self):
            value, whole = getattr(self, one.name), isinstance(one.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"{one.name} must be {kind}, got {value!r}")
            if value != 0 or one.name not in _MAY_BE_0:
                within(one.name, value, UTMOST.get(one.name, MOST))
