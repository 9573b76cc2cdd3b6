"""How long to measure, and which calls are not tried because they would clearly take too long or too much memory.

Time is predicted from smaller calls of the same contender. Memory is predicted from the sizes of inputs and output, and
from what a backend declares. A worker whose call needs more than predicted is still limited: it gets no more memory
than is free, and is ended at a deadline.
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

#: upper bounds of limits; all others are bounded by `LARGEST`
UTMOST = {"visits": 1000, "most_visits": 1000, "rounds": 1000}
_MAY_BE_0 = ("run_delay", "noise_margin")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When to stop measuring. All times are in seconds.

    visits, most_visits : the least and the largest number of visits to a workload.
    workload_seconds : time for the visits to a workload. After the first `visits` visits, none begins that would
    probably end later. A run adds up the seconds of all its workloads and shares them out.
    rounds : rounds of a visit; the first visit has half as many.
    visit_seconds : time for the turns of a visit, a quarter of it in the first visit. Each contender has an equal part.
    A contender whose turns would take longer has turns in fewer rounds. Unless `visits` equals `most_visits`, this time
    is at most `workload_seconds` / `visits`.
    call_seconds, most_call_seconds : a contender whose call takes longer in its first visit is left out; see `longest`.
    deadline_seconds : the longest wait for one answer of a worker. start_seconds : the longest wait until one has
    started. turn_seconds : a turn lasts at least this long. warm_seconds : a worker computes at least this long before
    its first round. run_delay : a turn is disturbed if its threads waited for a core for more than this fraction of its
    time. noise_margin : relative differences up to this count as none.
    Raises ValueError for a value that is no such number, or out of bounds.
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
        """Seconds that a call may take if a call of the fastest contender takes `fastest`.

        `call_seconds`, or twice the fastest if that is longer, up to `most_call_seconds`: large workloads are measured.
        """
        return max(self.call_seconds, min(2 * fastest, self.most_call_seconds))


def turns(limits: Limits, rounds: int, seconds: float, each: float, opening: float) -> tuple[int, int]:
    """The number of calls in a contender's turn, and the step n: the contender has a turn in every n-th round.

    seconds : for its turns in all `rounds`. each : seconds of a call. opening : seconds of the call that comes first
    and is not timed. Steps are powers of two, so that in a round of a slow contender every faster one has a turn too.
    """
    ticks, each = 1000 * time.get_clock_info("perf_counter").resolution, max(each, 1e-9)
    calls = max(1, math.ceil(max(limits.turn_seconds, ticks) / each))
    fitting = max(2.0, seconds / (calls * each + opening))
    most = 2 ** max(0, math.floor(math.log2(rounds / 2))) if rounds > 1 else 1
    return calls, min(most, 2 ** max(0, math.ceil(math.log2(rounds / fitting))))


#: a call is tried if its predicted memory is at most this fraction of the free memory
USABLE = 0.85
#: the first length of the smaller calls, and the factor to the next one, which has about 16 times the FLOPs
_FIRST_LENGTH, _GROWTH = 64, 4
#: seconds that a smaller call must take to predict a larger one, because a shorter one may be all overhead; seconds for
#: the first smaller call, which nearly always is
_TELLING_SECONDS, _FIRST_SECONDS = 0.02, 0.3
#: a call is tried if its predicted time is up to this many times the limit: on a busy machine small calls are slow too
_SURE = 1.5


class Predicted(NamedTuple):
    """Seconds of a call, predicted from a smaller call in proportion to its FLOPs.

    at_most : the prediction from the largest call that was tried; infinite if none was tried. seconds : the same, but 0
    if that call was so short that it may be all overhead. by : the label of that call.
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
    """The predicted time of a call of `workload`. Stops as soon as that is clearly more than `most` seconds.

    seconds_of : gives the seconds of a smaller call, None if the backend declines it.
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
    """Smaller workloads, each with up to about 16 times the last one's FLOPs; none has over half of `workload`'s."""
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
    """A smaller `workload`: batch 1, up to `length` long, one key head with its query heads (a block keeps all heads).

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
    """Why `workload` does not fit into the `free` bytes, or None.

    memory : by its backend's file, the "scores" (score matrices) and "outputs" that a call holds; by default one
    output.
    """
    asked = {"outputs": 1.0, **(memory or {})}
    held = workload.input_bytes + asked["outputs"] * workload.output_bytes
    needed = int(held + asked.get("scores", 0.0) * workload.score_bytes)
    if workload.device == "cpu":
        needed += workload.output_bytes  # the answer is copied to shared pages
    if needed <= free * USABLE:
        return None
    return (
        f"it needs {bytes_text(needed)}, its inputs alone {bytes_text(workload.input_bytes)}; "
        f"{bytes_text(free)} are free, of which {USABLE:.0%} may be used"
    )
