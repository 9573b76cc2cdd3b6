"""What a contender takes before its calls are as fast as they become, and after how many calls that has paid off."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from attnlab.judge.pairing import Kind
from attnlab.judge.verdicts import verdicts_against
from attnlab.problem.result import Result


@dataclass(frozen=True)
class PayOff:
    """After `calls` calls `contender` has taken less time in all than `against`: the fastest that needs less set-up."""

    contender: str
    against: str
    calls: int


def pay_off(
    results: Collection[Result], contender: str, setups: dict[str, float] | None = None
) -> PayOff | None:
    """When the set-up of `contender` has paid off, by the medians of its calls and of those of the other results.

    calls = (S − S')/(t' − t), where S is a set-up, t a call, and S', t' are those of the fastest with S' < S. setups :
    seconds by contender, by default each result's own. None where the contender is not decidedly faster than that one,
    or nobody needs less, or it pays off with the first call.
    """
    known = {one.contender: one for one in results if one.latency is not None}
    seconds = setups or {
        name: one.setup_seconds for name, one in known.items() if one.setup_seconds is not None
    }
    if contender not in known or contender not in seconds:
        return None
    times = {name: one.latency.median for name, one in known.items() if one.latency is not None}
    leaner = [name for name in times if name in seconds and seconds[name] < seconds[contender]]
    if not leaner:
        return None
    against = min(leaner, key=lambda name: times[name])
    verdict = verdicts_against(known.values(), against).get(contender)
    saved = times[against] - times[contender]
    if verdict is None or verdict.kind is not Kind.FASTER or saved <= 0:
        return None
    calls = math.ceil((seconds[contender] - seconds[against]) / saved)
    return PayOff(contender, against, calls) if calls > 1 else None
