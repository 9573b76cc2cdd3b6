"""How long to measure; and what is not tried, because it would clearly take too long or too much memory.

Time is told by smaller calls of the same contender, memory by what any implementation holds, and by the formula that a
backend declares. What a call takes beyond that shows when it is made: a worker gets no more memory than is free, and is
ended at a deadline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from attnlab.stats.intervals import MARGIN
from attnlab.text import LARGEST, bytes_text, seconds_text, within
from attnlab.workload.mask_kinds import Part, Shape
from attnlab.workload.masks import Mask
from attnlab.workload.workload import GIVEN, Workload

#: what limits may be at most, where that is not `LARGEST`
UTMOST = {"visits": 1000, "most_visits": 1000, "rounds": 1000}
_MAY_BE_0 = ("run_delay", "noise_margin")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. All times are in seconds.

    visits, most_visits : of a workload, at least and at most.
    workload_seconds : no visit begins that would probably end later, once there are `visits`. A run shares out the
    seconds of all its workloads.
    rounds : of a visit, of the first one half as many; a contender whose turns would take more than its part of
    `visit_seconds` (a quarter of it in the first visit) has fewer. Where the time ends the visits it is no more than a
    visit's part of `workload_seconds`.
    call_seconds, most_call_seconds : a contender whose call takes longer in its first visit is left out, see `longest`.
    deadline_seconds : for one answer of a worker. start_seconds : to start one. turn_seconds : a turn lasts at least so
    long. warm_seconds : a worker computes so long before its first round. run_delay : a turn whose threads waited for a
    core for more than this part of it is disturbed. noise_margin : differences of up to this part count as none.
    Raises ValueError for what is no such number.
    """

    visits: int = 2
    most_visits: int = 100
    workload_seconds: float = 8.0
    rounds: int = 8
    visit_seconds: float = 4.0
    call_seconds: float = 0.5
    most_call_seconds: float = 5.0
    deadline_seconds: float = 60.0
    start_seconds: float = 120.0
    turn_seconds: float = 0.015
    warm_seconds: float = 0.03
    run_delay: float = 0.05
    noise_margin: float = MARGIN

    def __post_init__(self) -> None:
        for one in fields(self):
            value, whole = getattr(self, one.name), isinstance(one.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
                kind = "a whole number" if whole else "a number"
                raise ValueError(f"{one.name} must be {kind}, got {value!r}")
            if value != 0 or one.name not in _MAY_BE_0:
                within(one.name, value, UTMOST.get(one.name, LARGEST))
        if self.most_visits < self.visits:
            raise ValueError(f"most_visits must be at least visits, {self.visits}; got {self.most_visits}")

    def longest(self, fastest: float) -> float:
        """Seconds that a call may take where the fastest contender's takes `fastest`.

        `call_seconds`, or twice the fastest where that is more, up to `most_call_seconds`: a large size that was asked
        for is measured.
        """
        return max(self.call_seconds, min(2 * fastest, self.most_call_seconds))


def turns(limits: Limits, rounds: int, seconds: float, each: float, opening: float) -> tuple[int, int]:
    """How many calls a contender's turn has, and that it has a turn in one of so many rounds.

    seconds : for its turns in all `rounds`. each : of a call. opening : of one that is not timed, before the others.
    The steps are powers of two, so that the rounds of a slow contender are rounds of all others as well.
    """
    ticks, each = 1000 * time.get_clock_info("perf_counter").resolution, max(each, 1e-9)
    calls = max(1, math.ceil(max(limits.turn_seconds, ticks) / each))
    fitting = max(2.0, seconds / (calls * each + opening))
    most = 2 ** max(0, math.floor(math.log2(rounds / 2))) if rounds > 1 else 1
    return calls, min(most, 2 ** max(0, math.ceil(math.log2(rounds / fitting))))


#: of the memory that is free, this share may be planned with
USABLE = 0.85
#: lengths of smaller calls: each is about 16 times the one before in FLOPs
_FIRST_LENGTH, _GROWTH = 64, 4
#: a smaller call that takes less than this may be all overhead: a larger one tells. The first of them nearly always is
_TELLING_SECONDS, _FIRST_SECONDS = 0.02, 0.3
#: a call that is predicted to take up to so many times the limit is tried: on a busy machine small ones take long too
_SURE = 1.5


class Predicted(NamedTuple):
    """Seconds of a call, told by a smaller one in proportion to its FLOPs.

    at_most : those by the largest that was tried, infinite where none was. seconds : the same, but 0 where that one was
    so short that it may be all overhead.
    """

    at_most: float = math.inf
    seconds: float = 0.0
    by: str = ""

    def too_long(self, limit: float) -> str | None:
        """Why the call is not tried, or None."""
        if self.seconds <= _SURE * limit:
            return None
        told = f"a call would take about {seconds_text(self.seconds)}, estimated from {self.by}"
        return f"{told}; limit: {seconds_text(limit)}"


def predict(workload: Workload, seconds_of: Callable[[Workload], float | None], most: float) -> Predicted:
    """What a call of `workload` will take. Nothing larger is tried where that is clearly more than `most` seconds.

    seconds_of : the seconds of a call, None where the backend declines it.
    """
    found = Predicted()
    for number, rung in enumerate(rungs(workload)):
        seconds = seconds_of(rung)
        if seconds is not None:
            whole, tells = (
                seconds * workload.flops / rung.flops,
                _TELLING_SECONDS if number else _FIRST_SECONDS,
            )
            found = Predicted(whole, whole if seconds >= tells else 0.0, rung.label)
            if found.too_long(most):
                break
    return found


def rungs(workload: Workload) -> Iterator[Workload]:
    """Smaller workloads of one head of keys, each at most about 16 times the one before; none that is as large."""
    length, largest, whole = _FIRST_LENGTH, 0, max(workload.queries, workload.keys)
    while length < _GROWTH * whole:
        rung = shortened(workload, min(length, whole))
        if rung.flops * 2 > workload.flops:
            return
        if rung.flops > largest:
            largest = rung.flops
            yield rung
        length *= _GROWTH


def shortened(workload: Workload, length: int) -> Workload:
    """A smaller `workload`: one key head with its query heads (a block keeps all heads), no longer than `length`.

    The mask is kept as far as it fits. A window and the largest key length are cut to the keys. Another part that does
    not fit the smaller shape, such as a prefix beyond its keys, is left out.
    """
    queries, keys = min(length, workload.queries), min(length, workload.keys)
    window, lengths = workload.window, workload.key_lengths
    mask = workload.mask
    if mask != GIVEN:
        shape = Shape(1, 1, queries, keys)
        mask = Mask(tuple(part for part in Mask.parse(mask).parts if _fits(part, shape))).text
    return workload.with_(
        batch=1,
        heads=workload.heads if workload.d_model else workload.heads // workload.kv_heads,
        kv_heads=workload.kv_heads if workload.d_model else 1,
        queries=queries,
        keys=keys,
        window=window and tuple(min(side, keys) for side in window),
        key_lengths=lengths and (min(max(lengths), keys),),
        mask=mask,
    )


def _fits(part: Part, shape: Shape) -> bool:
    try:
        part.check(shape)
    except ValueError:
        return False
    return True


def too_large(workload: Workload, memory: Mapping[str, float] | None, free: int) -> str | None:
    """Why a worker has no room for `workload` in the `free` bytes, or None.

    memory : what the backend declares that a call holds, in score matrices and outputs; by default one output.
    """
    asked = {"outputs": 1.0, **(memory or {})}
    held = workload.input_bytes + asked["outputs"] * workload.output_bytes
    needed = int(held + asked.get("scores", 0.0) * workload.score_bytes)
    if workload.device == "cpu":
        needed += workload.output_bytes  # the answer goes to pages of its own
    if needed <= free * USABLE:
        return None
    return (
        f"it needs {bytes_text(needed)}, its inputs alone {bytes_text(workload.input_bytes)}; "
        f"{bytes_text(free)} are free, of which {USABLE:.0%} may be used"
    )
