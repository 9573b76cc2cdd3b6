"""Time and memory of contenders at a length that is not tried, from races at shorter lengths of the same workload."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnlab.backend.contender import parse_all
from attnlab.judge.prediction import Prediction, predict
from attnlab.problem.result import Result
from attnlab.problem.workload import Workload
from attnlab.race.admission import USABLE, shortened
from attnlab.race.compare import PROCESSES, SECONDS
from attnlab.race.conductor import Conductor
from attnlab.race.limits import Limits
from attnlab.system import free_bytes
from attnlab.text import bytes_text, seconds_text

#: lengths that are raced: the shortest, and how many there must be
_FIRST_LENGTH, _LEAST = 64, 7
#: a time whose interval is wider than by this factor is none
_WIDE = 30.0
#: seconds that a call may take, and the rounds beyond their time: a race at each length is to be short
_CALL, _EXTRA = 0.25, 5.0


@dataclass(frozen=True)
class Predicted:
    """What contenders would take for `workload`: seconds a call, and peak memory in bytes, output included, inputs not.

    Each by contender, without those that were measured at too few lengths; `reasons` then says why.
    """

    workload: Workload
    seconds: dict[str, Prediction]
    peak_bytes: dict[str, Prediction]
    reasons: dict[str, str]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers, and a row a contender."""
        rows = []
        for name, one in self.seconds.items():
            row = [name]
            for each, text in ((one, seconds_text), (self.peak_bytes.get(name), bytes_text)):
                row += [text(each.value), f"{text(each.low)} to {text(each.high)}"] if each else ["", ""]
            rows.append([*row, str(one.longest)])
        return ["contender", "time", "95 % interval", "peak", "95 % interval", "measured up to"], rows

    def sentences(self) -> list[str]:
        """What is to be known beside the figures: that it was not run, why there are none, how far they reach."""
        said = [f"{self.workload.label} was not run: these are predictions."]
        said += [f"{name} is not predicted: {why}." for name, why in self.reasons.items()]
        said += [
            f"{name} was measured up to {one.longest} alone: what changes on the way to {one.length}, as where a cache "
            "ends, may not be in its intervals."
            for name, one in self.seconds.items()
            if one.far
        ]
        free = free_bytes() if self.workload.device == "cpu" else math.inf
        large = [name for name, one in self.peak_bytes.items() if one.low > free * USABLE]
        return said + [f"{one} would not fit: {bytes_text(free)} are free here." for one in large]

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
    brief: dict[str, Any] = {"call_seconds": _CALL, "extra_seconds": _EXTRA}
    limits = Limits(workload_seconds=spent, processes=count, most_processes=count, **brief)
    with Conductor(contenders, limits=limits, **how) as conductor:
        for rung in rungs:
            found += conductor.race(rung)
            if not any(one.latency for one in found[-len(contenders) :]):
                break
    return carried_on(found, workload)


def carried_on(results: Sequence[Result], workload: Workload) -> Predicted:
    """What each contender would take for `workload`, by its `results` on shorter ones."""
    length, found = _length(workload), Predicted(workload, {}, {}, {})
    rungs = [workload, *(one.workload for one in results)] if workload.queries == workload.keys else []
    kept = {_length(one): one.pairs / (one.batch * one.heads) for one in rungs}
    for name in dict.fromkeys(one.contender for one in results):
        mine = [one for one in results if one.contender == name]
        times = {_length(one.workload): one.latency.median for one in mine if one.latency}
        # what is returned is known: the law is looked for in what is held beside it
        beside = {
            _length(one.workload): max(1.0, one.peak_bytes - one.workload.output_bytes)
            for one in mine
            if one.peak_bytes
        }
        of_time, of_memory = predict(times, length, kept or None), predict(beside, length)
        if of_time and of_time.high > _WIDE * of_time.low:
            span = f"{seconds_text(of_time.low)} to {seconds_text(of_time.high)}"
            said = f"from lengths up to {of_time.longest} nothing closer follows than {span}"
            found.reasons[name], of_time = f"{said}; ask for a shorter one, or measure it", None
        if of_time:
            found.seconds[name] = of_time
        if of_memory:
            found.peak_bytes[name] = of_memory.plus(workload.output_bytes)
        if not (of_time and of_memory) and name not in found.reasons:
            few = f"{len(times)} lengths were measured, of {_LEAST} that it takes"
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
