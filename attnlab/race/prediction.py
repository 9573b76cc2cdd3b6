"""Time and memory of contenders at a length that is not tried, from races at shorter lengths of the same workload."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from attnlab.backends.contender import parse_all
from attnlab.race.admission import USABLE, shortened
from attnlab.race.compare import PROCESSES, SECONDS
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.stats.prediction import Prediction, predict
from attnlab.system import free_bytes
from attnlab.text import bytes_text, listed, ratio_text, seconds_text
from attnlab.workload.result import Result
from attnlab.workload.workload import Workload

#: lengths that are raced: the shortest, and how many there must be
_FIRST_LENGTH, _LEAST = 64, 7
#: a figure whose interval is wider than by this factor is none; below this other one it is close enough
_WIDE, _CLOSE = 30.0, 3.0
#: a race at each length is to be short: parts of its seconds that a call may take, and the rounds beyond them
_CALL, _EXTRA = 0.125, 2.5


@dataclass(frozen=True)
class Predicted:
    """What contenders would take for `workload`: seconds a call, and peak memory in bytes, output included, inputs not.

    Each by contender, without those that were measured at too few lengths, or of which too little follows; `reasons`
    then says why. `race_seconds` is how long the rounds at one length were to take.
    """

    workload: Workload
    seconds: dict[str, Prediction]
    peak_bytes: dict[str, Prediction]
    reasons: dict[str, str]
    race_seconds: float = 0.0

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and a row a contender."""
        rows = []
        for name in self.seconds | self.peak_bytes:
            row, both = [name], (self.seconds.get(name), self.peak_bytes.get(name))
            for each, text in zip(both, (seconds_text, bytes_text), strict=True):
                row += [text(each.value), f"{text(each.low)} to {text(each.high)}"] if each else ["", ""]
            rows.append([*row, str(max(each.longest for each in both if each))])
        return ["contender", "time", "95 % interval", "peak", "95 % interval", "measured up to"], rows

    def sentences(self) -> list[str]:
        """What is to be known beside the figures: that it was not run, why there are none, how far they reach."""
        said = [f"{self.workload.label} was not run: these are predictions."]
        said += [f"{name}: {why}." for name, why in self.reasons.items()]
        first = min(self.seconds, key=lambda name: self.seconds[name].value, default="")
        for name, one in self.seconds.items():
            least = one.low / self.seconds[first].high
            if least > 1:
                said.append(f"{name} would take at least {ratio_text(least)} times as long as {first}.")
            elif name != first:
                said.append(
                    f"Whether {first} or {name} is faster there does not follow: their intervals overlap."
                )
        times = {name: self.seconds.get(name) for name in self.seconds | self.peak_bytes}
        wide = [
            name
            for name, one in times.items()
            if not one or (2 * one.longest < one.length and one.high > _CLOSE * one.low)
        ]
        if self.race_seconds and wide:
            said.append(
                f"--seconds {4 * self.race_seconds:g} may tell {listed(wide)} more closely: it measures calls of up to "
                f"{seconds_text(4 * self.race_seconds * _CALL)}, and takes two to four times as long."
            )
        said += [
            f"{name} was measured only up to {one.longest}: what changes on the way to {one.length}, as where a cache "
            "ends, may not be in its intervals."
            for name, one in self.seconds.items()
            if one.far
        ]
        free = free_bytes() if self.workload.device == "cpu" else math.inf
        for name, one in self.peak_bytes.items():
            if one.high > free * USABLE:
                may = "would" if one.low > free * USABLE else "may"
                said.append(f"{name} {may} not fit: {bytes_text(free)} are free here.")
        return said

    def to_json(self) -> dict[str, Any]:
        """Plain data for other programs."""
        return asdict(self) | {"workload": self.workload.to_dict()}


def predicted(
    texts: Sequence[str],
    workload: Workload,
    *,
    seconds: float | None = None,
    processes: int = PROCESSES,
    **how: Any,
) -> Predicted:
    """What each contender would take for `workload`, by races at lengths up to half of its own.

    seconds : for the rounds at one length, 1 for each contender by default. processes : of each contender, five at
    most. how : folders and on_event, as for `compare`. Raises ValueError as `compare` does, and as `ladder`.
    """
    contenders, rungs, found = parse_all(texts), list(ladder(workload)), list[Result]()
    for one in contenders:
        one.require(how.get("folders", ()))
    spent, count = seconds or SECONDS * len(contenders), min(PROCESSES, processes)
    brief: dict[str, Any] = {"call_seconds": _CALL * spent, "extra_seconds": _EXTRA * spent}
    limits = Limits(workload_seconds=spent, processes=count, most_processes=count, **brief)
    with Conductor(contenders, limits=limits, **how) as conductor:
        for rung in rungs:
            found += conductor.race(rung)
            if not any(one.latency for one in found[-len(contenders) :]):
                break
    return replace(carried_on(found, workload), race_seconds=spent)


def carried_on(results: Sequence[Result], workload: Workload) -> Predicted:
    """What each contender would take for `workload`, by its `results` on shorter ones."""
    length, found = _length(workload), Predicted(workload, {}, {}, {})
    rungs = [workload, *(one.workload for one in results)] if workload.queries == workload.keys else []
    kept = {_length(one): one.pairs / (one.batch * one.heads) for one in rungs}
    for name in dict.fromkeys(one.contender for one in results):
        mine = [one for one in results if one.contender == name]
        times = {_length(one.workload): one.latency.median for one in mine if one.latency}
        asked = [workload, *(one.workload for one in mine)]
        returned = {_length(one): float(one.output_bytes) for one in asked}
        # what is returned is known: a peak of no more is one of a byte more
        peaks = {
            _length(one.workload): max(one.workload.output_bytes + 1.0, one.peak_bytes)
            for one in mine
            if one.peak_bytes
        }
        of_time, of_memory = predict(times, length, kept or None), predict(peaks, length, sure=returned)
        said = []
        for what, one, told in (("time", of_time, found.seconds), ("peak", of_memory, found.peak_bytes)):
            if one and one.high > _WIDE * one.low:
                said.append(what)
            elif one:
                told[name] = one
        if said:
            found.reasons[name] = f"its {' and '.join(said)} does not follow from lengths up to {max(times)}"
        elif not (of_time and of_memory):
            what, count = ("peak", len(peaks)) if of_time else ("time", len(times))
            few = f"its {what} was measured at {count} lengths, of {_LEAST} that it takes"
            found.reasons[name] = next((f"{few}; {one.reason}" for one in mine if one.reason), few)
    return found


def ladder(workload: Workload) -> Iterator[Workload]:
    """`workload` at lengths from 64 to half of its own, each about 1.4 times the one before.

    Where queries and keys differ in number, the longer side is the length and the other stays. Raises ValueError where
    there are too few lengths.
    """
    shorter, longer = sorted((workload.queries, workload.keys))
    first = max(_FIRST_LENGTH, shorter if shorter < longer else 0)
    steps = (step for power in range(6, 24) for step in (2**power, 3 * 2 ** (power - 1)))
    lengths = [one for one in steps if first <= one <= longer // 2]
    if len(lengths) < _LEAST:
        raise ValueError(
            f"--predict needs {_LEAST} lengths from {first} to half of the one asked for, and {longer} leaves "
            f"{len(lengths)}: measure it, without --predict"
        )
    for one in lengths:
        rung = shortened(workload, one)
        sizes = {name: getattr(workload, name) for name in ("batch", "heads", "kv_heads")}
        kept = [max(1, each * rung.keys // workload.keys) for each in workload.key_lengths or ()]
        yield rung.with_(**sizes, key_lengths=tuple(kept) or None)


def _length(one: Workload) -> int:
    return max(one.queries, one.keys)
